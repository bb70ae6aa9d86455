#include "train/adapter_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "dag/onnx/outline.h"
#include "data/loader.h"
#include "peer/backend/reference/reference_kernels.h"
#include "train/adapter_files.h"
#include "train/initial_weights.h"
#include "train/prepare.h"
#include "train/session.h"

namespace weft::train {
namespace {

constexpr int64_t kComparedMost = int64_t{1} << 22;  // numbers of an output

// Of all float outputs, one after the other.
using Outputs = std::vector<double>;

Result<Outputs> outputs_of(const configs::Job& job, const onnx::OnnxModel& model, const dag::Weights& trained,
                           const std::shared_ptr<const data::Dataset>& dataset, peer::Backend& backend) {
  WEFT_TRY(Prepared prepared, prepare_prediction(job, model, *dataset, peer::evaluate_reference));
  for (const auto& [name, tensor] : trained)
    if (const auto weight = prepared.weights.find(name); weight != prepared.weights.end())
      weight->second = tensor;
  WEFT_TRY(const auto executor,
           make_executor(prepared.graph, prepared.weights, std::make_shared<peer::State>(backend),
                         {.precision = precision_of(job), .rows_alone = true}));
  prepared.weights.clear();  // the device has them
  WEFT_TRY(const auto microbatch, executor->make_microbatch());
  microbatch->context.microbatch_size = job.microbatch_size;
  const uint32_t count = std::min<uint32_t>(dataset->sample_count(), job.microbatch_size);
  data::Loader loader(dataset, prepared.feeds, data::evaluation_requests(count, job.microbatch_size));
  WEFT_TRY(const auto batch, loader.next());
  Outputs outputs;
  if (!batch) return outputs;
  WEFT_TRY_STATUS(check_bounds(prepared.bounds, *batch));
  for (const auto& [name, tensor] : batch->tensors)
    WEFT_TRY_STATUS(executor->set_input(*microbatch, name, tensor));
  WEFT_TRY_STATUS(executor->run(*microbatch));
  for (const dag::GraphOutput& output : executor->graph().outputs()) {
    if (!is_float(executor->graph().spec(output.value).dtype)) continue;
    WEFT_TRY(const dag::Tensor values, executor->value(*microbatch, output.value));
    const std::vector<double> numbers =
        to_doubles(values.elements(0, std::min(values.element_count(), kComparedMost)));
    outputs.insert(outputs.end(), numbers.begin(), numbers.end());
  }
  return outputs;
}

// Infinity where they cannot be compared. What is not finite in both is no difference.
double largest_difference(const Outputs& a, const Outputs& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) && !std::isfinite(b[i])) continue;
    const double difference = std::abs(a[i] - b[i]);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

}  // namespace

std::string describe(const MergeCheck& check) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), "%.2g from the adapters' own, %.2g from the base's", check.merged,
                check.base);
  return text.data();
}

Result<MergeCheck> check_merge(const configs::Job& job, const dag::Weights& trained,
                               const std::filesystem::path& merged,
                               const std::shared_ptr<const data::Dataset>& dataset, peer::Backend& backend) {
  configs::Job without = job;
  without.adapters.clear();
  std::optional<InitialWeights> initial;
  WEFT_TRY(const onnx::OnnxModel model, read_job_model(job, initial));
  WEFT_TRY(const Outputs apart, outputs_of(job, model, trained, dataset, backend));
  WEFT_TRY(const Outputs base, outputs_of(without, model, {}, dataset, backend));
  WEFT_TRY(const onnx::OnnxModel written, onnx::read_model(merged));
  WEFT_TRY(const Outputs together, outputs_of(without, written, {}, dataset, backend));
  MergeCheck check{.merged = largest_difference(together, apart), .base = largest_difference(together, base)};
  for (const double value : apart)
    if (std::isfinite(value)) check.largest = std::max(check.largest, std::abs(value));
  return check;
}

Status refuse_merge(const MergeCheck& check, const std::filesystem::path& merged) {
  if (check.is_good()) return {};
  return fail(ErrorCode::Corrupted, "the merged model's outputs are " + describe(check) +
                                        ": what was learnt is lost in the numbers of " + merged.string() +
                                        ", which are too coarse for it; use the adapters beside the model, "
                                        "or export it in float32");
}

Result<std::optional<MergeCheck>> check_fetched(const configs::Job& job, const std::filesystem::path& merged,
                                                const std::filesystem::path& adapter,
                                                peer::Backend& backend) {
  WEFT_TRY(const onnx::OnnxModel model, onnx::open_model(job.model));
  int64_t bytes = 0;
  for (const auto& [name, tensor] : model.weights()) bytes += tensor.spec().bytes().value;
  if (bytes > kFetchedCheckMax) return std::optional<MergeCheck>();
  WEFT_TRY(const AdapterFolder folder, read_adapter_folder(adapter, model));
  dag::Weights trained;
  for (const auto& [name, spec] : folder.tensors.specs) {
    WEFT_TRY(trained[name], read_float(folder.tensors, name));
  }
  WEFT_TRY(const auto sizes, microbatch_sizes(job, model));
  const configs::Job smallest = job.with_microbatch_size(sizes.front());
  WEFT_TRY(std::shared_ptr<const data::Dataset> dataset, data::open_dataset(*job.train));
  WEFT_TRY(const MergeCheck check, check_merge(smallest, trained, merged, dataset, backend));
  return std::optional(check);
}

}  // namespace weft::train
