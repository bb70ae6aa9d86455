// Which token follows, from a row of logits. A draw is a pure function of the logits, the options and the
// position: what else is served, and in which order, does not change it. Its arithmetic is our own, so that
// it is the same with every C library.
//
// Of equal scores the lowest token wins. With a temperature, a token is drawn from softmax(logits /
// temperature) by the Gumbel-max rule (Gumbel, "Statistical theory of extreme values", 1954): the largest of
// logits / temperature + g, where g = -log(-log u) and u is Philox of (seed, position, token). top_k, then
// top_p, leave out tokens before that.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::serve {

struct SamplingOptions {
  double temperature = 1;  // 0: always the likeliest
  double top_p = 1;        // the likeliest tokens that together reach this probability; in (0, 1]
  int64_t top_k = 0;       // so many of the likeliest; 0: all
  uint64_t seed = 0;
  int64_t alternatives =
      -1;  // of the likeliest tokens, told with their probability; -1: not even the drawn one's
};

struct Draw {
  int64_t token = 0;
  // Natural logarithm of the probability, without temperature, top_k and top_p; 0 where nobody asked.
  double log_probability = 0;
  std::vector<std::pair<int64_t, double>> alternatives{};  // the likeliest first
};

// Errors: Corrupted when a logit is NaN or none is finite.
Result<Draw> draw_token(std::span<const float> logits, const SamplingOptions& options, int64_t position);

// Natural logarithm of a positive number, and the exponential, by sums and products alone; relative error
// about 1e-15.
double portable_log(double x);
double portable_exp(double x);

}  // namespace weft::serve
