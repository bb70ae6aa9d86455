#include "train/predictor.h"

#include <algorithm>

#include "dag/onnx/model.h"
#include "data/loader.h"
#include "peer/backend/reference/reference_kernels.h"
#include "peer/executor.h"
#include "train/prepare.h"
#include "train/session.h"

namespace weft::train {

Result<std::vector<data::NpzArray>> predict(const configs::Job& submitted, peer::Backend& backend,
                                            const std::atomic<bool>* stop) {
  WEFT_TRY_STATUS(check_precision(submitted, backend));
  WEFT_TRY(std::shared_ptr<const data::Dataset> dataset, data::open_dataset(*submitted.predict));
  auto model = onnx::read_model(submitted.model);
  if (!model) return fail(submitted.error(model.error().code, "model", model.error().message));
  WEFT_TRY(const configs::Job job, with_largest_microbatch(submitted, *model));
  WEFT_TRY(Prepared prepared, prepare_prediction(job, *model, *dataset, peer::evaluate_reference));
  WEFT_TRY(const auto executor,
           make_executor(prepared.graph, prepared.weights, std::make_shared<peer::State>(backend),
                         {.precision = precision_of(job)}));
  WEFT_TRY(const auto microbatch, executor->make_microbatch());
  microbatch->context.microbatch_size = job.microbatch_size;

  const int64_t samples = dataset->sample_count();
  std::vector<data::NpzArray> arrays;
  for (const dag::GraphOutput& output : executor->graph().outputs()) {
    dag::TensorSpec spec = executor->graph().spec(output.value);
    if (spec.shape.empty() || spec.shape[0] != job.microbatch_size)
      return fail(job.error(
          ErrorCode::Unsupported, "model",
          "output '" + output.name + "' is " + to_string(spec) + ": its first axis is not the batch"));
    spec.shape[0] = samples;
    arrays.push_back({output.name, dag::Tensor(spec)});
  }
  data::Loader loader(dataset, prepared.feeds,
                      data::evaluation_requests(dataset->sample_count(), job.microbatch_size),
                      {.on_start = [&] { backend.release_calling_thread(); }});
  for (;;) {
    if (stop != nullptr && stop->load()) return fail(ErrorCode::Cancelled, "stopped; nothing was written");
    WEFT_TRY(const auto batch, loader.next());
    if (!batch) break;
    WEFT_TRY_STATUS(check_bounds(prepared.bounds, *batch));
    for (const auto& [name, tensor] : batch->tensors)
      WEFT_TRY_STATUS(executor->set_input(*microbatch, name, tensor));
    WEFT_TRY_STATUS(executor->run(*microbatch));
    for (size_t i = 0; i < arrays.size(); ++i) {
      WEFT_TRY(const dag::Tensor rows, executor->value(*microbatch, executor->graph().outputs()[i].value));
      const size_t row = rows.bytes().size() / job.microbatch_size;
      std::copy_n(rows.bytes().begin(), row * batch->valid_count,
                  arrays[i].tensor.mutable_bytes().begin() +
                      static_cast<std::ptrdiff_t>(row * batch->sample_position));
    }
  }
  return arrays;
}

}  // namespace weft::train
