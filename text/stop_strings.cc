#include "text/stop_strings.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace weft::text {

Result<StopStrings> StopStrings::make(std::vector<std::string> stops) {
  if (stops.size() > kStopStringsMax)
    return fail(ErrorCode::OutOfRange, std::to_string(stops.size()) + " stop strings; at most " +
                                           std::to_string(kStopStringsMax) + " are taken");
  for (const std::string& stop : stops)
    if (stop.empty() || stop.size() > kStopStringSizeMax)
      return fail(ErrorCode::OutOfRange, "a stop string of " + std::to_string(stop.size()) +
                                             " bytes; it has to have 1 to " +
                                             std::to_string(kStopStringSizeMax));
  return StopStrings(std::move(stops));
}

namespace {

// The bytes at the end of `text` that a stop string may begin with.
size_t begun_suffix(std::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string_view stop : stops)
    for (size_t size = std::min(stop.size() - 1, text.size()); size > longest; --size)
      if (text.ends_with(stop.substr(0, size))) longest = size;
  return longest;
}

}  // namespace

StopStrings::Passed StopStrings::push(std::string_view text) {
  WEFT_CHECK(!stopped_by_);
  held_ += text;
  size_t begin = 0, end = SIZE_MAX;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t at = held_.find(stops_[i]);
    if (at == std::string::npos) continue;
    const size_t its_end = at + stops_[i].size();
    if (its_end > end || (its_end == end && at >= begin)) continue;
    stopped_by_ = i;
    begin = at;
    end = its_end;
  }
  if (stopped_by_) return {std::exchange(held_, {}).substr(0, begin), true};
  const size_t passes = held_.size() - begun_suffix(held_, stops_);
  std::string passed = held_.substr(0, passes);
  held_.erase(0, passes);
  return {std::move(passed), false};
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace weft::text
