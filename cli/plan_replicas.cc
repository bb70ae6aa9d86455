#include "cli/plan_replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cli/json_event.h"
#include "cli/live_line.h"
#include "cli/plan_html.h"
#include "plan/explain.h"
#include "plan/plan.h"

namespace weft::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kEachUpTo = 8;     // numbers of replicas that are looked at one by one
constexpr size_t kReplicasDrawn = 8;  // on a page, each with its step

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Bytes bytes_of_agreement(const plan::ReplicasPlan& plan) {
  Bytes bytes;
  for (const plan::AgreedWeight& weight : plan.agreed) bytes += weight.bytes;
  return bytes;
}
size_t peers_of(const plan::ReplicasPlan& plan) {
  size_t peers = 0;
  for (const plan::Plan& replica : plan.replicas) peers += replica.stages.size();
  return peers;
}
// "83.2 ms", or "83.2 ms to 1.20 s".
std::string steps_of(const plan::ReplicasPlan& plan) {
  const auto [least, most] = std::minmax_element(
      plan.replicas.begin(), plan.replicas.end(),
      [](const plan::Plan& a, const plan::Plan& b) { return a.predicted_step < b.predicted_step; });
  const std::string from = plan::show(least->predicted_step), to = plan::show(most->predicted_step);
  return from == to ? from : from + " to " + to;
}
bool agrees(const plan::ReplicasPlan& plan) { return plan.replicas.size() > 1; }
bool makes_rounds(const plan::ReplicasPlan& plan) { return agrees(plan) && plan.ranges.empty(); }

std::set<uint32_t> counts_to_compare(const plan::ReplicasRequest& request, uint32_t chosen) {
  const uint32_t stages = request.pipeline.stages.value_or(1);
  auto most = static_cast<uint32_t>(request.pipeline.cluster.devices().size() / stages);
  if (request.ranges > 0) most = std::min(most, request.ranges);
  std::set<uint32_t> counts{chosen};
  for (uint32_t count = 1; count <= most; count += count < kEachUpTo ? 1 : count / 2) counts.insert(count);
  counts.insert(std::max(most, 1u));
  return counts;
}

const ReplicasOutcome* best_of(const ReplicasComparison& comparison) {
  const ReplicasOutcome* best = nullptr;
  for (const ReplicasOutcome& row : comparison.counts)
    if (row.plan && (best == nullptr || row.samples_per_second > best->samples_per_second)) best = &row;
  return best;
}

std::string times_text(const ReplicasComparison& comparison, const ReplicasOutcome& row) {
  return comparison.one_pipeline && *comparison.one_pipeline > 0
             ? fmt::format("{:.2f}", row.samples_per_second / *comparison.one_pipeline)
             : std::string("-");
}
std::string agreement_text(const plan::ReplicasPlan& plan) {
  return agrees(plan) ? plan::show(plan.agreement) : std::string("none");
}

}  // namespace

ReplicasComparison compare_replicas(const PlannedJob& job, const plan::ReplicasRequest& request,
                                    const plan::ReplicasPlan& chosen) {
  const Clock::time_point begin = Clock::now();
  ReplicasComparison comparison;
  plan::PlanRequest whole = request.pipeline;
  whole.agreed_slots = 0;
  if (const auto one = plan::make_plan(whole))
    comparison.one_pipeline = job.samples_per_second(seconds(one->predicted_step));
  const auto jobs = static_cast<uint32_t>(chosen.replicas.size());
  for (const uint32_t count : counts_to_compare(request, jobs)) {
    ReplicasOutcome& row = comparison.counts.emplace_back(ReplicasOutcome{.count = count});
    row.is_jobs = count == jobs;
    const Clock::time_point began = Clock::now();
    if (row.is_jobs) {
      row.plan = chosen;
    } else {
      plan::ReplicasRequest other = request;
      other.count = count;
      other.count_max = request.ranges > 0 ? count : 0;
      other.compares = false;
      if (!other.shares.empty()) {  // they are of the job's number
        other.shares.clear();
        other.by_speed = true;
      }
      if (auto plan = plan::make_replicas_plan(other))
        row.plan = std::move(*plan);
      else
        row.problem = plan.error().message;
    }
    row.planning_seconds = seconds_since(began);
    if (row.plan)
      row.samples_per_second = static_cast<double>(row.plan->steps_at_once()) *
                               job.samples_per_second(seconds(row.plan->predicted_step));
  }
  comparison.planning_seconds = seconds_since(begin);
  return comparison;
}

std::string json_replicas_comparison(const ReplicasShown& shown, const ReplicasComparison& comparison) {
  Json rows = Json::array();
  for (const ReplicasOutcome& row : comparison.counts) {
    if (!row.plan) {
      rows.push_back({{"replicas", row.count}, {"problem", row.problem}});
      continue;
    }
    rows.push_back(
        {{"replicas", row.count},
         {"peers", peers_of(*row.plan)},
         {"predicted_step_seconds", seconds(row.plan->predicted_step)},
         {"predicted_samples_per_second", row.samples_per_second},
         {"agreement_seconds", agrees(*row.plan) ? Json(seconds(row.plan->agreement)) : Json()},
         {"agreement_bytes", agrees(*row.plan) ? Json(bytes_of_agreement(*row.plan).value) : Json()},
         {"every", makes_rounds(*row.plan) ? Json(row.plan->every * row.plan->fragments) : Json()},
         {"codec", agrees(*row.plan) ? Json(compress::name(row.plan->codec)) : Json()},
         {"planning_seconds", row.planning_seconds}});
  }
  const ReplicasOutcome* best = best_of(comparison);
  return dump(
      {{"event", "replicas_comparison"},
       {"job", shown.job->name},
       {"replicas", std::move(rows)},
       {"job_takes", shown.plan->replicas.size()},
       {"fastest", best != nullptr ? Json(best->count) : Json()},
       {"one_pipeline_samples_per_second", comparison.one_pipeline ? Json(*comparison.one_pipeline) : Json()},
       {"planning_seconds", comparison.planning_seconds}});
}

std::string text_replicas_comparison(const ReplicasShown& shown, const ReplicasComparison& comparison) {
  std::vector<std::vector<std::string>> rows = {{"REPLICAS", "PEERS", "A STEP OF ONE", "AGREEMENT",
                                                 "SAMPLES/S", "OF ONE PIPELINE", "PLANNED IN", "WHAT"}};
  const ReplicasOutcome* best = best_of(comparison);
  for (const ReplicasOutcome& row : comparison.counts) {
    const std::string planned = fmt::format("{:.2f} s", row.planning_seconds);
    if (!row.plan) {
      rows.push_back({std::to_string(row.count), "-", "-", "-", "-", "-", planned, printable(row.problem)});
      continue;
    }
    const std::string what = std::string(row.is_jobs ? "what the job takes" : "") +
                             (row.is_jobs && &row == best ? ", " : "") + (&row == best ? "the fastest" : "");
    rows.push_back({std::to_string(row.count), std::to_string(peers_of(*row.plan)), steps_of(*row.plan),
                    agreement_text(*row.plan), fmt::format("{:.4g}", row.samples_per_second),
                    times_text(comparison, row), planned, what});
  }
  std::string text = text_table(rows, 0);
  for (const auto* notes : {&shown.job->notes, &shown.cluster->notes})
    for (const std::string& note : *notes) text += "note: " + printable(note) + "\n";
  return text + "\none exact pipeline over the same devices: " +
         (comparison.one_pipeline ? format_rate(*comparison.one_pipeline) : std::string("none")) +
         fmt::format("; planned in {:.2f} s\n", comparison.planning_seconds);
}

// ---- the page

namespace {

std::string head(const ReplicasShown& shown) {
  const PlannedJob& job = *shown.job;
  const plan::ReplicasPlan& plan = *shown.plan;
  const double rate =
      static_cast<double>(plan.steps_at_once()) * job.samples_per_second(seconds(plan.predicted_step));
  std::string text = "<h1>" + html_text(job.name) + "</h1><p class=\"soft\">planned for " +
                     html_text(shown.cluster->source) + ", " +
                     std::to_string(shown.cluster->view.devices().size()) +
                     " devices; predicted, nothing has been run</p><div class=\"key\">" +
                     html_key_figure(std::to_string(plan.replicas.size()),
                                     plan.replicas.size() == 1 ? "replica" : "replicas") +
                     html_key_figure(std::to_string(peers_of(plan)), "peers") +
                     html_key_figure(format_rate(rate), "predicted, of all") +
                     html_key_figure(steps_of(plan), "a step of one");
  if (agrees(plan))
    text += html_key_figure(plan::show(plan.agreement),
                            "an agreement, " + plan::show(bytes_of_agreement(plan)) + " each");
  text += "</div><ul class=\"lines\">";
  for (const auto* some : {&plan.explanation, &job.notes, &shown.cluster->notes})
    for (const std::string& line : *some)
      if (!line.starts_with(' ')) text += "<li>" + html_text(line) + "</li>";
  return text + "</ul>";
}

std::string comparison_table(const ReplicasComparison& comparison) {
  std::string text =
      "<section><h2>Numbers of replicas compared</h2><div class=\"wide\"><table><thead><tr>"
      "<th>replicas</th><th>peers</th><th>a step of one</th><th>agreement</th><th>throughput</th>"
      "<th>of one pipeline</th></tr></thead><tbody>";
  const ReplicasOutcome* best = best_of(comparison);
  for (const ReplicasOutcome& row : comparison.counts) {
    const std::string count = std::to_string(row.count) + (row.is_jobs ? html_text(", the job's") : "");
    text += std::string("<tr") + (&row == best ? " class=\"best\"" : "") + "><td>" + count + "</td>";
    if (!row.plan) {
      text += "<td colspan=\"5\" class=\"text\">" + html_text(row.problem) + "</td></tr>";
      continue;
    }
    text += "<td>" + std::to_string(peers_of(*row.plan)) + "</td><td>" + steps_of(*row.plan) + "</td><td>" +
            agreement_text(*row.plan) + "</td><td>" + format_rate(row.samples_per_second) + "</td><td>" +
            times_text(comparison, row) + "</td></tr>";
  }
  return text + "</tbody></table></div><p class=\"soft\">One exact pipeline over the same devices: " +
         (comparison.one_pipeline ? format_rate(*comparison.one_pipeline) : std::string("none")) +
         ".</p></section>";
}

}  // namespace

std::string html_replicas(const ReplicasShown& shown, const ReplicasComparison* comparison) {
  std::string text = head(shown);
  if (comparison != nullptr) text += comparison_table(*comparison);
  if (shown.cluster->view.devices().size() > 1)
    text += "<section><h2>Bandwidth between devices</h2>" + html_heat_map(shown.cluster->view) + "</section>";
  const auto& replicas = shown.plan->replicas;
  for (size_t r = 0; r < std::min(replicas.size(), kReplicasDrawn); ++r) {
    const PlanShown one{shown.job, shown.cluster, &replicas[r], stage_facts(shown.job->graph, replicas[r])};
    const std::string name = "Replica " + std::to_string(r + 1);
    text += "<section><h2>" + name + ": a step</h2>" + html_timeline(one) + "</section>" + html_stages(one) +
            "<section><h2>" + name + ": memory by stage</h2>" + html_memory(one) + "</section>";
  }
  if (replicas.size() > kReplicasDrawn)
    text += "<p class=\"soft\">And " + std::to_string(replicas.size() - kReplicasDrawn) +
            " more replicas, which are not drawn.</p>";
  return html_page(shown.job->name, text);
}

}  // namespace weft::cli
