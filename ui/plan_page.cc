#include "ui/plan_page.h"

#include <fmt/format.h>

#include <cmath>

#include "base/printable.h"

namespace weft::ui {

namespace {

constexpr std::string_view kHead =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
    "<link rel=\"stylesheet\" href=\"/page.css\"><title>";

std::string duration(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::string figure(const std::string& value, std::string_view name) {
  return "<div class=\"figure\"><b>" + value + "</b><span>" + std::string(name) + "</span></div>";
}

// The rate of the last steps that were done by it.
std::string measured(const proto::JobStatus& job, const PastPlan& plan) {
  if (!(job.samples_per_second > 0)) return {};
  std::string text = figure(fmt::format("{:.1f}", job.samples_per_second), "samples/s measured");
  if (plan.samples_per_second > 0)
    text += figure(fmt::format("{:.0f} %", 100 * job.samples_per_second / plan.samples_per_second),
                   "of the prediction");
  return text;
}

std::string peers_of(const PastPlan& plan) {
  if (plan.peers.empty()) return {};
  std::string text = "<p class=\"soft\">Its stages, in order, and who has them:</p><ol class=\"planned\">";
  for (const std::string& peer : plan.peers) text += "<li>" + escaped(peer) + "</li>";
  return text + "</ol>";
}

// Lines that begin with a space say more of the one before (plan/explain.h).
std::string why(const std::vector<std::string>& lines) {
  std::string first = "<ul class=\"why\">", more;
  for (const std::string& line : lines)
    (line.starts_with(' ') ? more : first) += "<li>" + escaped(line) + "</li>";
  first += "</ul>";
  if (more.empty()) return first;
  return first + "<details><summary>All that is known of it</summary><ul class=\"why\">" + more +
         "</ul></details>";
}

std::string section(const proto::JobStatus& job, const PastPlan& plan, bool is_last) {
  std::string text = "<section class=\"card\"><h2>";
  text += is_last ? "The plan" : "An earlier plan";
  text += fmt::format(", after step {}</h2><div class=\"figures\">", plan.after_step);
  if (plan.step_seconds > 0) text += figure(duration(plan.step_seconds), "a step, predicted");
  if (plan.samples_per_second > 0)
    text += figure(fmt::format("{:.1f}", plan.samples_per_second), "samples/s predicted");
  if (is_last) text += measured(job, plan);
  return text + "</div>" + peers_of(plan) + why(plan.lines) + "</section>";
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += c;
  }
  return out;
}

std::string plan_page(const proto::JobStatus& job, const JobHistory& history) {
  const std::string name = fmt::format("Job {}: {}", job.job, escaped(job.name));
  std::string text = std::string(kHead) + "plan of job " + std::to_string(job.job) +
                     "</title></head><body class=\"plan\"><main><h1>" + name + "</h1><p class=\"soft\">" +
                     std::string(to_string(job.state)) +
                     fmt::format(", step {}, plan {}</p>", job.step, job.plan_version);
  const auto& plans = history.plans();
  if (plans.empty()) text += "<p>It was not planned yet.</p>";
  for (size_t i = plans.size(); i-- > 0;) text += section(job, plans[i], i + 1 == plans.size());
  return text + "<p><a href=\"/#job=" + std::to_string(job.job) +
         "\">Back to the job</a></p></main></body></html>\n";
}

}  // namespace weft::ui
