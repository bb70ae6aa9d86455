// The mistakes of bugs.h that lie in what the broker's process says and keeps: as long as none is switched on
// it changes nothing.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "broker/events.h"
#include "sim/bugs.h"
#include "sim/network.h"

namespace weft::sim {

class BrokerBugs {
 public:
  explicit BrokerBugs(Bug bug) : bug_(bug) {}

  // What a step wants to be said: of EffectsBeforeDurable, which says it before the turn is durable.
  void note(const std::vector<broker::Effect>& effects);
  const std::vector<broker::Send>& said_early() const { return early_; }
  // The turn is done. Whether anything was said early in it.
  bool end_turn() { return !std::exchange(early_, {}).empty(); }

  // What goes over the connection in place of the packet, in order.
  std::vector<Packet> say(broker::ConnectionId connection, Packet packet);
  // WrongGeneration: a plan is made with a checkpoint whose tensors are an older one's.
  void mistake(broker::StartPlanning& request);
  // DataShifted: from a job's second plan on it reads others of its samples.
  bool shifts(proto::JobNumber job);

  void end();  // with the process

 private:
  Packet with_wrong_norm(const proto::GradientNorm& norm, Packet packet);

  Bug bug_;
  std::vector<broker::Send> early_;
  std::map<proto::JobNumber, broker::CheckpointCommitted> last_point_;
  std::set<broker::ConnectionId> resumed_;
  std::map<broker::ConnectionId, uint64_t> added_;  // commands
  std::map<std::pair<proto::JobNumber, proto::PlanVersion>, double> last_norm_;
  std::map<proto::JobNumber, uint64_t> stages_assigned_;
};

}  // namespace weft::sim
