#include "cli/plan_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/plan_money.h"
#include "plan/explain.h"

namespace weft::cli {
namespace {

constexpr size_t kDevicesDrawn = 160;  // of more, one of each region
constexpr size_t kStagesOpen = 12;     // of more, the list is folded
constexpr size_t kKindsShown = 6;
constexpr int kShades = 6;

constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--paper:#fbfbf9;--card:#fff;--ink:#1d2327;--soft:#5b646b;--line:#d9dcd8;
--forward:#2b6cb0;--backward:#c05621;--on:#fff;--bar:#7fa8d1;--full:#d98585;--critical:#111;
--h0:#eaf1f8;--h1:#c6dbef;--h2:#9ec3e3;--h3:#6aa5d3;--h4:#3a80bb;--h5:#174f86;--none:#efefec}
@media (prefers-color-scheme:dark){:root{--paper:#14181b;--card:#1c2226;--ink:#e6e9ea;--soft:#9aa5ac;
--line:#343c41;--forward:#5b9fe0;--backward:#e08a4f;--on:#10161a;--bar:#3f6d9c;--full:#a04c4c;--critical:#fff;
--h0:#16222d;--h1:#1b3a55;--h2:#22567f;--h3:#3478ab;--h4:#5fa3d6;--h5:#b5daf5;--none:#20262a}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:20px 16px 48px}h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px;
overflow-wrap:anywhere}h2{font-size:1.1rem;margin:36px 0 8px}p{margin:6px 0}.soft,figcaption{color:var(--soft)}
figcaption{font-size:.87rem;margin-top:6px}figure{margin:0}.key{display:flex;flex-wrap:wrap;gap:12px;margin:16px 0}
.key div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 14px;flex:1 1 150px}
.key b{display:block;font-size:1.35rem;font-weight:600}ul.lines{margin:8px 0;padding-left:20px}
ul.lines li{overflow-wrap:anywhere}.wide{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}
th,td{padding:5px 10px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child,td.text,th.text{text-align:left}td.text{white-space:normal;min-width:12em}
th{color:var(--soft);font-weight:500}.best td{font-weight:600}svg{display:block;max-width:100%}
.heat{max-width:560px;width:100%;height:auto}.time{min-width:720px;width:100%;height:auto}
.heat text{font-size:15px!important}svg text{fill:var(--ink);font:11px system-ui,sans-serif}.f{fill:var(--forward)}.b{fill:var(--backward)}
svg .in{fill:var(--on);font-size:9px;text-anchor:middle}.grid{stroke:var(--line)}.fence{stroke:var(--ink);stroke-width:1}
.c0{fill:var(--h0);background:var(--h0)}.c1{fill:var(--h1);background:var(--h1)}.c2{fill:var(--h2);background:var(--h2)}
.c3{fill:var(--h3);background:var(--h3)}.c4{fill:var(--h4);background:var(--h4)}.c5{fill:var(--h5);background:var(--h5)}
.none{fill:var(--none);background:var(--none)}.legend{display:flex;flex-wrap:wrap;gap:4px 14px;font-size:.87rem;margin:8px 0;
padding:0;list-style:none}.legend i{display:inline-block;width:14px;height:14px;border:1px solid var(--line);
vertical-align:-2px;margin-right:5px}i.f{background:var(--forward)}i.b{background:var(--backward)}
.stage{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 12px}
.stage b{margin-right:6px}.chips{display:flex;flex-wrap:wrap;gap:4px;margin-top:4px;font-size:.82rem}
.chips span{border:1px solid var(--line);border-radius:999px;padding:0 8px}.arrow{padding:3px 0 3px 22px;
font-size:.87rem;color:var(--soft)}.memory{display:grid;grid-template-columns:minmax(7em,14em) 1fr;gap:2px 12px;
align-items:center;font-size:.9rem}.memory span{overflow-wrap:anywhere}.curve{width:100%;height:32px;background:var(--none);border-radius:4px}
.curve path{fill:var(--bar)}.curve.full path{fill:var(--full)}
.critical{fill:none;stroke:var(--critical);stroke-width:1.5;stroke-linejoin:round}i.w{background:var(--critical);height:3px;vertical-align:3px}
.memory .of{grid-column:2;color:var(--soft);font-size:.82rem;margin-bottom:6px}summary{cursor:pointer;color:var(--soft)}
@media (max-width:480px){body{font-size:14px}main{padding:14px 12px 36px}.memory{grid-template-columns:1fr}
.memory .of{grid-column:1}th,td{padding:5px 7px}}
)";

std::string device_name(const plan::DeviceView& device) {
  return html_text(device.name) + (device.region.empty() ? "" : ", " + html_text(device.region));
}
const plan::DeviceView& device_of(const PlanShown& shown, size_t stage) {
  return shown.cluster->view.devices()[shown.plan->stages[stage].devices.front()];
}

// ---- what there is to say first ----

std::string money_figures(const PlanShown& shown) {
  const Money money = money_of(*shown.cluster, *shown.plan);
  const double rate = shown.job->samples_per_second(seconds(shown.plan->predicted_step));
  std::string text;
  const auto add = [&](std::optional<double> an_hour, const char* how) {
    if (an_hour)
      text += html_key_figure(
          "$" + format_usd(per_million_samples(*an_hour, rate)),
          "a million samples, " + std::string(how) + " at $" + format_usd(*an_hour) + " an hour");
  };
  add(money.bought_an_hour, "bought");
  add(money.rented_an_hour, "rented");
  return text;
}

std::string head(const PlanShown& shown) {
  const PlannedJob& job = *shown.job;
  const double step = seconds(shown.plan->predicted_step);
  const size_t stages = shown.plan->stages.size();
  std::string text = "<h1>" + html_text(job.name) + "</h1><p class=\"soft\">planned for " +
                     html_text(shown.cluster->source) + ", " +
                     std::to_string(shown.cluster->view.devices().size()) +
                     " devices; predicted, nothing has been run</p><div class=\"key\">";
  text += html_key_figure(plan::show(shown.plan->predicted_step), "a step");
  text += html_key_figure(format_rate(job.samples_per_second(step)), "predicted");
  text += money_figures(shown);
  text += html_key_figure(std::to_string(stages), stages == 1 ? "stage" : "stages");
  text += html_key_figure(std::to_string(job.microbatches) + " x " + std::to_string(job.job.microbatch_size),
                          "microbatches x samples");
  text += "</div><ul class=\"lines\">";
  for (const std::string& line : shown.plan->explanation)
    if (!line.starts_with(' ')) text += "<li>" + html_text(line) + "</li>";
  for (const auto* notes : {&job.notes, &shown.cluster->notes})
    for (const std::string& note : *notes) text += "<li>" + html_text(note) + "</li>";
  text += "<li>critical path: " + plan::describe(shown.plan->critical) + "</li>";
  return text + "</ul>";
}

// ---- the comparison ----

std::string money_cell(std::optional<double> an_hour, double rate) {
  return "</td><td>" + (an_hour ? "$" + format_usd(per_million_samples(*an_hour, rate)) : std::string("-"));
}

std::string comparison_row(const PlanShown& shown, const StrategyOutcome& row, bool best) {
  std::string text =
      std::string("<tr") + (best ? " class=\"best\"" : "") + "><td>" + html_text(row.name) + "</td>";
  if (!row.plan) return text + "<td colspan=\"8\" class=\"text\">" + html_text(row.problem) + "</td></tr>";
  const plan::ClusterView& cluster = shown.cluster->view;
  const double rate = shown.job->samples_per_second(seconds(row.plan->predicted_step));
  const Money money = money_of(*shown.cluster, *row.plan);
  return text + "<td>" + format_rate(rate) + "</td><td>" +
         (row.compressed ? format_rate(*row.compressed) : std::string("-")) + "</td><td>" +
         plan::show(row.plan->predicted_step) + "</td><td>" + std::to_string(row.plan->stages.size()) +
         money_cell(money.bought_an_hour, rate) + money_cell(money.rented_an_hour, rate) + "</td><td>" +
         plan::show(Bytes{bytes_over_slowest_link(*shown.job, cluster, *row.plan)}) +
         "</td><td class=\"text\">" + html_text(bottleneck_of(*shown.job, cluster, *row.plan).name) +
         "</td></tr>";
}

std::string comparison_table(const PlanShown& shown, const Comparison& comparison) {
  const StrategyOutcome* best = nullptr;
  for (const StrategyOutcome& row : comparison.strategies)
    if (row.plan && (!best || row.plan->predicted_step < best->plan->predicted_step)) best = &row;
  std::string text =
      "<section><h2>Strategies compared</h2><div class=\"wide\"><table><thead><tr><th>strategy</th>"
      "<th>throughput</th><th>compressed (auto)</th><th>a "
      "step</th><th>stages</th><th>bought</th><th>rented</th><th>over the slowest "
      "link</th>"
      "<th class=\"text\">bottleneck</th></tr></thead><tbody>";
  for (const StrategyOutcome& row : comparison.strategies) text += comparison_row(shown, row, &row == best);
  text += "</tbody></table></div><ul class=\"lines\">";
  const auto limit = [&](const char* name, std::optional<double> rate) {
    text += std::string("<li>") + name + ": " + (rate ? format_rate(*rate) : "none") + "</li>";
  };
  limit("all devices busy all the time, memory aside", comparison.bound);
  limit("were links free", comparison.free_network);
  limit("the best machine alone", comparison.best_machine);
  limit("the best region alone", comparison.best_site);
  return text +
         "</ul><p class=\"soft\">Bought and rented: US dollars for a million samples, for the devices that "
         "are "
         "used. Bought ones are written off over three years of every hour; power and lines are not "
         "counted.</p></section>";
}

// ---- bandwidths ----

// What is drawn: devices, or one of each region when they are many.
struct Drawn {
  std::vector<uint32_t> devices;
  std::vector<size_t> fences;      // places at which another region begins
  std::vector<std::string> names;  // of the regions
  std::vector<size_t> counts;
  bool one_each = false;
};

Drawn choose_drawn(const plan::ClusterView& cluster) {
  Drawn drawn;
  drawn.one_each = cluster.devices().size() > kDevicesDrawn;
  for (const std::vector<uint32_t>& region : by_region(cluster)) {
    drawn.fences.push_back(drawn.devices.size());
    drawn.names.push_back(cluster.devices()[region.front()].region);
    drawn.counts.push_back(region.size());
    const size_t take = drawn.one_each ? 1 : region.size();
    drawn.devices.insert(drawn.devices.end(), region.begin(), region.begin() + static_cast<ptrdiff_t>(take));
  }
  return drawn;
}

// Shades of equal steps in the logarithm of a bandwidth.
struct Shades {
  double low = 0, high = 0;

  void look(double rate) {
    low = low == 0 ? rate : std::min(low, rate);
    high = std::max(high, rate);
  }
  int of(double rate) const {
    if (high <= low * 1.0001) return kShades - 2;
    const double at = std::log(rate / low) / std::log(high / low);
    return std::clamp(static_cast<int>(at * kShades), 0, kShades - 1);
  }
  double begin(int shade) const { return low * std::pow(high / low, static_cast<double>(shade) / kShades); }
};

std::string label(size_t index) {  // A, B, ..., Z, A1, ...
  std::string text(1, static_cast<char>('A' + index % 26));
  return index < 26 ? text : text + std::to_string(index / 26);
}

// Neighbours of one shade are one rectangle.
std::string heat_cells(const plan::ClusterView& cluster, const Drawn& drawn, const Shades& shades,
                       double cell, double left) {
  std::string text;
  const size_t count = drawn.devices.size();
  for (size_t row = 0; row < count; ++row) {
    const auto shade_at = [&](size_t column) {
      return row == column
                 ? -1
                 : shades.of(cluster.link(drawn.devices[row], drawn.devices[column]).bytes_per_second);
    };
    for (size_t begin = 0, end = 0; begin < count; begin = end) {
      const int shade = shade_at(begin);
      for (end = begin + 1; end < count && shade_at(end) == shade;) ++end;
      text += fmt::format(R"(<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>)",
                          shade < 0 ? "none" : fmt::format("c{}", shade),
                          left + static_cast<double>(begin) * cell, left + static_cast<double>(row) * cell,
                          static_cast<double>(end - begin) * cell, cell);
    }
  }
  return text;
}

std::string heat_legend(const Drawn& drawn, const Shades& shades) {
  std::string text = "<ul class=\"legend\">";
  for (int shade = 0; shade < kShades && shades.high > 0; ++shade) {
    if (shades.high <= shades.low * 1.0001 && shade != shades.of(shades.low)) continue;
    const bool only = shades.high <= shades.low * 1.0001;
    text += fmt::format("<li><i class=\"c{}\"></i>{}{}</li>", shade, only ? "" : "from ",
                        plan::show(plan::LinkView{.bytes_per_second = shades.begin(shade), .latency = {}}));
  }
  text += "</ul><ul class=\"legend\">";
  for (size_t region = 0; region < drawn.names.size(); ++region)
    text += "<li><b>" + label(region) + "</b> " +
            (drawn.names[region].empty() ? "no region" : html_text(drawn.names[region])) + ", " +
            std::to_string(drawn.counts[region]) + "</li>";
  return text + "</ul>";
}

// ---- the graph by stage ----

std::string link_text(const PlanShown& shown, const plan::PlannedLink& link) {
  const plan::LinkView over = shown.cluster->view.link(shown.plan->stages[link.from_stage].devices.front(),
                                                       shown.plan->stages[link.to_stage].devices.front());
  return plan::show(link.bytes) + " over " + plan::show(over);
}

std::string stage_card(const PlanShown& shown, uint32_t s) {
  const StageFacts& facts = shown.stages[s];
  std::string text = "<div class=\"stage\"><b>Stage " + std::to_string(s + 1) + "</b>" +
                     device_name(device_of(shown, s)) + " <span class=\"soft\">" + std::to_string(facts.ops) +
                     " ops, " + format_count(facts.parameters) + " parameters</span><div class=\"chips\">";
  for (size_t i = 0; i < std::min(kKindsShown, facts.kinds.size()); ++i)
    text +=
        "<span>" + std::to_string(facts.kinds[i].second) + " " + html_text(facts.kinds[i].first) + "</span>";
  if (facts.kinds.size() > kKindsShown)
    text += "<span>and " + std::to_string(facts.kinds.size() - kKindsShown) + " more kinds</span>";
  text += "</div>";
  for (const plan::PlannedLink& link : shown.plan->links)
    if (link.from_stage == s && link.to_stage != s + 1 && link.from_stage != link.to_stage + 1)
      text += "<div class=\"soft\">\u2192 stage " + std::to_string(link.to_stage + 1) + ": " +
              link_text(shown, link) + "</div>";
  return text + "</div>";
}

// What passes between a stage and the one behind it.
std::string arrow(const PlanShown& shown, uint32_t s) {
  std::string text;
  for (const plan::PlannedLink& link : shown.plan->links) {
    if (link.from_stage == s && link.to_stage == s + 1)
      text += "\u2193 " + link_text(shown, link) + " &#160; ";
    if (link.from_stage == s + 1 && link.to_stage == s) text += "\u2191 " + link_text(shown, link);
  }
  return "<div class=\"arrow\">" + (text.empty() ? "nothing passes directly" : text) + "</div>";
}

}  // namespace

std::string html_key_figure(const std::string& value, const std::string& name) {
  return "<div><b>" + value + "</b><span class=\"soft\">" + name + "</span></div>";
}

std::string html_stages(const PlanShown& shown) {
  const auto count = static_cast<uint32_t>(shown.plan->stages.size());
  std::string text =
      "<section><h2>The graph by stage</h2><p class=\"soft\">What each stage computes forward, and "
      "what a microbatch sends down (values) and up (their gradients).</p><details" +
      std::string(count <= kStagesOpen ? " open=\"open\"" : "") + "><summary>" + std::to_string(count) +
      (count == 1 ? " stage" : " stages") + "</summary>";
  for (uint32_t s = 0; s < count; ++s) text += stage_card(shown, s) + (s + 1 < count ? arrow(shown, s) : "");
  return text + "</details></section>";
}

std::string html_page(std::string_view job, const std::string& body) {
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>" +
         html_text(job) + " - a weft plan</title><style>" + std::string(kStyle) +
         "</style></head><body><main>" + body + "</main></body></html>\n";
}

std::string html_text(std::string_view text) {
  // A dump replaces what is no UTF-8.
  const std::string valid = nlohmann::json::parse(
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::string escaped;
  for (const char c : valid) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) ? ' ' : c;
    }
  }
  return escaped;
}

std::string html_heat_map(const plan::ClusterView& cluster) {
  const Drawn drawn = choose_drawn(cluster);
  const size_t count = drawn.devices.size();
  Shades shades;
  for (const uint32_t from : drawn.devices)
    for (const uint32_t to : drawn.devices)
      if (from != to) shades.look(cluster.link(from, to).bytes_per_second);
  constexpr double kLeft = 22, kSize = 560 - kLeft;
  const double cell = kSize / static_cast<double>(count);
  std::string text =
      R"(<figure><svg class="heat" shape-rendering="crispEdges" viewBox="0 0 561 561" role="img" aria-label="bandwidth from each device, by row, to each, by column">)" +
      heat_cells(cluster, drawn, shades, cell, kLeft);
  for (size_t region = 0; region < drawn.fences.size(); ++region) {
    const double at = kLeft + static_cast<double>(drawn.fences[region]) * cell;
    const double end =
        region + 1 < drawn.fences.size() ? kLeft + static_cast<double>(drawn.fences[region + 1]) * cell : 560;
    if (region > 0 && !drawn.one_each)
      text += fmt::format(
          R"(<line class="fence" x1="{0:.2f}" y1="{1}" x2="{0:.2f}" y2="560"/><line class="fence" x1="{1}" y1="{0:.2f}" x2="560" y2="{0:.2f}"/>)",
          at, kLeft);
    if (end - at >= 10)
      text += fmt::format(R"(<text x="4" y="{0:.2f}">{1}</text><text x="{2:.2f}" y="15">{1}</text>)",
                          (at + end) / 2 + 4, label(region), (at + end) / 2 - 4);
  }
  return text + "</svg>" + heat_legend(drawn, shades) + "<figcaption>From row to column" +
         (drawn.one_each ? ", one device of each region" : "; lines are the fences between regions") +
         ".</figcaption></figure>";
}

std::string html_report(const PlanShown& shown, const Comparison* comparison) {
  std::string text = head(shown);
  if (comparison) text += comparison_table(shown, *comparison);
  if (shown.cluster->view.devices().size() > 1)
    text += "<section><h2>Bandwidth between devices</h2>" + html_heat_map(shown.cluster->view) + "</section>";
  text += "<section><h2>A step</h2>" + html_timeline(shown) + "</section>";
  text += html_stages(shown);
  text += "<section><h2>Memory by stage</h2>" + html_memory(shown) + "</section>";
  return html_page(shown.job->name, text);
}

}  // namespace weft::cli
