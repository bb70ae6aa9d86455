#include "serve/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace weft::serve {
namespace {

constexpr double kLn2High = 6.93147180369123816490e-01;  // the upper 32 bits of ln 2, and the rest
constexpr double kLn2Low = 1.90821492927058770002e-10;
// No Gumbel draw of 53 bits is beyond these.
constexpr double kNoiseMin = -3.7, kNoiseMax = 37.5;

using Scored = std::pair<double, int64_t>;  // logit / temperature, token
bool likelier(const Scored& a, const Scored& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

// In (0, 1), 53 bits. Two neighbouring tokens share a block.
double uniform(uint64_t seed, int64_t position, int64_t token) {
  const PhiloxKey key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const auto pair = static_cast<uint64_t>(token) / 2;
  const auto at = static_cast<uint64_t>(position);
  const PhiloxBlock block =
      philox({static_cast<uint32_t>(pair), static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32),
              0x746f6b65u /* "toke": no other purpose */},
             key);
  const size_t half = token % 2 == 0 ? 0 : 2;
  const uint64_t bits = (uint64_t{block[half]} << 32 | block[half + 1]) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

// The likeliest token is always among them.
std::vector<Scored> candidates(std::span<const float> logits, const SamplingOptions& options) {
  std::vector<Scored> scored;
  scored.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    scored.emplace_back(static_cast<double>(logits[i]) / options.temperature, static_cast<int64_t>(i));
  const auto keep = static_cast<size_t>(options.top_k);
  if (options.top_k > 0 && keep < scored.size()) {
    std::nth_element(scored.begin(), scored.begin() + options.top_k, scored.end(), likelier);
    scored.resize(keep);
  }
  if (options.top_p >= 1) return scored;
  std::sort(scored.begin(), scored.end(), likelier);
  double sum = 0, reached = 0;
  for (const Scored& one : scored) sum += portable_exp(one.first - scored[0].first);
  size_t count = 0;
  while (count < scored.size() && (count == 0 || reached < options.top_p * sum))
    reached += portable_exp(scored[count++].first - scored[0].first);
  scored.resize(count);
  return scored;
}

int64_t gumbel_max(const std::vector<Scored>& scored, const SamplingOptions& options, int64_t position) {
  const Scored top = *std::min_element(scored.begin(), scored.end(), likelier);
  Scored best{-std::numeric_limits<double>::infinity(), top.second};
  const auto consider = [&](const Scored& one) {
    const double u = uniform(options.seed, position, one.second);
    // -log u is at least 1 - u: most tokens are out before a logarithm is taken.
    if ((1 - u) * 0.999 > portable_exp(one.first - best.first)) return;
    const Scored drawn{one.first - portable_log(-portable_log(u)), one.second};
    if (likelier(drawn, best)) best = drawn;
  };
  consider(top);
  for (const Scored& one : scored)
    if (one.second != top.second && one.first + kNoiseMax > top.first + kNoiseMin) consider(one);
  return best.second;
}

// log of the sum of e^logits
double log_sum(std::span<const float> logits, double largest) {
  double sum = 0;
  for (const float logit : logits) sum += portable_exp(static_cast<double>(logit) - largest);
  return largest + portable_log(sum);
}

void tell_probabilities(std::span<const float> logits, int64_t count, Draw& draw) {
  const double largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  const double sum = log_sum(logits, largest);
  draw.log_probability = static_cast<double>(logits[static_cast<size_t>(draw.token)]) - sum;
  std::vector<Scored> scored;
  scored.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    scored.emplace_back(static_cast<double>(logits[i]), static_cast<int64_t>(i));
  const auto end = scored.begin() + std::min<int64_t>(count, static_cast<int64_t>(scored.size()));
  std::partial_sort(scored.begin(), end, scored.end(), likelier);
  for (auto one = scored.begin(); one != end; ++one)
    draw.alternatives.emplace_back(one->second, one->first - sum);
}

}  // namespace

double portable_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // exact
  if (m < 0.70710678118654752440) m *= 2, --exponent;
  const double f = (m - 1) / (m + 1), square = f * f;
  double series = 0;  // log m = 2 (f + f^3/3 + f^5/5 + ...), |f| below 0.172
  for (int k = 23; k >= 1; k -= 2) series = series * square + 1.0 / k;
  return exponent * kLn2High + (2 * f * series + exponent * kLn2Low);
}

double portable_exp(double x) {
  if (x < -745) return 0;
  if (x > 709) return std::numeric_limits<double>::infinity();
  const double k = std::floor(x * 1.44269504088896340736 + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;  // within half of ln 2
  double series = 1;                                  // e^r = 1 + r (1 + r/2 (1 + r/3 (...)))
  for (int n = 14; n >= 1; --n) series = 1 + series * r / n;
  return std::ldexp(series, static_cast<int>(k));
}

Result<Draw> draw_token(std::span<const float> logits, const SamplingOptions& options, int64_t position) {
  WEFT_CHECK(!logits.empty());
  bool finite = false;
  for (const float logit : logits) {
    if (std::isnan(logit))
      return fail(ErrorCode::Corrupted, "a logit of position " + std::to_string(position) + " is NaN");
    finite = finite || std::isfinite(logit);
  }
  if (!finite || std::isinf(*std::max_element(logits.begin(), logits.end())))
    return fail(ErrorCode::Corrupted,
                "the logits of position " + std::to_string(position) + " are not finite");
  Draw draw;
  draw.token = options.temperature > 0 ? gumbel_max(candidates(logits, options), options, position)
                                       : std::max_element(logits.begin(), logits.end()) - logits.begin();
  if (options.alternatives >= 0) tell_probabilities(logits, options.alternatives, draw);
  return draw;
}

}  // namespace weft::serve
