// `weft gradcheck`: gradients as autodiff finds them against central differences in double precision.
//
// A difference of two losses, divided by their distance 2h, is off by what the losses are rounded to (noise /
// h) and by what is not linear within the step (curvature, h squared; a kink of Relu or MaxPool inside it,
// h). So the noise of the loss is measured, a difference is trusted only down to noise / h, and where one
// step does not decide, ten and a hundred times smaller and larger ones do: a right gradient meets the
// differences at some step, a wrong one stays away from them at all, and where the differences agree with
// nothing, not even with each other, they decide nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::cli {

struct GradientCheckOptions {
  uint64_t seed = 1;        // of inputs and directions
  int directions = 2;       // random directions a parameter
  double step = 1e-6;       // the first step, as a fraction of the parameter's own length
  double tolerance = 1e-4;  // of the differences from the gradient's size
};

enum class GradientVerdict : uint8_t {
  Agrees,
  AgreesWithZero,  // both are nothing beside what differences can see
  OnKink,     // the loss has a kink at these very weights; the gradient lies between the slopes beside it
  Undecided,  // the differences at various steps contradict each other, in every direction tried
  Differs
};

struct GradientFinding {
  std::string name{};
  dag::Shape shape{};
  GradientVerdict verdict = GradientVerdict::Agrees;
  double difference = 0;  // the worst, from the differences it was nearest to
  double scale = 0;       // what the gradient is along a random direction, root mean square
  double resolution = 0;  // what differences cannot see, at the step that decided
};

struct GradientReport {
  double loss = 0;
  double noise = 0;          // of the loss: how far rounding may move it
  double gradient_norm = 0;  // of all parameters together
  std::vector<GradientFinding> findings{};
};

// `model`: with predictions and no loss, canonical. Its loss is the sum of its float outputs, each element
// times a fixed random number. `table` is asked for the vjps. `sink` hears of each parameter as it is
// checked.
Result<GradientReport> check_gradients(const dag::Graph& model, const dag::Weights& weights,
                                       const GradientCheckOptions& options, const dag::OpTable& table,
                                       const std::function<void(const GradientFinding&)>& sink = {});

}  // namespace weft::cli
