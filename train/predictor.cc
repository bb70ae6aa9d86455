#include "train/predictor.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "data/loader.h"
#include "data/npz_writer.h"
#include "peer/backend/reference/reference_kernels.h"
#include "peer/executor.h"
#include "storage/files.h"
#include "train/data_check.h"
#include "train/matching.h"
#include "train/prepare.h"
#include "train/session.h"

namespace weft::train {
namespace {

using configs::Job;

constexpr int64_t kReadAheadBytes = int64_t{8} << 20;  // of larger microbatches one waits

// A prediction at work. Members in the order in which they come to be.
class Prediction {
 public:
  Prediction(const Job& job, const onnx::OnnxModel& model, peer::Backend& backend,
             const PredictOptions& options)
      : job_(job), model_(model), backend_(backend), options_(options) {}

  Result<uint64_t> run() {
    WEFT_TRY_STATUS(check_precision(job_, backend_));
    std::error_code code;
    if (std::filesystem::is_directory(job_.output, code))
      return fail(job_.error(ErrorCode::InvalidArgument, "output",
                             job_.output.string() + " is a folder; name a file, as predicted.npz"));
    WEFT_TRY(dataset_, data::open_dataset(*job_.predict));
    count_ = dataset_->sample_count();
    if (options_.samples_max > 0) count_ = std::min(count_, options_.samples_max);
    WEFT_TRY_STATUS(settle_batch());
    WEFT_TRY_STATUS(prepare());
    WEFT_TRY(const auto arrays, outputs());
    storage::Files files;
    WEFT_TRY_STATUS(files.write_atomic_placed(
        job_.output, [&](const storage::Files::PlacedSink& sink) { return write(arrays, sink); },
        {.mode = 0644}));
    return count_;
  }

 private:
  // No larger than the samples are many, where options say it and the model leaves it open.
  Status settle_batch() {
    WEFT_TRY(const auto fixed, fixed_batch(job_, model_));
    if (job_.from_options) {
      job_.batch_size = fixed ? *fixed : std::min(job_.batch_size, count_);
      job_.microbatch_size = job_.batch_size;
    }
    WEFT_TRY(job_, with_largest_microbatch(job_, model_));
    return {};
  }

  Status prepare() {
    WEFT_TRY(prepared_, prepare_prediction(job_, model_, *dataset_, peer::evaluate_reference));
    std::vector<std::string> warnings = prepared_.warnings;
    if (options_.samples_max == 0) {
      WEFT_TRY(const auto said, check_data(job_, DataUse::Predict, *dataset_, prepared_, options_.stop));
      warnings.insert(warnings.end(), said.begin(), said.end());
    }
    if (options_.warn)
      for (const std::string& warning : warnings) options_.warn(warning);
    WEFT_TRY(executor_,
             make_executor(prepared_.graph, prepared_.weights, std::make_shared<peer::State>(backend_),
                           {.precision = precision_of(job_), .rows_alone = true}));
    if (const std::string slow = slow_kernels();
        !slow.empty() && backend_.name() != "reference" && options_.warn)
      options_.warn("this device has no fast kernel for " + slow + "; reference loops compute it, slowly");
    WEFT_TRY(microbatch_, executor_->make_microbatch());
    microbatch_->context.microbatch_size = job_.microbatch_size;
    return {};
  }

  // What no fast kernel serves: "Exp f64 (2 times), Det f32"; empty where there is nothing of it.
  std::string slow_kernels() const {
    std::map<std::string, int> counts;
    const dag::Graph& graph = executor_->graph();
    for (size_t g = 0; g < executor_->program().groups.size(); ++g) {
      const dag::Op& op = graph.op(executor_->program().groups[g].ops.front());
      if (executor_->kernel(g).implementation().find("reference") == std::string_view::npos ||
          graph.spec(op.outputs[0]).element_count() == 0)
        continue;
      const dag::ValueId value = op.inputs.empty() ? op.outputs[0] : op.inputs[0];
      ++counts[std::string(to_string(op.kind)) + " " + std::string(to_string(graph.spec(value).dtype))];
    }
    std::string text;
    for (const auto& [what, count] : counts)
      text += (text.empty() ? "" : ", ") + what +
              (count > 1 ? " (" + std::to_string(count) + " times)" : std::string());
    return text;
  }

  bool has_samples(const dag::TensorSpec& spec) const {
    return !spec.shape.empty() && spec.shape[0] == job_.microbatch_size;
  }

  Result<std::vector<data::NpzRows::Array>> outputs() const {
    std::vector<data::NpzRows::Array> arrays;
    for (const dag::GraphOutput& output : executor_->graph().outputs()) {
      dag::TensorSpec spec = executor_->graph().spec(output.value);
      if (has_samples(spec))
        spec.shape[0] = count_;
      else if (count_ != job_.microbatch_size)
        return fail(job_.error(ErrorCode::Unsupported, "model",
                               "output '" + output.name + "' is " + to_string(spec) +
                                   ": its first axis is not the batch; predict all samples at once (" +
                                   (job_.from_options ? "--batch " : "batch_size: ") +
                                   std::to_string(count_) + "), and it is written as it is"));
      arrays.push_back({output.name, spec});
    }
    return arrays;
  }

  Status write(const std::vector<data::NpzRows::Array>& arrays, const storage::Files::PlacedSink& sink) {
    WEFT_TRY(data::NpzRows rows, data::NpzRows::create(arrays, sink));
    int64_t bytes = 0;  // of a microbatch's inputs
    for (const data::Feed& feed : prepared_.feeds)
      bytes += data::sample_of(*dataset_, feed).bytes().value * job_.microbatch_size;
    data::Loader loader(dataset_, prepared_.feeds, data::evaluation_requests(count_, job_.microbatch_size),
                        {.queue_length_max = bytes > kReadAheadBytes ? size_t{1} : size_t{4},
                         .on_start = [this] { backend_.release_calling_thread(); }});
    for (;;) {
      if (options_.stop != nullptr && options_.stop->load())
        return fail(ErrorCode::Cancelled, "stopped; nothing was written");
      WEFT_TRY(const auto batch, loader.next());
      if (!batch) return rows.finish();
      WEFT_TRY_STATUS(check_bounds(prepared_.bounds, *batch));
      for (const auto& [name, tensor] : batch->tensors)
        WEFT_TRY_STATUS(executor_->set_input(*microbatch_, name, tensor));
      WEFT_TRY_STATUS(executor_->run(*microbatch_));
      for (size_t i = 0; i < arrays.size(); ++i) {
        WEFT_TRY(const dag::Tensor values,
                 executor_->value(*microbatch_, executor_->graph().outputs()[i].value));
        const size_t row = values.bytes().size() / job_.microbatch_size;
        WEFT_TRY_STATUS(rows.append(
            i, has_samples(values.spec()) ? values.bytes().first(row * batch->valid_count) : values.bytes()));
      }
    }
  }

  Job job_;  // its size of microbatches settled
  const onnx::OnnxModel& model_;
  peer::Backend& backend_;
  const PredictOptions& options_;
  std::shared_ptr<const data::Dataset> dataset_;
  uint32_t count_ = 0;  // of samples
  Prepared prepared_;
  std::unique_ptr<peer::Executor> executor_;
  std::unique_ptr<peer::MicrobatchMemory> microbatch_;
};

}  // namespace

Result<uint64_t> predict(const Job& job, const onnx::OnnxModel& model, peer::Backend& backend,
                         const PredictOptions& options) {
  return Prediction(job, model, backend, options).run();
}

}  // namespace weft::train
