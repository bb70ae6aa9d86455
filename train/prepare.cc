#include "train/prepare.h"

#include <algorithm>
#include <charconv>

#include "dag/autodiff.h"
#include "dag/loss.h"
#include "dag/op_table.h"
#include "dag/passes/canonicalise.h"
#include "dag/text.h"
#include "dag/unread.h"
#include "train/loss_warnings.h"

namespace weft::train {
namespace {

using configs::Job;
using dag::Graph;
using dag::TensorSpec;

// The model's inputs matched with columns: shapes for the import, feeds for the loader.
struct Matching {
  std::map<std::string, dag::Shape> shapes;
  std::vector<data::Feed> feeds;
};

std::string list_columns(const data::Dataset& dataset) {
  std::string text;
  for (const data::Column& column : dataset.columns())
    text += (text.empty() ? "" : ", ") + column.name + " " + to_string(column.sample);
  return text;
}

Result<size_t> find_column(const Job& job, const data::Dataset& dataset, std::string_view path,
                           const std::string& name) {
  if (const auto column = dataset.find_column(name)) return *column;
  return fail(job.error(ErrorCode::NotFound, path,
                        "the data has no column '" + name + "'; it has " + list_columns(dataset)));
}

std::string describe(const onnx::OnnxModel::Port& port) {
  std::string text = port.dtype + "[";
  for (size_t i = 0; i < port.dims.size(); ++i) text += (i ? "," : "") + port.dims[i];
  return text + "]";
}

bool is_number(const std::string& dim) {
  return !dim.empty() && std::all_of(dim.begin(), dim.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The column's shape under the microbatch, against what the file says of the input.
Result<dag::Shape> match_shape(const Job& job, const onnx::OnnxModel::Port& port, const TensorSpec& sample) {
  const std::string path = "inputs." + port.name;
  const auto mismatch = [&](const std::string& why) {
    return fail(job.error(ErrorCode::InvalidArgument, path,
                          "input '" + port.name + "' of the model is " + describe(port) +
                              ", a sample of the column is " + to_string(sample) + ": " + why));
  };
  if (port.dtype != to_string(sample.dtype)) return mismatch("the types differ");
  dag::Shape shape = sample.shape;
  shape.insert(shape.begin(), job.microbatch_size);
  if (!port.has_shape) return shape;
  if (port.dims.size() != shape.size())
    return mismatch("the ranks differ (the first axis of the input is the batch)");
  if (is_number(port.dims[0]) && port.dims[0] != std::to_string(job.microbatch_size))
    return fail(job.error(ErrorCode::InvalidArgument,
                          job.locations.contains("microbatch_size") ? "microbatch_size" : "batch_size",
                          "the model was exported with a fixed batch of " + port.dims[0] +
                              ": set microbatch_size: " + port.dims[0] + ", or export it with dynamic_axes"));
  for (size_t i = 1; i < shape.size(); ++i)
    if (is_number(port.dims[i]) && port.dims[i] != std::to_string(shape[i]))
      return mismatch("axis " + std::to_string(i) + " differs");
  return shape;
}

Result<Matching> match_inputs(const Job& job, const onnx::OnnxModel& model, const data::Dataset& dataset) {
  Matching matching;
  const auto ports = model.inputs();
  for (const auto& [input, column] : job.inputs) {
    if (std::any_of(ports.begin(), ports.end(), [&](const auto& port) { return port.name == input; }))
      continue;
    std::string names;
    for (const auto& port : ports) names += (names.empty() ? "'" : ", '") + port.name + "'";
    return fail(job.error(ErrorCode::NotFound, "inputs." + input,
                          "the model has no input '" + input + "'; it has " + names));
  }
  for (const auto& port : ports) {
    const auto named = job.inputs.find(port.name);
    if (named == job.inputs.end())
      return fail(job.error(ErrorCode::InvalidArgument, "inputs",
                            "the model's input '" + port.name + "' " + describe(port) +
                                " gets no data: add `" + port.name + ": <column>`; the data has " +
                                list_columns(dataset)));
    WEFT_TRY(const size_t column, find_column(job, dataset, "inputs." + port.name, named->second));
    WEFT_TRY(matching.shapes[port.name], match_shape(job, port, dataset.columns()[column].sample));
    matching.feeds.push_back({port.name, column});
  }
  return matching;
}

Result<onnx::ImportedModel> import_for(const Job& job, const onnx::OnnxModel& model, const Matching& matching,
                                       const onnx::Evaluator& evaluator, bool training) {
  for (size_t i = 0; i < job.freeze.size(); ++i)
    if (const Status found = onnx::check_freeze(model, {&job.freeze[i], 1}); !found)
      return fail(job.error(found.error().code, "freeze[" + std::to_string(i) + "]", found.error().message));
  for (size_t i = 0; i < job.trained.size(); ++i)
    if (const Status found = onnx::check_train(model, {&job.trained[i], 1}); !found)
      return fail(job.error(found.error().code, "train[" + std::to_string(i) + "]", found.error().message));
  onnx::ImportOptions options;
  options.evaluate = evaluator;
  options.batch = job.microbatch_size;
  options.input_shapes = matching.shapes;
  options.training = training;
  options.train = job.trained;
  options.freeze = job.freeze;
  options.read = values_read(job.losses);
  auto imported = onnx::import_model(model, options, dag::op_table());
  if (!imported) return fail(job.error(imported.error().code, "model", imported.error().message));
  WEFT_TRY(imported->graph, dag::canonicalise(imported->graph, dag::op_table()));
  return imported;
}

// The specs of the targets, by term, and the feeds that fill them; nothing for LossType::Output.
Result<std::vector<TensorSpec>> match_targets(const Job& job, const data::Dataset& dataset,
                                              std::vector<data::Feed>& feeds) {
  const std::vector<std::string> inputs = dag::target_inputs(job.losses);
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < job.losses.size(); ++i) {
    const dag::LossSpec& loss = job.losses[i];
    TensorSpec& spec = specs.emplace_back();
    if (loss.type == dag::LossType::Output) continue;
    const char* key = loss.type == dag::LossType::CrossEntropy ? ".labels" : ".target";
    WEFT_TRY(const size_t column, find_column(job, dataset, job.loss_path(i) + key, loss.target));
    spec = dataset.columns()[column].sample;
    spec.shape.insert(spec.shape.begin(), job.microbatch_size);
    const bool fed = std::any_of(feeds.begin(), feeds.end(),
                                 [&](const data::Feed& feed) { return feed.input == inputs[i]; });
    if (!fed) feeds.push_back({inputs[i], column});
  }
  return specs;
}

// The place of the term that does not fit: the first that by itself gives an error.
Error loss_error(const Job& job, const Graph& model, std::span<const TensorSpec> targets,
                 const Error& error) {
  for (size_t i = 0; i < job.losses.size(); ++i) {
    const auto alone =
        dag::attach_training_loss(model, {&job.losses[i], 1}, targets.subspan(i, 1), dag::op_table());
    if (!alone) return job.error(alone.error().code, job.loss_path(i), alone.error().message);
  }
  return job.error(error.code, "loss", error.message);
}

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
  std::string text;
  for (const dag::LossSpec& loss : losses) {
    char number[32];
    const auto end = std::to_chars(number, number + sizeof number, loss.weight).ptr;
    text += " " + std::string(number, end);
  }
  return text == " 1" ? "" : "loss weights" + text + "\n";
}

// Weights of the initializers that are left after folding and pruning.
dag::Weights used_weights(const Graph& graph, dag::Weights weights) {
  std::erase_if(weights, [&](const auto& entry) { return graph.find_initializer(entry.first) == nullptr; });
  return weights;
}

}  // namespace

Result<std::vector<uint32_t>> microbatch_sizes(const Job& job, const onnx::OnnxModel& model) {
  for (const onnx::OnnxModel::Port& port : model.inputs()) {
    uint32_t size = 0;
    if (port.dims.empty() || !is_number(port.dims[0])) continue;
    const std::string& dim = port.dims[0];
    const auto [end, error] = std::from_chars(dim.data(), dim.data() + dim.size(), size);
    if (error != std::errc() || size == 0 || job.batch_size / job.gradient_ranges % size != 0)
      return fail(job.error(ErrorCode::InvalidArgument, "batch_size",
                            "the model was exported with a fixed batch of " + dim +
                                ": `batch_size` must be a multiple of it, for each of the gradient_ranges, "
                                "or export it with dynamic_axes"));
    return std::vector<uint32_t>{size};
  }
  return job.microbatch_sizes();
}

Result<Job> with_largest_microbatch(const Job& job, const onnx::OnnxModel& model) {
  if (job.microbatch_size != 0) return job;
  WEFT_TRY(const auto sizes, microbatch_sizes(job, model));
  return job.with_microbatch_size(sizes.back());
}

Result<Prepared> prepare_training(const Job& job, const onnx::OnnxModel& model, const data::Dataset& dataset,
                                  const onnx::Evaluator& evaluator) {
  WEFT_TRY(Matching matching, match_inputs(job, model, dataset));
  WEFT_TRY(onnx::ImportedModel imported, import_for(job, model, matching, evaluator, /*training=*/true));
  WEFT_TRY(const std::vector<TensorSpec> targets, match_targets(job, dataset, matching.feeds));
  auto with_loss = dag::attach_training_loss(imported.graph, job.losses, targets, dag::op_table());
  if (!with_loss) return fail(loss_error(job, imported.graph, targets, with_loss.error()));
  auto differentiated = dag::differentiate(*with_loss, dag::op_table());
  if (!differentiated)
    return fail(job.error(differentiated.error().code, "model", differentiated.error().message));
  if (!differentiated->find_output(dag::OutputRole::Gradient))
    return fail(job.error(
        ErrorCode::InvalidArgument, "freeze",
        "no parameter is left to train: the loss depends on no float initializer that is not frozen"));

  Prepared prepared;
  prepared.bounds = find_bounds(*with_loss);
  prepared.identity = dag::to_text(*differentiated) + describe_weights(job.losses);
  prepared.graph = std::move(*differentiated);
  prepared.weights = used_weights(prepared.graph, std::move(imported.weights));
  prepared.feeds = std::move(matching.feeds);
  std::erase_if(prepared.feeds, [&](const data::Feed& feed) {
    return std::none_of(prepared.graph.inputs().begin(), prepared.graph.inputs().end(),
                        [&](dag::ValueId v) { return prepared.graph.value(v).name == feed.input; });
  });
  prepared.warnings = std::move(imported.warnings);
  prepared.notes = std::move(imported.notes);
  for (std::string& warning : loss_warnings(job, model)) prepared.warnings.push_back(std::move(warning));
  for (std::string& warning : unread_warnings(imported.graph, prepared.graph, job.losses))
    prepared.warnings.push_back(std::move(warning));
  return prepared;
}

Result<Prepared> prepare_evaluation(const Job& job, const onnx::OnnxModel& model,
                                    const data::Dataset& dataset, const onnx::Evaluator& evaluator) {
  WEFT_TRY(Matching matching, match_inputs(job, model, dataset));
  WEFT_TRY(onnx::ImportedModel imported, import_for(job, model, matching, evaluator, /*training=*/false));
  WEFT_TRY(const std::vector<TensorSpec> targets, match_targets(job, dataset, matching.feeds));
  auto with_loss =
      dag::attach_evaluation_loss(imported.graph, job.losses, targets, job.microbatch_size, dag::op_table());
  if (!with_loss) return fail(loss_error(job, imported.graph, targets, with_loss.error()));
  Prepared prepared;
  prepared.loss_terms = dag::loss_terms(job.losses);
  prepared.bounds = find_bounds(*with_loss);
  prepared.graph = std::move(*with_loss);
  prepared.weights = used_weights(prepared.graph, std::move(imported.weights));
  prepared.feeds = std::move(matching.feeds);
  return prepared;
}

Result<Prepared> prepare_prediction(const Job& job, const onnx::OnnxModel& model,
                                    const data::Dataset& dataset, const onnx::Evaluator& evaluator) {
  WEFT_TRY(Matching matching, match_inputs(job, model, dataset));
  WEFT_TRY(onnx::ImportedModel imported, import_for(job, model, matching, evaluator, /*training=*/false));
  Prepared prepared;
  prepared.bounds = find_bounds(imported.graph);
  prepared.graph = std::move(imported.graph);
  prepared.weights = used_weights(prepared.graph, std::move(imported.weights));
  prepared.feeds = std::move(matching.feeds);
  prepared.warnings = std::move(imported.warnings);
  return prepared;
}

Result<Prepared> prepare_inference(const onnx::OnnxModel& model, int64_t batch,
                                   const std::map<std::string, int64_t>& sizes,
                                   const onnx::Evaluator& evaluator) {
  onnx::ImportOptions options;
  options.evaluate = evaluator;
  options.batch = batch;
  options.sizes = sizes;
  WEFT_TRY(onnx::ImportedModel imported, onnx::import_model(model, options, dag::op_table()));
  WEFT_TRY(Graph canonical, dag::canonicalise(imported.graph, dag::op_table()));
  Prepared prepared;
  prepared.bounds = find_bounds(canonical);
  prepared.graph = std::move(canonical);
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
