// Every op that a peer can execute: a closed set. What each one means (operands, attributes, shapes, vjp,
// cost) is its row in dag/ops/<family>.cc; docs/OPS.md is generated from those rows.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft::dag {

enum class OpKind : uint8_t {
  // leaves
  Input,
  Initializer,
  Constant,
  // elementwise, one operand
  Neg,
  Abs,
  Sign,
  Exp,
  Log,
  Sqrt,
  Reciprocal,
  Sin,
  Cos,
  Tan,
  Asin,
  Acos,
  Atan,
  Sinh,
  Cosh,
  Asinh,
  Acosh,
  Atanh,
  Tanh,
  Sigmoid,
  Relu,
  Erf,
  Gelu,
  Softplus,
  Floor,
  Ceil,
  Round,
  Not,
  IsNaN,
  IsInf,
  Cast,
  Clip,
  // elementwise, two or three operands, broadcast as numpy does
  Add,
  Sub,
  Mul,
  Div,
  Pow,
  Min,
  Max,
  Mod,
  And,
  Or,
  Xor,
  Equal,
  Less,
  LessEqual,
  Greater,
  GreaterEqual,
  Where,
  // cotangents of elementwise ops that deserve one pass over memory
  ReluGrad,
  TanhGrad,
  SigmoidGrad,
  GeluGrad,
  // shape
  Reshape,
  Transpose,
  Expand,
  Slice,
  SliceGrad,
  Concat,
  Pad,
  PadGrad,
  Gather,
  GatherGrad,
  GatherElements,
  GatherElementsGrad,
  Reorder,
  // reduction
  ReduceSum,
  ReduceMean,
  ReduceMax,
  ReduceMin,
  ReduceProd,
  ArgMax,
  ArgMin,
  CumSum,
  // matmul
  MatMul,
  // convolution
  Conv,
  ConvGradInput,
  ConvGradWeight,
  // normalisation
  BatchNorm,
  BatchNormGrad,
  BatchNormInference,
  LayerNorm,
  LayerNormGrad,
  // softmax
  Softmax,
  SoftmaxGrad,
  LogSoftmax,
  LogSoftmaxGrad,
  CrossEntropy,
  CrossEntropyGrad,
  // pooling
  MaxPool,
  MaxPoolGrad,
  AveragePool,
  AveragePoolGrad,
  // random
  Dropout,
};
inline constexpr int kOpKindCount = static_cast<int>(OpKind::Dropout) + 1;

std::string_view to_string(OpKind kind);  // "MatMul"

}  // namespace weft::dag
