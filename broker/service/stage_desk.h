// Which stages the peers of a gate serve: whose reports count, and where requests for served models go. The
// core says both to peers by way of the gate.
#pragma once

#include <map>
#include <optional>

#include "broker/service/bus.h"
#include "proto/codec/report_head.h"

namespace weft::broker {

class StageDesk {
 public:
  explicit StageDesk(Instant now) : told_at_(now) {}

  // What the core says to a peer. True: it serves a run from now on, and did not before.
  bool on_sent(ConnectionId connection, const PeerId& peer, const proto::Message& message);
  bool serves(ConnectionId connection) const { return held_.contains(connection); }
  bool serves(const PeerId& peer) const { return holders_.contains(peer); }
  void end(ConnectionId connection);

  // A report counts only under the plan that its sender was told last: the core would drop it, too. What is
  // no report is not stale. Those that are stale are counted.
  bool is_stale(ConnectionId connection, const std::optional<proto::ReportHead>& report);
  void drop() { ++dropped_; }  // something else of what its sender does not serve
  // How many were dropped since this was last told, at most once a minute.
  std::optional<uint64_t> dropped_to_tell(Instant now);

  // Served models: of whom tokens are passed on.
  void on_entry(const ServedEntry& entry);
  bool is_entry(const PeerId& peer, const proto::ServeProgress& progress) const;
  // Where a message goes that is for a stage of a plan, which it names; another one would take it for
  // somebody else's.
  std::optional<ConnectionId> holder_of(const PeerId& peer, const proto::Message& message) const;

 private:
  struct Held {
    PeerId peer{};
    // Of each run what its last assignment, or leave to go on, says; never empty.
    std::map<proto::JobNumber, proto::PlanVersion> plans{};
    bool serves(const proto::ReportHead& what) const;
  };
  std::map<ConnectionId, Held> held_;
  std::map<PeerId, ConnectionId> holders_;  // of peers that serve a run: the connection that was told last
  std::map<proto::JobNumber, ServedEntry> entries_;
  uint64_t dropped_ = 0, told_ = 0;
  Instant told_at_;
};

}  // namespace weft::broker
