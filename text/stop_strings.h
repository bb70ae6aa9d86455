// Texts at which a stream of text ends.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::text {

inline constexpr size_t kStopStringsMax = 16;
inline constexpr size_t kStopStringSizeMax = 1024;  // bytes

// Passes a text on as it comes, up to the stop string that is whole first; of those that end at one place, to
// the longest. What may be the begin of one is held back, and no more than that. The result does not depend
// on how the text comes in parts. Belongs to one thread.
class StopStrings {
 public:
  // None: the text passes as it is. OutOfRange: an empty one, too many, or one that is too long.
  static Result<StopStrings> make(std::vector<std::string> stops);

  struct Passed {
    std::string text;
    bool is_stopped = false;  // a stop string came; it and what follows are not in the text
  };
  // The text goes on. REQUIRES: it has not stopped.
  Passed push(std::string_view text);
  // The text has ended: what was held back.
  std::string finish();
  // The stop string that came, by its place in the list.
  std::optional<size_t> stopped_by() const { return stopped_by_; }

 private:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  std::vector<std::string> stops_;
  std::string held_;
  std::optional<size_t> stopped_by_;
};

}  // namespace weft::text
