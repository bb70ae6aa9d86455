// weft profile: where the time of a training step goes, by op family and by kernel.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/quantities.h"
#include "cli/report.h"
#include "configs/job.h"
#include "dag/onnx/model.h"
#include "dag/op_table.h"
#include "peer/backend/reference/reference_kernels.h"
#include "peer/executor.h"
#include "train/prepare.h"
#include "train/session.h"

namespace weft::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct ProfileOptions {
  std::string job;
  std::vector<std::string> sets;
  int microbatches = 10;
  size_t rows = 25;
  std::string format = "text";
  BackendOptions backend;
};

struct Cost {
  double seconds = 0;
  double flops = 0;
  double bytes = 0;
  int64_t runs = 0;
  void add(const Cost& other) {
    seconds += other.seconds;
    flops += other.flops;
    bytes += other.bytes;
    runs += other.runs;
  }
};

// A fused group counts for the family of its ops (elementwise); a lone op for its own.
dag::Family family_of(const dag::Graph& graph, const peer::GroupSignature& group) {
  return dag::op_table().row(graph.op(group.ops.front()).kind).family;
}

std::string label_of(const dag::Graph& graph, const peer::GroupSignature& group) {
  if (group.ops.size() > 1) return fmt::format("fused x{}", group.ops.size());
  std::string text(to_string(graph.op(group.ops.front()).kind));
  for (const dag::ValueId input : group.inputs) text += " " + dag::to_string(graph.spec(input).shape);
  return text;
}

// The reference backend's arithmetic and oneDNN's own reference loops: right, and some hundred times slower
// than what a processor can do.
bool is_slow(std::string_view implementation) {
  return implementation.find("reference") != std::string_view::npos ||
         implementation.find(" ref") != std::string_view::npos;
}

// Where rows go: to people, or as events {"event":"kernel",...} and {"event":"family",...}.
struct Shown {
  bool json = false;
  const char* event = "family";
};

void print_row(const Shown& shown, const std::string& name, const Cost& cost, double total,
               int microbatches) {
  const double per = cost.seconds / microbatches;
  if (shown.json)
    return print_event(fmt::format(
        R"({{"event":"{}","name":{},"seconds":{},"share":{},"flops_per_second":{},"bytes_per_second":{},"runs":{}}})",
        shown.event, json_string(name), json_number(per), json_number(cost.seconds / total),
        json_number(cost.flops / cost.seconds), json_number(cost.bytes / cost.seconds),
        cost.runs / microbatches));
  fmt::print("{:<64} {:>9.3f} ms {:>5.1f}% {:>8.1f} GFLOP/s {:>7.1f} GB/s {:>5} runs\n", name.substr(0, 64),
             1e3 * per, 100 * cost.seconds / total, cost.flops / cost.seconds / 1e9,
             cost.bytes / cost.seconds / 1e9, cost.runs / microbatches);
}

using Rows = std::map<std::string, Cost>;

// A job, made ready to repeat one step of it.
struct Profiled {
  std::unique_ptr<peer::Backend> backend;
  std::unique_ptr<peer::Executor> executor;
  std::unique_ptr<peer::MicrobatchMemory> microbatch;
  data::Microbatch batch;
  std::vector<Cost> groups;  // of the program
  Cost update;
};

Result<data::Microbatch> first_microbatch(const configs::Job& job, const data::Dataset& dataset,
                                          const train::Prepared& prepared) {
  data::Request request{
      .step = 1, .sample_position = 0, .microbatch_size = job.microbatch_size, .samples = {}};
  for (uint32_t i = 0; i < job.microbatch_size; ++i) request.samples.push_back(i % dataset.sample_count());
  WEFT_TRY(data::Microbatch batch, data::read_microbatch(dataset, prepared.feeds, request));
  data::StepDivisors divisors(prepared.divisors, job.losses.size());
  WEFT_TRY(const auto* divided, divisors.of(dataset, request.step, request.samples));
  batch.tensors.insert(divided->tensors.begin(), divided->tensors.end());
  return batch;
}

Result<Profiled> make_ready(configs::Job& job, const BackendOptions& options) {
  Profiled made;
  WEFT_TRY(made.backend, make_backend(options));
  WEFT_TRY(const std::shared_ptr<const data::Dataset> dataset, data::open_dataset(*job.train));
  WEFT_TRY(const onnx::OnnxModel model, onnx::read_model(job.model));
  WEFT_TRY(job, train::with_largest_microbatch(job, model));
  WEFT_TRY(train::Prepared prepared, train::prepare_training(job, model, *dataset, peer::evaluate_reference));
  WEFT_TRY(made.executor,
           train::make_executor(prepared.graph, prepared.weights,
                                std::make_shared<peer::State>(*made.backend), {.optimizer = job.optimizer}));
  WEFT_TRY(made.microbatch, made.executor->make_microbatch());
  WEFT_TRY(made.batch, first_microbatch(job, *dataset, prepared));
  made.microbatch->context = {
      .seed = job.seed, .step = 1, .sample_position = 0, .microbatch_size = job.microbatch_size};
  made.groups.resize(made.executor->program().groups.size());
  return made;
}

// The first run warms caches up and is not counted.
Status run_steps(Profiled& profiled, const configs::Job& job, int microbatches) {
  peer::Executor& executor = *profiled.executor;
  Clock::time_point begun;
  bool counting = false;
  executor.set_observer([&](size_t group, bool begins) {
    if (begins) {
      begun = Clock::now();
    } else if (counting) {
      profiled.groups[group].seconds += std::chrono::duration<double>(Clock::now() - begun).count();
      ++profiled.groups[group].runs;
    }
  });
  for (int i = 0; i <= microbatches; ++i) {
    counting = i > 0;
    for (const auto& [name, tensor] : profiled.batch.tensors)
      WEFT_TRY_STATUS(executor.set_input(*profiled.microbatch, name, tensor));
    WEFT_TRY_STATUS(executor.run(*profiled.microbatch));
    const auto before = Clock::now();
    WEFT_TRY_STATUS(executor.update({.step = static_cast<uint64_t>(i + 1),
                                     .learning_rate = job.optimizer.learning_rate,
                                     .gradient_scale = 1}));
    WEFT_TRY_STATUS(profiled.backend->synchronize());
    if (!counting) continue;
    profiled.update.seconds += std::chrono::duration<double>(Clock::now() - before).count();
    ++profiled.update.runs;
  }
  return {};
}

// What was computed and moved in that time.
void count_work(Profiled& profiled, const configs::Job& job, int microbatches) {
  const dag::Graph& graph = profiled.executor->graph();
  for (size_t g = 0; g < profiled.groups.size(); ++g) {
    const peer::GroupSignature& group = profiled.executor->program().groups[g];
    Cost& cost = profiled.groups[g];
    for (const dag::OpId op : group.ops)
      cost.flops += static_cast<double>(dag::op_flops(graph, graph.op(op)).value);
    for (const auto* values : {&group.inputs, &group.outputs})
      for (const dag::ValueId value : *values)
        cost.bytes += static_cast<double>(graph.spec(value).bytes().value);
    cost.flops *= microbatches;
    cost.bytes *= microbatches;
  }
  const dag::BesideParameter beside = dag::beside_parameter(job.optimizer);
  for (const auto& parameter : profiled.executor->parameters())
    profiled.update.bytes += static_cast<double>(
        microbatches * (3 * parameter.spec.bytes().value + 2 * beside.bytes(parameter.spec)));
}

void print_rows(const Shown& shown, const Rows& rows, size_t most, double total_seconds, int microbatches) {
  std::vector<std::pair<std::string, Cost>> sorted(rows.begin(), rows.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  if (sorted.size() > most) sorted.resize(most);
  for (const auto& [name, cost] : sorted) print_row(shown, name, cost, total_seconds, microbatches);
}

Cost print_families(const Profiled& profiled, bool json, int microbatches) {
  Rows families;
  Cost total = profiled.update;
  for (size_t g = 0; g < profiled.groups.size(); ++g) {
    const peer::GroupSignature& group = profiled.executor->program().groups[g];
    families[std::string(to_string(family_of(profiled.executor->graph(), group)))].add(profiled.groups[g]);
    total.add(profiled.groups[g]);
  }
  families["parameter update"] = profiled.update;
  if (!json) fmt::print("\nby family, per microbatch\n");
  const Shown shown{json, "family"};
  print_rows(shown, families, families.size(), total.seconds, microbatches);
  print_row(shown, "all", total, total.seconds, microbatches);
  return total;
}

void print_kernels(const Profiled& profiled, const Cost& total, const ProfileOptions& options) {
  const peer::Executor& executor = *profiled.executor;
  Rows kernels;
  Cost slow;
  for (size_t g = 0; g < profiled.groups.size(); ++g) {
    const std::string_view implementation = executor.kernel(g).implementation();
    const std::string mark = is_slow(implementation) ? "slow: " : "";
    kernels[fmt::format("{}{} | {}", mark, implementation,
                        label_of(executor.graph(), executor.program().groups[g]))]
        .add(profiled.groups[g]);
    if (is_slow(implementation)) slow.add(profiled.groups[g]);
  }
  const bool json = options.format == "json";
  if (!json) fmt::print("\nby kernel\n");
  print_rows({json, "kernel"}, kernels, options.rows, total.seconds, options.microbatches);
  if (slow.runs > 0 && !json)
    fmt::print("\nslow: {} kernels run reference loops, {:.1f}% of the time\n",
               slow.runs / options.microbatches, 100 * slow.seconds / total.seconds);
}

void print_memory(const peer::Executor& executor, bool json) {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  if (json)
    return print_event(fmt::format(
        R"({{"event":"result","persistent_bytes":{},"microbatch_bytes":{},"peak_bytes":{}}})",
        executor.persistent_bytes().value, (executor.scratch_bytes() + executor.microbatch_bytes()).value,
        int64_t{usage.ru_maxrss} * 1024));
  fmt::print(
      "\nmemory: {} for weights, gradients and optimizer, {} for a microbatch; peak of the process {}\n",
      format_bytes(executor.persistent_bytes().value),
      format_bytes((executor.scratch_bytes() + executor.microbatch_bytes()).value),
      format_bytes(int64_t{usage.ru_maxrss} * 1024));
}

Result<int> run_profile(const ProfileOptions& options) {
  WEFT_TRY(configs::Job job, configs::load_job(options.job, options.sets));
  if (job.task != configs::Task::Train)
    return fail(
        job.error(ErrorCode::Unsupported, "task", "a step of training is profiled, and this job has none"));
  WEFT_TRY(Profiled profiled, make_ready(job, options.backend));
  WEFT_TRY_STATUS(run_steps(profiled, job, options.microbatches));
  count_work(profiled, job, options.microbatches);
  const bool json = options.format == "json";
  if (!json)
    fmt::print("{} of {} samples, {}\n", profiled.backend->numerics_fingerprint(), job.microbatch_size,
               job.model.string());
  const Cost total = print_families(profiled, json, options.microbatches);
  print_kernels(profiled, total, options);
  print_memory(*profiled.executor, json);
  return kExitOk;
}

}  // namespace

void add_profile(CommandLine program, Command& chosen) {
  CommandLine command =
      program.subcommand("profile", "time a training step of a job by op family and kernel");
  auto options = std::make_shared<ProfileOptions>();
  command.option("job", options->job, "the job file (YAML)").required();
  command.option("--set", options->sets, "override a key of the job file: a.b=value").one_value_each();
  command.option("--microbatches", options->microbatches, "how many are measured")
      .within(1, 100000)
      .shows_default();
  command.option("--rows", options->rows, "kernels listed").shows_default();
  command.format(options->format);
  options->backend.add_to(command);
  command.runs(chosen, [options] { return run_profile(*options); });
}

}  // namespace weft::cli
