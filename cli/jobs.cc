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
#include "cli/fetched_record.h"
#include "cli/follow.h"
#include "cli/heard_options.h"
#include "cli/job_table.h"
#include "cli/json_event.h"
#include "cli/link_table.h"
#include "cli/live_line.h"
#include "cli/peer_table.h"
#include "cli/quantities.h"
#include "cli/report.h"
#include "cli/results.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "cli/stage_watch.h"
#include "cli/temporary_folder.h"
#include "cli/watch.h"
#include "dag/onnx/export.h"
#include "dag/onnx/outline.h"
#include "train/outputs.h"
#include "train/weights_file.h"

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
  bool follow = false, verbose = false, watch = false, links = false, all = false;
  std::string output, also, merged;  // fetch
  HeardOptions heard;
  bool json() const { return format == "json"; }
};

void print_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) fmt::print("{}\n", line);
}

Result<std::vector<proto::JobStatus>> list_jobs(Client& client, const JobOptions& options, bool& more) {
  WEFT_TRY(auto list, client.ask<proto::JobList>(proto::ListJobs{options.before, options.count}));
  more = list.more;
  std::reverse(list.jobs.begin(), list.jobs.end());  // the newest come; people read downwards
  return std::move(list.jobs);
}

Result<int> watch_jobs(const JobOptions& options, BrokerCall& session) {
  Screen screen(stdout);
  return watch(session, [&](Client& client) -> Result<bool> {
    bool more = false;
    WEFT_TRY(const auto jobs, list_jobs(client, options, more));
    if (options.json())
      for (const proto::JobStatus& job : jobs) print_event(json_status(job), job.job);
    else
      screen.show(job_table(jobs, unix_ms_now()));
    return screen.is_unread();
  });
}

Result<int> run_jobs(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  if (options.watch) return watch_jobs(options, *session);
  bool more = false;
  WEFT_TRY(const auto jobs, list_jobs(*session->client, options, more));
  if (options.json()) {
    for (const proto::JobStatus& job : jobs) print_event(json_status(job), job.job);
    return kExitOk;
  }
  print_lines(job_table(jobs, unix_ms_now()));
  if (more && !jobs.empty()) fmt::print("there are older ones: weft jobs --before {}\n", jobs.front().job);
  return kExitOk;
}

Result<int> run_status(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  Screen screen(stdout);
  const auto look = [&](Client& client) -> Result<bool> {
    WEFT_TRY(const auto job, client.ask<proto::JobStatus>(proto::GetJob{options.job}));
    if (options.json())
      print_event(json_status(job), job.job);
    else if (options.watch)
      screen.show(job_lines(job, options.verbose, unix_ms_now()));
    else
      print_lines(job_lines(job, options.verbose, unix_ms_now()));
    return has_ended(job.state) || screen.is_unread();
  };
  if (options.watch) return watch(*session, look);
  WEFT_TRY_STATUS(look(*session->client));
  return kExitOk;
}

Result<int> run_logs(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  auto report = options.json() ? make_json_report(stdout)
                               : make_text_report(stdout, {.verbose = options.verbose, .times = true});
  // How many steps there are, for the time that is left.
  WEFT_TRY(const auto status, session->client->ask<proto::JobStatus>(proto::GetJob{options.job}));
  if (options.follow) report = with_listeners(std::move(report), options.heard.listeners({}, status.name));
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
  else if (after.steps == 0)  // it learns nothing
    fmt::print("job {0} stops: `weft status {0}` shows when\n", options.job);
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
  if (options.json()) {
    print_event(R"({"event":"resumed"})", options.job);
    return kExitOk;
  }
  const auto job = session->client->ask<proto::JobStatus>(proto::GetJob{options.job});
  fmt::print("job {0} {1}: `weft logs {0} --follow` shows how\n", options.job,
             job ? way_on(*job) : "goes on");
  return kExitOk;
}

Result<int> run_remove(const JobOptions& options) {
  WEFT_TRY(const auto session, BrokerCall::open(options.broker));
  if (session->client->broker().minor < proto::kProtocolMinorOfBeginnings)
    return fail(ErrorCode::Unsupported, "the broker (weft " + session->client->broker().software +
                                            ") removes no jobs: install this version there");
  WEFT_TRY_STATUS(session->client->ask<proto::Done>(proto::RemoveJob{options.job}));
  if (options.json())
    print_event(R"({"event":"removed"})", options.job);
  else
    fmt::print("job {} is forgotten; the broker frees what only it had within minutes\n", options.job);
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
  if (!options.also.empty())
    WEFT_TRY_STATUS(train::check_weights_output(options.also, fs::path(options.output)));
  WEFT_TRY(const auto result, client.ask<proto::JobResult>(proto::GetResult{options.job}));
  WEFT_TRY(const auto folder, TemporaryFolder::make());
  WEFT_TRY(const fs::path model_path, fetch_model(client, result, folder->path()));
  EndEvent end{options.job, "finished", "", result.step, 0, options.output, {}, {}};
  if (!result.predictions.empty()) {
    if (!options.also.empty())
      return fail(ErrorCode::InvalidArgument, "--also writes what is learnt, and this job made predictions");
    WEFT_TRY(const onnx::OnnxModel model, onnx::open_model(model_path));
    std::vector<std::string> order;
    for (const auto& port : model.outputs()) order.push_back(port.name);
    WEFT_TRY_STATUS(fetch_predictions(client, result, order, options.output));
    end.step = result.sample_count;
  } else {
    WEFT_TRY(const auto written,
             fetch_trained(client, result, model_path, options.output, merged_as(options.merged)));
    if (!options.also.empty()) WEFT_TRY_STATUS(write_also(result, written.trained, options.also));
    end.inference = written.inference;
    if (!options.json()) fmt::print("the weights after step {}\n", result.step);
    if (!options.json() && !written.adapter.empty()) fmt::print("adapters: {}\n", written.adapter.string());
    WEFT_TRY(const RecordWritten record, write_fetched_record(*session, result, options.output));
    if (!options.json() && !record.path.empty()) fmt::print("rounds: {}\n", record.path.string());
    if (!record.why_none.empty()) say(stderr, "note: no record of rounds is written: {}\n", record.why_none);
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
  jobs.flag("-w,--watch", options->watch, "again and again, until Ctrl-C");
  const auto verbose = [&](CommandLine command) {
    command.flag("--verbose", options->verbose, "show all that is known of the plan");
    return command;
  };
  verbose(with_job(add_with_broker("status", "what a job, its stages and their links are doing", run_status)))
      .flag("-w,--watch", options->watch, "again and again, until its end or Ctrl-C");
  CommandLine logs = with_job(add_with_broker("logs", "what has happened to a job", run_logs));
  verbose(logs).flag("-f,--follow", options->follow, "and what happens, until its end");
  options->heard.add_to(logs);
  with_job(add_with_broker("stop", "end a job after a checkpoint", run_stop));
  with_job(add_with_broker("rm", "forget a job that has ended, its checkpoints and its result", run_remove));
  with_job(add_with_broker("resume", "go on with a job that failed or was stopped", run_resume));
  CommandLine fetch =
      with_job(add_with_broker("fetch", "write a job's trained model, or its predictions", run_fetch));
  fetch.option("-o,--output", options->output, "where to").required();
  fetch
      .option("--merged", options->merged,
              "the type of weights that adapters were merged into; otherwise the file's, and float16 for "
              "int8 and int4")
      .one_of(merged_types());
  fetch.option("--also", options->also, "write the learnt weights as a file of tensors, too: w.safetensors");
  CommandLine peers = add_with_broker("peers", "list the broker's peers", run_peers);
  peers.flag("--all", options->all, "those too that have been gone for over an hour");
  peers.flag("--links", options->links, "the links between them instead, and what of them is a guess");
  const auto add_to_peers = [&](const char* name, const char* what, Result<int> (*run)(const JobOptions&)) {
    CommandLine command = peers.subcommand(name, what);
    command.option("peer", options->peer, "its name, or its key").required();
    command.format(options->format);
    options->broker.add_to(command);
    command.runs(chosen, [options, run] { return run(*options); });
  };
  add_to_peers("ban", "send a peer away for good (an admin's token)", run_ban);
  add_to_peers("unban", "let a banned peer come again (an admin's token)", run_unban);
}

}  // namespace weft::cli
