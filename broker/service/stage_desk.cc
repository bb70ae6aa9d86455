#include "broker/service/stage_desk.h"

#include <chrono>

namespace weft::broker {

namespace {
constexpr Duration kDroppedTold = std::chrono::minutes(1);
}  // namespace

// What a peer serves is what it is told here to run.
bool StageDesk::on_sent(ConnectionId connection, const PeerId& peer, const proto::Message& message) {
  const auto serve = [&](proto::ReportHead what) {
    holders_[peer] = connection;
    return stages_.insert_or_assign(connection, Stage{peer, what}).second;
  };
  if (const auto* assigned = std::get_if<proto::AssignStage>(&message))
    return serve({assigned->run, assigned->plan_version});
  if (const auto* resumed = std::get_if<proto::ResumeStage>(&message))
    return serve({resumed->run, resumed->plan_version});
  const auto* released = std::get_if<proto::ReleaseStage>(&message);
  const auto stage = stages_.find(connection);
  if (released != nullptr && stage != stages_.end() && stage->second.serves.run == released->run &&
      stage->second.serves.plan_version <= released->plan_version)
    end(connection);
  return false;
}

// But for one that has come again meanwhile, and goes on.
void StageDesk::end(ConnectionId connection) {
  const auto stage = stages_.extract(connection);
  if (!stage) return;
  const auto holder = holders_.find(stage.mapped().peer);
  if (holder != holders_.end() && holder->second == connection) holders_.erase(holder);
}

bool StageDesk::is_stale(ConnectionId connection, const std::optional<proto::ReportHead>& report) {
  if (!report) return false;
  const auto stage = stages_.find(connection);
  if (stage != stages_.end() && stage->second.serves == report) return false;
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
  const auto stage = holder == holders_.end() ? stages_.end() : stages_.find(holder->second);
  if (stage == stages_.end()) return std::nullopt;
  proto::ReportHead head;
  if (const auto* request = std::get_if<proto::ServeRequest>(&message))
    head = {request->run, request->plan_version};
  else if (const auto* cancel = std::get_if<proto::CancelRequest>(&message))
    head = {cancel->run, cancel->plan_version};
  if (stage->second.serves != head) return std::nullopt;
  return holder->second;
}

}  // namespace weft::broker
