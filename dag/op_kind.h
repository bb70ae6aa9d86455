// Every op that a peer can execute: a closed set. What each one means (operands, attributes, shapes, vjp,
// cost) is its row in dag/ops/<family>.cc; docs/OPS.md is generated from those rows. Its name here is what
// travels: a graph on the wire names its ops.
#pragma once

#include <cstdint>
#include <string_view>

// clang-format off
#define WEFT_OP_KINDS(OP) \
  /* leaves */ \
  OP(Input) OP(Initializer) OP(Constant) \
  /* elementwise, one operand */ \
  OP(Neg) OP(Abs) OP(Sign) OP(Exp) OP(Log) OP(Sqrt) OP(Reciprocal) OP(Sin) OP(Cos) OP(Tan) OP(Asin) \
  OP(Acos) OP(Atan) OP(Sinh) OP(Cosh) OP(Asinh) OP(Acosh) OP(Atanh) OP(Tanh) OP(Sigmoid) OP(Relu) OP(Erf) \
  OP(Gelu) OP(Softplus) OP(Floor) OP(Ceil) OP(Round) OP(Not) OP(IsNaN) OP(IsInf) OP(Cast) OP(Clip) \
  OP(RoundThrough) OP(RoundToHalf) OP(BitNot) \
  /* elementwise, two or three operands, broadcast as numpy does */ \
  OP(Add) OP(Sub) OP(Mul) OP(Div) OP(Pow) OP(Min) OP(Max) OP(Mod) OP(And) OP(Or) OP(Xor) OP(Equal) OP(Less) \
  OP(LessEqual) OP(Greater) OP(GreaterEqual) OP(Where) OP(BitAnd) OP(BitOr) OP(BitXor) OP(ShiftLeft) \
  OP(ShiftRight) \
  /* cotangents of elementwise ops that deserve one pass over memory */ \
  OP(ReluGrad) OP(TanhGrad) OP(SigmoidGrad) OP(GeluGrad) \
  /* shape */ \
  OP(Reshape) OP(Transpose) OP(Expand) OP(Slice) OP(SliceGrad) OP(Concat) OP(Pad) OP(PadGrad) OP(Gather) \
  OP(GatherGrad) OP(GatherElements) OP(GatherElementsGrad) OP(Reorder) OP(ScatterElements) \
  OP(CacheWrite) \
  /* reduction */ \
  OP(ReduceSum) OP(ReduceMean) OP(ReduceMax) OP(ReduceMin) OP(ReduceProd) OP(ArgMax) OP(ArgMin) OP(CumSum) \
  OP(TopK) \
  /* matmul */ \
  OP(MatMul) OP(IntegerMatMul) OP(StoredMatMul) OP(StoredWeight) OP(Attention) OP(AttentionGrad) OP(Det) \
  OP(DetGrad) \
  /* convolution */ \
  OP(Conv) OP(ConvGradInput) OP(ConvGradWeight) OP(IntegerConv) \
  /* normalisation */ \
  OP(BatchNorm) OP(BatchNormGrad) OP(BatchNormInference) OP(LayerNorm) OP(LayerNormGrad) \
  /* softmax */ \
  OP(Softmax) OP(SoftmaxGrad) OP(LogSoftmax) OP(LogSoftmaxGrad) OP(CrossEntropy) OP(CrossEntropyGrad) \
  /* pooling */ \
  OP(MaxPool) OP(MaxPoolGrad) OP(AveragePool) OP(AveragePoolGrad) \
  /* random */ \
  OP(Dropout) OP(RandomUniform) OP(RandomNormal) \
  /* sampling at places between elements */ \
  OP(Resample) OP(ResampleGrad) OP(GridSample) OP(GridSampleGrad) OP(RoiAlign) OP(RoiAlignGrad) \
  OP(DeformColumns) OP(DeformColumnsGrad) \
  /* recurrent */ \
  OP(Lstm) OP(LstmGrad) OP(Gru) OP(GruGrad) OP(Rnn) OP(RnnGrad)
// clang-format on

namespace weft::dag {

enum class OpKind : uint8_t {
#define WEFT_OP_KIND(name) name,
  WEFT_OP_KINDS(WEFT_OP_KIND)
#undef WEFT_OP_KIND
};
#define WEFT_OP_KIND(name) +1
inline constexpr int kOpKindCount = WEFT_OP_KINDS(WEFT_OP_KIND);
#undef WEFT_OP_KIND

std::string_view to_string(OpKind kind);  // "MatMul"

}  // namespace weft::dag
