#include "cli/doctor/named_peer.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/doctor/way.h"
#include "cli/quantities.h"

namespace weft::cli {
namespace {

using proto::PeerStatus;

constexpr size_t kDigitsMin = 8;  // of a key, that stand for it

const PeerStatus* find_peer(const std::string& name, const proto::PeerList& list) {
  for (const PeerStatus& peer : list.peers)
    if (peer.name == name || (name.size() >= kDigitsMin && to_hex(peer.peer.digest).starts_with(name)))
      return &peer;
  return nullptr;
}

Check check_state(const PeerStatus& peer) {
  Check check{"peer", CheckState::Ok,
              fmt::format("{}: {}{}, heard {} ago", peer.name, peer.state,
                          peer.reason.empty() ? "" : " (" + peer.reason + ")",
                          format_duration(peer.seconds_since_heard))};
  if (peer.state == "pool") check.seen += "; it waits for work";
  if (peer.state == "pool" || peer.state == "active") return check;
  check.state = CheckState::Stops;
  if (peer.state == "banned")
    check.advice = "an admin lets it come again with weft peers unban " + peer.name;
  else if (peer.state == "other version")
    check.advice = "install the broker's version there";
  else if (peer.state == "paused" || peer.state == "draining" || peer.state == "suspect")
    check.state = CheckState::Warning;
  if (peer.state == "paused") check.advice = "its owner ends that with weft pause --off";
  if (peer.state == "suspect") check.advice = "wait a moment; then look at the network there";
  if (peer.state == "gone" || peer.state == "left")
    check.advice = "look there whether weft join runs, and run weft doctor there";
  return check;
}

Check check_reach_of(const PeerStatus& peer) {
  switch (peer.reach) {
    case proto::Reach::Direct:
      return {"reach", CheckState::Ok, "somebody dialled it, and it answered"};
    case proto::Reach::Untried:
      return {"reach", CheckState::Ok, "it has an address, which nobody has dialled yet"};
    case proto::Reach::Closed:
      return {
          "reach", CheckState::Warning,
          "it has an address, which does not answer: its tensors go to whom it can dial, else through the "
          "broker's relay",
          "there: let the firewall pass its port, forward it at the router, or mend --advertise"};
    case proto::Reach::Relay:
      break;
  }
  return {"reach", CheckState::Warning,
          "it has no address: its tensors go to whom it can dial, else through the broker's relay",
          "for more speed say --listen there, and --advertise behind a router"};
}

// How many of its links go how.
Check check_links(size_t end, const proto::LinkList& list) {
  size_t direct = 0, relayed = 0, assumed = 0;
  for (const proto::LinkFigure& link : list.links) {
    if (link.from != end) continue;
    if (link.assumed)
      ++assumed;
    else if (link.relayed)
      ++relayed;
    else
      ++direct;
  }
  return {
      "links", CheckState::Ok,
      fmt::format("to others: {} direct, {} through the relay, {} not measured", direct, relayed, assumed)};
}

}  // namespace

Checks check_peer(const std::string& name, const proto::PeerList& peers, const proto::LinkList& links,
                  const std::string& broker_software) {
  const PeerStatus* peer = find_peer(name, peers);
  if (peer == nullptr)
    return {{"peer", CheckState::Stops, "the broker has no peer " + name,
             "look at weft peers; there: whether weft join runs, with a token of this broker"}};
  Checks checks{check_state(*peer)};
  if (peer->software != broker_software)
    checks.push_back({"version", CheckState::Warning,
                      fmt::format("it is weft {}, the broker {}", peer->software, broker_software),
                      "install the same there: it may be left out of some jobs"});
  checks.push_back(check_reach_of(*peer));
  const auto end = std::find_if(links.ends.begin(), links.ends.end(),
                                [&](const proto::LinkEnd& each) { return each.peer == peer->peer; });
  if (end == links.ends.end()) return checks;
  for (const auto& [what, rate] : {std::pair{"uplink", end->uplink}, {"downlink", end->downlink}})
    checks.push_back(rate > 0 ? check_rate(what, rate)
                              : Check{what, CheckState::Ok, "no limit of its own was found"});
  checks.push_back(check_links(static_cast<size_t>(end - links.ends.begin()), links));
  return checks;
}

}  // namespace weft::cli
