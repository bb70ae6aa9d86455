#include "broker/placement.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace weft::broker {

namespace {

// A matching by augmenting paths: a stage may move one that was placed before to that one's next choice, so
// that all are placed whenever that is possible.
class Matching {
 public:
  Matching(const std::vector<StageToPlace>& stages, const std::vector<Applicant>& applicants, bool equal_bits)
      : stages_(stages), applicants_(applicants), equal_bits_(equal_bits), stage_of_(applicants.size()) {
    for (uint32_t s = 0; s < stages.size(); ++s)
      for (uint32_t a = 0; a < applicants.size(); ++a)
        if (applicants[a].peer == stages[s].peer && !stage_of_[a]) {
          stage_of_[a] = s;
          kept_.push_back(a);
          break;
        }
  }

  bool place(uint32_t stage) {
    std::vector<bool> tried(applicants_.size(), false);
    for (const uint32_t a : kept_) tried[a] = true;
    return place(stage, tried);
  }

  std::optional<uint32_t> applicant_of(uint32_t stage) const {
    for (uint32_t a = 0; a < stage_of_.size(); ++a)
      if (stage_of_[a] == stage) return a;
    return std::nullopt;
  }

 private:
  bool place(uint32_t stage, std::vector<bool>& tried) {
    for (const uint32_t a : choices(stage)) {
      if (tried[a]) continue;
      tried[a] = true;
      if (stage_of_[a] && !place(*stage_of_[a], tried)) continue;
      stage_of_[a] = stage;
      return true;
    }
    return false;
  }

  std::vector<uint32_t> choices(uint32_t stage) const {
    std::vector<uint32_t> choices;
    if (stages_[stage].pinned) return choices;
    const proto::DeviceClass& wanted = stages_[stage].device_class;
    const auto same_bits = [&](uint32_t a) {
      return applicants_[a].device_class.fingerprint == wanted.fingerprint;
    };
    for (uint32_t a = 0; a < applicants_.size(); ++a)
      if ((same_bits(a) || !equal_bits_) && applicants_[a].memory >= stages_[stage].memory)
        choices.push_back(a);
    const auto rank = [&](uint32_t a) {
      const Applicant& applicant = applicants_[a];
      const auto standing = applicant.standing_by.find(stage);
      const bool stands_by = standing != applicant.standing_by.end();
      return std::tuple(!same_bits(a), applicant.device_class.traits != wanted.traits, !stands_by,
                        stands_by ? ~standing->second : 0, !applicant.standing_by.empty(), a);
    };
    std::sort(choices.begin(), choices.end(), [&](uint32_t a, uint32_t b) { return rank(a) < rank(b); });
    return choices;
  }

  const std::vector<StageToPlace>& stages_;
  const std::vector<Applicant>& applicants_;
  bool equal_bits_;
  std::vector<std::optional<uint32_t>> stage_of_;  // by applicant
  std::vector<uint32_t> kept_;
};

}  // namespace

std::optional<std::vector<uint32_t>> place_again(const std::vector<StageToPlace>& stages,
                                                 const std::vector<Applicant>& applicants, bool equal_bits) {
  Matching matching(stages, applicants, equal_bits);
  std::vector<uint32_t> order(stages.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return stages[a].memory > stages[b].memory; });
  for (const uint32_t stage : order)
    if (!matching.applicant_of(stage) && !matching.place(stage)) return std::nullopt;
  std::vector<uint32_t> placed;
  for (uint32_t stage = 0; stage < stages.size(); ++stage) placed.push_back(*matching.applicant_of(stage));
  return placed;
}

std::vector<std::vector<uint32_t>> deal_stages(const std::vector<StageToHold>& stages,
                                               std::vector<Holder> holders, bool equal_bits) {
  std::vector<std::vector<uint32_t>> dealt(holders.size());
  if (stages.empty() || holders.empty()) return dealt;
  const auto give = [&](uint32_t stage, size_t holder, bool alike) {
    Holder& to = holders[holder];
    if ((to.fingerprint == stages[stage].fingerprint) != alike) return false;
    if (to.memory < stages[stage].memory || to.free < stages[stage].bytes) return false;
    to.free -= stages[stage].bytes;
    dealt[holder].push_back(stage);
    return true;
  };
  // Every stage once, beginning with the holder whose turn it is; then those who have none yet.
  const auto give_to_one = [&](uint32_t stage, bool alike) {
    for (size_t i = 0; i < holders.size(); ++i)
      if (give(stage, (stage + i) % holders.size(), alike)) return true;
    return false;
  };
  for (uint32_t s = 0; s < stages.size(); ++s)
    if (!give_to_one(s, true) && !equal_bits) give_to_one(s, false);
  for (size_t h = 0; h < holders.size(); ++h)
    for (size_t i = 0; dealt[h].empty() && i < stages.size(); ++i)
      give(static_cast<uint32_t>((h + i) % stages.size()), h, true);
  return dealt;
}

}  // namespace weft::broker
