#include "cli/peer_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/json_event.h"
#include "cli/live_line.h"
#include "cli/quantities.h"

namespace weft::cli {
namespace {

constexpr double kShownFor = 3600;  // seconds; of who has gone

bool has_gone(const proto::PeerStatus& peer) { return peer.state == "gone" || peer.state == "left"; }

// As others found it, where somebody tried.
const char* reached_text(proto::Reach reach) {
  switch (reach) {
    case proto::Reach::Relay:
      return "by relay";
    case proto::Reach::Untried:
      return "untried";
    case proto::Reach::Direct:
      return "directly";
    case proto::Reach::Closed:
      return "by relay (port closed)";
  }
  return "";
}

std::string jobs_text(const proto::PeerStatus& peer) {
  return peer.jobs.empty() ? "" : fmt::format("{}", fmt::join(peer.jobs, ","));
}

std::string peer_line(const proto::PeerStatus& peer, bool with_jobs) {
  std::string line = fmt::format(
      "{:20}  {:13}  {:10}  {:14}  {:>10}  {:>12}  {:>9}  {:8}  ", printable(peer.name),
      printable(peer.state), printable(peer.region), printable(peer.device), format_bytes(peer.memory.value),
      fmt::format("{:.1f}", peer.rates.matmul_flops_per_second / 1e9),
      fmt::format("{} ago", format_duration(peer.seconds_since_heard)), printable(peer.software));
  if (with_jobs) line += fmt::format("{:8}  ", jobs_text(peer));
  line += reached_text(peer.reach);
  if (!peer.reason.empty()) line += fmt::format("  {}", printable(peer.reason));
  return line;
}

std::string disk_line(const proto::PeerList& list) {
  return fmt::format("the broker's disk: {} of blobs, {} of {} free", format_bytes(list.blob_bytes.value),
                     format_bytes(list.disk_free.value), format_bytes(list.disk_size.value));
}

}  // namespace

std::vector<std::string> peer_table(const proto::PeerList& list, bool all) {
  const bool with_jobs = std::ranges::any_of(list.peers, [](const auto& peer) { return !peer.jobs.empty(); });
  std::vector<std::string> lines{fmt::format("{:20}  {:13}  {:10}  {:14}  {:>10}  {:>12}  {:>9}  {:8}  {}{}",
                                             "NAME", "STATE", "REGION", "DEVICE", "MEMORY", "GFLOP/S",
                                             "HEARD", "VERSION", with_jobs ? "JOBS      " : "", "REACHED")};
  size_t left_out = 0;
  for (const proto::PeerStatus& peer : list.peers)
    if (!all && has_gone(peer) && peer.seconds_since_heard > kShownFor)
      ++left_out;
    else
      lines.push_back(peer_line(peer, with_jobs));
  if (left_out > 0)
    lines.push_back(fmt::format("{} more {} gone for over an hour: weft peers --all", left_out,
                                left_out == 1 ? "has been" : "have been"));
  if (list.disk_size.value > 0) lines.push_back(disk_line(list));
  return lines;
}

std::vector<std::string> peer_events(const proto::PeerList& list) {
  std::vector<std::string> lines;
  lines.reserve(list.peers.size() + 1);
  for (const proto::PeerStatus& peer : list.peers)
    lines.push_back(dump({{"event", "peer"},
                          {"peer", to_hex(peer.peer.digest)},
                          {"name", peer.name},
                          {"state", peer.state},
                          {"reason", peer.reason},
                          {"region", peer.region},
                          {"owner", peer.owner},
                          {"device", peer.device},
                          {"software", peer.software},
                          {"memory_bytes", peer.memory.value},
                          {"matmul_flops_per_second", peer.rates.matmul_flops_per_second},
                          {"convolution_flops_per_second", peer.rates.convolution_flops_per_second},
                          {"memory_bytes_per_second", peer.rates.memory_bytes_per_second},
                          {"reachable", peer.reachable},
                          {"reached", std::string(to_string(peer.reach))},
                          {"jobs", peer.jobs},
                          {"seconds_since_heard", peer.seconds_since_heard}}));
  if (list.disk_size.value > 0)
    lines.push_back(dump({{"event", "disk"},
                          {"blob_bytes", list.blob_bytes.value},
                          {"free_bytes", list.disk_free.value},
                          {"size_bytes", list.disk_size.value}}));
  return lines;
}

}  // namespace weft::cli
