#include "cli/links_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "cli/live_line.h"
#include "cli/quantities.h"

namespace weft::cli {
namespace {

constexpr size_t kEachMax = 16;    // devices that are shown each with each
constexpr size_t kNamesMax = 3;    // of a site
constexpr size_t kNameWidth = 24;  // columns of a name

using Row = std::vector<std::string>;
using Show = std::string (*)(const plan::LinkView& link);

// Columns as wide as their widest cell, the second to the left, the others to the right.
std::string columns(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c)
      line += (c > 0 ? "  " : "") +
              (c == 1 ? fmt::format("{:<{}}", row[c], widths[c]) : fmt::format("{:>{}}", row[c], widths[c]));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string guess(const plan::LinkView& link) { return link.is_assumed ? "~" : ""; }
std::string rate_of(const plan::LinkView& link) { return guess(link) + short_rate(link.bytes_per_second); }
std::string time_of(const plan::LinkView& link) {
  const double ms = 1e3 * seconds(link.latency);
  return guess(link) + (ms < 9.95 ? fmt::format("{:.1f}", ms) : fmt::format("{:.0f}", ms));
}

std::string name_of(const plan::DeviceView& device) { return fit({device.name}, kNameWidth); }
std::string range(double least, double most) {
  const std::string low = short_rate(least), high = short_rate(most);
  return low == high ? low : low + ".." + high;
}

// A block of the table: `head` are its first columns, a row for each that is shown and one of titles.
template <typename LinkOf>
std::string block(std::vector<Row> head, Show show, const LinkOf& link_of) {
  const size_t count = head.size() - 1;
  for (size_t to = 0; to < count; ++to) head[0].push_back(fmt::format("{}", to + 1));
  for (size_t from = 0; from < count; ++from)
    for (size_t to = 0; to < count; ++to) {
      const std::optional<plan::LinkView> link = link_of(from, to);
      head[from + 1].push_back(link ? show(*link) : "-");
    }
  return columns(head);
}
template <typename LinkOf>
std::string both(const std::vector<Row>& lines, const std::vector<Row>& names, const LinkOf& link_of) {
  return "from each row to each column, bits a second; ~ is a guess, nobody has measured it\n\n" +
         block(lines, rate_of, link_of) + "\none way, ms\n\n" + block(names, time_of, link_of);
}

std::string each_with_each(const plan::ClusterView& cluster,
                           std::span<const std::optional<double>> seconds_since) {
  std::vector<Row> lines{{"#", "NAME", "UP", "DOWN"}}, names{{"#", "NAME"}};
  if (!seconds_since.empty()) lines[0].push_back("MEASURED");
  for (size_t d = 0; d < cluster.devices().size(); ++d) {
    const plan::DeviceView& device = cluster.devices()[d];
    names.push_back({fmt::format("{}", d + 1), name_of(device)});
    Row line = names.back();
    line.insert(line.end(), {short_rate(device.uplink), short_rate(device.downlink)});
    if (d < seconds_since.size())
      line.push_back(seconds_since[d] ? format_duration(*seconds_since[d]) + " ago" : "never");
    lines.push_back(std::move(line));
    lines.back().resize(lines[0].size());
  }
  return both(lines, names, [&](size_t from, size_t to) {
    return from == to ? std::nullopt : std::optional(cluster.link(from, to));
  });
}

std::string site_names(const plan::ClusterView& cluster, const std::vector<size_t>& members) {
  std::string names;
  for (size_t i = 0; i < std::min(members.size(), kNamesMax); ++i)
    names += (i > 0 ? ", " : "") + name_of(cluster.devices()[members[i]]);
  return members.size() <= kNamesMax ? names
                                     : fmt::format("{} and {} more", names, members.size() - kNamesMax);
}

std::string by_site(const plan::ClusterView& cluster) {
  std::vector<std::vector<size_t>> members(cluster.site_count());
  for (size_t d = 0; d < cluster.devices().size(); ++d) members[cluster.devices()[d].site].push_back(d);
  std::vector<Row> lines{{"#", "SITE", "PEERS", "UP", "DOWN"}}, names{{"#", "SITE"}};
  for (size_t s = 0; s < members.size(); ++s) {
    names.push_back({fmt::format("{}", s + 1), site_names(cluster, members[s])});
    Row line = names.back();
    line.push_back(fmt::format("{}", members[s].size()));
    for (const auto part : {&plan::DeviceView::uplink, &plan::DeviceView::downlink}) {
      std::vector<double> rates;
      for (const size_t device : members[s]) rates.push_back(cluster.devices()[device].*part);
      const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
      line.push_back(rates.empty() ? "-" : range(*least, *most));
    }
    lines.push_back(std::move(line));
  }
  return both(lines, names, [&](size_t from, size_t to) {
    const bool is_lonely = from == to && members[from].size() < 2;
    return is_lonely ? std::nullopt
                     : std::optional(cluster.between(static_cast<uint32_t>(from), static_cast<uint32_t>(to)));
  });
}

}  // namespace

std::string short_rate(double bytes_per_second) {
  if (bytes_per_second == plan::kUnlimited) return "-";
  double value = bytes_per_second * 8 / 1e3;
  const char* unit = "k";
  for (const char* next : {"M", "G"})
    if (value >= 999.5) value /= 1e3, unit = next;
  return value < 9.95 ? fmt::format("{:.1f}{}", value, unit) : fmt::format("{:.0f}{}", value, unit);
}

std::string links_table(const plan::ClusterView& cluster,
                        std::span<const std::optional<double>> seconds_since) {
  if (cluster.devices().empty()) return "no peers\n";
  return cluster.devices().size() <= kEachMax ? each_with_each(cluster, seconds_since) : by_site(cluster);
}

}  // namespace weft::cli
