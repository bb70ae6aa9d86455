#include "dag/onnx/import_checks.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "dag/onnx/analysis.h"
#include "dag/onnx/import.h"
#include "dag/onnx/roles_of_graph.h"

namespace weft::onnx {

using dag::DType;
using dag::Tensor;

namespace {

// Operators that still are what the first operator set said.
bool is_as_in_opset_1(std::string_view op_type) {
  constexpr std::string_view kSame[] = {
      "Conv", "GlobalAveragePool", "GlobalMaxPool", "Identity", "Not",       "Shape",
      "Size", "Softplus",          "Softsign",      "Squeeze",  "Transpose", "Unsqueeze"};
  return std::find(std::begin(kSame), std::end(kSame), op_type) != std::end(kSame);
}

template <typename T, typename IsNan>
std::optional<int64_t> first_in(const Tensor& tensor, const IsNan& is_nan) {
  const auto values = tensor.as<T>();
  for (size_t i = 0; i < values.size(); ++i)
    if (is_nan(values[i])) return static_cast<int64_t>(i);
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> first_nan(const Tensor& tensor) {
  const DType dtype = tensor.dtype();
  if (dtype == DType::F32) return first_in<float>(tensor, [](float value) { return std::isnan(value); });
  if (dtype == DType::F64) return first_in<double>(tensor, [](double value) { return std::isnan(value); });
  if (dtype == DType::F16)
    return first_in<uint16_t>(tensor, [](uint16_t bits) { return (bits & 0x7FFF) > 0x7C00; });
  if (dtype == DType::BF16)
    return first_in<uint16_t>(tensor, [](uint16_t bits) { return (bits & 0x7FFF) > 0x7F80; });
  return std::nullopt;  // not a float
}

Status check_statistics(const OnnxModel::Structure& model, const ExpandedGraph& expanded,
                        const RoleTable& table) {
  const auto nobody = [](const std::string&) { return std::nullopt; };
  WEFT_TRY(const RoleTable told, roles_of_graph(model, expanded, {}, nobody));
  std::set<std::string_view> statistics;
  for (const TensorRow& row : told)
    if (row.role == TensorRole::Statistic) statistics.insert(row.name);
  for (const TensorRow& row : table)
    if ((row.role == TensorRole::Statistic) != statistics.contains(row.name))
      return fail(ErrorCode::InvalidArgument,
                  "the table of roles makes '" + row.name.substr(0, 128) + "' " +
                      (row.role == TensorRole::Statistic ? "a running statistic, which it is not"
                                                         : "something else than the running statistic that "
                                                           "it is"));
  return {};
}

Status check_opsets(const ExpandedGraph& expanded, std::vector<std::string>& warnings) {
  int64_t newest = 0;
  const pb::NodeProto* too_old = nullptr;
  visit_nodes(expanded, [&](const pb::NodeProto& node) {
    if (!node.domain().empty() && node.domain() != "ai.onnx") return;
    const int64_t opset = expanded.opset_of(node);
    newest = std::max(newest, opset);
    if (opset < kOpsetMin && (opset < 1 || !is_as_in_opset_1(node.op_type()))) too_old = &node;
  });
  if (too_old)
    return fail(ErrorCode::Unsupported, "the model uses " + too_old->op_type().substr(0, 64) +
                                            " of operator set " +
                                            std::to_string(expanded.opset_of(*too_old)) + "; supported are " +
                                            std::to_string(kOpsetMin) + " to " + std::to_string(kOpsetMax) +
                                            " (export with opset_version=17)");
  if (newest > kOpsetMax)
    warnings.push_back("the model uses operator set " + std::to_string(newest) +
                       "; its operators are taken to mean what they mean in operator set " +
                       std::to_string(kOpsetMax) + ", the newest that weft knows");
  return {};
}

Status check_value_types(const pb::GraphProto& graph) {
  for (const auto* ports : {&graph.input(), &graph.output()})
    for (const auto& port : *ports)
      if (port.has_type() && !port.type().has_tensor_type() &&
          port.type().value_case() != pb::TypeProto::VALUE_NOT_SET)
        return fail(ErrorCode::Unsupported,
                    "'" + port.name().substr(0, 128) +
                        "' is not a tensor but a sequence, map, optional or sparse value");
  return {};
}

}  // namespace weft::onnx
