#include "broker/place/routes.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace weft::broker {

namespace {

using Pairs = std::set<std::pair<uint32_t, uint32_t>>;  // of stages, by index, the lower first

// Those that send each other tensors. Replicas that agree about one meet at its owner's.
Pairs find_pairs(const std::vector<StageAtPeer>& stages) {
  std::map<plan::Seat, uint32_t> index_of;
  for (uint32_t s = 0; s < stages.size(); ++s) index_of[stages[s].stage->seat] = s;
  Pairs pairs;
  for (uint32_t s = 0; s < stages.size(); ++s) {
    const proto::AssignStage& stage = *stages[s].stage;
    const auto add = [&](const plan::Seat& other) {
      const auto at = index_of.find(other);
      if (at != index_of.end() && at->second != s) pairs.insert(std::minmax(s, at->second));
    };
    for (const proto::StageProgram& program : stage.programs)
      for (const auto* ends : {&program.sends, &program.receives})
        for (const proto::EdgeEnd& end : *ends) add(other_end(end, stage.seat));
    if (stage.serve) add({static_cast<uint32_t>((s + 1) % stages.size()), stage.seat.replica});
    for (const proto::AgreedTensor& tensor : agreed_tensors(stage))
      add({tensor.stages[tensor.owner], tensor.owner});
  }
  return pairs;
}

}  // namespace

void set_links(std::vector<StageAtPeer>& stages, PlannedRun& run, const DrawSecret& draw_secret) {
  run.relay_tickets.clear();
  for (StageAtPeer& at : stages) at.stage->links.clear();
  for (const auto& [low, high] : find_pairs(stages)) {
    const bool high_dials =
        stages[high].peer.device.addresses.empty() && !stages[low].peer.device.addresses.empty();
    const proto::Secret ticket = draw_secret();
    run.relay_tickets.push_back(ticket);
    const auto route = [&](uint32_t to, bool dials) {
      const Candidate& peer = stages[to].peer;
      return proto::LinkRoute{.seat = stages[to].stage->seat,
                              .peer = peer.peer,
                              .dials = dials,
                              .addresses = peer.device.addresses,
                              .relay_ticket = ticket,
                              .region = peer.device.region};
    };
    stages[low].stage->links.push_back(route(high, !high_dials));
    stages[high].stage->links.push_back(route(low, high_dials));
  }
}

}  // namespace weft::broker
