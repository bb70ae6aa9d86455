#include "plan/microbatch.h"

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "base/check.h"
#include "plan/explain.h"

namespace weft::plan {
namespace {

constexpr uint32_t kMicrobatchesFirst = 16;
constexpr double kWorthALarger = 1.02;  // of the time: so much slower may be what is twice as large

class Choice {
 public:
  Choice(std::span<const uint32_t> sizes, const std::function<Result<double>(uint32_t)>& seconds_of_sample)
      : sizes_(sizes), seconds_of_sample_(seconds_of_sample), seconds_(sizes.size()) {}

  Result<MicrobatchChoice> run(size_t at) {
    if (!can(at)) {
      const auto other = nearest_that_can(at);
      if (!other) return fail(error(at));
      at = *other;
    }
    for (;;) {
      if (at > 0 && cost(at - 1) < cost(at))
        --at;
      else if (at + 1 < sizes_.size() && cost(at + 1) < cost(at))
        ++at;
      else
        return MicrobatchChoice{sizes_[at], describe(at)};
    }
  }

 private:
  bool can(size_t i) {
    if (!seconds_[i]) seconds_[i] = seconds_of_sample_(sizes_[i]);
    return seconds_[i]->has_value();
  }
  double cost(size_t i) {
    if (!can(i)) return std::numeric_limits<double>::infinity();
    return **seconds_[i] / std::pow(kWorthALarger, static_cast<double>(i));
  }
  // Smaller ones first: what is short is most often memory.
  std::optional<size_t> nearest_that_can(size_t from) {
    for (size_t i = from; i-- > 0;)
      if (can(i)) return i;
    for (size_t i = from + 1; i < sizes_.size(); ++i)
      if (can(i)) return i;
    return std::nullopt;
  }
  // Of the smallest size that the cluster is too small for; else of the first that was tried.
  Error error(size_t first) const {
    for (const auto& seconds : seconds_)
      if (seconds->error().code == ErrorCode::Infeasible) return seconds->error();
    return seconds_[first]->error();
  }

  std::string describe(size_t at) {
    const auto time = [&](size_t i) { return show(Duration(static_cast<int64_t>(1e9 * **seconds_[i]))); };
    std::string text =
        "microbatch_size: auto takes " + std::to_string(sizes_[at]) + ", " + time(at) + " a sample";
    for (size_t i = 0; i < sizes_.size(); ++i)
      if (i != at && seconds_[i])
        text += "; " + std::to_string(sizes_[i]) +
                (seconds_[i]->has_value() ? " would take " + time(i) : " cannot be planned");
    return text;
  }

  std::span<const uint32_t> sizes_;
  const std::function<Result<double>(uint32_t)>& seconds_of_sample_;
  std::vector<std::optional<Result<double>>> seconds_;
};

}  // namespace

Result<MicrobatchChoice> choose_microbatch_size(
    std::span<const uint32_t> sizes, uint32_t batch_size,
    const std::function<Result<double>(uint32_t size)>& seconds_of_sample) {
  WEFT_CHECK(!sizes.empty());
  size_t at = 0;
  while (at + 1 < sizes.size() && sizes[at + 1] <= batch_size / kMicrobatchesFirst) ++at;
  return Choice(sizes, seconds_of_sample).run(at);
}

}  // namespace weft::plan
