// weft generate: text from a model of bytes, one token after another.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/rng.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "dag/onnx/model.h"
#include "peer/backend/reference/reference_kernels.h"
#include "peer/executor.h"
#include "train/prepare.h"
#include "train/session.h"

namespace weft::cli {
namespace {

struct GenerateOptions {
  std::string model;
  std::string prompt = "\n";
  int length = 400;
  double temperature = 0.8;
  uint64_t seed = 0;
  BackendOptions backend;
};

// A draw from softmax(logits / temperature); temperature 0 takes the largest.
int64_t sample(std::span<const float> logits, double temperature, Rng& rng) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return largest - logits.begin();
  std::vector<double> weights(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    sum += weights[i] = std::exp((logits[i] - *largest) / temperature);
  double left = rng.uniform() * sum;
  for (size_t i = 0; i < weights.size(); ++i)
    if ((left -= weights[i]) < 0) return static_cast<int64_t>(i);
  return static_cast<int64_t>(weights.size()) - 1;
}

Status check_is_byte_model(const dag::Graph& graph) {
  const auto refuse = [](const std::string& why) {
    return fail(ErrorCode::InvalidArgument,
                "this is no model of bytes: " + why +
                    " (wanted: one input tokens i64[1,T], one output logits f32[1,T,256])");
  };
  if (graph.inputs().size() != 1)
    return refuse("it has " + std::to_string(graph.inputs().size()) + " inputs");
  const dag::TensorSpec& tokens = graph.spec(graph.inputs()[0]);
  if (tokens.dtype != dag::DType::I64 || tokens.rank() != 2 || tokens.shape[0] != 1)
    return refuse("its input is " + to_string(tokens));
  const auto* output = graph.find_output(dag::OutputRole::Prediction);
  const dag::TensorSpec logits = output ? graph.spec(output->value) : dag::TensorSpec{};
  if (logits.shape != dag::Shape{1, tokens.shape[1], 256} || logits.dtype != dag::DType::F32)
    return refuse("its output is " + to_string(logits));
  return {};
}

Result<int> run_generate(const GenerateOptions& options) {
  if (options.prompt.empty())
    return fail(ErrorCode::InvalidArgument, "--prompt is empty: give at least one character to start from");
  WEFT_TRY(const auto backend, make_backend(options.backend));
  WEFT_TRY(const onnx::OnnxModel model, onnx::read_model(options.model));
  WEFT_TRY(train::Prepared prepared,
           train::prepare_inference(model, /*batch=*/1, {}, peer::evaluate_reference));
  WEFT_TRY_STATUS(check_is_byte_model(prepared.graph));
  WEFT_TRY(const auto executor,
           train::make_executor(prepared.graph, prepared.weights, std::make_shared<peer::State>(*backend)));
  WEFT_TRY(const auto microbatch, executor->make_microbatch());

  const dag::Graph& graph = executor->graph();
  const dag::ValueId input = graph.inputs()[0];
  const auto window = static_cast<size_t>(graph.spec(input).shape[1]);
  Rng rng(options.seed, /*stream=*/0);
  std::string text = options.prompt;
  std::fputs(text.c_str(), stdout);
  for (int i = 0; i < options.length; ++i) {
    // The causal mask keeps what lies behind the last known byte from mattering.
    const size_t known = std::min(text.size(), window);
    dag::Tensor tokens(graph.spec(input));
    for (size_t k = 0; k < known; ++k)
      tokens.mutable_as<int64_t>()[k] = static_cast<unsigned char>(text[text.size() - known + k]);
    WEFT_TRY_STATUS(executor->set_value(*microbatch, input, tokens));
    WEFT_TRY_STATUS(executor->run(*microbatch));
    WEFT_TRY(const dag::Tensor logits,
             executor->value(*microbatch, graph.find_output(dag::OutputRole::Prediction)->value));
    const char next = static_cast<char>(
        sample(logits.as<float>().subspan((known - 1) * 256, 256), options.temperature, rng));
    text += next;
    std::fputc(next, stdout);
    std::fflush(stdout);
  }
  std::fputc('\n', stdout);
  return kExitOk;
}

}  // namespace

void add_generate(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("generate", "sample text from a trained model of bytes");
  auto options = std::make_shared<GenerateOptions>();
  command.option("model", options->model, "the ONNX file, tokens i64[batch,T] to logits [batch,T,256]")
      .required();
  command.option("--prompt", options->prompt, "how the text begins");
  command.option("--length", options->length, "bytes to add").within(1, 1 << 20).shows_default();
  command.option("--temperature", options->temperature, "0: always the likeliest byte")
      .within(0.0, 100.0)
      .shows_default();
  command.option("--seed", options->seed, "of the draws").shows_default();
  options->backend.add_to(command);
  command.runs(chosen, [options] { return run_generate(*options); });
}

}  // namespace weft::cli
