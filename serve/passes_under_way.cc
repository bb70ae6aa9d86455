#include "serve/passes_under_way.h"

#include <algorithm>
#include <utility>

namespace weft::serve {

int64_t PassTurn::add(std::vector<int64_t> more) {
  const auto count = static_cast<int64_t>(more.size());
  guesses = std::move(more);
  rows += count;
  logits += count;
  return count;
}

uint64_t PassesUnderWay::begin(Pass pass) {
  passes_.emplace(++last_, std::move(pass));
  return last_;
}

std::optional<PassesUnderWay::Pass> PassesUnderWay::take(uint64_t number, bool in_order) {
  const auto found = passes_.find(number);
  if (found == passes_.end() || (in_order && found != passes_.begin())) return std::nullopt;
  Pass pass = std::move(found->second);
  passes_.erase(found);
  return pass;
}

std::vector<PassesUnderWay::Pass> PassesUnderWay::take_all() {
  std::vector<Pass> all;
  for (auto& [number, pass] : std::exchange(passes_, {})) {
    tell_again(pass);
    all.push_back(std::move(pass));
  }
  return all;
}

const std::vector<PassTurn>* PassesUnderWay::turns_of(uint64_t number) const {
  const auto found = passes_.find(number);
  return found == passes_.end() ? nullptr : &found->second.turns;
}

size_t PassesUnderWay::guessed_alone() const {
  return static_cast<size_t>(std::ranges::count_if(passes_, [](const auto& pass) {
    return std::ranges::all_of(pass.second.turns, [](const PassTurn& turn) { return turn.is_guessed(); });
  }));
}

std::vector<uint64_t> PassesUnderWay::take_ends(size_t most) {
  const auto last = ended_.begin() + static_cast<std::ptrdiff_t>(std::min(ended_.size(), most));
  std::vector<uint64_t> ends(ended_.begin(), last);
  ended_.erase(ended_.begin(), last);
  return ends;
}

}  // namespace weft::serve
