// The critical path: the chain of tasks and messages, each begun when the one before it ended, from a step's
// begin to its end. In the order in which things were played, only shortening something on it can shorten the
// step.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "plan/timeline.h"

namespace weft::plan {

// How much of a step one stage, line or link is waited for.
struct CriticalShare {
  CriticalPart::Kind kind = CriticalPart::Kind::Compute;
  uint32_t stage = 0, to_stage = 0;
  Duration waited{};
};

// What began when, and what it waited for until then.
class PathRecorder {
 public:
  using Mark = uint32_t;
  static constexpr Mark kBegin = std::numeric_limits<Mark>::max();  // waited for nothing

  // REQUIRES: what `after` names ended when this begins; of kBegin, at 0.
  Mark add(const CriticalPart& part, Mark after);
  Duration end(Mark mark) const { return mark == kBegin ? Duration{} : parts_[mark].part.end; }

  // In order of time; what takes no time is left out.
  std::vector<CriticalPart> path_to(Mark last) const;

 private:
  struct Recorded {
    CriticalPart part;
    Mark after = kBegin;
  };
  std::vector<Recorded> parts_;
};

// What `path` is made of, by what it is, the longest first; scaled so that all together are exactly `step`.
std::vector<CriticalShare> shares_of(std::span<const CriticalPart> path, Duration step);

// "stage 2 computes 61%, the link from stage 1 to stage 2 22%, the uplink of stage 1 11%, others 6%"; where
// no few things are most of it, "links 62% (the link from stage 3 to stage 4 12%), computing 38% (...)".
std::string describe(std::span<const CriticalShare> shares);

}  // namespace weft::plan
