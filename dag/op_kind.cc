#include "dag/op_kind.h"

#include <iterator>

namespace weft::dag {

std::string_view to_string(OpKind kind) {
  static constexpr std::string_view kNames[] = {
      "Input", "Initializer", "Constant",
      "Neg", "Abs", "Sign", "Exp", "Log", "Sqrt", "Reciprocal", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh",
      "Cosh", "Asinh", "Acosh", "Atanh", "Tanh", "Sigmoid", "Relu", "Erf", "Gelu", "Softplus", "Floor", "Ceil",
      "Round", "Not", "IsNaN", "IsInf", "Cast", "Clip",
      "Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Mod", "And", "Or", "Xor", "Equal", "Less", "LessEqual",
      "Greater", "GreaterEqual", "Where",
      "ReluGrad", "TanhGrad", "SigmoidGrad", "GeluGrad",
      "Reshape", "Transpose", "Expand", "Slice", "SliceGrad", "Concat", "Pad", "PadGrad", "Gather", "GatherGrad",
      "GatherElements", "GatherElementsGrad", "Reorder",
      "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax", "ArgMin", "CumSum",
      "MatMul",
      "Conv", "ConvGradInput", "ConvGradWeight",
      "BatchNorm", "BatchNormGrad", "BatchNormInference", "LayerNorm", "LayerNormGrad",
      "Softmax", "SoftmaxGrad", "LogSoftmax", "LogSoftmaxGrad", "CrossEntropy", "CrossEntropyGrad",
      "MaxPool", "MaxPoolGrad", "AveragePool", "AveragePoolGrad",
      "Dropout"};
  static_assert(std::size(kNames) == kOpKindCount);
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace weft::dag
