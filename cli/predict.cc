// weft predict: runs a model in inference mode over the samples of an npz file.
#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "configs/job.h"
#include "dag/onnx/model.h"
#include "train/outputs.h"
#include "train/predictor.h"

namespace weft::cli {
namespace {

struct PredictOptions {
  std::string model, data, output;
  std::vector<std::string> inputs, values, sizes;
  uint32_t batch = 16;
  uint32_t limit = 0;
  std::string format = "text";
  BackendOptions backend;
};

// "name=text" options.
Result<std::map<std::string, std::string>> parse_pairs(const char* option,
                                                       const std::vector<std::string>& texts) {
  std::map<std::string, std::string> pairs;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
      return fail(ErrorCode::InvalidArgument, fmt::format("'{}' is no pair, as {} is", text, option));
    pairs[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return pairs;
}

Result<double> parse_number(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number))
    return fail(ErrorCode::InvalidArgument, fmt::format("--value wants a number, not '{}'", text));
  return number;
}

// The job that the options stand for. An input without a column of its own takes that of its name.
Result<configs::Job> job_of(const PredictOptions& options, const onnx::OnnxModel& model) {
  configs::Job job;
  job.source = options.model;
  job.from_options = true;
  job.task = configs::Task::Predict;
  job.model = options.model;
  job.output = options.output;
  job.batch_size = options.batch;
  job.microbatch_size = options.batch;
  WEFT_TRY(job.inputs, parse_pairs("--input x=image", options.inputs));
  WEFT_TRY(const auto values, parse_pairs("--value sr=16000", options.values));
  for (const auto& [input, text] : values) {
    WEFT_TRY(const double number, parse_number(text));
    if (job.inputs.contains(input))
      return fail(ErrorCode::InvalidArgument,
                  fmt::format("'{}' is given by --input and by --value; keep one", input));
    job.input_values[input] = {.shape = {}, .numbers = {number}};
  }
  WEFT_TRY(job.sizes, parse_sizes(options.sizes));
  for (const auto& port : model.inputs())
    if (!job.input_values.contains(port.name)) job.inputs.try_emplace(port.name, port.name);
  job.predict = data::NpzSpec{options.data, job.columns()};
  return job;
}

Result<int> run_predict(const PredictOptions& options) {
  std::vector<train::ReadFile> read = train::files_of_model(options.model);
  read.push_back({"the data", options.data});
  WEFT_TRY_STATUS(train::check_output_file(options.output, read));
  WEFT_TRY(const auto backend, make_backend(options.backend));
  WEFT_TRY(const onnx::OnnxModel model, onnx::read_model(options.model));
  WEFT_TRY(const configs::Job job, job_of(options, model));
  const Patience patience("computing " + options.output);
  WEFT_TRY(const uint64_t count,
           train::predict(job, model, *backend,
                          {.samples_max = options.limit, .warn = [](const std::string& warning) {
                             fmt::print(stderr, "warning: {}\n", warning);
                           }}));
  if (options.format == "json")
    print_event(fmt::format(R"({{"event":"result","status":"completed","samples":{},"output":{}}})", count,
                            json_string(options.output)));
  else
    fmt::print("predicted {} samples: {}\n", count, options.output);
  return kExitOk;
}

}  // namespace

void add_predict(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("predict", "run a model in inference mode over an npz file");
  auto options = std::make_shared<PredictOptions>();
  command.option("model", options->model, "the ONNX file").required();
  command.option("data", options->data, "samples: an npz file with an array for each input").required();
  command.option("-o,--output", options->output, "where to write an npz with an array for each output")
      .required();
  command.option("--input", options->inputs, "graph input=array, where the names differ (may be given again)")
      .one_value_each();
  command
      .option("--value", options->values,
              "graph input=number, the same for every sample (may be given again)")
      .one_value_each();
  command
      .option("--size", options->sizes,
              "a symbolic dim that the data do not tell: name=number (may be given again)")
      .one_value_each();
  command.option("--batch", options->batch, "samples at once, where the file leaves it open")
      .within(1, 65536)
      .shows_default();
  command.option("--limit", options->limit, "only the first samples; 0: all").shows_default();
  command.format(options->format);
  options->backend.add_to(command);
  command.runs(chosen, [options] { return run_predict(*options); });
}

}  // namespace weft::cli
