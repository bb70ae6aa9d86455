#include "cli/plan_job.h"
#include "broker/run/run_options.h"

#include <algorithm>
#include <numeric>

#include "cli/report.h"
#include "configs/yaml.h"
#include "dag/loss.h"
#include "dag/onnx/batch_axis.h"
#include "dag/onnx/outline.h"
#include "dag/op_table.h"
#include "data/dataset.h"
#include "data/file.h"
#include "peer/backend/reference/reference_kernels.h"
#include "train/data_check.h"
#include "train/initial_weights.h"
#include "train/matching.h"
#include "train/plan_request.h"
#include "train/prepare.h"
#include "train/stored_base.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;
using configs::Job;
using dag::Graph;
using dag::OpKind;
using dag::OutputRole;
using onnx::OnnxModel;

bool is_number(const std::string& dim) {
  return !dim.empty() && std::all_of(dim.begin(), dim.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_model(const fs::path& path) { return path.extension() == ".onnx"; }

// ---- the job ----

// The job that a bare model stands for, as YAML.
Result<std::string> job_text_of(const fs::path& path, const OnnxModel& model) {
  const auto inputs = model.inputs();
  const auto outputs = model.outputs();
  if (outputs.empty()) return fail(ErrorCode::InvalidArgument, path.string() + ": the model has no output");
  std::error_code code;
  const fs::path whole = fs::absolute(path, code);
  std::string columns;
  for (const auto& port : inputs)
    columns += (columns.empty() ? "" : ", ") + json_string(port.name) + ": data";
  if (columns.empty()) columns = "none: none";
  const bool fixed =
      !inputs.empty() && !inputs[0].dims.empty() && is_number(inputs[0].dims[0]) && inputs[0].dims[0] != "0";
  return "model: " + json_string(whole.string()) + "\ntask: train\ninputs: {" + columns +
         "}\nloss: {type: output, name: " + json_string(outputs[0].name) +
         "}\ndata: {train: {type: npz, path: none.npz}}\nbatch_size: " + (fixed ? inputs[0].dims[0] : "1") +
         "\nsteps: 1\noptimizer: {type: adamw}\n";
}

Result<std::string> read_text(const fs::path& path) {
  WEFT_TRY(const auto file, data::File::open(path));
  if (file->size() > configs::kYamlSizeMax)
    return file->error(ErrorCode::ResourceExhausted,
                       "larger than a job file may be (" + std::to_string(configs::kYamlSizeMax) + " bytes)");
  std::string text(static_cast<size_t>(file->size()), '\0');
  WEFT_TRY_STATUS(file->read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

// ---- shapes ----

const data::DataSpec* data_of(const Job& job) {
  if (job.task == configs::Task::Predict) return job.predict ? &*job.predict : nullptr;
  return job.train ? &*job.train : nullptr;
}

// The shape of a sample of the column; opens the data where it is no text. An error says why it is not known.
Result<dag::Shape> sample_shape(const Job& job, const std::string& input) {
  const data::DataSpec* spec = data_of(job);
  if (spec == nullptr) return fail(ErrorCode::NotFound, "the job names no data");
  if (const auto* text = std::get_if<data::TextSpec>(spec)) return dag::Shape{text->sequence_length};
  if (const auto* jsonl = std::get_if<data::JsonlSpec>(spec)) return dag::Shape{jsonl->sequence_length};
  WEFT_TRY(const auto dataset, data::open_dataset(*spec));
  const auto named = job.inputs.find(input);
  const auto column = named == job.inputs.end() ? std::nullopt : dataset->find_column(named->second);
  if (!column) return fail(ErrorCode::NotFound, "the data has no column for it");
  return dataset->columns()[*column].sample.shape;
}

class Shapes {
 public:
  Shapes(const Job& job, const OnnxModel& model, const std::map<std::string, int64_t>& sizes)
      : job_(job),
        model_(model),
        sizes_(sizes),
        symbol_(onnx::batch_symbol(model)),
        bare_(is_model(job.source)) {}

  // Of the inputs that the model leaves open, with the batch first.
  Result<std::map<std::string, dag::Shape>> run() const {
    std::map<std::string, dag::Shape> shapes;
    const auto ports = model_.inputs();
    for (const OnnxModel::Port& port : ports) {
      if (job_.input_values.contains(port.name)) continue;
      // In a job every input has the batch; of a bare model only the first is taken to.
      if (!bare_ || &port == &ports.front()) WEFT_TRY_STATUS(check_batch(port));
      if (const std::string dim = open_dim(port); !dim.empty()) {
        WEFT_TRY(shapes[port.name], from_data(port, dim));
      }
    }
    return shapes;
  }

 private:
  Status check_batch(const OnnxModel::Port& port) const {
    if (port.dims.empty()) return {};
    const std::string& size = port.dims[onnx::batch_axis(port, symbol_)];
    if (!is_number(size) || size == std::to_string(job_.microbatch_size)) return {};
    return fail(job_.error(ErrorCode::InvalidArgument,
                           job_.locations.contains("microbatch_size") ? "microbatch_size" : "batch_size",
                           "the model was exported with a fixed batch of " + size + " ('" + port.name +
                               "'): set microbatch_size=" + size + ", or export it with dynamic_axes"));
  }

  // The first dim beside the batch that nothing binds; "?" for a nameless one or no shape at all.
  std::string open_dim(const OnnxModel::Port& port) const {
    if (!port.has_shape) return "?";
    const size_t batch = onnx::batch_axis(port, symbol_);
    for (size_t i = 0; i < port.dims.size(); ++i) {
      const std::string& dim = port.dims[i];
      const bool is_batch = i == batch || (dim != "?" && (dim == port.dims[batch] || dim == symbol_));
      if (!is_batch && !is_number(dim) && !sizes_.contains(dim)) return dim;
    }
    return {};
  }

  Result<dag::Shape> from_data(const OnnxModel::Port& port, const std::string& dim) const {
    std::string why;
    if (!bare_) {
      auto sample = sample_shape(job_, port.name);
      if (sample) {
        sample->insert(sample->begin(), job_.microbatch_size);
        return sample;
      }
      why = ", and the data do not tell (" + sample.error().message + ")";
    }
    std::string advice =
        bare_ ? "give a job file, whose data tell it" : "export the model with that dim fixed";
    if (dim != "?") advice = "say --size " + dim + "=N, or " + advice;
    return fail(
        job_.error(ErrorCode::InvalidArgument, "inputs",
                   "input '" + port.name + "' of the model: " +
                       (dim == "?" ? "a dim has no size" : "nothing says how large '" + dim + "' is") + why +
                       ": " + advice));
  }

  const Job& job_;
  const OnnxModel& model_;
  const std::map<std::string, int64_t>& sizes_;
  std::string symbol_;
  bool bare_;
};

// ---- the graph ----

// The named output added up, so that it is a loss.
Graph summed(const Graph& graph, const std::string& output) {
  dag::GraphCopy copy(graph, dag::op_table());
  for (uint32_t i = 0; i < graph.ops().size(); ++i) copy.copy({i});
  copy.builder().set_phase(dag::Phase::Forward);
  copy.builder().set_origin(dag::OpId{});
  for (const dag::GraphOutput& one : graph.outputs()) {
    dag::ValueId value = copy.mapped(one.value);
    const dag::Shape shape = graph.spec(one.value).shape;
    if (one.name == output && one.role == OutputRole::Prediction && !shape.empty()) {
      dag::Ints axes(shape.size());
      std::iota(axes.begin(), axes.end(), 0);
      value = copy.builder().add(OpKind::ReduceSum, {value},
                                 {{dag::Attr::Axes, axes}, {dag::Attr::KeepDims, int64_t{0}}}, "sum");
    }
    copy.builder().output(one.name, value, one.role);
  }
  return copy.finish();
}

bool is_text(const Job& job) {
  return job.train && (std::holds_alternative<data::TextSpec>(*job.train) ||
                       std::holds_alternative<data::JsonlSpec>(*job.train));
}

// Labels are shaped as the logits without their classes: axis 1 as PyTorch has it, but of three axes the last
// one, as language models have it. Other targets are shaped as what they are compared with.
Result<std::vector<dag::TermColumns>> columns_of(const Job& job, const Graph& graph,
                                                 std::vector<std::string>& notes) {
  std::vector<dag::TermColumns> columns;
  for (size_t i = 0; i < job.losses.size(); ++i) {
    const dag::LossSpec& loss = job.losses[i];
    dag::TensorSpec& spec = columns.emplace_back().target;
    const dag::GraphOutput* output = graph.find_output(OutputRole::Prediction, loss.prediction);
    if (loss.type == dag::LossType::Output || !output || loss.prediction.empty()) continue;
    spec = graph.spec(output->value);
    if (!loss.sample_weights.empty() && !spec.shape.empty())
      columns.back().sample_weights = dag::TensorSpec{dag::DType::F32, {spec.shape[0]}};
    if (loss.type != dag::LossType::CrossEntropy) continue;
    const int64_t rank = spec.rank(), said = loss.axis.value_or(rank == 3 ? 2 : 1);
    const int64_t axis = said < 0 ? said + rank : said;
    if (axis < 1 || axis >= rank)
      return fail(job.error(ErrorCode::InvalidArgument, job.loss_path(i),
                            "logits '" + loss.prediction + "' are " + to_string(spec) +
                                ": they have no axis " + std::to_string(said) + " of classes"));
    if (!loss.axis && rank > 2 && !(rank == 3 && is_text(job)))
      notes.push_back("labels of '" + loss.prediction + "' are taken to lack axis " + std::to_string(axis) +
                      " of " + to_string(spec) + "; `axis` in the loss says otherwise");
    spec.dtype = dag::DType::I64;
    spec.shape.erase(spec.shape.begin() + axis);
  }
  return columns;
}

// Of data that are not there: inputs as the model has them, and targets as its outputs ask for.
class Assumed : public train::Feeding {
 public:
  Assumed(const Job& job, const OnnxModel& model, std::vector<std::string>& notes)
      : job_(job), model_(model), notes_(notes) {}

  Result<train::Matching> match_inputs() const override {
    train::Matching matching;
    WEFT_TRY(matching.shapes, Shapes(job_, model_, job_.sizes).run());
    WEFT_TRY(matching.values, train::input_values(job_, model_, job_.microbatch_size));
    return matching;
  }
  Result<std::vector<dag::TermColumns>> match_targets(const Graph& model,
                                                      std::vector<data::Feed>& /*feeds*/) const override {
    return columns_of(job_, model, notes_);
  }
  // What a bare model is trained for is the sum of its output.
  Graph complete(Graph model) const override {
    if (!is_model(job_.source) || job_.losses.size() != 1 || job_.losses[0].type != dag::LossType::Output)
      return model;
    return summed(model, job_.losses[0].prediction);
  }

 private:
  const Job& job_;
  const OnnxModel& model_;
  std::vector<std::string>& notes_;
};

}  // namespace

plan::PlanRequest PlannedJob::request() const {
  plan::PlanRequest request = train::plan_request(job, graph, lowered, broker::RunOptions{}.copy_rate);
  request.samples = uint64_t{microbatches} * job.microbatch_size;
  request.pins = pins;
  return request;
}

double PlannedJob::samples_per_second(double step_seconds) const {
  return static_cast<double>(microbatches) * job.microbatch_size / std::max(1e-12, step_seconds);
}

namespace {

struct Outline {
  Job job;
  OnnxModel model;
};
Result<Outline> read_outline(const fs::path& path, std::span<const std::string> sets) {
  std::optional<OnnxModel> model;
  std::string text;
  if (is_model(path)) {
    WEFT_TRY(model, onnx::read_outline(path));
    WEFT_TRY(text, job_text_of(path, *model));
  } else {
    WEFT_TRY(text, read_text(path));
  }
  WEFT_TRY(Job job,
           configs::parse_job(text, sets,
                              {.source = path.string(), .folder = path.parent_path(), .check_files = false}));
  // Nobody wrote the lines of a bare model's job, but for what --set says.
  if (is_model(path)) std::erase_if(job.locations, [](const auto& entry) { return !entry.second.from_set; });
  if (!model) {
    auto read = onnx::read_outline(job.model);
    if (!read) return fail(job.error(read.error().code, "model", read.error().message));
    model = std::move(*read);
  }
  return Outline{std::move(job), std::move(*model)};
}

}  // namespace

namespace {

bool is_there(const data::DataSpec& spec) {
  const auto files = data::files_of(spec);
  std::error_code code;
  return files && std::all_of(files->begin(), files->end(), [&](const std::filesystem::path& file) {
           return std::filesystem::is_regular_file(file, code);
         });
}

// Whether the weights fit, where their file is there. A plan needs no more of them.
Status look_at_init(Job& job, const OnnxModel& model, std::vector<std::string>& notes) {
  if (!job.init) return {};
  std::error_code code;
  if (fs::exists(job.init->file, code)) {
    WEFT_TRY(const auto initial, train::InitialWeights::open(job, model));
    notes.push_back(initial.note());
    for (std::string& warning : initial.warnings()) notes.push_back(std::move(warning));
  } else {
    notes.push_back("init: " + job.init->file.string() + " is not there, and was not looked at");
  }
  job.init.reset();
  return {};
}

// As a broker prepares it, of the data where they are there.
Result<train::Prepared> prepare_as_broker(const Job& job, const OnnxModel& model,
                                          std::vector<std::string>& notes) {
  const bool predicts = job.task == configs::Task::Predict;
  const auto prepare = [&](const auto& feeding) {
    return predicts ? train::prepare_prediction(job, model, feeding, peer::evaluate_reference)
                    : train::prepare_training(job, model, feeding, peer::evaluate_reference);
  };
  const data::DataSpec* spec = data_of(job);
  if (is_model(job.source) || spec == nullptr || !is_there(*spec)) return prepare(Assumed(job, model, notes));
  WEFT_TRY(const auto dataset, data::open_dataset(*spec, {.checks_sums = false, .checks_photos = false}));
  return prepare(*dataset);
}

// The columns that feed the graph, which was made without them: as many elements, of the graph's types.
Result<train::Prepared> fed_by(const PlannedJob& planned, const data::Dataset& dataset) {
  const Job& job = planned.job;
  train::Prepared prepared;
  prepared.graph = planned.graph;
  prepared.bounds = train::find_bounds(planned.graph);
  const std::vector<std::string> targets = dag::target_inputs(job.losses);
  for (const dag::ValueId value : planned.graph.inputs()) {
    const std::string& input = planned.graph.value(value).name;
    const auto named = job.inputs.find(input);
    const auto target =
        static_cast<size_t>(std::find(targets.begin(), targets.end(), input) - targets.begin());
    if (named == job.inputs.end() && target == targets.size()) continue;
    const bool is_input = named != job.inputs.end();
    WEFT_TRY(const size_t column,
             train::find_column(job, dataset, is_input ? "inputs." + input : job.loss_path(target),
                                is_input ? named->second : job.losses[target].target));
    prepared.feeds.push_back(
        {input, column,
         dag::TensorSpec{planned.graph.spec(value).dtype, dataset.columns()[column].sample.shape}});
  }
  return prepared;
}

}  // namespace

Result<Job> read_planned_job(const fs::path& path, std::span<const std::string> sets) {
  WEFT_TRY(const std::string text, read_text(path));
  return configs::parse_job(text, sets,
                            {.source = path.string(), .folder = path.parent_path(), .check_files = false});
}

Result<std::vector<std::string>> look_at_data(const PlannedJob& planned) {
  const Job& job = planned.job;
  std::vector<std::string> notes;
  if (is_model(job.source)) return notes;
  const auto look_at = [&](const std::optional<data::DataSpec>& spec, train::DataUse use) -> Status {
    if (!spec || !is_there(*spec)) return {};
    WEFT_TRY(const auto dataset, data::open_dataset(*spec, {.checks_sums = false, .checks_photos = false}));
    WEFT_TRY(const train::Prepared prepared, fed_by(planned, *dataset));
    WEFT_TRY(const auto said, train::check_data(job, use, *dataset, prepared));
    notes.insert(notes.end(), said.begin(), said.end());
    return {};
  };
  WEFT_TRY_STATUS(look_at(job.train, train::DataUse::Train));
  WEFT_TRY_STATUS(look_at(job.test, train::DataUse::Test));
  WEFT_TRY_STATUS(look_at(job.predict, train::DataUse::Predict));
  return notes;
}

Result<std::vector<uint32_t>> open_microbatch_sizes(const fs::path& path, std::span<const std::string> sets) {
  WEFT_TRY(Outline outline, read_outline(path, sets));
  if (outline.job.microbatch_size != 0) return std::vector<uint32_t>{};
  WEFT_TRY_STATUS(train::store_base(outline.job, outline.model));
  return train::microbatch_sizes(outline.job, outline.model);
}

Result<PlannedJob> open_planned_job(const fs::path& path, std::span<const std::string> sets,
                                    const std::map<std::string, int64_t>& sizes, uint32_t microbatch_size,
                                    std::span<const dag::BackendTraits> classes) {
  WEFT_TRY(Outline outline, read_outline(path, sets));
  PlannedJob planned{
      .name = path.string(), .job = std::move(outline.job), .graph = {}, .lowered = {}, .notes = {}};
  Job& job = planned.job;
  WEFT_TRY_STATUS(look_at_init(job, outline.model, planned.notes));
  WEFT_TRY(const auto stored, train::store_base(job, outline.model));
  if (stored) planned.notes.push_back(*stored);
  WEFT_TRY_STATUS(train::check_for_peers(job));
  for (const auto& [dim, size] : sizes) job.sizes[dim] = size;
  if (job.microbatch_size == 0) job.microbatch_size = microbatch_size;
  if (job.microbatch_size == 0) {
    WEFT_TRY(const auto open, train::microbatch_sizes(job, outline.model));
    job.microbatch_size = open.front();
  }
  WEFT_TRY(auto prepared, prepare_as_broker(job, outline.model, planned.notes));
  planned.graph = std::move(prepared.graph);
  planned.microbatches = train::microbatches_at_once(job);
  for (const dag::BackendTraits& traits : classes)
    planned.lowered.push_back(
        std::make_shared<const dag::Lowered>(dag::lower_traced(planned.graph, dag::op_table(), traits)));
  return planned;
}

}  // namespace weft::cli
