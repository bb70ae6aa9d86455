#include "broker/service/stage_desk.h"

#include <chrono>

namespace weft::broker {

namespace {
constexpr Duration kDroppedTold = std::chrono::minutes(1);
}  // namespace

bool StageDesk::Held::serves(const proto::ReportHead& what) const {
  const auto plan = plans.find(what.run);
  return plan != plans.end() && plan->second == what.plan_version;
}

// What a peer serves is what it is told here to run.
bool StageDesk::on_sent(ConnectionId connection, const PeerId& peer, const proto::Message& message) {
  const auto serve = [&](proto::JobNumber run, proto::PlanVersion plan_version) {
    holders_[peer] = connection;
    const auto [held, is_new] = held_.try_emplace(connection, Held{.peer = peer});
    held->second.plans[run] = plan_version;
    return is_new;
  };
  if (const auto* assigned = std::get_if<proto::AssignStage>(&message))
    return serve(assigned->run, assigned->plan_version);
  if (const auto* resumed = std::get_if<proto::ResumeStage>(&message))
    return serve(resumed->run, resumed->plan_version);
  const auto* released = std::get_if<proto::ReleaseStage>(&message);
  const auto held = released != nullptr ? held_.find(connection) : held_.end();
  if (held == held_.end()) return false;
  auto& plans = held->second.plans;
  const auto plan = plans.find(released->run);
  if (plan == plans.end() || plan->second > released->plan_version) return false;
  plans.erase(plan);
  if (plans.empty()) end(connection);
  return false;
}

// But for one that has come again meanwhile, and goes on.
void StageDesk::end(ConnectionId connection) {
  const auto held = held_.extract(connection);
  if (!held) return;
  const auto holder = holders_.find(held.mapped().peer);
  if (holder != holders_.end() && holder->second == connection) holders_.erase(holder);
}

bool StageDesk::is_stale(ConnectionId connection, const std::optional<proto::ReportHead>& report) {
  if (!report) return false;
  const auto held = held_.find(connection);
  if (held != held_.end() && held->second.serves(*report)) return false;
  drop();
  return true;
}

std::optional<uint64_t> StageDesk::dropped_to_tell(Instant now) {
  if (dropped_ == told_ || now - told_at_ <= kDroppedTold) return std::nullopt;
  told_at_ = now;
  return dropped_ - std::exchange(told_, dropped_);
}

void StageDesk::on_entry(const ServedEntry& entry) {
  if (entry.entry)
    entries_[entry.job] = entry;
  else
    entries_.erase(entry.job);
}

bool StageDesk::is_entry(const PeerId& peer, const proto::ServeProgress& progress) const {
  const auto at = entries_.find(progress.run);
  return at != entries_.end() && at->second.entry == peer && at->second.plan_version == progress.plan_version;
}

std::optional<ConnectionId> StageDesk::holder_of(const PeerId& peer, const proto::Message& message) const {
  const auto holder = holders_.find(peer);
  const auto held = holder == holders_.end() ? held_.end() : held_.find(holder->second);
  if (held == held_.end()) return std::nullopt;
  proto::ReportHead head;
  if (const auto* request = std::get_if<proto::ServeRequest>(&message))
    head = {request->run, request->plan_version};
  else if (const auto* cancel = std::get_if<proto::CancelRequest>(&message))
    head = {cancel->run, cancel->plan_version};
  if (!held->second.serves(head)) return std::nullopt;
  return holder->second;
}

}  // namespace weft::broker
