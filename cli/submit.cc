// weft submit: hands a job to a broker, and, unless told otherwise, stays to show it and to bring the trained
// file back.
#include <fmt/format.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "cli/client.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/follow.h"
#include "cli/heard_options.h"
#include "cli/progress.h"
#include "cli/quantities.h"
#include "cli/report.h"
#include "cli/results.h"
#include "cli/say.h"
#include "cli/served_result.h"
#include "cli/signals.h"
#include "cli/temporary_folder.h"
#include "dag/onnx/export.h"
#include "dag/onnx/outline.h"
#include "proto/codec/codec.h"
#include "train/adapter_check.h"
#include "train/initial_weights.h"
#include "train/outer_record.h"
#include "train/outputs.h"
#include "train/published.h"
#include "train/stored_base.h"
#include "train/submission.h"
#include "train/weights_file.h"

namespace weft::cli {
namespace {

constexpr Duration kSubmitDeadline =
    std::chrono::minutes(5);  // the broker puts the files together and reads the job

constexpr uint64_t kAskedAtOnce = uint64_t{256} << 20;  // bytes of blobs

struct SubmitOptions {
  std::string job;
  std::vector<std::string> sets;
  std::string format = "text";
  bool detach = false;
  bool summary = false, verbose = false;
  std::string name;  // empty: from the file
  std::string also;  // empty: nothing
  std::string base;  // a folder of published weights; empty: none
  train::ResumeOptions resume;
  HeardOptions heard;
  BrokerOptions broker;
};

// Asked in parts: what the broker finds in a folder of checkpoints it copies before it answers.
Result<std::vector<Digest>> missing_of(Client& client, const train::Submission& submission) {
  std::vector<Digest> missing, part;
  std::vector<proto::BlobRecipe> recipes;
  uint64_t size = 0;
  const auto ask = [&]() -> Status {
    WEFT_TRY(const std::vector<Digest> some,
             client.missing(std::exchange(part, {}), std::exchange(recipes, {})));
    missing.insert(missing.end(), some.begin(), some.end());
    size = 0;
    return {};
  };
  for (const auto& [sha256, source] : submission.blobs) {
    const auto recipe = submission.recipes.find(sha256);
    const bool is_made = recipe != submission.recipes.end();
    const uint64_t read = is_made ? recipe->second.source_size : source.range.size;
    if (size > 0 && size + read > kAskedAtOnce) WEFT_TRY_STATUS(ask());
    part.push_back(sha256);
    if (is_made) recipes.push_back({sha256, recipe->second});
    size += read;
  }
  WEFT_TRY_STATUS(ask());
  return missing;
}

Status upload(Client& client, const train::Submission& submission) {
  WEFT_TRY(const std::vector<Digest> missing, missing_of(client, submission));
  uint64_t total = 0, all = 0;
  for (const auto& [sha256, source] : submission.blobs) all += source.range.size;
  for (const Digest& sha256 : missing) {
    if (!submission.blobs.contains(sha256))
      return fail(ErrorCode::Corrupted, "the broker asks for what is not the job's");
    total += submission.blobs.at(sha256).range.size;
  }
  {
    TransferLine progress("sending", total);
    for (const Digest& sha256 : missing)
      WEFT_TRY_STATUS(
          client.put(sha256, submission.blobs.at(sha256), [&](uint64_t bytes) { progress.add(bytes); }));
    WEFT_TRY_STATUS(client.finish_puts());
  }
  if (missing.empty())
    say(stderr, "the broker has everything already\n");
  else if (missing.size() == submission.blobs.size())
    say(stderr, "sent {} in {} pieces\n", format_bytes(static_cast<int64_t>(total)), missing.size());
  else
    say(stderr, "sent {} in {} pieces; the broker had {} in {} already\n",
        format_bytes(static_cast<int64_t>(total)), missing.size(),
        format_bytes(static_cast<int64_t>(all - total)), submission.blobs.size() - missing.size());
  return {};
}

proto::Beginning to_message(train::Beginning beginning) {
  proto::Beginning message{.step = beginning.step,
                           .skipped_steps = beginning.skipped_steps,
                           .tensors = {},
                           .replica_skipped_steps = std::move(beginning.replica_skipped_steps)};
  for (storage::TensorRecord& tensor : beginning.tensors)
    message.tensors.push_back(
        {std::move(tensor.key), tensor.spec, digest_from_hex(tensor.sha256).value_or(Digest{})});
  return message;
}

proto::SubmitJob to_message(train::ReadyJob ready) {
  train::Submission& submission = ready.submission;
  proto::SubmitJob message{.name = std::move(submission.name),
                           .job = std::move(submission.job),
                           .stages = submission.stages,
                           .files = {},
                           .excluded = std::move(submission.excluded),
                           .tensors = {}};
  if (ready.beginning) message.beginning = to_message(std::move(*ready.beginning));
  for (train::SubmittedFile& file : submission.files) {
    proto::PackedFile packed{.path = std::move(file.path), .pieces = {}};
    for (const storage::Piece& piece : file.pieces)
      packed.pieces.push_back(
          {.bytes = {reinterpret_cast<const char*>(piece.bytes.data()), piece.bytes.size()},
           .sha256 = piece.sha256,
           .size = piece.size});
    message.files.push_back(std::move(packed));
  }
  for (const auto& [sha256, recipe] : submission.recipes) message.recipes.push_back({sha256, recipe});
  for (onnx::TensorRow& row : submission.tensors)
    message.tensors.push_back({std::move(row.name), row.role, row.reason, row.axis, row.frozen});
  return message;
}

// A submission in its user's hands.
class Submit {
 public:
  explicit Submit(const SubmitOptions& options)
      : options_(options),
        report_(options.format == "json"
                    ? make_json_report(stdout)
                    : make_text_report(stdout, {.summary = options.summary, .verbose = options.verbose})) {}

  Result<int> run() {
    // What is wrong with the job is said before a broker is even looked for.
    WEFT_TRY(train::OpenedJob opened, open());
    serves_ = opened.job.task == configs::Task::Serve;
    WEFT_TRY_STATUS(check_outputs(opened.job));
    WEFT_TRY(train::ReadyJob ready, ready_job(opened));
    if (!options_.name.empty()) ready.submission.name = options_.name;
    const train::StartEvent start = ready.start;  // the rest is given away
    WEFT_TRY(access_, BrokerAccess::open(options_.broker));

    report_ = with_listeners(
        std::move(report_),
        options_.heard.listeners(
            opened.job.task == configs::Task::Train && !options_.detach ? train::curves_file(opened.job) : "",
            ready.submission.name));
    const SignalsBlocked blocked;
    WEFT_TRY(const auto signals,
             SignalWatch::start(access_->loop(), [this](int) { access_->set_interrupted(); }));
    if (const Status sent = connect_and_upload(ready); !sent) {
      if (sent.error().code != ErrorCode::Cancelled) return fail(sent.error());
      say(stderr, "\ninterrupted: nothing was submitted\n");
      return kExitStopped;
    }
    const proto::EncodedBytes submission = proto::share(proto::encode(to_message(std::move(ready))));
    if (const size_t size = submission.bytes.size(); size > proto::kMessageSizeMax)
      return fail(
          ErrorCode::ResourceExhausted,
          fmt::format(
              "the job without its tensors is {}, and at most {} are taken: keep large constants of the "
              "model as initializers, or outside its file",
              format_bytes(static_cast<int64_t>(size)),
              format_bytes(static_cast<int64_t>(proto::kMessageSizeMax))));
    WEFT_TRY(const auto accepted, submit(submission));
    job_ = accepted.job;
    report_->about(job_);
    started_ = std::chrono::steady_clock::now();
    if (options_.detach) return detached(start);
    report_->show(SubmittedEvent{job_});
    if (start.steps > 0)
      report_->show(train::Event(start));
    else
      warn(start);
    return attached(opened.job);
  }

 private:
  Status check_outputs(const configs::Job& job) const {
    if (options_.detach && !options_.also.empty())
      return fail(ErrorCode::InvalidArgument,
                  "--also waits for the job's end, and --detach does not: `weft fetch` has --also, too");
    if (options_.detach || serves_) return {};
    WEFT_TRY_STATUS(train::check_output(job, /*with_checkpoints=*/false));
    return options_.also.empty() ? Status{} : train::check_weights_output(options_.also, job);
  }

  Result<train::ReadyJob> ready_job(train::OpenedJob& opened) {
    const Patience patience("reading the job's model and data");
    const bool is_rewritten = opened.job.init || opened.job.base.rounds();
    if (!is_rewritten) {
      WEFT_TRY(train::ReadyJob ready, train::ready_job(opened, options_.resume));
      WEFT_TRY_STATUS(add_parts(opened.job, {}, ready));
      return ready;
    }
    WEFT_TRY(initial_folder_, TemporaryFolder::make());
    std::vector<std::string> notes, warnings;
    if (opened.job.init) {
      WEFT_TRY(const auto initial, train::write_initial_model(opened, initial_folder_->path()));
      notes.push_back(initial.note);
      warnings = initial.warnings;
    }
    WEFT_TRY(const auto stored, train::store_base(opened, initial_folder_->path()));
    if (stored) notes.push_back(stored->said);
    WEFT_TRY(train::ReadyJob ready, train::ready_job(opened, options_.resume));
    if (stored) ready.submission.recipes = stored->recipes;
    WEFT_TRY_STATUS(
        add_parts(opened.job, stored ? stored->rounded : std::vector<weights::SoughtTensor>{}, ready));
    ready.start.notes.insert(ready.start.notes.begin(), notes.begin(), notes.end());
    ready.start.warnings.insert(ready.start.warnings.begin(), warnings.begin(), warnings.end());
    return ready;
  }

  // Of published tensors, where a folder has some.
  Status add_parts(const configs::Job& job, const std::vector<weights::SoughtTensor>& rounded,
                   train::ReadyJob& ready) const {
    train::Submission& submission = ready.submission;
    if (!options_.base.empty()) {
      const auto found = train::add_parts(options_.base, job, rounded, submission);
      if (!found) return fail(found.error().within("--base"));
      ready.start.notes.push_back(
          fmt::format("--base: {} tensors, {}, are made of parts of tensors in {}", found->tensors,
                      format_bytes(static_cast<int64_t>(found->bytes)), options_.base));
    }
    while (submission.recipes.size() > proto::kRecipesMax)  // what is left over travels as it is
      submission.recipes.erase(std::prev(submission.recipes.end()));
    return {};
  }

  Result<train::OpenedJob> open() {
    WEFT_TRY(train::OpenedJob opened, train::open_job(options_.job, options_.sets));
    const auto& serve = opened.job.serve;
    if (!serve || !serve->model_of) return opened;
    WEFT_TRY(result_, fetch_result_file(options_.broker, *serve->model_of));
    std::vector<std::string> sets = options_.sets;
    sets.push_back("model=" + result_.model.string());
    return train::open_job(options_.job, sets);
  }

  Status connect_and_upload(const train::ReadyJob& ready) {
    WEFT_TRY(client_, access_->connect());
    if (ready.beginning && client_->broker().minor < proto::kProtocolMinorOfBeginnings)
      return fail(ErrorCode::Unsupported, "the broker (weft " + client_->broker().software +
                                              ") cannot begin at a checkpoint: install this version there");
    return upload(*client_, ready.submission);
  }

  static void warn(const train::StartEvent& start) {
    for (const std::string& note : start.notes) say(stderr, "note: {}\n", note);
    for (const std::string& warning : start.warnings) say(stderr, "warning: {}\n", warning);
  }

  Result<proto::JobAccepted> submit(const proto::EncodedBytes& submission) {
    const Patience patience("the broker looks at the job");
    auto accepted = client_->ask<proto::JobAccepted>(submission, "SubmitJob", kSubmitDeadline);
    if (!accepted && (client_->lost() || accepted.error().code == ErrorCode::Timeout ||
                      accepted.error().code == ErrorCode::Cancelled))
      return fail(accepted.error().code,
                  accepted.error().message + "; whether the job was taken is not known: see `weft jobs`");
    return accepted;
  }

  std::string advice() const {
    const std::string how =
        fmt::format("follow it with `weft logs -f {0}`, stop it with `weft stop {0}`", job_);
    return serves_ ? how : fmt::format("{}, get its file with `weft fetch {} -o FILE`", how, job_);
  }

  int detached(const train::StartEvent& start) const {
    if (options_.format == "json") {
      report_->show(SubmittedEvent{job_});
      if (start.steps > 0) report_->show(train::Event(start));  // what to know of the job before it runs
    } else {
      warn(start);
      say(stdout, "{}\n", job_);
      say(stderr, "{}\n", advice());
    }
    return kExitOk;
  }

  Result<int> attached(const configs::Job& job) {
    const bool lively = options_.format == "text" && isatty(STDOUT_FILENO) == 1;
    const auto followed =
        follow_job(*access_, client_, job_,
                   {.follow = true, .status_every = std::chrono::seconds(lively ? 1 : 5)}, *report_);
    if (!followed) return leave(followed.error());
    if (followed->state != proto::JobState::Finished || serves_) {
      // What it is resumed from, or fetched as it is, was made so.
      if (followed->state == proto::JobState::Stopped && !followed->plans.empty() && followed->step > 0)
        WEFT_TRY_STATUS(write_record(job, followed->plans, followed->step));
      report_->show(EndEvent{job_,
                             std::string(to_string(followed->state)),
                             followed->reason,
                             followed->step,
                             elapsed(),
                             {},
                             {},
                             followed->metrics});
      return end_of(job_, *followed);
    }
    const auto code = bring_back(job, *followed);
    if (!code && code.error().code != ErrorCode::Cancelled)
      return fail(
          code.error().code,
          fmt::format("{}\njob {} has finished, and the broker keeps what it learnt: `weft fetch {} -o "
                      "FILE` writes it",
                      code.error().message, job_, job_));
    if (!code) return leave(code.error());
    return *code;
  }

  // The connection may break now, too: what is there stays there.
  Result<int> bring_back(const configs::Job& job, const Followed& followed) {
    for (;;) {
      if (!client_ || client_->lost()) {
        client_.reset();
        WEFT_TRY(client_, reconnect(*access_));
      }
      const Result<int> code = write_output(job, followed);
      if (code || !client_->lost()) return code;
    }
  }

  Result<int> write_output(const configs::Job& job, const Followed& followed) {
    WEFT_TRY(const auto result, client_->ask<proto::JobResult>(proto::GetResult{job_}));
    if (job.task == configs::Task::Predict) {
      WEFT_TRY(const onnx::OnnxModel model, onnx::open_model(job.model));
      std::vector<std::string> order;
      for (const auto& port : model.outputs()) order.push_back(port.name);
      WEFT_TRY_STATUS(fetch_predictions(*client_, result, order, job.output));
      report_->show(EndEvent{job_, "finished", "", result.sample_count, elapsed(), job.output, {}, {}});
      return kExitOk;
    }
    WEFT_TRY(const auto written, fetch_trained(*client_, result, job.model, job.output, job.output_form));
    if (!options_.also.empty()) WEFT_TRY_STATUS(write_also(result, job.output, options_.also));
    if (!followed.plans.empty()) WEFT_TRY_STATUS(write_record(job, followed.plans, result.step));
    train::ResultEvent event;
    event.steps = result.step;
    event.seconds = elapsed();
    event.output = written.trained;
    event.inference = written.inference;
    event.adapter = written.adapter;
    event.metrics = followed.metrics;
    if (!event.adapter.empty()) compare(job, event);
    report_->show(train::Event(event));
    if (!event.merge) return kExitOk;
    const Status good = train::refuse_merge(*event.merge, event.output);
    if (!good) say(stderr, "weft: error: {}\n", good.error().message);
    return good ? kExitOk : kExitFailed;
  }

  // The merged model with its adapters. What is written stays, also where they cannot be compared here.
  static void compare(const configs::Job& job, train::ResultEvent& event) {
    const auto backend = make_backend(BackendOptions{});
    auto check =
        backend ? train::check_fetched(job, event.output, event.adapter, **backend) : fail(backend.error());
    if (check)
      event.merge = *check;
    else
      say(stderr, "warning: the merged model was not compared with its adapters: {}\n",
          check.error().message);
  }

  // Who made which steps: `weft local --replay` makes them again.
  static Status write_record(const configs::Job& job, const std::vector<replicas::Begun>& plans,
                             uint64_t steps) {
    storage::OuterRecordWriter writer;
    return writer.begin(train::record_file(job), train::record_of(job, plans, steps));
  }

  // Not to the end of the job: it does not need us.
  Result<int> leave(const Error& error) const {
    const std::string how = fmt::format("job {} goes on without this command: {}", job_, advice());
    report_->make_way();
    if (error.code != ErrorCode::Cancelled) return fail(error.code, error.message + "\n" + how);
    say(stderr, "\n{}\n", how);
    return kExitStopped;
  }

  double elapsed() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }

  const SubmitOptions& options_;
  std::unique_ptr<Report> report_;
  std::unique_ptr<BrokerAccess> access_;
  std::unique_ptr<Client> client_;
  proto::JobNumber job_ = 0;
  bool serves_ = false;
  std::unique_ptr<TemporaryFolder> initial_folder_;  // of the model, where the job says `init`
  ResultFile result_{};                              // where the job's model is another job's result
  std::chrono::steady_clock::time_point started_;
};

}  // namespace

void add_submit(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("submit", "hand a job to a broker and wait for its trained file");
  auto options = std::make_shared<SubmitOptions>();
  command.option("job", options->job, "the job file (YAML)").required();
  command.option("--set", options->sets, "override a key of the job file: a.b=value (may be given again)")
      .one_value_each();
  command.option("--name", options->name,
                 "what the job is called in lists; otherwise the job file's name, or its folder's");
  command.option("--resume", options->resume.checkpoint,
                 "go on from a checkpoint on this machine: its folder or manifest, as `weft local` wrote it");
  command.flag("--other-data", options->resume.other_data,
               "with --resume: also with data of other bytes than the checkpoint was made with");
  command.option("--also", options->also,
                 "write the learnt weights as a file of tensors, too: w.safetensors");
  command.option("--base", options->base,
                 "a folder of published weights that the model was made of: what an exporter cut out of them "
                 "is not sent to who has them (`--weights` of `weft broker` and `weft join`)");
  options->heard.add_to(command);
  command.flag("--detach", options->detach, "print the job's number and return");
  command.format(options->format);
  command.flag("--summary", options->summary, "end with the test result and the seconds it took");
  command.flag("--verbose", options->verbose, "show all that is known of the plan");
  options->broker.add_to(command);
  command.runs(chosen, [options] { return Submit(*options).run(); });
}

}  // namespace weft::cli
