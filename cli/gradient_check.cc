#include "cli/gradient_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "base/rng.h"
#include "dag/autodiff.h"
#include "dag/promote.h"
#include "peer/backend/reference/reference_backend.h"
#include "peer/executor.h"
#include "train/session.h"

namespace weft::cli {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr std::string_view kMagnitude = "magnitude";
constexpr int kNudges = 3;                   // evaluations that measure the noise
constexpr int kMoreDirections = 4;           // drawn where one decides nothing
constexpr int kSmallest = -2, kLargest = 3;  // powers of ten that a step may differ from the first
constexpr double kProjectionMax = 8;         // a random projection is hardly ever so many times its mean size

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
double norm(std::span<const double> a) { return std::sqrt(dot(a, a)); }

dag::ValueId sum_all(dag::GraphBuilder& builder, dag::ValueId value) {
  dag::Ints axes;
  for (int64_t axis = 0; axis < builder.spec(value).rank(); ++axis) axes.push_back(axis);
  if (axes.empty()) return value;
  return builder.add(dag::OpKind::ReduceSum, {value},
                     {{dag::Attr::Axes, axes}, {dag::Attr::KeepDims, int64_t{0}}});
}

// The model with the loss sum(r * output) over all float outputs, r fixed random numbers: every output
// element counts. Beside it the sum of the terms' sizes, which says what the loss is rounded to.
dag::Graph attach_random_loss(const dag::Graph& model, uint64_t seed, const dag::OpTable& table) {
  dag::GraphCopy copy(model, table);
  for (uint32_t i = 0; i < model.ops().size(); ++i) copy.copy(dag::OpId{i});
  dag::GraphBuilder& builder = copy.builder();
  builder.set_phase(dag::Phase::Forward);
  builder.set_origin({});
  dag::ValueId loss, magnitude;
  const auto add_up = [&](dag::ValueId& sum, dag::ValueId term) {
    sum = sum.valid() ? builder.add(dag::OpKind::Add, {sum, term}) : term;
  };
  uint64_t stream = 1000;
  for (const auto& output : model.outputs()) {
    if (output.role != dag::OutputRole::Prediction || !is_float(model.spec(output.value).dtype)) continue;
    const dag::TensorSpec& spec = model.spec(output.value);
    Rng rng(seed, ++stream);
    std::vector<double> draws(static_cast<size_t>(spec.element_count()));
    for (double& draw : draws) draw = rng.normal();
    const dag::ValueId term = builder.add(
        dag::OpKind::Mul, {copy.mapped(output.value), builder.constant(from_doubles(spec, draws))});
    add_up(loss, sum_all(builder, term));
    add_up(magnitude, sum_all(builder, builder.add(dag::OpKind::Abs, {term})));
  }
  if (loss.valid()) builder.output("loss", loss, dag::OutputRole::Loss);
  if (magnitude.valid()) builder.output(std::string(kMagnitude), magnitude, dag::OutputRole::Prediction);
  return builder.finish();
}

// Normal draws for floats. Integers are 0 or 1, which every table and class axis of two entries allows.
dag::Tensor random_input(const dag::TensorSpec& spec, Rng& rng) {
  std::vector<double> values(static_cast<size_t>(spec.element_count()));
  for (double& value : values)
    value = is_float(spec.dtype) ? rng.normal() : static_cast<double>(rng.below(2));
  return from_doubles(spec, values);
}

// Evaluates a graph at given weights, always on the same inputs and draws.
class Evaluation {
 public:
  static Result<std::unique_ptr<Evaluation>> create(const dag::Graph& graph, const dag::Weights& weights,
                                                    uint64_t seed) {
    auto self = std::make_unique<Evaluation>();
    self->backend_ = peer::make_reference_backend();
    dag::Weights promoted;
    for (const auto& initializer : graph.initializers()) {
      const dag::Tensor& tensor = promoted[initializer.name] =
          dag::promote_to_f64(weights.at(initializer.name));
      self->values_[initializer.name] = to_doubles(tensor);
    }
    WEFT_TRY(self->executor_,
             train::make_executor(graph, promoted, std::make_shared<peer::State>(*self->backend_)));
    WEFT_TRY(self->microbatch_, self->executor_->make_microbatch());
    self->microbatch_->context = {.seed = seed, .step = 1, .sample_position = 0, .microbatch_size = 1};
    Rng rng(seed, 1);
    for (const dag::ValueId input : self->executor_->graph().inputs())
      self->inputs_.emplace_back(input, random_input(self->executor_->graph().spec(input), rng));
    return self;
  }

  const std::vector<double>& values(const std::string& name) const { return values_.at(name); }
  const std::vector<peer::Executor::Parameter>& parameters() const { return executor_->parameters(); }
  Result<std::vector<double>> gradient(size_t parameter) {
    WEFT_TRY(const dag::Tensor tensor, executor_->gradient(parameter));
    return to_doubles(tensor);
  }

  Result<double> loss() {
    // Running statistics start anew each time.
    for (const auto& output : executor_->graph().outputs())
      if (output.role == dag::OutputRole::StateUpdate)
        WEFT_TRY_STATUS(set(output.name, values_.at(output.name)));
    for (const auto& [input, tensor] : inputs_)
      WEFT_TRY_STATUS(executor_->set_value(*microbatch_, input, tensor));
    WEFT_TRY_STATUS(executor_->run(*microbatch_));
    return output(dag::OutputRole::Loss, {});
  }
  Result<double> magnitude() { return output(dag::OutputRole::Prediction, kMagnitude); }

  // The loss with parameter `name` moved by `distance` along `direction`; it is back in its place afterwards.
  Result<double> loss_beside(const std::string& name, std::span<const double> direction, double distance) {
    std::vector<double> moved = values_.at(name);
    for (size_t i = 0; i < moved.size(); ++i) moved[i] += distance * direction[i];
    WEFT_TRY_STATUS(set(name, moved));
    WEFT_TRY(const double result, loss());
    WEFT_TRY_STATUS(set(name, values_.at(name)));
    return result;
  }

  // Every weight moved by one unit in its last place, up or down: what rounding does, everywhere at once.
  Status nudge(uint64_t seed, uint64_t stream) {
    Rng rng(seed, stream);
    for (const auto& initializer : executor_->graph().initializers()) {
      std::vector<double> nudged = values_.at(initializer.name);
      if (!is_float(executor_->graph().spec(initializer.value).dtype)) continue;
      for (double& value : nudged) value *= rng.below(2) != 0 ? 1 + kEpsilon : 1 - kEpsilon;
      WEFT_TRY_STATUS(set(initializer.name, nudged));
    }
    return {};
  }
  Status restore() {
    for (const auto& [name, values] : values_) WEFT_TRY_STATUS(set(name, values));
    return {};
  }

 private:
  Status set(const std::string& name, const std::vector<double>& values) {
    const dag::Graph& graph = executor_->graph();
    const dag::TensorSpec& spec = graph.spec(graph.find_initializer(name)->value);
    return executor_->state().write(dag::of_initializer(name), from_doubles(spec, values));
  }
  Result<double> output(dag::OutputRole role, std::string_view name) {
    WEFT_TRY(const dag::Tensor tensor,
             executor_->value(*microbatch_, executor_->graph().find_output(role, name)->value));
    return to_doubles(tensor)[0];
  }

  std::map<std::string, std::vector<double>> values_;
  std::unique_ptr<peer::Backend> backend_;
  std::unique_ptr<peer::Executor> executor_;
  std::unique_ptr<peer::MicrobatchMemory> microbatch_;
  std::vector<std::pair<dag::ValueId, dag::Tensor>> inputs_;
};

// What one step along one direction says.
struct Difference {
  double step = 0;
  double central = 0;
  double low = 0, high = 0;  // the slopes on both sides
  double resolution = 0;     // central, and the gradient it is compared with, cannot be told apart below this
};

class Checker {
 public:
  Checker(const GradientCheckOptions& options, Evaluation& forward) : options_(options), forward_(forward) {}

  Result<GradientReport> run(Evaluation& whole, const std::function<void(const GradientFinding&)>& sink) {
    GradientReport report;
    WEFT_TRY_STATUS(measure(whole, report));
    for (size_t p = 0; p < gradients_.size(); ++p) {
      WEFT_TRY(GradientFinding finding, check(p, whole.parameters()[p]));
      if (sink) sink(finding);
      report.findings.push_back(std::move(finding));
    }
    return report;
  }

 private:
  // Loss and gradients at the weights, and how far rounding moves both.
  Status measure(Evaluation& whole, GradientReport& report) {
    WEFT_TRY(loss_, whole.loss());
    double squares = 0;
    for (size_t p = 0; p < whole.parameters().size(); ++p) {
      WEFT_TRY(gradients_.emplace_back(), whole.gradient(p));
      squares += dot(gradients_.back(), gradients_.back());
    }
    WEFT_TRY_STATUS(whole.nudge(options_.seed, 500));
    WEFT_TRY_STATUS(whole.loss());
    for (size_t p = 0; p < gradients_.size(); ++p) {
      WEFT_TRY(std::vector<double> nudged, whole.gradient(p));
      for (size_t i = 0; i < nudged.size(); ++i) nudged[i] -= gradients_[p][i];
      gradient_noise_.push_back(kProjectionMax * norm(nudged) /
                                std::sqrt(static_cast<double>(nudged.size())));
    }
    WEFT_TRY(loss_, forward_.loss());
    WEFT_TRY(const double magnitude, forward_.magnitude());
    for (int n = 0; n < kNudges; ++n) {
      WEFT_TRY_STATUS(forward_.nudge(options_.seed, 501 + static_cast<uint64_t>(n)));
      WEFT_TRY(const double nudged, forward_.loss());
      noise_ = std::max(noise_, std::abs(nudged - loss_));
    }
    WEFT_TRY_STATUS(forward_.restore());
    noise_ = 2 * noise_ + kEpsilon * magnitude;
    report.loss = loss_;
    report.noise = noise_;
    report.gradient_norm = std::sqrt(squares);
    return {};
  }

  Result<GradientFinding> check(size_t p, const peer::Executor::Parameter& parameter) {
    GradientFinding worst{.name = parameter.name, .shape = parameter.spec.shape};
    int decided = 0;
    for (int d = 0; d < options_.directions + kMoreDirections && decided < options_.directions; ++d) {
      WEFT_TRY(const GradientFinding found, try_direction(p, parameter.name, d));
      worst.scale = found.scale;
      if (found.verdict == GradientVerdict::Undecided) continue;
      if (++decided > 1 && (found.verdict < worst.verdict ||
                            (found.verdict == worst.verdict && found.difference <= worst.difference)))
        continue;
      worst.verdict = found.verdict;
      worst.difference = found.difference;
      worst.resolution = found.resolution;
    }
    if (decided == 0) worst.verdict = GradientVerdict::Undecided;
    return worst;
  }

  Result<GradientFinding> try_direction(size_t p, const std::string& name, int number) {
    const std::vector<double>& value = forward_.values(name);
    Rng rng(options_.seed, 2 + static_cast<uint64_t>(number) + 1000 * (p + 1));
    std::vector<double> direction(value.size());
    for (double& x : direction) x = rng.normal();
    const double length = norm(direction);
    for (double& x : direction) x /= length;
    analytic_ = dot(gradients_[p], direction);
    // Along a random direction the projection may happen to vanish: its mean size is what counts.
    scale_ = norm(gradients_[p]) / std::sqrt(static_cast<double>(value.size()));
    // Directions have length one: the step is a fraction of the parameter's own length.
    const double first = options_.step * std::max(1e-3, norm(value));
    differences_.clear();
    // Smaller steps where kinks are in the way, larger ones where the difference drowns in noise.
    std::vector<int> powers{0, -1, kSmallest, 1, 2, kLargest};
    if (noise_ / first > options_.tolerance * scale_) powers = {0, 1, 2, kLargest, -1, kSmallest};
    for (const int power : powers) {
      WEFT_TRY(const Difference difference,
               measure_difference(name, direction, first * std::pow(10, power), gradient_noise_[p]));
      differences_.push_back(difference);
      if (meets(difference) && difference.resolution <= options_.tolerance * scale_)
        return finding(GradientVerdict::Agrees, difference);
    }
    return judge();
  }

  Result<Difference> measure_difference(const std::string& name, std::span<const double> direction,
                                        double step, double gradient_noise) {
    WEFT_TRY(const double above, forward_.loss_beside(name, direction, step));
    WEFT_TRY(const double below, forward_.loss_beside(name, direction, -step));
    const double right = (above - loss_) / step, left = (loss_ - below) / step;
    return Difference{.step = step,
                      .central = (above - below) / (2 * step),
                      .low = std::min(left, right),
                      .high = std::max(left, right),
                      .resolution = noise_ / step + gradient_noise};
  }

  double distance(const Difference& difference) const { return std::abs(difference.central - analytic_); }
  bool meets(const Difference& difference) const {
    return distance(difference) <= options_.tolerance * scale_ + difference.resolution;
  }
  // A kink at these very weights: the slopes on both sides stay apart however small the step is.
  bool is_kink(const Difference& large, const Difference& small) const {
    const double width = small.high - small.low;
    return width > 0.5 * (large.high - large.low) && width > 0.1 * distance(small) &&
           width > 4 * small.resolution;
  }
  bool is_between_slopes(const Difference& difference) const {
    const double margin = options_.tolerance * scale_ + 2 * difference.resolution;
    return analytic_ >= difference.low - margin && analytic_ <= difference.high + margin;
  }

  GradientFinding finding(GradientVerdict verdict, const Difference& difference) const {
    const bool nothing = std::max(std::abs(analytic_), scale_) <= difference.resolution;
    if (verdict == GradientVerdict::Agrees && nothing) verdict = GradientVerdict::AgreesWithZero;
    return {.verdict = verdict,
            .difference = distance(difference),
            .scale = scale_,
            .resolution = difference.resolution};
  }

  // Two steps that agree with each other and not with the gradient: what curvature and kinks do changes
  // tenfold from one to the next.
  bool contradict(const Difference& large, const Difference& small) const {
    const double apart = std::abs(large.central - small.central);
    const double off = std::min(distance(large), distance(small));
    return !meets(large) && !meets(small) && !is_kink(large, small) && apart <= 0.1 * off + small.resolution;
  }

  // After all steps.
  GradientFinding judge() {
    std::sort(differences_.begin(), differences_.end(),
              [](const Difference& a, const Difference& b) { return a.step < b.step; });
    for (size_t i = differences_.size(); i-- > 1;)
      if (contradict(differences_[i], differences_[i - 1]))
        return finding(GradientVerdict::Differs, differences_[i]);
    const auto sharpest = std::find_if(differences_.rbegin(), differences_.rend(),
                                       [&](const Difference& d) { return meets(d); });
    if (sharpest == differences_.rend()) {
      const Difference& small = differences_.front();
      const bool kink = is_kink(differences_[1], small) && is_between_slopes(small);
      return finding(kink ? GradientVerdict::OnKink : GradientVerdict::Undecided, small);
    }
    return finding(GradientVerdict::Agrees, *sharpest);
  }

  const GradientCheckOptions& options_;
  Evaluation& forward_;
  double loss_ = 0, noise_ = 0;
  std::vector<std::vector<double>> gradients_;  // by parameter
  std::vector<double> gradient_noise_;
  // Of the direction at hand.
  double analytic_ = 0, scale_ = 0;
  std::vector<Difference> differences_;
};

}  // namespace

Result<GradientReport> check_gradients(const dag::Graph& model, const dag::Weights& weights,
                                       const GradientCheckOptions& options, const dag::OpTable& table,
                                       const std::function<void(const GradientFinding&)>& sink) {
  const dag::Graph with_loss = dag::promote_to_f64(attach_random_loss(model, options.seed, table), table);
  WEFT_TRY(const dag::Graph graph, dag::differentiate(with_loss, table));
  // One that also runs backward, twice; and one that only finds losses, many times.
  WEFT_TRY(const auto whole, Evaluation::create(graph, weights, options.seed));
  WEFT_TRY(const auto forward, Evaluation::create(dag::prune(with_loss, table), weights, options.seed));
  return Checker(options, *forward).run(*whole, sink);
}

}  // namespace weft::cli
