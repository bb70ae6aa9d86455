#include "cli/coverage_report.h"

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "dag/passes/canonicalise.h"
#include "peer/backend/cuda/coverage.h"

namespace weft::cli {
namespace {

// The mean of each float output, added up: what any loss would ask backward of.
dag::Graph attach_any_loss(const dag::Graph& model, const dag::OpTable& table) {
  dag::GraphCopy copy(model, table);
  for (uint32_t i = 0; i < model.ops().size(); ++i) copy.copy(dag::OpId{i});
  dag::GraphBuilder& builder = copy.builder();
  builder.set_phase(dag::Phase::Forward);
  builder.set_origin({});
  dag::ValueId loss;
  for (const auto& output : model.outputs()) {
    const dag::ValueId value = copy.mapped(output.value);
    if (output.role != dag::OutputRole::Prediction) builder.output(output.name, value, output.role);
    if (output.role != dag::OutputRole::Prediction || model.spec(output.value).dtype != dag::DType::F32)
      continue;
    dag::Ints axes;
    for (int64_t axis = 0; axis < model.spec(output.value).rank(); ++axis) axes.push_back(axis);
    const dag::ValueId term = axes.empty()
                                  ? value
                                  : builder.add(dag::OpKind::ReduceMean, {value},
                                                {{dag::Attr::Axes, axes}, {dag::Attr::KeepDims, int64_t{0}}});
    loss = loss.valid() ? builder.add(dag::OpKind::Add, {loss, term}) : term;
  }
  if (loss.valid()) builder.output("loss", loss, dag::OutputRole::Loss);
  return builder.finish();
}

}  // namespace

Result<dag::Graph> training_on_gpu(const onnx::OnnxModel& model, const onnx::ImportOptions& import) {
  const dag::OpTable& table = dag::op_table();
  WEFT_TRY(onnx::ImportedModel imported, onnx::import_model(model, import, table));
  WEFT_TRY(const dag::Graph canonical, dag::canonicalise(imported.graph, table));
  const dag::Graph forward = attach_any_loss(canonical, table);
  WEFT_TRY(const dag::Graph training, dag::differentiate(forward, table));
  return dag::lower(training, table, peer::cuda_traits());
}

Result<std::map<std::string, int64_t>> ops_left_to_host(const onnx::OnnxModel& model,
                                                        const onnx::ImportOptions& import) {
  WEFT_TRY(const dag::Graph lowered, training_on_gpu(model, import));
  WEFT_TRY(const std::vector<dag::OpId> left, peer::ops_on_host(lowered));
  std::map<std::string, int64_t> counts;
  for (const dag::OpId id : left) ++counts[std::string(to_string(lowered.op(id).kind))];
  return counts;
}

}  // namespace weft::cli
