#include "broker/place/routes.h"

#include <algorithm>
#include <set>

namespace weft::broker {

void set_links(std::vector<StageAtPeer>& stages, PlannedRun& run, const DrawSecret& draw_secret) {
  run.relay_tickets.clear();
  std::set<std::pair<uint32_t, uint32_t>> pairs;
  for (uint32_t s = 0; s < stages.size(); ++s) {
    stages[s].stage->links.clear();
    for (const proto::StageProgram& program : stages[s].stage->programs) {
      for (const proto::EdgeEnd& end : program.sends) pairs.insert(std::minmax(s, end.stage));
      for (const proto::EdgeEnd& end : program.receives) pairs.insert(std::minmax(s, end.stage));
    }
    const auto next = static_cast<uint32_t>((s + 1) % stages.size());
    if (stages[s].stage->serve && next != s) pairs.insert(std::minmax(s, next));
  }
  for (const auto& [low, high] : pairs) {
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
