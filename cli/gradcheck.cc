// weft gradcheck: a model's gradients, as autodiff finds them, against central differences in double
// precision.
#include <fmt/format.h>

#include <cmath>

#include "base/rng.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "dag/autodiff.h"
#include "dag/onnx/import.h"
#include "dag/onnx/model.h"
#include "dag/op_table.h"
#include "dag/passes/canonicalise.h"
#include "dag/promote.h"
#include "peer/backend/reference/reference_backend.h"
#include "peer/backend/reference/reference_kernels.h"
#include "peer/executor.h"

namespace weft::cli {
namespace {

struct GradcheckOptions {
  std::string model;
  std::vector<std::string> freeze, sizes;
  int64_t batch = 2;
  uint64_t seed = 1;
  int directions = 2;
  double step = 1e-6;
  double tolerance = 1e-4;
};

// The model with the loss sum(r * output) over all float outputs, r fixed random numbers: every output
// element counts.
dag::Graph attach_random_loss(const dag::Graph& model, uint64_t seed) {
  dag::GraphCopy copy(model, dag::op_table());
  for (uint32_t i = 0; i < model.ops().size(); ++i) copy.copy(dag::OpId{i});
  dag::GraphBuilder& builder = copy.builder();
  builder.set_phase(dag::Phase::Forward);
  builder.set_origin({});
  dag::ValueId loss;
  uint64_t stream = 1000;
  for (const auto& output : model.outputs()) {
    if (output.role != dag::OutputRole::Prediction || !is_float(model.spec(output.value).dtype)) continue;
    const dag::TensorSpec spec = model.spec(output.value);
    Rng rng(seed, ++stream);
    std::vector<double> draws(static_cast<size_t>(spec.element_count()));
    for (double& draw : draws) draw = rng.normal();
    dag::ValueId term = builder.add(dag::OpKind::Mul,
                                    {copy.mapped(output.value), builder.constant(from_doubles(spec, draws))});
    dag::Ints axes;
    for (int64_t axis = 0; axis < spec.rank(); ++axis) axes.push_back(axis);
    if (!axes.empty())
      term = builder.add(dag::OpKind::ReduceSum, {term},
                         {{dag::Attr::Axes, axes}, {dag::Attr::KeepDims, int64_t{0}}});
    loss = loss.valid() ? builder.add(dag::OpKind::Add, {loss, term}) : term;
  }
  if (loss.valid()) builder.output("loss", loss, dag::OutputRole::Loss);
  return builder.finish();
}

// Normal draws for floats. Integers are 0 or 1, which every table and class axis of two entries allows.
dag::Tensor random_input(const dag::TensorSpec& spec, Rng& rng) {
  std::vector<double> values(static_cast<size_t>(spec.element_count()));
  for (double& value : values)
    value = is_float(spec.dtype) ? rng.normal() : static_cast<double>(rng.below(2));
  return from_doubles(spec, values);
}

// Evaluates loss and gradients at given weights, always on the same inputs and draws.
class Evaluation {
 public:
  static Result<std::unique_ptr<Evaluation>> create(dag::Graph graph, dag::Weights weights, uint64_t seed) {
    auto self = std::make_unique<Evaluation>();
    self->weights_ = std::move(weights);
    for (auto& [name, tensor] : self->weights_) tensor = dag::promote_to_f64(tensor);
    self->backend_ = peer::make_reference_backend();
    WEFT_TRY(self->executor_, peer::Executor::create(std::make_shared<const dag::Graph>(std::move(graph)),
                                                     *self->backend_, {}));
    WEFT_TRY(self->microbatch_, self->executor_->make_microbatch());
    self->microbatch_->context = {.seed = seed, .step = 1, .sample_position = 0, .microbatch_size = 1};
    Rng rng(seed, 1);
    for (const dag::ValueId input : self->executor_->graph().inputs())
      self->inputs_.emplace_back(input, random_input(self->executor_->graph().spec(input), rng));
    return self;
  }

  const dag::Weights& weights() const { return weights_; }
  peer::Executor& executor() { return *executor_; }

  // The loss with parameter `name` moved by `distance` along `direction`. Running statistics start anew each
  // time.
  Result<double> loss(const std::string& name, std::span<const double> direction, double distance) {
    for (const auto& initializer : executor_->graph().initializers()) {
      const dag::Tensor& tensor = weights_.at(initializer.name);
      if (initializer.name != name) {
        WEFT_TRY_STATUS(executor_->set_initializer(initializer.name, tensor));
        continue;
      }
      std::vector<double> moved = to_doubles(tensor);
      for (size_t i = 0; i < moved.size(); ++i) moved[i] += distance * direction[i];
      WEFT_TRY_STATUS(executor_->set_initializer(name, from_doubles(tensor.spec(), moved)));
    }
    for (const auto& [input, tensor] : inputs_)
      WEFT_TRY_STATUS(executor_->set_value(*microbatch_, input, tensor));
    WEFT_TRY_STATUS(executor_->run(*microbatch_));
    WEFT_TRY(const dag::Tensor loss,
             executor_->value(*microbatch_, executor_->graph().find_output(dag::OutputRole::Loss)->value));
    return to_doubles(loss)[0];
  }

 private:
  dag::Weights weights_;
  std::unique_ptr<peer::Backend> backend_;
  std::unique_ptr<peer::Executor> executor_;
  std::unique_ptr<peer::Microbatch> microbatch_;
  std::vector<std::pair<dag::ValueId, dag::Tensor>> inputs_;
};

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Result<int> run_gradcheck(const GradcheckOptions& options) {
  WEFT_TRY(const onnx::OnnxModel model, onnx::read_model(options.model));
  onnx::ImportOptions import;
  import.evaluate = peer::evaluate_reference;
  import.batch = options.batch;
  import.training = true;
  import.freeze = options.freeze;
  WEFT_TRY(import.sizes, parse_sizes(options.sizes));
  WEFT_TRY(onnx::ImportedModel imported, onnx::import_model(model, import, dag::op_table()));
  WEFT_TRY(const dag::Graph canonical, dag::canonicalise(imported.graph, dag::op_table()));
  const dag::Graph with_loss =
      dag::promote_to_f64(attach_random_loss(canonical, options.seed), dag::op_table());
  WEFT_TRY(dag::Graph graph, dag::differentiate(with_loss, dag::op_table()));
  // One that also runs backward, once; and one that only finds losses, many times.
  WEFT_TRY(const auto evaluation, Evaluation::create(std::move(graph), imported.weights, options.seed));
  WEFT_TRY(const auto forward, Evaluation::create(dag::prune(with_loss, dag::op_table()),
                                                  std::move(imported.weights), options.seed));

  fmt::print("seed {}, batch {}, {} random directions a parameter, step {:g} of its size, double precision\n",
             options.seed, options.batch, options.directions, options.step);
  const auto parameters = evaluation->executor().parameters();
  WEFT_TRY_STATUS(evaluation->loss("", {}, 0));
  std::vector<std::vector<double>> gradients;
  for (size_t p = 0; p < parameters.size(); ++p) {
    WEFT_TRY(const dag::Tensor gradient, evaluation->executor().gradient(p));
    gradients.push_back(to_doubles(gradient));
  }
  int failed = 0;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto& [name, spec] = parameters[p];
    const std::vector<double> value = to_doubles(evaluation->weights().at(name));
    // Directions have length one: the step is a fraction of the parameter's own length. Small, for the fewer
    // kinks (Relu, MaxPool) lie within it the better; double leaves room.
    const double h = options.step * std::max(1e-3, std::sqrt(dot(value, value)));
    double worst = 0;
    for (int d = 0; d < options.directions; ++d) {
      Rng rng(options.seed, 2 + static_cast<uint64_t>(d) + 1000 * p);
      std::vector<double> direction(value.size());
      for (double& x : direction) x = rng.normal();
      const double length = std::sqrt(dot(direction, direction));
      for (double& x : direction) x /= length;
      double values[2];
      const double distances[2] = {h, -h};
      for (int k = 0; k < 2; ++k) {
        WEFT_TRY(values[k], forward->loss(name, direction, distances[k]));
      }
      const double numeric = (values[0] - values[1]) / (2 * h);
      const double analytic = dot(gradients[p], direction);
      // Against the size of the gradient: along a random direction the projection may happen to vanish.
      const double scale = std::sqrt(dot(gradients[p], gradients[p]) / static_cast<double>(value.size())) +
                           1e-9 * std::abs(values[0]) + 1e-12;
      worst = std::max(worst, std::abs(numeric - analytic) / scale);
    }
    const bool ok = worst <= options.tolerance;
    failed += !ok;
    fmt::print("{} {:<48} {:<24} relative difference {:.2e}\n", ok ? "ok  " : "FAIL", name,
               dag::to_string(spec.shape), worst);
  }
  fmt::print("{} parameters agree, {} do not (tolerance {:g})\n",
             parameters.size() - static_cast<size_t>(failed), failed, options.tolerance);
  if (failed != 0)
    fmt::print(
        "a difference in one or two parameters may be a kink (Relu, MaxPool) within the step: try another "
        "--seed\n");
  return failed == 0 ? kExitOk : kExitFailed;
}

}  // namespace

void add_gradcheck(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand(
      "gradcheck", "compare a model's gradients with central differences in double precision");
  auto options = std::make_shared<GradcheckOptions>();
  command->add_option("model", options->model, "the ONNX file")->required();
  command
      ->add_option("--freeze", options->freeze,
                   "initializers that are not trained (pattern; may be given again)")
      ->allow_extra_args(false);
  command->add_option("--size", options->sizes, "a symbolic dim: name=number (may be given again)")
      ->allow_extra_args(false);
  command->add_option("--batch", options->batch, "samples, where the first axis is symbolic")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of inputs and directions")->capture_default_str();
  command->add_option("--directions", options->directions, "random directions a parameter")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--tolerance", options->tolerance, "largest relative difference")
      ->capture_default_str();
  command->callback([options, &chosen] { chosen = [options] { return run_gradcheck(*options); }; });
}

}  // namespace weft::cli
