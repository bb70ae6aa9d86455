#include "cli/job_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/json_event.h"
#include "cli/live_line.h"
#include "cli/quantities.h"
#include "cli/report.h"
#include "cli/run_events.h"
#include "cli/stage_watch.h"

namespace weft::cli {
namespace {

// Of a broker before minor version 13 no time is known.
std::string since_text(const proto::JobStatus& job) {
  return job.submitted_unix_ms > 0 ? local_time(job.submitted_unix_ms) : "";
}
std::string took_text(const proto::JobStatus& job, int64_t now) {
  if (job.submitted_unix_ms <= 0) return "";
  if (has_ended(job.state) && job.ended_unix_ms <= 0) return "";
  const int64_t until = has_ended(job.state) ? job.ended_unix_ms : now;
  return format_duration(std::max<double>(0, static_cast<double>(until - job.submitted_unix_ms) / 1000));
}

std::string progress_text(const proto::JobStatus& job) {
  return job.steps > 0 ? fmt::format("{}/{}", job.step, job.steps) : fmt::format("{}", job.step);
}

std::string doing_text(const proto::JobStatus& job) {
  return job.reason.empty() ? saving_line(job) : printable(job.reason);
}

std::string row(const std::string& job, const std::string& state, const std::string& step,
                const std::string& loss, const std::string& since, const std::string& took,
                const std::string& rest) {
  return fmt::format("{:>5}  {:9}  {:>15}  {:>10}  {:19}  {:>8}  {}", job, state, step, loss, since, took,
                     rest);
}

std::string line_of_time(const proto::JobStatus& job, int64_t now) {
  std::string began = "submitted " + since_text(job);
  const std::string took = took_text(job, now);
  if (!has_ended(job.state)) return fmt::format("{}, {} ago", began, took);
  if (job.ended_unix_ms <= 0) return began;
  return fmt::format("{}, ended {}, after {}", began, local_time(job.ended_unix_ms), took);
}

std::string line_of_progress(const proto::JobStatus& job) {
  std::string text = "step " + progress_text(job);
  if (job.loss != 0) text += fmt::format(", training loss {:.4f}", job.loss);
  if (job.samples_per_second <= 0) return text;
  text += fmt::format(", {:.0f} samples/s", job.samples_per_second);
  // Behind the last step it is not known: what is saved then is a line of its own.
  const bool is_behind = job.steps > 0 && std::max(job.step, job.saving.step) >= job.steps;
  if (!is_behind) text += fmt::format(", {} left", format_duration(job.seconds_left));
  return text;
}

std::string line_of_evaluation(const proto::JobStatus& job) {
  std::string text = fmt::format("evaluation after step {}:", job.evaluated_step);
  for (const auto& [name, value] : job.metrics) text += fmt::format("  {} {:.4f}", printable(name), value);
  return text;
}

// "2 replicas, 30 and 10 steps a round; agreed after step 240, 12s ago"; of many that make as many, the
// number. Those that make none follow the others.
std::string line_of_replicas(const proto::JobStatus& job) {
  std::vector<uint64_t> steps = job.replicas.steps;
  const size_t followers = std::erase(steps, 0);
  std::string text = fmt::format("{} {}, ", steps.size(), steps.size() == 1 ? "replica" : "replicas");
  const bool equal = std::all_of(steps.begin(), steps.end(), [&](uint64_t own) { return own == steps[0]; });
  for (size_t r = 0; r < (equal ? 1 : steps.size()); ++r)
    text += (r == 0 ? "" : r + 1 == steps.size() ? " and " : ", ") + std::to_string(steps[r]);
  text += equal && steps.size() > 1 ? " steps a round each" : " steps a round";
  if (followers > 0)
    text += fmt::format("; {} more {} what they have", followers, followers == 1 ? "fetches" : "fetch");
  text += "; ";
  if (job.replicas.agreed_step == 0) return text + "not agreed yet";
  return text + fmt::format("agreed after step {}, {} ago", job.replicas.agreed_step,
                            format_duration(job.replicas.seconds_since_agreement));
}

// What it would go on from. One that makes no steps has no checkpoints, either.
std::string line_of_safety(const proto::JobStatus& job) {
  std::string text;
  if (job.checkpoint_step > 0)
    text = fmt::format("last checkpoint after step {}, ", job.checkpoint_step);
  else if (job.steps > 0)
    text = has_ended(job.state) ? "no checkpoint, " : "no checkpoint yet, ";
  if (job.recovery_step > job.checkpoint_step)
    text += fmt::format("copies after step {}, ", job.recovery_step);
  return text + fmt::format("{} {}, plan {}", job.recoveries, job.recoveries == 1 ? "recovery" : "recoveries",
                            job.plan_version);
}

}  // namespace

std::string way_on(const proto::JobStatus& job) {
  if (job.checkpoint_step > 0)
    return fmt::format("goes on from the checkpoint of step {}", job.checkpoint_step);
  return job.steps > 0 ? "begins anew, for it had no checkpoint" : "goes on";
}

std::vector<std::string> job_table(const std::vector<proto::JobStatus>& jobs, int64_t now) {
  std::set<std::string> owners;
  for (const proto::JobStatus& job : jobs) owners.insert(job.submitter);
  const bool has_owners = owners.size() > 1;
  const auto rest = [&](const std::string& name, const std::string& owner, const std::string& reason) {
    return has_owners ? fmt::format("{:20}  {:12}  {}", name, owner, reason)
                      : fmt::format("{:20}  {}", name, reason);
  };
  std::vector<std::string> lines{
      row("JOB", "STATE", "STEP", "LOSS", "SUBMITTED", "TOOK", rest("NAME", "WHOSE", ""))};
  for (const proto::JobStatus& job : jobs)
    lines.push_back(row(std::to_string(job.job), std::string(to_string(job.state)), progress_text(job),
                        job.loss != 0 ? fmt::format("{:.4f}", job.loss) : "", since_text(job),
                        took_text(job, now),
                        rest(printable(job.name), printable(job.submitter), doing_text(job))));
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

std::vector<std::string> job_lines(const proto::JobStatus& job, bool verbose, int64_t now) {
  std::vector<std::string> lines{fmt::format("job {} ({}): {}{}", job.job, printable(job.name),
                                             to_string(job.state),
                                             job.reason.empty() ? "" : ": " + printable(job.reason))};
  if (job.submitted_unix_ms > 0) lines.push_back(line_of_time(job, now));
  lines.push_back(line_of_progress(job));
  if (!job.replicas.steps.empty()) lines.push_back(line_of_replicas(job));
  if (job.evaluated_step > 0) lines.push_back(line_of_evaluation(job));
  lines.push_back(line_of_safety(job));
  if (const std::string saving = saving_line(job); !saving.empty()) lines.push_back(saving);
  if (!job.equal_bits)
    lines.emplace_back(
        "the stages run or ran on devices of different kinds: equal bits are no longer promised");
  for (const std::string& line : plan_lines(job.plan, verbose)) lines.push_back(printable(line));
  for (const std::string& line : stage_lines(job)) lines.push_back(printable(line));
  return lines;
}

}  // namespace weft::cli
