#include "dag/onnx/inspect.h"

#include <algorithm>

#include "dag/onnx/analysis.h"
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

std::vector<std::string> unread_warnings(const dag::Graph& graph, std::span<const std::string> read) {
  if (read.empty()) return {};
  std::vector<dag::LossSpec> losses;
  for (const std::string& output : read) losses.emplace_back().prediction = output;
  return dag::describe(dag::find_unread(graph, losses));
}

}  // namespace

ModelInfo inspect_model(const OnnxModel& model, const ImportOptions& options, const dag::OpTable& table,
                        std::span<const std::string> read) {
  ModelInfo info;
  const auto& graph = model.structure().proto.graph();
  info.producer = model.producer();
  info.opset = model.opset();
  info.inputs = model.inputs();
  info.outputs = model.outputs();
  const ExpandedGraph expanded = expanded_or_plain(model, options.limits);
  info.op_counts = count_ops(expanded);

  ImportOptions bound = options;
  if (!bound.batch) bound.batch = 1;
  auto imported = import_model(model, bound, table);
  // One sample may be too few for BatchNormalization to train; that is no property of the model.
  if (!imported && bound.training && !options.batch) {
    bound.batch = 2;
    imported = import_model(model, bound, table);
  }
  if (!imported) info.problem = imported.error().message;
  if (imported) {
    info.warnings = imported->warnings;
    for (std::string& warning : unread_warnings(imported->graph, read))
      info.warnings.push_back(std::move(warning));
  }

  const auto statistics = running_statistics(expanded);
  const auto constants = exported_constants(model.structure(), nullptr);
  const auto reached = reached_by_gradient(expanded);
  for (const auto& proto : graph.initializer()) {
    const std::string& name = proto.name();
    const ModelInfo::Entry entry{name, model.weights().find(name)->second.spec(), model.is_read(name)};
    const bool frozen = std::any_of(options.freeze.begin(), options.freeze.end(),
                                    [&](const std::string& pattern) { return matches_glob(pattern, name); });
    if (statistics.contains(name)) {
      info.running_statistics.push_back(entry);
    } else if (!is_float(entry.spec.dtype) || constants.contains(name) ||
               (!frozen && info.problem.empty() && !reached.contains(name))) {
      info.buffers.push_back(entry);
    } else if (frozen) {
      info.frozen.push_back(entry);
    } else {
      info.parameters.push_back(entry);
      info.parameter_elements += entry.spec.element_count();
    }
  }
  return info;
}

}  // namespace weft::onnx
