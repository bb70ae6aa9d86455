#include "cli/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/json_event.h"
#include "cli/live_line.h"
#include "cli/plan_money.h"
#include "cli/report.h"
#include "plan/explain.h"

namespace weft::cli {
namespace {
using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

Json number(std::optional<double> value) { return value && std::isfinite(*value) ? Json(*value) : Json(); }

double busy_share(const PlanShown& shown, const plan::StagePlan& stage) {
  const double busy = seconds(stage.forward + stage.backward) * shown.job->microbatches;
  return std::min(1.0, busy / std::max(1e-12, seconds(shown.plan->predicted_step)));
}

const plan::DeviceView& device_of(const PlanShown& shown, const plan::StagePlan& stage) {
  return shown.cluster->view.devices()[stage.devices.front()];
}

// [seconds since the step began, bytes from then on].
Json json_memory(const PlanShown& shown, uint32_t s) {
  Json points = Json::array();
  for (const MemoryPoint& point : memory_over_time(*shown.plan, s))
    points.push_back({seconds(point.at), point.bytes.value});
  return points;
}

std::string_view name_of(plan::CriticalPart::Kind kind) {
  using Kind = plan::CriticalPart::Kind;
  switch (kind) {
    case Kind::Compute:
      return "compute";
    case Kind::Update:
      return "update";
    case Kind::Norm:
      return "norm";
    case Kind::Uplink:
      return "uplink";
    case Kind::Link:
      return "link";
    case Kind::Downlink:
      return "downlink";
    case Kind::Data:
      return "data";
  }
  return "";
}

Json json_critical_path(const plan::Plan& plan) {
  Json shares = Json::array();
  for (const plan::CriticalShare& share : plan.critical)
    shares.push_back({{"what", name_of(share.kind)},
                      {"stage", share.stage},
                      {"to_stage", share.to_stage},
                      {"seconds", seconds(share.waited)}});
  return shares;
}

// What there is none of is null.
Json json_money(const Money& money, double samples_per_second) {
  const auto both = [&](std::optional<double> an_hour) {
    return an_hour ? Json({{"usd_per_hour", *an_hour},
                           {"usd_per_million_samples", per_million_samples(*an_hour, samples_per_second)}})
                   : Json();
  };
  return {{"bought", both(money.bought_an_hour)}, {"rented", both(money.rented_an_hour)}};
}

Json json_stage(const PlanShown& shown, uint32_t s) {
  const plan::StagePlan& stage = shown.plan->stages[s];
  const plan::DeviceView& device = device_of(shown, stage);
  Json sends = Json::array();
  for (const plan::PlannedLink& link : shown.plan->links)
    if (link.from_stage == s) sends.push_back({{"to_stage", link.to_stage}, {"bytes", link.bytes.value}});
  return {{"stage", s},
          {"device", device.name},
          {"region", device.region},
          {"ops", shown.stages[s].ops},
          {"parameters", shown.stages[s].parameters},
          {"memory_bytes", stage.memory.value},
          {"memory_over_time", json_memory(shown, s)},
          {"device_memory_bytes", device.memory.value},
          {"forward_seconds", seconds(stage.forward)},
          {"backward_seconds", seconds(stage.backward)},
          {"busy", busy_share(shown, stage)},
          {"microbatches_in_flight", stage.microbatches_in_flight},
          {"recomputes", stage.recomputes},
          {"repeated_seconds", seconds(stage.repeated)},
          {"sends", sends}};
}

Json json_row(const PlannedJob& job, const PlanCluster& cluster, const StrategyOutcome& row) {
  if (!row.plan)
    return {{"name", row.name},
            {"stages", nullptr},
            {"microbatches", nullptr},
            {"step_seconds", nullptr},
            {"samples_per_second", nullptr},
            {"samples_per_second_compressed", nullptr},
            {"bottleneck", nullptr},
            {"bytes_over_slowest_link", nullptr},
            {"money", nullptr},
            {"planning_seconds", row.planning_seconds},
            {"problem", row.problem}};
  const double step = seconds(row.plan->predicted_step);
  return {{"name", row.name},
          {"stages", row.plan->stages.size()},
          {"microbatches", job.microbatches},
          {"step_seconds", step},
          {"samples_per_second", job.samples_per_second(step)},
          {"samples_per_second_compressed", row.compressed ? Json(*row.compressed) : Json()},
          {"bottleneck", bottleneck_of(job, cluster.view, *row.plan).name},
          {"bytes_over_slowest_link", bytes_over_slowest_link(job, cluster.view, *row.plan)},
          {"money", json_money(money_of(cluster, *row.plan), job.samples_per_second(step))},
          {"planning_seconds", row.planning_seconds}};
}

std::string percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

std::string sends_of(const PlanShown& shown, uint32_t s) {
  std::string text;
  for (const plan::PlannedLink& link : shown.plan->links)
    if (link.from_stage == s)
      text +=
          (text.empty() ? "" : ", ") + plan::show(link.bytes) + " to " + std::to_string(link.to_stage + 1);
  return text.empty() ? "nothing" : text;
}

Row stage_columns() {
  return {"STAGE", "DEVICE",  "REGION",   "OPS",  "PARAMETERS",        "MEMORY",
          "OF",    "FORWARD", "BACKWARD", "BUSY", "SENDS A MICROBATCH"};
}

Row stage_row(const PlanShown& shown, uint32_t s) {
  const plan::StagePlan& stage = shown.plan->stages[s];
  const plan::DeviceView& device = device_of(shown, stage);
  return {std::to_string(s + 1),
          printable(device.name),
          printable(device.region),
          std::to_string(shown.stages[s].ops),
          format_count(shown.stages[s].parameters),
          plan::show(stage.memory),
          plan::show(device.memory),
          plan::show(stage.forward),
          plan::show(stage.backward) +
              (stage.recomputes ? ", " + plan::show(stage.repeated) + " of it forward again" : ""),
          percent(busy_share(shown, stage)),
          sends_of(shown, s)};
}

std::vector<PlanShown> each_replica(const ReplicasShown& shown) {
  std::vector<PlanShown> each;
  each.reserve(shown.plan->replicas.size());
  for (const plan::Plan& plan : shown.plan->replicas)
    each.push_back({shown.job, shown.cluster, &plan, stage_facts(shown.job->graph, plan)});
  return each;
}

double samples_per_second(const ReplicasShown& shown) {
  const auto count = static_cast<double>(shown.plan->steps_at_once());
  return count * shown.job->samples_per_second(seconds(shown.plan->predicted_step));
}

Money money_of_all(const ReplicasShown& shown) {
  plan::Plan all;
  for (const plan::Plan& plan : shown.plan->replicas)
    all.stages.insert(all.stages.end(), plan.stages.begin(), plan.stages.end());
  return money_of(*shown.cluster, all);
}

std::string optional_rate(std::optional<double> rate) {
  return rate ? format_rate(*rate) : std::string("none");
}

}  // namespace

std::string text_table(const std::vector<Row>& rows, size_t left) {
  std::vector<size_t> widths;
  for (const Row& row : rows)
    for (size_t c = 0; c < row.size(); ++c) {
      if (c == widths.size()) widths.push_back(0);
      widths[c] = std::max(widths[c], row[c].size());
    }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const bool last = c + 1 == row.size();
      const std::string gap = c > 0 ? "  " : "";
      if (last)
        line += gap + row[c];
      else
        line += gap + (c < left ? fmt::format("{:<{}}", row[c], widths[c])
                                : fmt::format("{:>{}}", row[c], widths[c]));
    }
    text += line + "\n";
  }
  return text;
}

std::string format_rate(double rate) {
  const int decimals = rate >= 99.95 ? 0 : rate >= 9.995 ? 1 : rate >= 0.9995 ? 2 : rate >= 0.09995 ? 3 : 4;
  return fmt::format("{:.{}f} samples/s", rate, decimals);
}

std::string format_count(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 9.995e8) return fmt::format("{:.2f}G", value / 1e9);
  if (value >= 9.995e5) return fmt::format("{:.1f}M", value / 1e6);
  if (value >= 9995) return fmt::format("{:.1f}k", value / 1e3);
  return std::to_string(count);
}

std::string prediction_line(const PlanShown& shown) {
  const double step = seconds(shown.plan->predicted_step);
  const PlannedJob& job = *shown.job;
  const uint64_t samples = uint64_t{job.microbatches} * job.job.microbatch_size;
  return fmt::format("predicted: a step of {} {} ({} x {}) takes {}, {}", samples,
                     samples == 1 ? "sample" : "samples", job.microbatches, job.job.microbatch_size,
                     plan::show(shown.plan->predicted_step), format_rate(job.samples_per_second(step)));
}

std::string json_plan(const PlanShown& shown) {
  const double step = seconds(shown.plan->predicted_step);
  Json stages = Json::array(), lines = Json::array();
  for (uint32_t s = 0; s < shown.plan->stages.size(); ++s) stages.push_back(json_stage(shown, s));
  for (const std::string& line : shown.plan->explanation) lines.push_back(line);
  for (const auto* notes : {&shown.job->notes, &shown.cluster->notes})
    for (const std::string& note : *notes) lines.push_back(note);
  return dump(
      {{"event", "plan"},
       {"job", shown.job->name},
       {"stages", std::move(stages)},
       {"predicted_step_seconds", step},
       {"predicted_samples_per_second", shown.job->samples_per_second(step)},
       {"critical_path", json_critical_path(*shown.plan)},
       {"money", json_money(money_of(*shown.cluster, *shown.plan), shown.job->samples_per_second(step))},
       {"lines", std::move(lines)}});
}

std::string json_replicas(const ReplicasShown& shown) {
  Json stages = Json::array(), lines = Json::array();
  const std::vector<PlanShown> each = each_replica(shown);
  for (uint32_t r = 0; r < each.size(); ++r)
    for (uint32_t s = 0; s < each[r].plan->stages.size(); ++s) {
      stages.push_back(json_stage(each[r], s));
      stages.back()["replica"] = r;
    }
  for (const auto* some : {&shown.plan->explanation, &shown.job->notes, &shown.cluster->notes})
    for (const std::string& line : *some) lines.push_back(line);
  const auto slowest =
      std::max_element(shown.plan->replicas.begin(), shown.plan->replicas.end(),
                       [](const auto& a, const auto& b) { return a.predicted_step < b.predicted_step; });
  return dump({{"event", "plan"},
               {"job", shown.job->name},
               {"stages", std::move(stages)},
               {"predicted_step_seconds", seconds(shown.plan->predicted_step)},
               {"predicted_samples_per_second", samples_per_second(shown)},
               {"critical_path", json_critical_path(*slowest)},
               {"money", json_money(money_of_all(shown), samples_per_second(shown))},
               {"lines", std::move(lines)}});
}

std::string json_comparison(const PlannedJob& job, const PlanCluster& cluster, const Comparison& comparison) {
  Json rows = Json::array();
  for (const StrategyOutcome& row : comparison.strategies) rows.push_back(json_row(job, cluster, row));
  return dump({{"event", "comparison"},
               {"job", job.name},
               {"strategies", std::move(rows)},
               {"bound_samples_per_second", number(comparison.bound)},
               {"free_network_samples_per_second", number(comparison.free_network)},
               {"best_machine_samples_per_second", number(comparison.best_machine)},
               {"best_site_samples_per_second", number(comparison.best_site)},
               {"planning_seconds", comparison.planning_seconds}});
}

std::string text_plan(const PlanShown& shown, bool verbose) {
  std::string text;
  for (const std::string& line : plan_lines(shown.plan->explanation, verbose)) text += printable(line) + "\n";
  for (const auto* notes : {&shown.job->notes, &shown.cluster->notes})
    for (const std::string& note : *notes) text += "note: " + printable(note) + "\n";
  std::vector<Row> rows = {stage_columns()};
  for (uint32_t s = 0; s < shown.plan->stages.size(); ++s) rows.push_back(stage_row(shown, s));
  text += "\n" + text_table(rows, 3) + "\n" + prediction_line(shown) + "\n";
  if (!verbose) text += "critical path: " + plan::describe(shown.plan->critical) + "\n";
  const double rate = shown.job->samples_per_second(seconds(shown.plan->predicted_step));
  const std::string money = money_line(money_of(*shown.cluster, *shown.plan), rate);
  return money.empty() ? text : text + "devices: " + money + "\n";
}

std::string text_replicas(const ReplicasShown& shown, bool verbose) {
  std::string text;
  for (const std::string& line : plan_lines(shown.plan->explanation, verbose)) text += printable(line) + "\n";
  for (const auto* notes : {&shown.job->notes, &shown.cluster->notes})
    for (const std::string& note : *notes) text += "note: " + printable(note) + "\n";
  std::vector<Row> rows;
  const auto add = [&](const std::string& first, Row row) {
    row.insert(row.begin(), first);
    rows.push_back(std::move(row));
  };
  add("REPLICA", stage_columns());
  const std::vector<PlanShown> each = each_replica(shown);
  for (uint32_t r = 0; r < each.size(); ++r)
    for (uint32_t s = 0; s < each[r].plan->stages.size(); ++s)
      add(std::to_string(r + 1), stage_row(each[r], s));
  const configs::Job& job = shown.job->job;
  const double rate = samples_per_second(shown);
  text += "\n" + text_table(rows, 4) + "\n" +
          fmt::format("predicted: a step of {}{} {} ({} x {} samples) takes {}, {} of all\n",
                      shown.plan->ranges.empty() ? "each of " : "all ", each.size(),
                      each.size() == 1 ? "replica" : "replicas", shown.job->microbatches, job.microbatch_size,
                      plan::show(shown.plan->predicted_step), format_rate(rate));
  const std::string money = money_line(money_of_all(shown), rate);
  return money.empty() ? text : text + "devices: " + money + "\n";
}

namespace {
std::string usd_a_million(std::optional<double> an_hour, double samples_per_second) {
  return an_hour ? "$" + format_usd(per_million_samples(*an_hour, samples_per_second)) : std::string("-");
}
}  // namespace

std::string text_comparison(const PlannedJob& job, const PlanCluster& cluster, const Comparison& comparison) {
  std::vector<Row> rows = {{"STRATEGY", "STAGES", "STEP", "SAMPLES/S", "COMPRESSED", "OVER SLOWEST LINK",
                            "PLANNED IN", "BOUGHT", "RENTED", "BOTTLENECK"}};
  for (const StrategyOutcome& row : comparison.strategies) {
    const std::string planned = fmt::format("{:.2f} s", row.planning_seconds);
    if (!row.plan) {
      rows.push_back({row.name, "-", "-", "-", "-", "-", planned, "-", "-", printable(row.problem)});
      continue;
    }
    const Bottleneck most = bottleneck_of(job, cluster.view, *row.plan);
    const double step = seconds(row.plan->predicted_step), rate = job.samples_per_second(step);
    const Money money = money_of(cluster, *row.plan);
    rows.push_back({row.name, std::to_string(row.plan->stages.size()), plan::show(row.plan->predicted_step),
                    fmt::format("{:.4g}", rate),
                    row.compressed ? fmt::format("{:.4g}", *row.compressed) : "-",
                    plan::show(Bytes{bytes_over_slowest_link(job, cluster.view, *row.plan)}), planned,
                    usd_a_million(money.bought_an_hour, rate), usd_a_million(money.rented_an_hour, rate),
                    fmt::format("{}, {} of a step", printable(most.name),
                                percent(std::min(1.0, most.seconds / std::max(1e-12, step))))});
  }
  std::string text = text_table(rows, 1);
  for (const auto* notes : {&job.notes, &cluster.notes})
    for (const std::string& note : *notes) text += "note: " + printable(note) + "\n";
  const std::vector<Row> limits = {{"all devices busy all the time", format_rate(comparison.bound)},
                                   {"were links free", optional_rate(comparison.free_network)},
                                   {"the best machine alone", optional_rate(comparison.best_machine)},
                                   {"the best region alone", optional_rate(comparison.best_site)}};
  return text + "\n" + text_table(limits, 1) +
         fmt::format(
             "planned in {:.2f} s, {} microbatches of {} a step; compressed: samples/s with compression "
             "{{policy: auto}}; $ for a million samples: devices written off over three years, or rented\n",
             comparison.planning_seconds, job.microbatches, job.job.microbatch_size);
}

}  // namespace weft::cli
