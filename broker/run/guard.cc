#include "broker/run/guard.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace weft::broker {

std::optional<std::string> Guard::judge(const proto::LinkComparison& comparison) {
  if (!std::isfinite(comparison.loss_dense)) return std::nullopt;
  const double loss = (comparison.loss - comparison.loss_dense) / std::abs(comparison.loss_dense);
  if (!std::isfinite(comparison.loss) || !std::isfinite(comparison.gradient_error))
    return "over compressed links loss or gradient is not finite";
  ++count_;
  const double weight = 1.0 / std::min<uint32_t>(count_, 4);
  if (std::isfinite(loss)) loss_ += weight * (loss - loss_);
  gradient_ += weight * (comparison.gradient_error - gradient_);
  if (count_ < options_.comparisons_min) return std::nullopt;
  if (loss_ <= options_.loss_max && gradient_ <= options_.gradient_max) return std::nullopt;
  char text[160];
  std::snprintf(text, sizeof text,
                "over compressed links the loss is %+.2g%% off and the gradient of a microbatch %.2g%%, of "
                "which %.2g%% and %.2g%% are allowed",
                100 * loss_, 100 * gradient_, 100 * options_.loss_max, 100 * options_.gradient_max);
  return text;
}

}  // namespace weft::broker
