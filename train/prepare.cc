#include "train/prepare.h"

#include <algorithm>

#include "base/shortest.h"
#include "dag/autodiff.h"
#include "dag/loss.h"
#include "dag/op_table.h"
#include "dag/passes/attention.h"
#include "dag/passes/canonicalise.h"
#include "dag/passes/halves.h"
#include "dag/passes/store.h"
#include "dag/state.h"
#include "dag/text.h"
#include "dag/unread.h"
#include "train/loss_warnings.h"
#include "train/matching.h"
#include "train/replica_warnings.h"

namespace weft::train {
namespace {

using configs::Job;
using dag::Graph;
using dag::TensorSpec;

// Meant, rather than as the exporter wrote it, and in the types that are computed in.
Result<Graph> computed(const Graph& imported, dag::HalfWeights weights) {
  WEFT_TRY(const Graph canonical, dag::canonicalise(imported, dag::op_table()));
  return dag::widen_halves(canonical, dag::op_table(), weights);
}

Status check_patterns(const Job& job, const onnx::OnnxModel& model) {
  for (size_t i = 0; i < job.freeze.size(); ++i)
    if (const Status found = onnx::check_freeze(model, {&job.freeze[i], 1}); !found)
      return fail(job.error(found.error().code, "freeze[" + std::to_string(i) + "]", found.error().message));
  for (size_t i = 0; i < job.trained.size(); ++i)
    if (const Status found = onnx::check_train(model, {&job.trained[i], 1}); !found)
      return fail(job.error(found.error().code, "train[" + std::to_string(i) + "]", found.error().message));
  return {};
}

struct Imported : onnx::ImportedModel, AddedAdapters {};

Result<Imported> import_for(const Job& job, const onnx::OnnxModel& model, const Matching& matching,
                            const onnx::Evaluator& evaluator, bool training) {
  WEFT_TRY_STATUS(check_patterns(job, model));
  onnx::ImportOptions options;
  options.evaluate = evaluator;
  options.batch = job.microbatch_size;
  options.batch_first = true;
  options.sizes = job.sizes;
  options.input_shapes = matching.shapes;
  options.bound_inputs = matching.values;
  options.training = training;
  options.train = job.trained;
  options.freeze = job.freeze;
  options.spare = job.spared;
  options.read = values_read(job.losses);
  options.keep_stored = job.task == configs::Task::Train;
  auto imported = onnx::import_model(model, options, dag::op_table());
  if (!imported) return fail(job.error(imported.error().code, "model", imported.error().message));
  const bool changes = job.task == configs::Task::Train;
  WEFT_TRY(imported->graph,
           computed(imported->graph, changes ? dag::HalfWeights::Masters : dag::HalfWeights::AsInFile));
  if (!job.adapters.empty()) imported->notes.clear();  // of what `train` would do, which goes without them
  WEFT_TRY(AddedAdapters added, add_adapters(job, model, training, *imported));
  return Imported{*std::move(imported), std::move(added)};
}

// The column of the loss under `path`, as `sample_of` has the graph take a sample of it, fed to `input`, and
// its spec under a microbatch. A column that several terms name is one input, as the first of them takes it.
Result<TensorSpec> match_column(const Job& job, const data::Dataset& dataset, const std::string& path,
                                const std::string& name, const std::string& input, const auto& sample_of,
                                std::vector<data::Feed>& feeds) {
  WEFT_TRY(const size_t column, find_column(job, dataset, path, name));
  auto feed =
      std::find_if(feeds.begin(), feeds.end(), [&](const data::Feed& one) { return one.input == input; });
  if (feed == feeds.end()) {
    const TensorSpec& stored = dataset.columns()[column].sample;
    const TensorSpec sample = sample_of(stored);
    feeds.push_back({input, column, sample == stored ? std::nullopt : std::optional(sample)});
    feed = std::prev(feeds.end());
  }
  TensorSpec spec = data::sample_of(dataset, *feed);
  spec.shape.insert(spec.shape.begin(), job.microbatch_size);
  return spec;
}

// What the columns of the loss hold, by term, and the feeds that fill them; nothing for LossType::Output.
Result<std::vector<dag::TermColumns>> match_targets(const Job& job, const Graph& model,
                                                    const data::Dataset& dataset,
                                                    std::vector<data::Feed>& feeds) {
  const std::vector<std::string> targets = dag::target_inputs(job.losses);
  const std::vector<std::string> weights = dag::weights_inputs(job.losses);
  std::vector<dag::TermColumns> columns;
  for (size_t i = 0; i < job.losses.size(); ++i) {
    const dag::LossSpec& loss = job.losses[i];
    dag::TermColumns& of_term = columns.emplace_back();
    if (loss.type == dag::LossType::Output) continue;
    const char* key = loss.type == dag::LossType::CrossEntropy ? ".labels" : ".target";
    const dag::GraphOutput* prediction = model.find_output(dag::OutputRole::Prediction, loss.prediction);
    const auto as_target = [&](const TensorSpec& stored) {
      return prediction ? target_sample(loss, model.spec(prediction->value), stored) : stored;
    };
    WEFT_TRY(of_term.target,
             match_column(job, dataset, job.loss_path(i) + key, loss.target, targets[i], as_target, feeds));
    if (loss.sample_weights.empty()) continue;
    const auto as_stored = [](const TensorSpec& stored) { return stored; };
    WEFT_TRY(of_term.sample_weights, match_column(job, dataset, job.loss_path(i) + ".sample_weights",
                                                  loss.sample_weights, weights[i], as_stored, feeds));
  }
  return columns;
}

class FromDataset : public Feeding {
 public:
  FromDataset(const Job& job, const onnx::OnnxModel& model, const data::Dataset& dataset)
      : job_(job), model_(model), dataset_(dataset) {}

  Result<Matching> match_inputs() const override { return train::match_inputs(job_, model_, dataset_); }
  Result<std::vector<dag::TermColumns>> match_targets(const Graph& model,
                                                      std::vector<data::Feed>& feeds) const override {
    return train::match_targets(job_, model, dataset_, feeds);
  }

 private:
  const Job& job_;
  const onnx::OnnxModel& model_;
  const data::Dataset& dataset_;
};

std::optional<size_t> column_of(std::span<const data::Feed> feeds, const std::string& input) {
  const auto feed =
      std::find_if(feeds.begin(), feeds.end(), [&](const data::Feed& f) { return f.input == input; });
  return feed == feeds.end() ? std::nullopt : std::optional(feed->column);
}

// The graph's divisors, of the columns that feed what they count.
std::vector<data::Divisor> divisors_of(std::span<const dag::Divisor> divisors,
                                       std::span<const data::Feed> feeds) {
  std::vector<data::Divisor> of_columns;
  for (const dag::Divisor& divisor : divisors)
    of_columns.push_back({.input = divisor.input,
                          .labels = column_of(feeds, divisor.labels),
                          .weights = column_of(feeds, divisor.sample_weights),
                          .rule = divisor.rule});
  return of_columns;
}

std::vector<std::string> all_warnings(const Matching& matching, const onnx::ImportedModel& imported) {
  std::vector<std::string> warnings = matching.warnings;
  warnings.insert(warnings.end(), imported.warnings.begin(), imported.warnings.end());
  return warnings;
}

// The place of the term that does not fit: the first that by itself gives an error.
Error loss_error(const Job& job, const Graph& model, std::span<const dag::TermColumns> columns,
                 const Error& error) {
  for (size_t i = 0; i < job.losses.size(); ++i) {
    const auto alone = dag::attach_training_loss(model, {&job.losses[i], 1}, columns.subspan(i, 1),
                                                 /*microbatches=*/1, dag::op_table());
    if (!alone) return job.error(alone.error().code, job.loss_path(i), alone.error().message);
  }
  return job.error(error.code, "loss", error.message);
}

// Devices update float32 alone, in which parameters in half precision are by now.
Status check_precision_of_parameters(const Job& job, const Graph& training) {
  for (const std::string& name : dag::trained_parameters(training)) {
    const TensorSpec& spec = training.spec(training.find_initializer(name)->value);
    if (spec.dtype == dag::DType::F32) continue;
    return fail(job.error(
        ErrorCode::Unsupported, "model",
        "parameter '" + name.substr(0, 128) + "' is " + to_string(spec) +
            "; parameters are trained in float32 (those in float16 and bfloat16 too): export the model in "
            "float32 "
            "(PyTorch: model.float()), or cast each such initializer t of the file in Python: "
            "t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype('float32'), t.name))"));
  }
  return {};
}

// What nobody will learn from, though it may have been meant to.
std::vector<std::string> unread_warnings(const Graph& model, const Graph& differentiated,
                                         std::span<const dag::LossSpec> losses) {
  dag::Unread unread = dag::find_unread(model, losses);
  unread.parameters.clear();  // those without a gradient: also where an op on the way lets none through
  for (const dag::Initializer& initializer : model.initializers())
    if (initializer.role == dag::InitializerRole::Parameter &&
        !differentiated.find_output(dag::OutputRole::Gradient, initializer.name))
      unread.parameters.push_back(initializer.name);
  return dag::describe(unread);
}

// What the graph's text does not say of the loss: the values of its constants. Nothing for a loss as it is.
std::string describe_weights(std::span<const dag::LossSpec> losses) {
  std::string weights, counts;
  for (const dag::LossSpec& loss : losses) {
    weights += " " + shortest(loss.weight);
    for (const double weight : loss.class_weights) counts += " " + shortest(weight);
    if (loss.label_smoothing != 0) counts += " smoothing " + shortest(loss.label_smoothing);
  }
  if (weights == " 1" && counts.empty()) return "";
  return "loss weights" + weights + (counts.empty() ? "" : ", of classes" + counts) + "\n";
}

// Nor does it of the inputs that have a value.
std::string describe_values(const std::map<std::string, configs::InputValue>& values) {
  std::string text;
  for (const auto& [input, value] : values) {
    text += "value of '" + input + "' " + dag::to_string(value.shape);
    for (const double number : value.numbers) text += " " + shortest(number);
    text += "\n";
  }
  return text;
}

// How matrices that nobody trains are kept: as the file has them.
dag::StoredForms stored_forms(const Job& job, const Graph& graph, const onnx::ImportedModel& imported) {
  dag::StoredForms forms = imported.stored;
  if (job.base.store == configs::BaseStore::Float32) return dag::worth_storing(graph, std::move(forms));
  for (const dag::Initializer& initializer : graph.initializers()) {
    const auto weight = imported.weights.find(initializer.name);
    if (weight == imported.weights.end() || forms.contains(initializer.name)) continue;
    const TensorSpec& spec = weight->second.spec();
    if (initializer.role == dag::InitializerRole::Frozen && is_half(spec.dtype) && spec.rank() == 2)
      forms[initializer.name] = {
          .matrix = {.rows = spec.shape[0], .columns = spec.shape[1], .numbers = spec.dtype},
          .numbers = {initializer.name, spec}};
  }
  return dag::worth_storing(graph, std::move(forms));
}
// As it is computed: products in lower precision round their operands one by one, and no op of several
// products does.
Graph as_computed(const Job& job, const onnx::OnnxModel& model, const Graph& graph,
                  const onnx::ImportedModel& imported) {
  dag::Weights scalars;
  for (const dag::Initializer& initializer : graph.initializers())
    if (const auto found = imported.weights.find(initializer.name);
        initializer.role == dag::InitializerRole::Buffer && found != imported.weights.end() &&
        found->second.element_count() == 1 && model.weights().contains(initializer.name) &&
        model.is_read(initializer.name))
      scalars.insert(*found);
  const Graph whole = job.arithmetic != dag::Arithmetic::F32
                          ? graph
                          : dag::fuse_attention(graph, scalars, dag::kScoresWorthFusing, dag::op_table());
  return dag::store(whole, stored_forms(job, whole, imported), dag::op_table());
}

// Weights of the initializers that are left after folding and pruning.
dag::Weights used_weights(const Graph& graph, dag::Weights weights) {
  std::erase_if(weights, [&](const auto& entry) { return graph.find_initializer(entry.first) == nullptr; });
  for (const dag::Initializer& initializer : graph.initializers())
    WEFT_CHECK_MSG(weights.contains(initializer.name), "an initializer without numbers");
  return weights;
}

// Every pattern of the optimizer's groups names something that is trained.
Status check_groups(const Job& job, const Graph& graph) {
  const std::vector<std::string> trained = dag::trained_parameters(graph);
  for (size_t g = 0; g < job.optimizer.groups.size(); ++g) {
    const std::vector<std::string>& patterns = job.optimizer.groups[g].parameters;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const auto matches = [&](const auto& name) { return matches_glob(patterns[i], name); };
      if (std::any_of(trained.begin(), trained.end(), matches)) continue;
      const auto initializers = graph.initializers();
      const bool untrained =
          std::any_of(initializers.begin(), initializers.end(),
                      [&](const dag::Initializer& initializer) { return matches(initializer.name); });
      return fail(job.error(
          ErrorCode::NotFound,
          "optimizer.groups[" + std::to_string(g) + "].parameters[" + std::to_string(i) + "]",
          "'" + patterns[i] +
              (untrained ? "' names only what is not trained" : "' names no parameter of the model") +
              "; `weft inspect MODEL` lists those that are"));
    }
  }
  return {};
}

// As text has its columns. Also in an npz, which is how other forms travel to a broker.
bool has_tokens(const Job& job) {
  return job.losses.front().target == "targets" &&
         std::any_of(job.inputs.begin(), job.inputs.end(),
                     [](const auto& one) { return one.second == "tokens"; });
}

}  // namespace

// Follows integer inputs through ops that keep their values to the tables that they index.
std::vector<IntegerBounds> find_bounds(const Graph& graph) {
  std::vector<std::string> input_of(graph.values().size());
  for (const dag::ValueId input : graph.inputs())
    if (is_integer(graph.spec(input).dtype)) input_of[input.index] = graph.value(input).name;
  std::vector<IntegerBounds> bounds;
  const auto bound = [&](const std::string& input, int64_t low, int64_t high, std::optional<int64_t> also) {
    if (!input.empty()) bounds.push_back({input, low, high, also});
  };
  for (const dag::Op& op : graph.ops()) {
    const dag::OpRow& row = dag::op_table().row(op.kind);
    if (op.phase != dag::Phase::Forward) continue;  // what it reads, forward has read
    if (row.keeps_values) input_of[op.outputs[0].index] = input_of[op.inputs[0].index];
    if (row.index.operand < 0) continue;
    const dag::Shape& addressed = graph.spec(op.inputs[0]).shape;
    const int64_t size = addressed[static_cast<size_t>(op.attributes.get_int(dag::Attr::Axis))];
    bound(input_of[op.inputs[static_cast<size_t>(row.index.operand)].index], row.index.from_end ? -size : 0,
          size - 1,
          op.attributes.has(dag::Attr::IgnoreIndex)
              ? std::optional(op.attributes.get_int(dag::Attr::IgnoreIndex))
              : std::nullopt);
  }
  return bounds;
}

Result<std::vector<uint32_t>> microbatch_sizes(const Job& job, const onnx::OnnxModel& model) {
  WEFT_TRY(const std::optional<uint32_t> fixed, fixed_batch(job, model));
  if (fixed && job.batch_size / job.gradient_ranges % *fixed != 0)
    return fail(job.error(ErrorCode::InvalidArgument, "batch_size",
                          "the model was exported with a fixed batch of " + std::to_string(*fixed) +
                              ": `batch_size` must be a multiple of it, for each of the gradient_ranges, "
                              "or export it with dynamic_axes"));
  if (fixed) return std::vector<uint32_t>{*fixed};
  return job.microbatch_sizes();
}

Result<Job> with_largest_microbatch(const Job& job, const onnx::OnnxModel& model) {
  if (job.microbatch_size != 0) return job;
  WEFT_TRY(const auto sizes, microbatch_sizes(job, model));
  return job.with_microbatch_size(sizes.back());
}

uint32_t microbatches_at_once(const Job& job) {
  return job.task == configs::Task::Train ? job.batch_size / job.microbatch_size : 8;
}

dag::LossTerms loss_terms_of(const Job& job) {
  dag::LossTerms terms = dag::loss_terms(job.losses);
  if (job.losses.size() != 1 || !job.test || !has_tokens(job)) return terms;
  const dag::LossSpec& loss = job.losses.front();
  terms.is_of_tokens = loss.type == dag::LossType::CrossEntropy && loss.weight == 1 &&
                       loss.label_smoothing == 0 && loss.class_weights.empty() && loss.sample_weights.empty();
  return terms;
}

Result<Prepared> prepare_training(const Job& job, const onnx::OnnxModel& model, const data::Dataset& dataset,
                                  const onnx::Evaluator& evaluator) {
  return prepare_training(job, model, FromDataset(job, model, dataset), evaluator);
}

Result<Prepared> prepare_training(const Job& job, const onnx::OnnxModel& model, const Feeding& feeding,
                                  const onnx::Evaluator& evaluator) {
  WEFT_TRY(Matching matching, feeding.match_inputs());
  WEFT_TRY(Imported imported, import_for(job, model, matching, evaluator, /*training=*/true));
  imported.graph = feeding.complete(std::move(imported.graph));
  WEFT_TRY(const std::vector<dag::TermColumns> columns,
           feeding.match_targets(imported.graph, matching.feeds));
  auto with_loss = dag::attach_training_loss(imported.graph, job.losses, columns,
                                             job.batch_size / job.microbatch_size, dag::op_table());
  if (!with_loss) return fail(loss_error(job, imported.graph, columns, with_loss.error()));
  auto differentiated =
      dag::differentiate(as_computed(job, model, with_loss->graph, imported), dag::op_table());
  if (!differentiated)
    return fail(job.error(differentiated.error().code, "model", differentiated.error().message));
  if (!differentiated->find_output(dag::OutputRole::Gradient))
    return fail(job.error(
        ErrorCode::InvalidArgument, "freeze",
        "no parameter is left to train: the loss depends on no float initializer that is not frozen"));

  WEFT_TRY_STATUS(check_precision_of_parameters(job, *differentiated));
  WEFT_TRY_STATUS(check_groups(job, *differentiated));
  Prepared prepared;
  prepared.loss_terms = loss_terms_of(job);
  prepared.bounds = find_bounds(with_loss->graph);
  prepared.divisors = divisors_of(with_loss->divisors, matching.feeds);
  prepared.identity = dag::to_text(*differentiated) + describe_weights(job.losses) +
                      describe_values(job.input_values) + describe(imported.adapters);
  prepared.graph = std::move(*differentiated);
  prepared.weights = used_weights(prepared.graph, std::move(imported.weights));
  prepared.feeds = std::move(matching.feeds);
  std::erase_if(prepared.feeds, [&](const data::Feed& feed) {
    return std::none_of(prepared.graph.inputs().begin(), prepared.graph.inputs().end(),
                        [&](dag::ValueId v) { return prepared.graph.value(v).name == feed.input; });
  });
  prepared.warnings = all_warnings(matching, imported);
  prepared.adapters = std::move(imported.adapters);
  prepared.made = std::move(imported.made);
  prepared.notes = std::move(imported.notes);
  prepared.notes.insert(prepared.notes.end(), with_loss->notes.begin(), with_loss->notes.end());
  for (std::string& warning : loss_warnings(job, model)) prepared.warnings.push_back(std::move(warning));
  for (std::string& warning : replica_warnings(job, prepared.graph))
    prepared.warnings.push_back(std::move(warning));
  for (std::string& warning : unread_warnings(imported.graph, prepared.graph, job.losses))
    prepared.warnings.push_back(std::move(warning));
  return prepared;
}

Result<Prepared> prepare_evaluation(const Job& job, const onnx::OnnxModel& model,
                                    const data::Dataset& dataset, const onnx::Evaluator& evaluator) {
  WEFT_TRY(Matching matching, match_inputs(job, model, dataset));
  WEFT_TRY(Imported imported, import_for(job, model, matching, evaluator, /*training=*/false));
  WEFT_TRY(const std::vector<dag::TermColumns> columns,
           match_targets(job, imported.graph, dataset, matching.feeds));
  auto with_loss =
      dag::attach_evaluation_loss(imported.graph, job.losses, columns, job.microbatch_size, dag::op_table());
  if (!with_loss) return fail(loss_error(job, imported.graph, columns, with_loss.error()));
  Prepared prepared;
  prepared.loss_terms = loss_terms_of(job);
  prepared.bounds = find_bounds(*with_loss);
  prepared.graph = as_computed(job, model, *with_loss, imported);
  prepared.weights = used_weights(prepared.graph, std::move(imported.weights));
  prepared.feeds = std::move(matching.feeds);
  return prepared;
}

Result<Prepared> prepare_prediction(const Job& job, const onnx::OnnxModel& model,
                                    const data::Dataset& dataset, const onnx::Evaluator& evaluator) {
  return prepare_prediction(job, model, FromDataset(job, model, dataset), evaluator);
}

Result<Prepared> prepare_prediction(const Job& job, const onnx::OnnxModel& model, const Feeding& feeding,
                                    const onnx::Evaluator& evaluator) {
  WEFT_TRY(Matching matching, feeding.match_inputs());
  WEFT_TRY(Imported imported, import_for(job, model, matching, evaluator, /*training=*/false));
  Prepared prepared;
  prepared.bounds = find_bounds(imported.graph);
  prepared.graph = as_computed(job, model, imported.graph, imported);
  prepared.weights = used_weights(prepared.graph, std::move(imported.weights));
  prepared.feeds = std::move(matching.feeds);
  prepared.warnings = all_warnings(matching, imported);
  return prepared;
}

Result<Prepared> prepare_inference(const onnx::OnnxModel& model, int64_t batch,
                                   const std::map<std::string, int64_t>& sizes,
                                   const onnx::Evaluator& evaluator) {
  onnx::ImportOptions options;
  options.evaluate = evaluator;
  options.batch = batch;
  options.sizes = sizes;
  return prepare_inference(model, options);
}

Result<Prepared> prepare_inference(const onnx::OnnxModel& model, const onnx::ImportOptions& options) {
  WEFT_TRY(onnx::ImportedModel imported, onnx::import_model(model, options, dag::op_table()));
  Prepared prepared;
  WEFT_TRY(prepared.graph, computed(imported.graph, dag::HalfWeights::AsInFile));
  prepared.bounds = find_bounds(prepared.graph);
  prepared.weights = used_weights(prepared.graph, std::move(imported.weights));
  prepared.warnings = std::move(imported.warnings);
  return prepared;
}

Status check_bounds(std::span<const IntegerBounds> bounds, const data::Microbatch& microbatch) {
  for (const IntegerBounds& bound : bounds) {
    const auto tensor = microbatch.tensors.find(bound.input);
    if (tensor == microbatch.tensors.end() || microbatch.valid_count == 0) continue;
    const std::vector<int64_t> values = to_int64s(tensor->second);
    const size_t per_sample = values.size() / static_cast<size_t>(tensor->second.shape()[0]);
    for (size_t i = 0; i < per_sample * microbatch.valid_count; ++i) {
      if ((values[i] >= bound.low && values[i] <= bound.high) || bound.also == values[i]) continue;
      return fail(ErrorCode::OutOfRange,
                  "'" + bound.input + "' holds " + std::to_string(values[i]) + " at sample " +
                      std::to_string(microbatch.sample_position + i / per_sample) +
                      " of the batch; the model takes " + std::to_string(bound.low) + " to " +
                      std::to_string(bound.high) + (bound.also ? " and " + std::to_string(*bound.also) : "") +
                      ": check the data, or the model's number of classes or tokens");
    }
  }
  return {};
}

}  // namespace weft::train
