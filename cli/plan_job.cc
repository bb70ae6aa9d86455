#include "cli/plan_job.h"

#include <algorithm>
#include <numeric>

#include "cli/report.h"
#include "configs/yaml.h"
#include "dag/autodiff.h"
#include "dag/loss.h"
#include "dag/onnx/import.h"
#include "dag/onnx/outline.h"
#include "dag/op_table.h"
#include "dag/passes/canonicalise.h"
#include "dag/state.h"
#include "data/dataset.h"
#include "data/file.h"
#include "peer/backend/reference/reference_kernels.h"
#include "train/loss_warnings.h"
#include "train/prepare.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;
using configs::Job;
using dag::Graph;
using dag::OpKind;
using dag::OutputRole;
using onnx::OnnxModel;

constexpr uint64_t kReplicationRate = 12'500'000;  // weft broker's, unless it is told another
constexpr uint32_t kPredictMicrobatches = 8;       // at a time, as a broker plans a prediction

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
  WEFT_TRY(const auto dataset, data::open_dataset(*spec));
  const auto named = job.inputs.find(input);
  const auto column = named == job.inputs.end() ? std::nullopt : dataset->find_column(named->second);
  if (!column) return fail(ErrorCode::NotFound, "the data has no column for it");
  return dataset->columns()[*column].sample.shape;
}

class Shapes {
 public:
  Shapes(const Job& job, const OnnxModel& model, const std::map<std::string, int64_t>& sizes)
      : job_(job), model_(model), sizes_(sizes), bare_(is_model(job.source)) {}

  // Of the inputs that the model leaves open.
  Result<std::map<std::string, dag::Shape>> run() const {
    std::map<std::string, dag::Shape> shapes;
    const auto ports = model_.inputs();
    for (const OnnxModel::Port& port : ports) {
      // In a job every input has the batch for its first axis; of a bare model only the first is taken to.
      if (!bare_ || &port == &ports.front()) WEFT_TRY_STATUS(check_batch(port));
      if (const std::string dim = open_dim(port); !dim.empty()) {
        WEFT_TRY(shapes[port.name], from_data(port, dim));
      }
    }
    return shapes;
  }

 private:
  Status check_batch(const OnnxModel::Port& port) const {
    if (port.dims.empty() || !is_number(port.dims[0]) || port.dims[0] == std::to_string(job_.microbatch_size))
      return {};
    return fail(job_.error(ErrorCode::InvalidArgument,
                           job_.locations.contains("microbatch_size") ? "microbatch_size" : "batch_size",
                           "the model was exported with a fixed batch of " + port.dims[0] + " ('" +
                               port.name + "'): set microbatch_size=" + port.dims[0] +
                               ", or export it with dynamic_axes"));
  }

  // The first dim behind the batch that nothing binds; "?" for a nameless one or no shape at all.
  std::string open_dim(const OnnxModel::Port& port) const {
    if (!port.has_shape) return "?";
    for (size_t i = 1; i < port.dims.size(); ++i)
      if (!is_number(port.dims[i]) && !sizes_.contains(port.dims[i]) && port.dims[i] != port.dims[0])
        return port.dims[i];
    return {};
  }

  Result<dag::Shape> from_data(const OnnxModel::Port& port, const std::string& dim) const {
    auto sample = sample_shape(job_, port.name);
    if (sample) {
      sample->insert(sample->begin(), job_.microbatch_size);
      return sample;
    }
    std::string advice = "export the model with that dim fixed";
    if (dim != "?") advice = "say --size " + dim + "=N, or " + advice;
    return fail(
        job_.error(ErrorCode::InvalidArgument, "inputs",
                   "input '" + port.name + "' of the model: " +
                       (dim == "?" ? "a dim has no size" : "nothing says how large '" + dim + "' is") +
                       ", and the data do not tell (" + sample.error().message + "): " + advice));
  }

  const Job& job_;
  const OnnxModel& model_;
  const std::map<std::string, int64_t>& sizes_;
  bool bare_;
};

// ---- the graph ----

Result<Graph> import_graph(const Job& job, const OnnxModel& model,
                           const std::map<std::string, int64_t>& sizes) {
  for (size_t i = 0; i < job.freeze.size(); ++i)
    if (const Status found = onnx::check_freeze(model, {&job.freeze[i], 1}); !found)
      return fail(job.error(found.error().code, "freeze[" + std::to_string(i) + "]", found.error().message));
  for (size_t i = 0; i < job.trained.size(); ++i)
    if (const Status found = onnx::check_train(model, {&job.trained[i], 1}); !found)
      return fail(job.error(found.error().code, "train[" + std::to_string(i) + "]", found.error().message));
  onnx::ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  options.batch = job.microbatch_size;
  options.sizes = sizes;
  options.training = job.task == configs::Task::Train;
  options.train = job.trained;
  options.freeze = job.freeze;
  options.read = train::values_read(job.losses);
  WEFT_TRY(options.input_shapes, Shapes(job, model, sizes).run());
  auto imported = onnx::import_model(model, options, dag::op_table());
  if (!imported) return fail(job.error(imported.error().code, "model", imported.error().message));
  return dag::canonicalise(imported->graph, dag::op_table());
}

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

bool is_text(const Job& job) { return job.train && std::holds_alternative<data::TextSpec>(*job.train); }

// Labels are shaped as the logits without their classes: axis 1 as PyTorch has it, but of three axes the last
// one, as language models have it. Other targets are shaped as what they are compared with.
Result<std::vector<dag::TensorSpec>> targets_of(const Job& job, const Graph& graph,
                                                std::vector<std::string>& notes) {
  std::vector<dag::TensorSpec> specs;
  for (size_t i = 0; i < job.losses.size(); ++i) {
    const dag::LossSpec& loss = job.losses[i];
    dag::TensorSpec& spec = specs.emplace_back();
    const dag::GraphOutput* output = graph.find_output(OutputRole::Prediction, loss.prediction);
    if (loss.type == dag::LossType::Output || !output || loss.prediction.empty()) continue;
    spec = graph.spec(output->value);
    if (loss.type != dag::LossType::CrossEntropy) continue;
    const int64_t rank = spec.rank(), axis = loss.axis.value_or(rank == 3 ? 2 : 1);
    if (axis >= rank)
      return fail(job.error(ErrorCode::InvalidArgument, job.loss_path(i),
                            "logits '" + loss.prediction + "' are " + to_string(spec) +
                                ": they have no axis " + std::to_string(axis) + " of classes"));
    if (!loss.axis && rank > 2 && !(rank == 3 && is_text(job)))
      notes.push_back("labels of '" + loss.prediction + "' are taken to lack axis " + std::to_string(axis) +
                      " of " + to_string(spec) + "; `axis` in the loss says otherwise");
    spec.dtype = dag::DType::I64;
    spec.shape.erase(spec.shape.begin() + axis);
  }
  return specs;
}

Result<Graph> training_graph(const Job& job, const Graph& model, std::vector<std::string>& notes) {
  WEFT_TRY(const auto targets, targets_of(job, model, notes));
  auto with_loss = dag::attach_training_loss(model, job.losses, targets, dag::op_table());
  if (!with_loss) return fail(job.error(with_loss.error().code, "loss", with_loss.error().message));
  auto graph = dag::differentiate(*with_loss, dag::op_table());
  if (!graph) return fail(job.error(graph.error().code, "model", graph.error().message));
  if (!graph->find_output(OutputRole::Gradient))
    return fail(job.error(ErrorCode::InvalidArgument, "freeze",
                          "no parameter is left to train: the loss depends on no float initializer that is "
                          "not frozen"));
  return graph;
}

}  // namespace

plan::PlanRequest PlannedJob::request() const {
  return {.graph = &graph,
          .classes = {lowered},
          .microbatches = microbatches,
          .samples = uint64_t{microbatches} * job.microbatch_size,
          .stages = job.stages,
          .optimizer_slots = static_cast<uint32_t>(optimizer_slots(job.optimizer).size()),
          .gradient_sums = job.gradient_ranges > 1 ? 2u : 1u,
          .clips_norm = job.decides_together(),
          .evaluates = job.test.has_value(),
          .copies = kReplicationRate,
          .equal_bits = job.equal_bits,
          .pins = pins,
          .owner_share_max = job.owner_share_max,
          .compression = job.compression};
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
  if (!model) {
    auto read = onnx::read_outline(job.model);
    if (!read) return fail(job.error(read.error().code, "model", read.error().message));
    model = std::move(*read);
  }
  return Outline{std::move(job), std::move(*model)};
}

}  // namespace

Result<std::vector<uint32_t>> open_microbatch_sizes(const fs::path& path, std::span<const std::string> sets) {
  WEFT_TRY(const Outline outline, read_outline(path, sets));
  if (outline.job.microbatch_size != 0) return std::vector<uint32_t>{};
  return train::microbatch_sizes(outline.job, outline.model);
}

Result<PlannedJob> open_planned_job(const fs::path& path, std::span<const std::string> sets,
                                    const std::map<std::string, int64_t>& sizes, uint32_t microbatch_size) {
  WEFT_TRY(Outline outline, read_outline(path, sets));
  PlannedJob planned{
      .name = path.string(), .job = std::move(outline.job), .graph = {}, .lowered = {}, .notes = {}};
  Job& job = planned.job;
  if (job.microbatch_size == 0) job.microbatch_size = microbatch_size;
  if (job.microbatch_size == 0) {
    WEFT_TRY(const auto open, train::microbatch_sizes(job, outline.model));
    job.microbatch_size = open.front();
  }
  WEFT_TRY(Graph graph, import_graph(job, outline.model, sizes));
  if (job.task == configs::Task::Train) {
    if (is_model(path) && job.losses.size() == 1 && job.losses[0].type == dag::LossType::Output)
      graph = summed(graph, job.losses[0].prediction);
    WEFT_TRY(planned.graph, training_graph(job, graph, planned.notes));
    planned.microbatches = job.batch_size / job.microbatch_size;
  } else {
    planned.graph = std::move(graph);
    planned.microbatches = kPredictMicrobatches;
  }
  planned.lowered = std::make_shared<const dag::Lowered>(dag::lower_traced(
      planned.graph, dag::op_table(), {.fuse_elementwise = true, .convolution_layout = dag::Layout::Plain}));
  return planned;
}

}  // namespace weft::cli
