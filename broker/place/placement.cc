#include "broker/place/placement.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace weft::broker {

namespace {

// Memory for it, its owner's where it has one, and its bits where those are promised.
bool may_take(const StageToPlace& stage, const Applicant& applicant, bool equal_bits) {
  return applicant.memory >= stage.memory && (stage.owner.empty() || stage.owner == applicant.owner) &&
         (!equal_bits || applicant.device_class.fingerprint == stage.device_class.fingerprint);
}

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
      if (may_take(stages_[stage], applicants_[a], equal_bits_)) choices.push_back(a);
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

// Moves stages that were given out, one or two at a time, to where a step takes less.
class Improvement {
 public:
  Improvement(const std::vector<StageToPlace>& stages, const std::vector<Applicant>& applicants,
              bool equal_bits, const StepSeconds& step_seconds, std::vector<uint32_t> placed)
      : stages_(stages),
        applicants_(applicants),
        equal_bits_(equal_bits),
        step_seconds_(step_seconds),
        placed_(std::move(placed)),
        stage_of_(applicants.size()) {
    for (uint32_t s = 0; s < placed_.size(); ++s) {
      stage_of_[placed_[s]] = s;
      if (applicants[placed_[s]].peer != stages[s].peer) open_.push_back(s);
    }
  }

  std::vector<uint32_t> run() {
    Value best = value(placed_);
    for (bool changed = true; changed;) {
      changed = false;
      for (const uint32_t stage : open_)
        for (uint32_t a = 0; a < applicants_.size(); ++a) {
          std::vector<uint32_t> next = placed_;
          if (!move(next, stage, a)) continue;
          if (looks_ >= kLooksMax) return std::move(placed_);
          const Value worth = value(next);
          if (worth.other_bits > best.other_bits ||
              (worth.other_bits == best.other_bits && worth.seconds >= best.seconds * kBetter))
            continue;
          take(std::move(next));
          best = worth;
          changed = true;
        }
    }
    return std::move(placed_);
  }

 private:
  static constexpr int kLooksMax = 5000;
  static constexpr double kBetter = 0.999;
  static constexpr double kCold = 1.1;  // a stage whose tensors have to be fetched first

  struct Value {
    size_t other_bits = 0;
    double seconds = 0;
  };

  bool same_bits(uint32_t stage, uint32_t a) const {
    return applicants_[a].device_class.fingerprint == stages_[stage].device_class.fingerprint;
  }
  bool may(uint32_t stage, uint32_t a) const { return may_take(stages_[stage], applicants_[a], equal_bits_); }
  // With whoever is there already changing places.
  bool move(std::vector<uint32_t>& placed, uint32_t stage, uint32_t a) const {
    const uint32_t before = placed[stage];
    if (a == before || !may(stage, a)) return false;
    if (const auto other = stage_of_[a]) {
      if (applicants_[a].peer == stages_[*other].peer || !may(*other, before)) return false;
      placed[*other] = before;
    } else if (std::any_of(stages_.begin(), stages_.end(),
                           [&](const StageToPlace& own) { return own.peer == applicants_[a].peer; })) {
      return false;
    }
    placed[stage] = a;
    return true;
  }
  void take(std::vector<uint32_t> placed) {
    placed_ = std::move(placed);
    std::fill(stage_of_.begin(), stage_of_.end(), std::nullopt);
    for (uint32_t s = 0; s < placed_.size(); ++s) stage_of_[placed_[s]] = s;
  }
  Value value(const std::vector<uint32_t>& placed) {
    ++looks_;
    Value value{.other_bits = 0, .seconds = step_seconds_(placed)};
    bool all_stood_by = true;
    for (const uint32_t stage : open_) {
      value.other_bits += !same_bits(stage, placed[stage]);
      all_stood_by = all_stood_by && applicants_[placed[stage]].standing_by.contains(stage);
    }
    if (!all_stood_by) value.seconds *= kCold;
    return value;
  }

  const std::vector<StageToPlace>& stages_;
  const std::vector<Applicant>& applicants_;
  bool equal_bits_;
  const StepSeconds& step_seconds_;
  std::vector<uint32_t> placed_;
  std::vector<std::optional<uint32_t>> stage_of_;  // by applicant
  std::vector<uint32_t> open_;                     // stages whose peers are gone
  int looks_ = 0;
};

}  // namespace

std::optional<std::vector<uint32_t>> place_again(const std::vector<StageToPlace>& stages,
                                                 const std::vector<Applicant>& applicants, bool equal_bits,
                                                 const StepSeconds& step_seconds) {
  Matching matching(stages, applicants, equal_bits);
  std::vector<uint32_t> order(stages.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return stages[a].memory > stages[b].memory; });
  for (const uint32_t stage : order)
    if (!matching.applicant_of(stage) && !matching.place(stage)) return std::nullopt;
  std::vector<uint32_t> placed;
  placed.reserve(stages.size());
  for (uint32_t stage = 0; stage < stages.size(); ++stage) placed.push_back(*matching.applicant_of(stage));
  if (!step_seconds) return placed;
  return Improvement(stages, applicants, equal_bits, step_seconds, std::move(placed)).run();
}

DealtStages deal_stages(const std::vector<StageToHold>& stages, std::vector<Holder> holders,
                        bool equal_bits) {
  DealtStages dealt;
  dealt.by_holder.resize(holders.size());
  dealt.first.resize(stages.size());
  if (stages.empty() || holders.empty()) return dealt;
  std::vector<uint32_t> held_by(stages.size(), 0);
  enum class Kin { Fingerprint, Traits, None };  // what they have in common, at most
  const auto kin_of = [&](uint32_t stage, size_t holder) {
    if (holders[holder].fingerprint == stages[stage].fingerprint) return Kin::Fingerprint;
    return holders[holder].traits == stages[stage].traits ? Kin::Traits : Kin::None;
  };
  const auto give = [&](uint32_t stage, size_t holder, Kin kin) {
    Holder& to = holders[holder];
    if (kin_of(stage, holder) != kin || held_by[stage] == kHoldersMax) return false;
    if (to.memory < stages[stage].memory || to.free < stages[stage].bytes) return false;
    if (!stages[stage].owner.empty() && stages[stage].owner != to.owner) return false;
    to.free -= stages[stage].bytes;
    ++held_by[stage];
    dealt.by_holder[holder].push_back(stage);
    if (!dealt.first[stage]) dealt.first[stage] = static_cast<uint32_t>(holder);
    return true;
  };
  // Every stage once, beginning with the holder whose turn it is; then those who have none yet.
  const auto give_to_one = [&](uint32_t stage, Kin kin) {
    for (size_t i = 0; i < holders.size(); ++i)
      if (give(stage, (stage + i) % holders.size(), kin)) return true;
    return false;
  };
  for (uint32_t s = 0; s < stages.size(); ++s)
    if (!give_to_one(s, Kin::Fingerprint) && !equal_bits && !give_to_one(s, Kin::Traits))
      give_to_one(s, Kin::None);
  for (size_t h = 0; h < holders.size(); ++h)
    for (size_t i = 0; dealt.by_holder[h].empty() && i < stages.size(); ++i)
      give(static_cast<uint32_t>((h + i) % stages.size()), h, Kin::Fingerprint);
  return dealt;
}

}  // namespace weft::broker
