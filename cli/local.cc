// weft local: trains a job in this process.
#include <unistd.h>
#include <atomic>
#include <csignal>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/heard_options.h"
#include "cli/json_event.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/results.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "cli/temporary_folder.h"
#include "configs/job.h"
#include "dag/onnx/model.h"
#include "storage/checkpoint.h"
#include "train/initial_weights.h"
#include "train/outputs.h"
#include "train/predictor.h"
#include "train/stored_base.h"
#include "train/submission.h"
#include "train/trainer.h"
#include "train/weights_file.h"

namespace weft::cli {
namespace {

std::atomic<bool> stop_requested{false};

std::atomic<bool> asked_to_stop{false};

// The first Ctrl-C asks for a clean end after the step at hand; the second ends the process at once. A
// terminal that goes away asks for the former only, however often it says so.
void on_signal(int signal) {
  const bool again = signal != SIGHUP && asked_to_stop.exchange(true);
  if (again) {
    static constexpr char kStopped[] =
        "\nstopped at once: what came after the last checkpoint is lost; the same command with --resume auto "
        "goes on from there\n";
    [[maybe_unused]] const auto said = write(STDERR_FILENO, kStopped, sizeof(kStopped) - 1);
    _exit(kExitStopped);
  }
  if (stop_requested.exchange(true)) return;
  static constexpr char kMessage[] = "\nstopping after this step; again to stop at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
}

struct LocalOptions {
  std::string job;
  std::vector<std::string> sets;
  std::string format = "text";
  std::string resume, replay, also;
  bool summary = false, other_data = false;
  HeardOptions heard;
  BackendOptions backend;
};

// "auto": the checkpoint beside the output, if there is one.
Result<std::filesystem::path> resumed_from(const std::string& asked, const configs::Job& job) {
  if (asked != "auto") return asked;
  storage::Files files;
  std::filesystem::path folder = train::checkpoint_folder(job);
  const auto latest = storage::find_latest(folder, files);
  if (latest) {
    say(stderr, "going on from the checkpoints in {}\n", folder.string());
    return folder;
  }
  if (latest.error().code != ErrorCode::NotFound) return fail(latest.error());
  say(stderr, "there is no checkpoint in {} yet: from the start\n", folder.string());
  return std::filesystem::path();
}

Result<onnx::OnnxModel> read_model(const configs::Job& job) {
  std::optional<train::InitialWeights> initial;
  WEFT_TRY(onnx::OnnxModel model, train::read_job_model(job, initial));
  if (!initial) return model;
  say(stderr, "note: {}\n", initial->note());
  for (const std::string& warning : initial->warnings()) say(stderr, "warning: {}\n", warning);
  return model;
}

Status write_also(const std::string& weights, const configs::Job& job) {
  WEFT_TRY(const auto learnt, train::learnt_names(job, job.output));
  WEFT_TRY(const size_t count, train::write_weights(job.output, learnt, weights));
  say(stderr, "wrote {} with {} tensors\n", weights, count);
  return {};
}

Result<int> run_local(const LocalOptions& options) {
  WEFT_TRY(configs::Job job, configs::load_job(options.job, options.sets));
  if (job.task == configs::Task::Serve)
    return fail(job.error(ErrorCode::Unsupported, "task",
                          "`weft local` trains and predicts; `weft serve MODEL` serves on one machine, and "
                          "`weft submit` on many"));
  WEFT_TRY(const auto backend, make_backend(options.backend));
  for (const int signal : stop_signals()) std::signal(signal, on_signal);
  if (!options.also.empty()) WEFT_TRY_STATUS(train::check_weights_output(options.also, job));
  if (job.task == configs::Task::Predict) {
    if (job.compression.policy != plan::CompressionPolicy::None || job.placement.stages.value_or(1) != 1)
      return fail(job.error(ErrorCode::Unsupported, "placement",
                            "`weft local` runs one stage and compresses nothing"));
    WEFT_TRY_STATUS(train::check_output(job, /*with_checkpoints=*/false));
    WEFT_TRY(const onnx::OnnxModel model, read_model(job));
    WEFT_TRY_STATUS(train::predict(job, model, *backend,
                                   {.stop = &stop_requested, .warn = [](const std::string& warning) {
                                      std::fprintf(stderr, "warning: %s\n", warning.c_str());
                                    }}));
    if (options.format == "json")
      print_event(R"({"event":"result","status":"completed","output":)" + json_string(job.output.string()) +
                  "}");
    else
      std::printf("wrote %s\n", job.output.c_str());
    return kExitOk;
  }
  std::unique_ptr<TemporaryFolder> folder;
  if (job.base.rounds()) {
    const Patience patience("rounding the model's frozen matrices");
    WEFT_TRY(folder, TemporaryFolder::make());
    WEFT_TRY(const auto stored, train::store_base(job, folder->path()));
    if (stored) say(stderr, "note: {}\n", *stored);
  }
  WEFT_TRY(const std::filesystem::path resume, resumed_from(options.resume, job));
  const auto report =
      with_listeners(options.format == "json" ? make_json_report(stdout)
                                              : make_text_report(stdout, {.summary = options.summary}),
                     options.heard.listeners(train::curves_file(job), train::name_of(options.job)));
  std::optional<Patience> patience("reading the job's model and data");
  WEFT_TRY(const auto result, train::train(job, *backend,
                                           {.resume = resume,
                                            .other_data = options.other_data,
                                            .replay = options.replay,
                                            .stop = &stop_requested},
                                           [&](const train::Event& event) {
                                             patience.reset();
                                             report->show(event);
                                           }));
  patience.reset();
  if (!result.diverged.empty()) {
    std::fprintf(stderr,
                 "weft: error: not finite: %s: the model diverged, and this machine would only make the same "
                 "again; %s\n",
                 result.diverged.c_str(),
                 result.checkpoint.empty()
                     ? "no checkpoint was written"
                     : ("the last checkpoint is " + result.checkpoint.string()).c_str());
    return kExitDiverged;
  }
  if (result.stopped) return kExitStopped;
  if (!options.also.empty()) WEFT_TRY_STATUS(write_also(options.also, job));
  if (!result.merge) return kExitOk;
  const Status good = train::refuse_merge(*result.merge, result.output);
  if (!good) std::fprintf(stderr, "weft: error: %s\n", good.error().message.c_str());
  return good ? kExitOk : kExitFailed;
}

}  // namespace

void add_local(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("local", "train a job on this machine alone");
  auto options = std::make_shared<LocalOptions>();
  command.option("job", options->job, "the job file (YAML)").required();
  command.option("--set", options->sets, "override a key of the job file: a.b=value (may be given again)")
      .one_value_each();
  command.format(options->format);
  command.option(
      "--resume", options->resume,
      "go on from a checkpoint: its folder or manifest, or auto: the one beside the output, if there is one");
  command.option("--replay", options->replay,
                 "of replicas with local steps: make the rounds of this record again, trained.rounds.jsonl");
  command.option("--also", options->also,
                 "write the learnt weights as a file of tensors, too: w.safetensors");
  command.flag("--other-data", options->other_data,
               "with --resume: also with data of other bytes than the checkpoint was made with");
  command.flag("--summary", options->summary, "end with the test result and the seconds it took");
  options->heard.add_to(command);
  options->backend.add_to(command);
  command.runs(chosen, [options] { return run_local(*options); });
}

}  // namespace weft::cli
