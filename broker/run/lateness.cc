#include "broker/run/lateness.h"

#include <algorithm>
#include <utility>

namespace weft::broker {

namespace {
constexpr size_t kRoundsKept = 5;
constexpr Duration kBetweenLooksMax = std::chrono::seconds(1);
// A hiccup; and what the first steps of a run may take longer than others.
constexpr Duration kGrace = std::chrono::seconds(5), kGraceOfFirst = std::chrono::seconds(20);

Duration duration(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(s, 1e9)));
}
}  // namespace

Lateness::Lateness(const PlannedRun& plan) : inner_(plan), predicted_step_(seconds(plan.predicted_step)) {
  for (const PlannedStage& stage : plan.stages)
    replica_of_.push_back(inner_.replica_of(stage.assignment->seat));
}

// A round that no look saw begin is taken to begin where the one before ended.
void Lateness::follow(Instant now, const Steps& steps) {
  const auto& agreed = steps.agreed();
  const uint64_t end = inner_.next_whole(steps.committed() + 1);
  if (round_) round_->border = inner_.next_end(steps.committed() + 1);
  if (round_ && round_->end == end) return;
  if (round_ && agreed && agreed->step >= round_->end) {
    step_seconds_.push_back(seconds(agreed->at - round_->since) /
                            static_cast<double>(agreed->step - round_->after));
    if (step_seconds_.size() > kRoundsKept) step_seconds_.pop_front();
  }
  is_pardoned_ = false;
  round_ = Round{.after = agreed ? agreed->step : steps.committed(),
                 .end = end,
                 .border = inner_.next_end(steps.committed() + 1),
                 .since = agreed ? agreed->at : now,
                 .waited = std::vector<Duration>(inner_.replicas(), Duration::zero()),
                 .idle = std::vector<Duration>(inner_.replicas(), Duration::zero()),
                 .made = {}};
}

std::vector<uint64_t> Lateness::made_by_each(const Steps& steps) const {
  std::vector<uint64_t> made(inner_.replicas(), round_->end);
  for (uint32_t s = 0; s < replica_of_.size(); ++s)
    made[replica_of_[s]] = std::min(made[replica_of_[s]], steps.stages()[s].step);
  for (uint64_t& each : made) each = std::max(each, round_->after) - round_->after;
  return made;
}

// Who has made all that is granted waits; but for the last step of a round, which nobody has made before all
// have agreed about it or, where rounds overlap, about the one before.
void Lateness::look(Instant now, const Steps& steps, const Absence& absence) {
  if (!inner_.are_local() || inner_.replicas() < 2) return;
  const Duration since = std::min(now - std::exchange(looked_at_, now), kBetweenLooksMax);
  if (steps.granted() <= steps.committed()) return;
  follow(now, steps);
  const std::vector<uint64_t> before = std::exchange(round_->made, made_by_each(steps));
  for (uint32_t replica = 0; replica < before.size(); ++replica) {
    Duration& idle = round_->idle[replica];
    idle = round_->made[replica] > before[replica] ? Duration::zero() : idle + since;
  }
  const uint64_t granted =
      std::max(std::min(steps.granted(), round_->border - 1), round_->after) - round_->after;
  std::vector<uint32_t> behind;
  uint32_t there = 0;
  for (uint32_t replica = 0; replica < round_->made.size(); ++replica) {
    if (absence.has_replica(replica)) continue;
    ++there;
    if (round_->made[replica] < granted) behind.push_back(replica);
  }
  if (behind.size() * 2 > there) return;
  for (const uint32_t replica : behind) round_->waited[replica] += since;
}

// Of a round.
double Lateness::usual_seconds() const {
  std::vector<double> each(step_seconds_.begin(), step_seconds_.end());
  const auto middle = each.begin() + static_cast<ptrdiff_t>(each.size() / 2);
  std::nth_element(each.begin(), middle, each.end());
  return std::max(predicted_step_, each.empty() ? 0 : *middle) *
         static_cast<double>(std::min(round_->end - round_->after, inner_.local()->terms.every));
}

std::optional<LateReplica> Lateness::late() const {
  if (!round_ || round_->made.empty() || is_pardoned_) return std::nullopt;
  const double usual = usual_seconds();
  const Duration patience = duration(usual) + (step_seconds_.empty() ? kGraceOfFirst : kGrace);
  const auto longest = std::max_element(round_->waited.begin(), round_->waited.end());
  if (*longest < patience) return std::nullopt;
  const auto replica = static_cast<uint32_t>(longest - round_->waited.begin());
  const auto made = static_cast<double>(round_->made[replica]);
  const double left = static_cast<double>(round_->border - round_->after) - made;
  // As fast as it was in this round it needs so long for the rest of it, if it has not come to a stand.
  const bool is_soon_there = seconds(looked_at_ - round_->since) * left < usual * made;
  if (is_soon_there && seconds(round_->idle[replica]) < usual) return std::nullopt;
  return LateReplica{replica, *longest, duration(usual)};
}

}  // namespace weft::broker
