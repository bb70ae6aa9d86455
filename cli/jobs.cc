// What a user asks a broker about jobs: jobs, status, logs, stop, fetch, peers; and login, which keeps the
// way there.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/broker_call.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/follow.h"
#include "cli/json_event.h"
#include "cli/link_table.h"
#include "cli/live_line.h"
#include "cli/peer_table.h"
#include "cli/quantities.h"
#include "cli/report.h"
#include "cli/results.h"
#include "cli/signals.h"
#include "cli/stage_watch.h"
#include "cli/temporary_folder.h"
#include "dag/onnx/export.h"
#include "dag/onnx/outline.h"
#include "train/outputs.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

struct JobOptions {
  BrokerOptions broker;
  std::string format = "text";
  proto::JobNumber job = 0;
  proto::JobNumber before = 0;  // jobs
  uint32_t count = 0;
  std::string peer;  // peers ban, unban
  bool follow = false, verbose = false, links = false, all = false;
  std::string output;
  std::string address;  // login
  bool json() const { return format == "json"; }
};

// Of a broker before minor version 13 no time is known.
std::string since_text(const proto::JobStatus& job) {
  return job.submitted_unix_ms > 0 ? local_time(job.submitted_unix_ms) : "";
}
std::string took_text(const proto::JobStatus& job) {
  if (job.submitted_unix_ms <= 0) return "";
  const int64_t until = job.ended_unix_ms > 0 ? job.ended_unix_ms : unix_ms_now();
  if (has_ended(job.state) && job.ended_unix_ms <= 0) return "";
  return format_duration(std::max<double>(0, static_cast<double>(until - job.submitted_unix_ms) / 1000));
}

std::string progress_text(const proto::JobStatus& job) {
  return job.steps > 0 ? fmt::format("{}/{}", job.step, job.steps) : fmt::format("{}", job.step);
}

std::string metrics_text(const proto::JobStatus& job) {
  std::string text;
  for (const auto& [name, value] : job.metrics) text += fmt::format("  {} {:.4f}", printable(name), value);
  return text;
}

Result<int> run_jobs(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  WEFT_TRY(auto list, session->client->ask<proto::JobList>(proto::ListJobs{options.before, options.count}));
  // The newest come; people read downwards.
  std::reverse(list.jobs.begin(), list.jobs.end());
  if (!options.json())
    fmt::print("{:>5}  {:9}  {:>15}  {:>10}  {:19}  {:>8}  {:20}  {}\n", "JOB", "STATE", "STEP", "LOSS",
               "SUBMITTED", "TOOK", "NAME", "");
  for (const proto::JobStatus& job : list.jobs) {
    if (options.json())
      print_event(json_status(job), job.job);
    else
      fmt::print("{:>5}  {:9}  {:>15}  {:>10}  {:19}  {:>8}  {:20}  {}\n", job.job, to_string(job.state),
                 progress_text(job), job.loss != 0 ? fmt::format("{:.4f}", job.loss) : "", since_text(job),
                 took_text(job), printable(job.name), printable(job.reason));
  }
  if (list.more && !list.jobs.empty() && !options.json())
    fmt::print("there are older ones: weft jobs --before {}\n", list.jobs.front().job);
  return kExitOk;
}

Result<int> run_status(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  WEFT_TRY(const auto job, session->client->ask<proto::JobStatus>(proto::GetJob{options.job}));
  if (options.json()) {
    print_event(json_status(job), job.job);
    return kExitOk;
  }
  fmt::print("job {} ({}): {}{}\n", job.job, printable(job.name), to_string(job.state),
             job.reason.empty() ? "" : ": " + printable(job.reason));
  if (const std::string since = since_text(job); !since.empty())
    fmt::print("submitted {}{}\n", since,
               job.ended_unix_ms > 0
                   ? fmt::format(", ended {}, after {}", local_time(job.ended_unix_ms), took_text(job))
                   : fmt::format(", {} ago", took_text(job)));
  fmt::print("step {}", progress_text(job));
  if (job.loss != 0) fmt::print(", training loss {:.4f}", job.loss);
  if (job.samples_per_second > 0)
    fmt::print(", {:.0f} samples/s, {} left", job.samples_per_second, format_duration(job.seconds_left));
  if (job.evaluated_step > 0)
    fmt::print("\nevaluation after step {}:{}", job.evaluated_step, metrics_text(job));
  fmt::print("\nlast checkpoint after step {}, copies after step {}, {} recoveries, plan {}\n",
             job.checkpoint_step, job.recovery_step, job.recoveries, job.plan_version);
  if (!job.equal_bits)
    fmt::print("the stages run or ran on devices of different kinds: equal bits are no longer promised\n");
  for (const std::string& line : plan_lines(job.plan, options.verbose)) fmt::print("{}\n", printable(line));
  for (const std::string& line : stage_lines(job)) fmt::print("{}\n", printable(line));
  return kExitOk;
}

Result<int> run_logs(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  const auto report = options.json() ? make_json_report(stdout)
                                     : make_text_report(stdout, {.verbose = options.verbose, .times = true});
  // How many steps there are, for the time that is left.
  WEFT_TRY(const auto status, session->client->ask<proto::JobStatus>(proto::GetJob{options.job}));
  if (!options.json()) report->show(StatusEvent{status});
  const bool lively = !options.json() && isatty(STDOUT_FILENO) == 1;
  const auto followed = follow_job(
      *session->access, session->client, options.job,
      {.follow = options.follow,
       .ends_unread = true,
       .status_every = options.follow ? Duration(std::chrono::seconds(lively ? 1 : 5)) : Duration::zero()},
      *report);
  if (!followed && followed.error().code == ErrorCode::Cancelled) return kExitStopped;
  if (!followed) return fail(followed.error());
  if (has_ended(followed->state))
    report->show_at(EndEvent{options.job,
                             std::string(to_string(followed->state)),
                             followed->reason,
                             followed->step,
                             followed->seconds,
                             {},
                             {},
                             followed->metrics},
                    followed->unix_ms);
  return options.follow && has_ended(followed->state) ? end_of(options.job, *followed) : kExitOk;
}

Result<int> say_ended(const JobOptions& options, const proto::JobStatus& job, const char* when) {
  if (options.json())
    print_event(json_status(job), job.job);
  else
    fmt::print("job {} {}: it is {}{}\n", job.job, when, to_string(job.state),
               job.reason.empty() ? "" : ": " + printable(job.reason));
  return kExitOk;
}

Result<int> run_stop(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  const auto look = [&] { return session->client->ask<proto::JobStatus>(proto::GetJob{options.job}); };
  WEFT_TRY(const proto::JobStatus before, look());
  if (has_ended(before.state)) return say_ended(options, before, "has ended already");
  WEFT_TRY_STATUS(session->client->ask<proto::Done>(proto::StopJob{options.job}));
  WEFT_TRY(const proto::JobStatus after, look());
  if (has_ended(after.state)) return say_ended(options, after, "has ended");  // it did not run
  if (options.json())
    print_event(R"({"event":"stopping"})", options.job);
  else
    fmt::print(
        "job {0} stops after a checkpoint: `weft status {0}` shows when; `weft fetch {0} -o FILE` gets what "
        "it learnt\n",
        options.job);
  return kExitOk;
}

Result<int> run_resume(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  WEFT_TRY_STATUS(session->client->ask<proto::Done>(proto::ResumeJob{options.job}));
  if (options.json())
    print_event(R"({"event":"resumed"})", options.job);
  else
    fmt::print("job {0} goes on from its last checkpoint: `weft logs {0} --follow` shows how\n", options.job);
  return kExitOk;
}

Result<int> ban(const JobOptions& options, bool lift) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  WEFT_TRY_STATUS(session->client->ask<proto::Done>(proto::BanPeer{options.peer, lift}));
  if (options.json())
    print_event(fmt::format(R"({{"event":"{}","peer":{}}})", lift ? "unbanned" : "banned",
                            json_string(options.peer)));
  else
    fmt::print("peer {} {}\n", printable(options.peer),
               lift ? "may come again" : "is gone, and its key gets in no more");
  return kExitOk;
}
Result<int> run_ban(const JobOptions& options) { return ban(options, /*lift=*/false); }
Result<int> run_unban(const JobOptions& options) { return ban(options, /*lift=*/true); }

Result<int> run_fetch(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  Client& client = *session->client;
  WEFT_TRY_STATUS(train::check_trained_output(options.output, {}));
  WEFT_TRY(const auto result, client.ask<proto::JobResult>(proto::GetResult{options.job}));
  WEFT_TRY(const auto folder, TemporaryFolder::make());
  WEFT_TRY(const fs::path model_path, fetch_model(client, result, folder->path()));
  EndEvent end{options.job, "finished", "", result.step, 0, options.output, {}, {}};
  if (!result.predictions.empty()) {
    WEFT_TRY(const onnx::OnnxModel model, onnx::open_model(model_path));
    std::vector<std::string> order;
    for (const auto& port : model.outputs()) order.push_back(port.name);
    WEFT_TRY_STATUS(fetch_predictions(client, result, order, options.output));
    end.step = result.sample_count;
  } else {
    WEFT_TRY(const auto written, fetch_trained(client, result, model_path, options.output));
    end.inference = written.inference;
    if (!options.json()) fmt::print("the weights after step {}\n", result.step);
  }
  const auto report = options.json() ? make_json_report(stdout) : make_text_report(stdout, {});
  report->about(options.job);
  report->show(end);
  return kExitOk;
}

Result<int> list_links(const JobOptions& options, BrokerCall& session) {
  if (session.client->broker().minor < proto::kProtocolMinorOfProbes)
    return fail(ErrorCode::Unsupported, "the broker (weft " + session.client->broker().software +
                                            ") does not measure links: install this version there");
  WEFT_TRY(const auto list, session.client->ask<proto::LinkList>(proto::ListLinks{}));
  if (options.json())
    for (const std::string& line : link_events(list)) print_event(line);
  else
    for (const std::string& line : link_table(list)) fmt::print("{}\n", line);
  return kExitOk;
}

Result<int> run_peers(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  if (options.links) return list_links(options, *session);
  WEFT_TRY(const auto list, session->client->ask<proto::PeerList>(proto::ListPeers{}));
  if (options.json())
    for (const std::string& line : peer_events(list)) print_event(line);
  else
    for (const std::string& line : peer_table(list, options.all)) fmt::print("{}\n", line);
  return kExitOk;
}

// Keeps what worked: the broker is asked before anything is written.
Result<int> run_login(const JobOptions& options) {
  if (options.broker.token.empty())
    return fail(ErrorCode::InvalidArgument,
                "say --token T; `--token -` reads it from standard input, `--token @FILE` from a file");
  BrokerAddress address;
  WEFT_TRY(address.endpoint, net::parse_endpoint(options.address));
  WEFT_TRY(address.token, read_token(options.broker.token, security::Role::Submitter));
  const Login login{net::to_string(address.endpoint), security::to_text(address.token)};
  WEFT_TRY(const fs::path folder, config_folder());
  WEFT_TRY(auto access, BrokerAccess::open(std::move(address)));
  WEFT_TRY(const auto session, BrokerCall::open(std::move(access)));
  const std::string software = session->client->broker().software;
  WEFT_TRY(const fs::path path, save_login(folder, login));
  if (options.json())
    print_event(fmt::format(R"({{"event":"login","broker":{},"software":{}}})", json_string(login.broker),
                            json_string(software)));
  else
    fmt::print("{} (weft {}) knows this machine now; kept in {}\n", login.broker, software, path.string());
  return kExitOk;
}

}  // namespace

void add_job_commands(CommandLine program, Command& chosen) {
  auto options = std::make_shared<JobOptions>();
  const auto add = [&](const char* name, const char* what, Result<int> (*run)(const JobOptions&)) {
    CommandLine command = program.subcommand(name, what);
    command.format(options->format);
    command.runs(chosen, [options, run] { return run(*options); });
    return command;
  };
  const auto add_with_broker = [&](const char* name, const char* what,
                                   Result<int> (*run)(const JobOptions&)) {
    CommandLine command = add(name, what, run);
    options->broker.add_to(command);
    return command;
  };
  const auto with_job = [&](CommandLine command) {
    command.option("job", options->job, "the job's number").required();
    return command;
  };
  CommandLine jobs = add_with_broker(
      "jobs", "list your jobs, the newest last; an admin's token lists everybody's", run_jobs);
  jobs.option("--before", options->before, "those of lower numbers");
  jobs.option("--count", options->count, "at most, 1000 at once").shows_default();
  const auto verbose = [&](CommandLine command) {
    command.flag("--verbose", options->verbose, "show all that is known of the plan");
    return command;
  };
  verbose(
      with_job(add_with_broker("status", "what a job, its stages and their links are doing", run_status)));
  verbose(with_job(add_with_broker("logs", "what has happened to a job", run_logs)))
      .flag("-f,--follow", options->follow, "and what happens, until its end");
  with_job(add_with_broker("stop", "end a job after a checkpoint", run_stop));
  with_job(add_with_broker("resume", "go on with a job that failed or was stopped", run_resume));
  with_job(add_with_broker("fetch", "write a job's trained model, or its predictions", run_fetch))
      .option("-o,--output", options->output, "where to")
      .required();
  CommandLine peers = add_with_broker("peers", "list the broker's peers", run_peers);
  peers.flag("--all", options->all, "those too that have been gone for over an hour");
  peers.flag("--links", options->links, "the links between them instead, and what of them is a guess");
  const auto add_to_peers = [&](const char* name, const char* what, Result<int> (*run)(const JobOptions&)) {
    CommandLine command = peers.subcommand(name, what);
    command.option("peer", options->peer, "its name, or its key").required();
    options->broker.add_to(command);
    command.runs(chosen, [options, run] { return run(*options); });
  };
  add_to_peers("ban", "send a peer away for good (an admin's token)", run_ban);
  add_to_peers("unban", "let a banned peer come again (an admin's token)", run_unban);
  CommandLine login = add("login", "keep where a broker is and the token for it", run_login);
  login.option("broker", options->address, "HOST:PORT").required();
  login.option("--token", options->broker.token, "a submitter token, @FILE, or - for standard input");
}

}  // namespace weft::cli
