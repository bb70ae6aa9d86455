#include "dag/onnx/inspect.h"

#include <algorithm>

#include "dag/onnx/analysis.h"
#include "dag/onnx/batch_axis.h"
#include "dag/unread.h"

namespace weft::onnx {
namespace {

// With functions taken apart, or the graph as it stands when that cannot be done.
ExpandedGraph expanded_or_plain(const OnnxModel& model, const ImportLimits& limits) {
  const auto& structure = model.structure();
  if (check_well_formed(structure, limits))
    if (auto expanded = expand_functions(structure, limits)) return std::move(*expanded);
  ExpandedGraph plain{.graph = &structure.proto.graph(), .opset = model.opset()};
  for (const auto& node : plain.graph->node()) plain.nodes.push_back(&node);
  return plain;
}

}  // namespace

namespace {

// Symbols beside the batch's; "?" stands for those without a name.
std::vector<std::string> open_sizes(const OnnxModel& model, const ImportOptions& options) {
  const std::string symbol = batch_symbol(model);
  std::vector<std::string> open;
  for (const OnnxModel::Port& port : model.inputs()) {
    if (options.bound_inputs.contains(port.name) || options.input_shapes.contains(port.name)) continue;
    const size_t batch = batch_axis(port, symbol);
    for (size_t i = 0; i < port.dims.size(); ++i) {
      const std::string& dim = port.dims[i];
      const bool is_number = std::all_of(dim.begin(), dim.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (i == batch || is_number || dim == symbol || (dim != "?" && dim == port.dims[batch])) continue;
      if (!options.sizes.contains(dim) && std::find(open.begin(), open.end(), dim) == open.end())
        open.push_back(dim);
    }
    if (!port.has_shape && std::find(open.begin(), open.end(), "?") == open.end()) open.emplace_back("?");
  }
  return open;
}

std::vector<std::string> unread_warnings(const dag::Graph& graph, std::span<const std::string> read) {
  if (read.empty()) return {};
  std::vector<dag::LossSpec> losses;
  for (const std::string& output : read) losses.emplace_back().prediction = output;
  return dag::describe(dag::find_unread(graph, losses));
}

}  // namespace

namespace {

RoleTable all_trained(const OnnxModel& model) {
  RoleTable table;
  for (const auto& initializer : model.structure().proto.graph().initializer())
    if (is_float(model.weights().find(initializer.name())->second.dtype()))
      table.push_back({.name = initializer.name()});
  return table;
}

void list_tensors(const OnnxModel& model, const RoleTable& roles, ModelInfo& info) {
  const auto spec_of = [&](const std::string& name) { return model.weights().find(name)->second.spec(); };
  for (const TensorRow& row : roles) {
    // Numbers that exporters write as nodes are no tensors of the model to anybody.
    if (row.constant_node && row.role == TensorRole::Constant && spec_of(row.name).element_count() <= 1)
      continue;
    ModelInfo::Entry entry{row.name,
                           spec_of(row.name),
                           why(row),
                           row.readers,
                           row.role == TensorRole::Statistic && row.frozen,
                           row.looked_at};
    switch (row.role) {
      case TensorRole::Trained:
        info.parameter_elements += entry.spec.element_count();
        info.parameters.push_back(std::move(entry));
        break;
      case TensorRole::Frozen:
        info.frozen.push_back(std::move(entry));
        break;
      case TensorRole::Constant:
        info.constants.push_back(std::move(entry));
        break;
      case TensorRole::Statistic:
        info.running_statistics.push_back(std::move(entry));
        break;
    }
  }
  for (const auto& initializer : model.structure().proto.graph().initializer())
    if (const dag::TensorSpec spec = spec_of(initializer.name()); !is_float(spec.dtype))
      info.constants.push_back({initializer.name(), spec, "no float"});
}

}  // namespace

ModelInfo inspect_model(const OnnxModel& model, const ImportOptions& options, const dag::OpTable& table,
                        std::span<const std::string> read) {
  ModelInfo info;
  info.producer = model.producer();
  info.opset = model.opset();
  info.inputs = model.inputs();
  info.outputs = model.outputs();
  const ExpandedGraph expanded = expanded_or_plain(model, options.limits);
  info.op_counts = count_ops(expanded);

  ImportOptions bound = options;
  if (!bound.batch) bound.batch = 1;
  info.open_sizes = open_sizes(model, bound);
  auto imported = import_model(model, bound, table);
  // One sample may be too few for BatchNormalization to train; that is no property of the model.
  if (!imported && bound.training && !options.batch) {
    bound.batch = 2;
    imported = import_model(model, bound, table);
  }
  if (imported) info.open_sizes.clear();
  if (!imported && info.open_sizes.empty()) info.problem = imported.error().message;
  if (imported) {
    info.warnings = imported->warnings;
    info.notes = imported->notes;
    for (std::string& warning : unread_warnings(imported->graph, read))
      info.warnings.push_back(std::move(warning));
  }

  const RoleTable roles =
      imported ? std::move(imported->roles)
               : judge_roles(model, {.train = options.train, .freeze = options.freeze}, look_at(model))
                     .value_or(all_trained(model));
  list_tensors(model, roles, info);
  return info;
}

}  // namespace weft::onnx
