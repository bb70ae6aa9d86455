#include "cli/link_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/json_event.h"
#include "cli/live_line.h"
#include "cli/quantities.h"

namespace weft::cli {
namespace {

constexpr size_t kColumnsMax = 24;  // of a matrix of peers
constexpr size_t kNameMax = 14;
// What a broker says of a pair between which it found no way (broker/links/link_view.h), not to plan over it.
constexpr double kNoWayRate = 12.5e3;
constexpr Duration kNoWayLatency = std::chrono::milliseconds(500);

// "8.0M", "1.2G" bits a second.
std::string rate_text(double bytes_per_second) {
  const double megabits = bytes_per_second * 8e-6;
  const bool is_giga = megabits >= 1000;
  const double value = is_giga ? megabits / 1000 : megabits;
  return fmt::format("{:.{}f}{}", value, value < 9.95 ? 1 : 0, is_giga ? 'G' : 'M');
}
std::string cell(const proto::LinkFigure& link, double rate) {
  if (!link.assumed && link.bytes_per_second == kNoWayRate && link.latency == kNoWayLatency) return "no way";
  const char* guess = link.assumed ? "~" : "";
  return fmt::format("{}{}{}{} {}{:.0f}ms", guess, rate_text(rate), link.relayed ? "r" : "",
                     link.in_use ? "*" : "", guess, seconds(link.latency) * 1e3);
}
std::string short_name(const std::string& name) {
  const std::string shown = printable(name);
  return shown.size() <= kNameMax ? shown : shown.substr(0, kNameMax - 2) + "..";
}

// What one flow gets that has the lines of both ends for itself.
double rate_of(const proto::LinkList& list, const proto::LinkFigure& link) {
  double rate = link.bytes_per_second;
  if (const double uplink = list.ends[link.from].uplink; uplink > 0) rate = std::min(rate, uplink);
  if (const double downlink = list.ends[link.to].downlink; downlink > 0) rate = std::min(rate, downlink);
  return rate;
}

using Cells = std::map<std::pair<uint32_t, uint32_t>, std::string>;

void add_matrix(const std::vector<std::string>& names, const Cells& cells, std::vector<std::string>& lines) {
  std::string head = fmt::format("{:{}}", "FROM \\ TO", kNameMax);
  for (const std::string& name : names) head += fmt::format("  {:>{}}", name, kNameMax);
  lines.push_back(head);
  for (uint32_t from = 0; from < names.size(); ++from) {
    std::string line = fmt::format("{:{}}", names[from], kNameMax);
    for (uint32_t to = 0; to < names.size(); ++to) {
      const auto at = cells.find({from, to});
      line += fmt::format("  {:>{}}", at == cells.end() ? "-" : at->second, kNameMax);
    }
    lines.push_back(line);
  }
}

void add_lines_of_peers(const proto::LinkList& list, std::vector<std::string>& lines) {
  for (const proto::LinkEnd& end : list.ends)
    if (end.uplink > 0 || end.downlink > 0)
      lines.push_back(fmt::format("{}: all its links together send {} and receive {}", printable(end.name),
                                  end.uplink > 0 ? rate_text(end.uplink) : "any rate",
                                  end.downlink > 0 ? rate_text(end.downlink) : "any rate"));
}

// Of what was measured: when.
std::string age_line(const std::vector<proto::LinkFigure>& links) {
  double least = 0, most = 0;
  size_t measured = 0;
  for (const proto::LinkFigure& link : links) {
    if (link.assumed) continue;
    least = measured == 0 ? link.seconds_since : std::min(least, link.seconds_since);
    most = std::max(most, link.seconds_since);
    ++measured;
  }
  std::string line = fmt::format("{} of {} links were measured", measured, links.size());
  if (measured > 0) line += fmt::format(", {} to {} ago", format_duration(least), format_duration(most));
  return line;
}

void add_sites(const proto::LinkList& list, std::vector<std::string>& lines) {
  std::map<uint32_t, std::vector<std::string>> members;
  for (const proto::LinkEnd& end : list.ends) members[end.site].push_back(printable(end.name));
  std::vector<std::string> names(members.empty() ? 0 : members.rbegin()->first + 1);
  for (const auto& [site, peers] : members) {
    names[site] = fmt::format("site {}", site + 1);
    std::string line = fmt::format("site {}: {}", site + 1, peers.front());
    for (size_t i = 1; i < std::min<size_t>(peers.size(), 8); ++i) line += ", " + peers[i];
    if (peers.size() > 8) line += fmt::format(" and {} more", peers.size() - 8);
    lines.push_back(line);
  }
  Cells cells;
  for (const proto::LinkFigure& link : list.between)
    cells[{link.from, link.to}] = cell(link, link.bytes_per_second);
  add_matrix(names, cells, lines);
}

}  // namespace

std::vector<std::string> link_table(const proto::LinkList& list) {
  std::vector<std::string> lines{
      "bits a second and milliseconds one way; ~: never measured, a guess; r: by relay, as it was seen last; "
      "*: a run's tensors go there now"};
  if (list.links.empty() || list.ends.size() > kColumnsMax) {
    add_sites(list, lines);
  } else {
    std::vector<std::string> names;
    names.reserve(list.ends.size());
    for (const proto::LinkEnd& end : list.ends) names.push_back(short_name(end.name));
    Cells cells;
    for (const proto::LinkFigure& link : list.links)
      cells[{link.from, link.to}] = cell(link, rate_of(list, link));
    add_matrix(names, cells, lines);
  }
  add_lines_of_peers(list, lines);
  if (!list.links.empty()) lines.push_back(age_line(list.links));
  return lines;
}

std::vector<std::string> link_events(const proto::LinkList& list) {
  std::vector<std::string> lines;
  for (const proto::LinkEnd& end : list.ends) {
    nlohmann::ordered_json line{{"event", "link_end"},
                                {"peer", to_hex(end.peer.digest)},
                                {"name", end.name},
                                {"region", end.region},
                                {"site", end.site}};
    line["uplink_bytes_per_second"] = end.uplink > 0 ? nlohmann::ordered_json(end.uplink) : nullptr;
    line["downlink_bytes_per_second"] = end.downlink > 0 ? nlohmann::ordered_json(end.downlink) : nullptr;
    lines.push_back(dump(line));
  }
  for (const proto::LinkFigure& link : list.between)
    lines.push_back(dump({{"event", "site_link"},
                          {"from_site", link.from},
                          {"to_site", link.to},
                          {"bytes_per_second", link.bytes_per_second},
                          {"latency_seconds", seconds(link.latency)},
                          {"assumed", link.assumed},
                          {"latency_assumed", link.assumed}}));
  for (const proto::LinkFigure& link : list.links) {
    nlohmann::ordered_json line{{"event", "link"},
                                {"from", list.ends[link.from].name},
                                {"to", list.ends[link.to].name},
                                {"bytes_per_second", rate_of(list, link)},
                                {"latency_seconds", seconds(link.latency)},
                                {"assumed", link.assumed},
                                {"latency_assumed", link.assumed},
                                {"relayed", link.relayed},
                                {"in_use", link.in_use}};
    line["seconds_since_measured"] =
        link.assumed ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(link.seconds_since);
    lines.push_back(dump(line));
  }
  return lines;
}

}  // namespace weft::cli
