// From a job to graphs: the one straight line. The model is imported with its batch bound to the microbatch,
// its inputs are matched with data columns, the loss is attached, the graph is differentiated. Lowering for a
// class of devices comes after (train/session.h on one machine, the broker's planner for many). What does not
// fit is said here, with the job file's line, before anything starts.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/graph.h"
#include "dag/loss.h"
#include "dag/metrics.h"
#include "dag/onnx/import.h"
#include "dag/onnx/model.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "train/adapters.h"
#include "train/matching.h"

namespace weft::train {

// The values that an integer input may hold: what indexes a table or a class axis. Both ends included.
struct IntegerBounds {
  std::string input;
  int64_t low = 0;
  int64_t high = 0;
  std::optional<int64_t> also;  // ignore_index
};

struct Prepared {
  dag::Graph graph;               // before lowering
  dag::Weights weights;           // initial values of its initializers
  std::vector<data::Feed> feeds;  // graph inputs <- columns of the data set it was matched with
  std::vector<IntegerBounds> bounds;
  std::vector<data::Divisor> divisors;  // of training
  dag::LossTerms loss_terms;
  std::vector<std::string> warnings;
  std::vector<std::string> notes;              // what is worth knowing, and no reason to worry
  std::string identity;                        // text of the graph: what a checkpoint belongs to
  Adapters adapters;                           // whose factors are among its initializers
  std::map<std::string, dag::MadeValue> made;  // of `weights` those that no file has: how they are made
};

// What evaluation must know of the job's losses, and of what they are the losses of.
dag::LossTerms loss_terms_of(const configs::Job& job);

// What `microbatch_size: auto` may become: Job::microbatch_sizes, of a model that was exported with a fixed
// batch that one alone. InvalidArgument when the batch is no multiple of it.
Result<std::vector<uint32_t>> microbatch_sizes(const configs::Job& job, const onnx::OnnxModel& model);
// Where nobody plans: the job as it is, or with the largest of these for auto.
Result<configs::Job> with_largest_microbatch(const configs::Job& job, const onnx::OnnxModel& model);

// How many microbatches are under way at once, as a plan has it: those of a step; of a prediction about as
// many as fill a pipeline.
uint32_t microbatches_at_once(const configs::Job& job);

// What feeds a model. A data set tells; of a job that is planned before its data are there, somebody assumes
// it.
class Feeding {
 public:
  Feeding() = default;
  Feeding(const Feeding&) = delete;
  Feeding& operator=(const Feeding&) = delete;
  virtual ~Feeding() = default;

  virtual Result<Matching> match_inputs() const = 0;
  // What the columns of the loss hold, by term, for the model's outputs; what feeds them, into `feeds`.
  virtual Result<std::vector<dag::TermColumns>> match_targets(const dag::Graph& model,
                                                              std::vector<data::Feed>& feeds) const = 0;
  // The imported model as the loss is to find it.
  virtual dag::Graph complete(dag::Graph model) const { return model; }
};

// The graph of one training microbatch: forward, backward, running statistics. Errors carry the job file's
// place.
Result<Prepared> prepare_training(const configs::Job& job, const onnx::OnnxModel& model,
                                  const Feeding& feeding, const onnx::Evaluator& evaluator);
Result<Prepared> prepare_training(const configs::Job& job, const onnx::OnnxModel& model,
                                  const data::Dataset& dataset, const onnx::Evaluator& evaluator);

// The graph that evaluates one microbatch of `dataset` in inference mode (dag::attach_evaluation_loss).
Result<Prepared> prepare_evaluation(const configs::Job& job, const onnx::OnnxModel& model,
                                    const data::Dataset& dataset, const onnx::Evaluator& evaluator);

// The model in inference mode over one microbatch of `dataset`, its inputs fed by the job's columns, its
// outputs as predictions: for Task::Predict.
Result<Prepared> prepare_prediction(const configs::Job& job, const onnx::OnnxModel& model,
                                    const Feeding& feeding, const onnx::Evaluator& evaluator);
Result<Prepared> prepare_prediction(const configs::Job& job, const onnx::OnnxModel& model,
                                    const data::Dataset& dataset, const onnx::Evaluator& evaluator);

// The model alone in inference mode, its inputs as the file has them, its outputs as predictions. `batch`
// binds a symbolic first axis, `sizes` other symbolic dims.
Result<Prepared> prepare_inference(const onnx::OnnxModel& model, int64_t batch,
                                   const std::map<std::string, int64_t>& sizes,
                                   const onnx::Evaluator& evaluator);
// The same as `options` import it.
Result<Prepared> prepare_inference(const onnx::OnnxModel& model, const onnx::ImportOptions& options);

// Which of the graph's integer inputs index a table or a class axis, and what they may hold.
std::vector<IntegerBounds> find_bounds(const dag::Graph& graph);

// Whether all integers of the microbatch are within bounds; the error names input, value and sample.
Status check_bounds(std::span<const IntegerBounds> bounds, const data::Microbatch& microbatch);

}  // namespace weft::train
