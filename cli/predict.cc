// weft predict: runs a model in inference mode over the samples of an npz file.
#include <fmt/format.h>
#include <CLI/App.hpp>

#include <map>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "dag/onnx/model.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "data/npz_writer.h"
#include "peer/backend/reference/reference_kernels.h"
#include "peer/executor.h"
#include "storage/files.h"
#include "train/prepare.h"
#include "train/session.h"

namespace weft::cli {
namespace {

struct PredictOptions {
  std::string model, data, output;
  std::vector<std::string> inputs;
  uint32_t batch = 16;
  uint32_t limit = 0;
  BackendOptions backend;
};

// "input=column" pairs; an input without one takes the column of its own name.
Result<std::vector<data::Feed>> match_columns(const PredictOptions& options, const dag::Graph& graph,
                                              const data::Dataset& dataset) {
  std::vector<data::Feed> feeds;
  for (const dag::ValueId input : graph.inputs()) {
    const std::string& name = graph.value(input).name;
    std::string column = name;
    for (const std::string& pair : options.inputs)
      if (pair.starts_with(name + "=")) column = pair.substr(name.size() + 1);
    const auto found = dataset.find_column(column);
    if (!found)
      return fail(ErrorCode::NotFound,
                  fmt::format("no column '{}' for the input '{}'; the data is {}: say --input {}=COLUMN",
                              column, name, dataset.describe(), name));
    dag::TensorSpec sample = dataset.columns()[*found].sample;
    sample.shape.insert(sample.shape.begin(),
                        graph.spec(input).shape.empty() ? 1 : graph.spec(input).shape[0]);
    if (sample != graph.spec(input))
      return fail(ErrorCode::InvalidArgument,
                  fmt::format("the input '{}' is {}, a batch of column '{}' is {}", name,
                              to_string(graph.spec(input)), column, to_string(sample)));
    feeds.push_back({name, *found});
  }
  return feeds;
}

// What no fast kernel serves, in one line: "Exp f64 (2 times), Det f32"; empty where there is nothing of it.
std::string slow_kernels(const peer::Executor& executor) {
  std::map<std::string, int> counts;
  const dag::Graph& graph = executor.graph();
  for (size_t g = 0; g < executor.program().groups.size(); ++g) {
    const dag::Op& op = graph.op(executor.program().groups[g].ops.front());
    if (executor.kernel(g).implementation().find("reference") == std::string_view::npos ||
        graph.spec(op.outputs[0]).element_count() == 0)
      continue;
    const dag::ValueId value = op.inputs.empty() ? op.outputs[0] : op.inputs[0];
    ++counts[fmt::format("{} {}", to_string(op.kind), to_string(graph.spec(value).dtype))];
  }
  std::string text;
  for (const auto& [what, count] : counts)
    text += (text.empty() ? "" : ", ") + what + (count > 1 ? fmt::format(" ({} times)", count) : "");
  return text;
}

Result<int> run_predict(const PredictOptions& options) {
  WEFT_TRY(const auto backend, make_backend(options.backend));
  WEFT_TRY(const onnx::OnnxModel model, onnx::read_model(options.model));
  WEFT_TRY(train::Prepared prepared,
           train::prepare_inference(model, options.batch, {}, peer::evaluate_reference));
  WEFT_TRY(const std::shared_ptr<const data::Dataset> dataset,
           data::open_dataset(data::NpzSpec{options.data}));
  WEFT_TRY(const auto feeds, match_columns(options, prepared.graph, *dataset));
  WEFT_TRY(const auto executor,
           train::make_executor(prepared.graph, prepared.weights, std::make_shared<peer::State>(*backend)));
  if (const std::string slow = slow_kernels(*executor); !slow.empty() && backend->name() != "reference")
    fmt::print(stderr,
               "weft: note: this device has no fast kernel for {}; reference loops compute it, slowly\n",
               slow);
  WEFT_TRY(const auto microbatch, executor->make_microbatch());

  const uint32_t batch =
      feeds.empty() ? options.batch
                    : static_cast<uint32_t>(executor->graph().spec(executor->graph().inputs()[0]).shape[0]);
  const uint32_t count =
      options.limit == 0 ? dataset->sample_count() : std::min(options.limit, dataset->sample_count());
  std::vector<data::NpzArray> arrays;
  for (const auto& output : executor->graph().outputs()) {
    dag::TensorSpec spec = executor->graph().spec(output.value);
    if (spec.shape.empty() || spec.shape[0] != batch)
      return fail(ErrorCode::Unsupported, fmt::format("output '{}' is {}: its first axis is not the batch",
                                                      output.name, to_string(spec)));
    spec.shape[0] = count;
    arrays.push_back({output.name, dag::Tensor(spec)});
  }
  data::Loader loader(dataset, feeds, data::evaluation_requests(count, batch));
  for (uint32_t done = 0; done < count;) {
    WEFT_TRY(auto next, loader.next());
    WEFT_CHECK(next.has_value());
    WEFT_TRY_STATUS(train::check_bounds(prepared.bounds, *next));
    for (const auto& [name, tensor] : next->tensors)
      WEFT_TRY_STATUS(executor->set_input(*microbatch, name, tensor));
    WEFT_TRY_STATUS(executor->run(*microbatch));
    for (size_t i = 0; i < arrays.size(); ++i) {
      WEFT_TRY(const dag::Tensor tensor, executor->value(*microbatch, executor->graph().outputs()[i].value));
      const size_t row = tensor.bytes().size() / batch;
      std::copy_n(tensor.bytes().begin(), row * next->valid_count,
                  arrays[i].tensor.mutable_bytes().begin() + static_cast<std::ptrdiff_t>(row * done));
    }
    done += next->valid_count;
  }
  WEFT_TRY(const auto bytes, data::npz_bytes(arrays));
  storage::Files files;
  WEFT_TRY_STATUS(files.write_atomic(options.output, bytes, {.mode = 0644}));
  fmt::print("predicted {} samples: {}\n", count, options.output);
  return kExitOk;
}

}  // namespace

void add_predict(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("predict", "run a model in inference mode over an npz file");
  auto options = std::make_shared<PredictOptions>();
  command->add_option("model", options->model, "the ONNX file")->required();
  command->add_option("data", options->data, "samples: an npz file with an array for each input")->required();
  command->add_option("-o,--output", options->output, "where to write an npz with an array for each output")
      ->required();
  command
      ->add_option("--input", options->inputs,
                   "graph input=array, where the names differ (may be given again)")
      ->allow_extra_args(false);
  command->add_option("--batch", options->batch, "samples at once, where the file leaves it open")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--limit", options->limit, "only the first samples; 0: all")->capture_default_str();
  options->backend.add_to(*command);
  command->callback([options, &chosen] { chosen = [options] { return run_predict(*options); }; });
}

}  // namespace weft::cli
