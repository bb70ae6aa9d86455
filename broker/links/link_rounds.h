// Which pairs of peers to measure next. Of up to kCore peers all pairs. Of more: those of the core with each
// other; every other peer with one of each site until it is known where it stands; every two sites some
// times, with the ends' lines that tell most of what lies between; and each peer with some whose lines are
// faster than what was seen of its own. A peer is measured with at most partners_max others. Before all that
// each is measured with one that seems to be at the same place: a plan gains most by knowing these, and among
// many peers they would come last.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "broker/links/link_survey.h"

namespace weft::broker {

using NumberPair = std::pair<uint32_t, uint32_t>;

inline constexpr Duration kFreshFor = std::chrono::hours(1);
inline constexpr Duration kRetryAfter = std::chrono::minutes(5);  // a pair of which a probe failed

uint32_t partners_max(size_t peers);

// What is said of where a peer is; empty: unknown. It only says whom to measure first.
struct Place {
  std::string region{};  // by its owner
  std::string host{};    // from which its connection came
};

// Among `idle`, no peer in two pairs, the most needed first. `ids`: by number. `places`: of each that is
// idle; empty: nothing is known.
std::vector<NumberPair> pairs_to_measure(const Survey& survey, std::span<const PeerId> ids,
                                         std::span<const uint32_t> idle, std::span<const Place> places = {});

// Among `idle`, those to measure again for they are old or failed, the oldest first: one, of many peers some.
std::vector<NumberPair> pairs_to_repeat(const Survey& survey, std::span<const uint32_t> idle, Instant now);

}  // namespace weft::broker
