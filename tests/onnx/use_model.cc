#include "base/check.h"
#include "dag/autodiff.h"
#include "dag/loss.h"
#include "dag/lower.h"
#include "dag/onnx/export.h"
#include "dag/onnx/inspect.h"
#include "dag/passes/canonicalise.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/fuzz/import_limits.h"
#include "tests/onnx/operator_cases.h"

namespace weft::onnx::testing {
namespace {

using Values = std::vector<dag::Tensor>;

// What a graph of few operations computes, inputs and all.
void run_if_small(const dag::Graph& graph, const dag::Weights& weights) {
  constexpr int64_t kFlopsMax = 1'000'000;
  int64_t flops = 0;
  for (const dag::Op& op : graph.ops()) flops += std::min(kFlopsMax, dag::op_flops(graph, op).value);
  if (flops > kFlopsMax) return;
  Values values(graph.values().size());
  for (const dag::Op& op : graph.ops()) {
    dag::Tensor& first = values[op.outputs[0].index];
    if (op.kind == dag::OpKind::Input) {
      first = dag::Tensor(graph.spec(op.outputs[0]));
    } else if (op.kind == dag::OpKind::Initializer) {
      first = weights.find(op.attributes.get_string(dag::Attr::Name))->second;
    } else if (op.kind == dag::OpKind::Constant) {
      first = graph.constant(op);
    } else {
      std::vector<const dag::Tensor*> operands;
      std::vector<dag::TensorSpec> specs;
      for (const dag::ValueId input : op.inputs)
        operands.push_back(input.valid() ? &values[input.index] : nullptr);
      for (const dag::ValueId output : op.outputs) specs.push_back(graph.spec(output));
      auto results = peer::evaluate_reference(op, operands, specs);
      if (!results) return;
      for (size_t i = 0; i < results->size(); ++i) values[op.outputs[i].index] = std::move((*results)[i]);
    }
  }
}

// The graph with a loss over its first float output, and the backward.
void differentiate_all(const ImportedModel& imported) {
  const auto graph = dag::canonicalise(imported.graph, dag::op_table());
  if (!graph) return;
  for (const auto& output : graph->outputs()) {
    const dag::TensorSpec spec = graph->spec(output.value);
    if (output.role != dag::OutputRole::Prediction || !is_float(spec.dtype)) continue;
    const dag::LossSpec loss{
        .type = dag::LossType::Mse, .prediction = output.name, .target = "t", .axis = {}, .ignore_index = {}};
    const dag::TermColumns columns{.target = spec};
    const auto with_loss =
        dag::attach_training_loss(*graph, {&loss, 1}, {&columns, 1}, /*microbatches=*/1, dag::op_table());
    if (!with_loss) continue;
    const auto differentiated = dag::differentiate(with_loss->graph, dag::op_table());
    if (!differentiated) return;
    for (const dag::Layout layout : {dag::Layout::Plain, dag::Layout::Blocked8})
      (void)dag::lower(*differentiated, dag::op_table(), {true, true, layout});
    return run_if_small(*differentiated, imported.weights);
  }
}

}  // namespace

bool use_model(const pb::ModelProto& proto) {
  const std::string bytes = proto.SerializeAsString();
  const auto model = read_model(std::as_bytes(std::span(bytes.data(), bytes.size())), fuzz::small_limits());
  if (!model) return false;
  (void)shape_inputs(*model);
  (void)trained_bytes(*model, {});
  ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  options.limits = fuzz::small_limits();
  options.batch = 2;
  (void)inspect_model(*model, options, dag::op_table());
  const auto inference = import_model(*model, options, dag::op_table());
  if (inference) run_if_small(inference->graph, inference->weights);
  options.training = true;
  const auto imported = import_model(*model, options, dag::op_table());
  if (!imported) {
    WEFT_CHECK(!imported.error().message.empty());
    return false;
  }
  differentiate_all(*imported);
  return true;
}

}  // namespace weft::onnx::testing
