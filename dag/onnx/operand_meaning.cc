#include "dag/onnx/operand_meaning.h"

#include <algorithm>

namespace weft::onnx {
namespace {

constexpr std::string_view kMicrosoft = "com.microsoft";

constexpr OperandMeaning kMeanings[] = {
    {.op_type = "Conv", .weights = operands(1, 2), .makes_channels = true},
    {.op_type = "ConvTranspose", .weights = operands(1, 2), .makes_channels = true},
    {.op_type = "DeformConv", .weights = operands(1, 3), .makes_channels = true},
    {.op_type = "Gemm", .weights = operands(0, 1, 2), .makes_channels = true},
    {.op_type = "MatMul", .weights = operands(0, 1), .makes_channels = true},
    {.op_type = "Einsum", .weights = kAllOperands, .makes_channels = true},
    {.op_type = "BatchNormalization", .weights = operands(1, 2), .makes_channels = true},
    {.op_type = "LayerNormalization", .weights = operands(1, 2), .makes_channels = true},
    {.op_type = "RMSNormalization", .weights = operands(1), .makes_channels = true},
    {.op_type = "SimplifiedLayerNormalization", .weights = operands(1), .makes_channels = true},
    {.op_type = "GroupNormalization", .weights = operands(1, 2), .makes_channels = true},
    {.op_type = "InstanceNormalization", .weights = operands(1, 2), .makes_channels = true},
    {.op_type = "MeanVarianceNormalization", .makes_channels = true},
    {.op_type = "LSTM",
     .weights = operands(1, 2, 3, 7),
     .numbers = operands(5, 6),
     .reason = RoleReason::State},
    {.op_type = "GRU", .weights = operands(1, 2, 3), .numbers = operands(5), .reason = RoleReason::State},
    {.op_type = "RNN", .weights = operands(1, 2, 3), .numbers = operands(5), .reason = RoleReason::State},
    {.op_type = "PRelu", .weights = operands(1)},
    {.op_type = "Gather", .weights = operands(0)},
    {.op_type = "Pow", .numbers = operands(1), .reason = RoleReason::Exponent},
    {.op_type = "Clip", .numbers = operands(1, 2), .reason = RoleReason::Limit},
    {.op_type = "Pad", .numbers = operands(2)},
    {.op_type = "OneHot", .numbers = operands(2)},
    {.op_type = "SoftmaxCrossEntropyLoss", .numbers = operands(2)},
    {.op_type = "NegativeLogLikelihoodLoss", .numbers = operands(2)},
    {.op_type = "Attention", .numbers = operands(3), .reason = RoleReason::Mask},
    {.domain = kMicrosoft, .op_type = "FusedConv", .weights = operands(1, 2), .makes_channels = true},
    {.domain = kMicrosoft, .op_type = "FusedMatMul", .weights = operands(0, 1), .makes_channels = true},
    {.domain = kMicrosoft, .op_type = "TransposeMatMul", .weights = operands(0, 1), .makes_channels = true},
    {.domain = kMicrosoft, .op_type = "FusedGemm", .weights = operands(0, 1, 2), .makes_channels = true},
    {.domain = kMicrosoft, .op_type = "BiasGelu", .weights = operands(1)},
    {.domain = kMicrosoft, .op_type = "FastGelu", .weights = operands(1)},
    {.domain = kMicrosoft, .op_type = "BiasAdd", .weights = operands(1)},
    {.domain = kMicrosoft,
     .op_type = "LayerNormalization",
     .weights = operands(1, 2),
     .makes_channels = true},
    {.domain = kMicrosoft,
     .op_type = "SimplifiedLayerNormalization",
     .weights = operands(1),
     .makes_channels = true},
    {.domain = kMicrosoft,
     .op_type = "SkipLayerNormalization",
     .weights = operands(2, 3, 4),
     .makes_channels = true},
    {.domain = kMicrosoft,
     .op_type = "SkipSimplifiedLayerNormalization",
     .weights = operands(2, 3),
     .makes_channels = true},
    {.domain = kMicrosoft,
     .op_type = "EmbedLayerNormalization",
     .weights = operands(2, 3, 4, 5, 6),
     .makes_channels = true},
    {.domain = kMicrosoft,
     .op_type = "Attention",
     .weights = operands(1, 2),
     .numbers = operands(5),
     .reason = RoleReason::Mask},
    {.domain = kMicrosoft,
     .op_type = "MultiHeadAttention",
     .weights = operands(3),
     .numbers = operands(5),
     .reason = RoleReason::Mask},
};

constexpr std::string_view kViews[] = {
    "Identity",     "Cast",        "CastLike", "Reshape", "Flatten",        "Squeeze",
    "Unsqueeze",    "Transpose",   "Expand",   "Slice",   "Split",          "Concat",
    "Tile",         "Dropout",     "Trilu",    "Pad",     "QuantizeLinear", "DequantizeLinear",
    "DepthToSpace", "SpaceToDepth"};

}  // namespace

std::span<const OperandMeaning> operand_meanings() { return kMeanings; }

const OperandMeaning* find_meaning(std::string_view domain, std::string_view op_type) {
  if (domain == "ai.onnx") domain = {};
  const auto* found = std::find_if(std::begin(kMeanings), std::end(kMeanings), [&](const auto& meaning) {
    return meaning.domain == domain && meaning.op_type == op_type;
  });
  return found == std::end(kMeanings) ? nullptr : found;
}

bool is_view(std::string_view domain, std::string_view op_type) {
  return (domain.empty() || domain == "ai.onnx") &&
         std::find(std::begin(kViews), std::end(kViews), op_type) != std::end(kViews);
}

}  // namespace weft::onnx
