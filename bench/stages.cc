// Whether stages take as long as a plan says, on this machine's processor with one thread: predicted over
// measured, for each stage of a job's training step cut into 1, 2 and 4 of about equal predicted time.
//   build/release/weft_bench_stages [--rounds N] [--rates] [--groups [--family NAME]] JOB.yaml...
// The device is measured in turns with the stages, as a peer does when it joins. A time is the median of the
// fastest quarter of runs by the thread's own clock, which others on the machine disturb least; two
// processors of a core share its units, so a run counts when a small product right before and right after it
// took about the least that it ever took, and a segment takes what its kernels take, each at its own time.
// Beside it what remains once the device is taken as it is at this job, by the ratio of the whole step, which
// is how the broker corrects a device whose tasks take other times than promised; and what four rates
// predict, a roofline without kinds and sizes. --rates: what was measured of the device. --groups: whole
// steps only, and how long each group of ops takes in them, a line each (tab separated), summed up by family;
// NAME: the lines of that family alone.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "bench/numbers.h"
#include "bench/stage_runs.h"
#include "cli/plan_job.h"
#include "dag/op_table.h"
#include "dag/split.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/executor.h"
#include "peer/service/measure.h"
#include "plan/cost.h"
#include "plan/pipeline.h"

namespace weft {
namespace {

using bench::make_stage;
using bench::now;
using bench::run_once;
using bench::Stage;
using dag::ValueId;

struct Options {
  int rounds = 3;
  bool groups = false, rates = false;
  std::string family;
  std::vector<std::string> jobs;
};

constexpr double kQuiet = 1.1;          // of the least that the small product took
constexpr double kPatienceSeconds = 5;  // of a cut, for quiet
constexpr int kRoundsBefore = 8;        // of the device, before the first stage
constexpr size_t kRunsMin = 4, kRunsMax = 100;
constexpr double kSecondsForEach = 0.3;

// The median of the fastest quarter.
double typical(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds.empty() ? 0 : seconds[seconds.size() / 8];
}
// Whether this processor has its core to itself, as far as a product of some 0.2 ms can tell.
class Quiet {
 public:
  static Result<Quiet> create(peer::Backend& backend) {
    Quiet quiet;
    dag::GraphBuilder b(dag::op_table());
    const dag::TensorSpec side{dag::DType::F32, {192, 192}};
    const ValueId x = b.input("x", side), y = b.input("y", side);
    b.output("z", b.add(dag::OpKind::MatMul, {x, y}), dag::OutputRole::Prediction);
    WEFT_TRY(quiet.executor_, peer::Executor::create(std::make_shared<const dag::Graph>(b.finish()),
                                                     std::make_shared<peer::State>(backend), {}));
    WEFT_TRY(quiet.microbatch_, quiet.executor_->make_microbatch());
    for (const ValueId input : quiet.executor_->graph().inputs())
      WEFT_TRY_STATUS(quiet.executor_->set_value(*quiet.microbatch_, input, dag::Tensor(side)));
    for (int i = 0; i < 100; ++i) WEFT_TRY_STATUS(quiet.look());
    return quiet;
  }
  Result<bool> look() {
    double seconds = 1;
    for (int i = 0; i < 3; ++i) {
      const double begin = now();
      WEFT_TRY_STATUS(executor_->run(*microbatch_));
      seconds = std::min(seconds, now() - begin);
    }
    least_ = std::min(least_, seconds);
    return seconds <= kQuiet * least_;
  }
  // Looks until it is so; not beyond `patience`, which it uses up.
  Status wait(double& patience) {
    for (;;) {
      const double begin = now();
      WEFT_TRY(const bool quiet, look());
      if (quiet || patience <= 0) return {};
      patience -= now() - begin;
    }
  }

 private:
  std::unique_ptr<peer::Executor> executor_;
  std::unique_ptr<peer::MicrobatchMemory> microbatch_;
  double least_ = 1;
};

// ---- a cut into stages of about equal predicted time ----

std::vector<uint32_t> cut_equally(const plan::Model& model, const plan::Rates& rates, uint32_t stages) {
  const auto seconds = plan::seconds_of_positions(model, 0, rates, false);
  double total = 0, before = 0;
  for (const double one : seconds) total += one;
  std::vector<uint32_t> stage_of_position;
  for (const double one : seconds) {
    const double middle = (before + one / 2) / total;
    stage_of_position.push_back(std::min(stages - 1, static_cast<uint32_t>(middle * stages)));
    before += one;
  }
  std::vector<uint32_t> stage_of_op;
  stage_of_op.reserve(model.position_of_op.size());
  for (const uint32_t position : model.position_of_op) stage_of_op.push_back(stage_of_position[position]);
  return stage_of_op;
}

// Four rates: the longer of computing and moving, and the launch.
double roofline(const plan::GroupCost& cost, const plan::Rates& rates) {
  if (!cost.has_kernel) return 0;
  return std::max(static_cast<double>(cost.matmul.value) / rates.matmul_flops_per_second +
                      static_cast<double>(cost.convolution.value) / rates.convolution_flops_per_second,
                  static_cast<double>(cost.moved.value) / rates.memory_bytes_per_second) +
         rates.kernel_seconds;
}

class Bench {
 public:
  Bench(const Options& options, peer::Backend& backend, Quiet quiet)
      : options_(options), backend_(backend), quiet_(std::move(quiet)) {}

  Status run(const std::string& path) {
    auto opened = cli::open_planned_job(path, {}, {});
    if (!opened) return tl::unexpected(opened.error());
    job_ = &*opened;
    job_->lowered = {std::make_shared<const dag::Lowered>(
        dag::lower_traced(job_->graph, dag::op_table(), backend_.traits()))};
    model_ = plan::make_model(job_->graph, job_->lowered);
    for (; rounds_ < kRoundsBefore; ++rounds_) WEFT_TRY_STATUS(measure_device());
    std::vector<Cut> cuts;
    for (const uint32_t count : {1u, 2u, 4u})
      if (count == 1 || !options_.groups) {
        WEFT_TRY(Cut cut, make_cut(count));
        WEFT_TRY_STATUS(time(cut));
        for (Stage& stage : cut.stages)
          stage.executor.reset(), stage.microbatch.reset(), stage.inputs.clear();
        cuts.push_back(std::move(cut));
      }
    if (options_.rates) print_rates();
    for (const Cut& cut : cuts) WEFT_TRY_STATUS(print(path, cut));
    return {};
  }
  void print_worst() const {
    std::printf("stages and whole steps within 10%%: %zu of %zu; worst %+.1f%%: %s; four rates: %zu\n",
                all_.near, all_.seen, 100 * all_.worst, all_.worst_name.c_str(), near_with_four_);
    std::printf("stages, the device corrected by the whole step: %zu of %zu; worst %+.1f%%: %s\n",
                corrected_.near, corrected_.seen, 100 * corrected_.worst, corrected_.worst_name.c_str());
    std::printf("%zu of %zu runs had the core to share\n", disturbed_, runs_);
  }

 private:
  using GroupSeconds = std::vector<std::vector<double>>;  // by group, of each run
  struct Cut {
    std::vector<uint32_t> stage_of_op;
    std::vector<Stage> stages;
  };

  Status measure_device() {
    double patience = kPatienceSeconds / 4;
    WEFT_TRY_STATUS(quiet_.wait(patience));
    return meter_.round();
  }
  void print_rates() const {
    const plan::Rates rates = meter_.rates();
    std::printf("launch %.2f us\n", 1e6 * rates.kernel_seconds);
    for (size_t i = 0; i < plan::kUnitCount; ++i) {
      const plan::UnitRates& unit = rates.units[i];
      std::printf("  %-20s %7.1f %7.1f GFLOP/s %7.1f %7.1f GB/s\n",
                  std::string(to_string(static_cast<plan::Unit>(i))).c_str(),
                  unit.small_flops_per_second / 1e9, unit.flops_per_second / 1e9,
                  unit.small_bytes_per_second / 1e9, unit.bytes_per_second / 1e9);
    }
  }

  Result<Cut> make_cut(uint32_t count) {
    Cut cut;
    cut.stage_of_op = dag::stages_by_origin(job_->graph, cut_equally(model_, meter_.rates(), count));
    const std::vector<const dag::Lowered*> classes{job_->lowered.front().get()};
    const std::vector<uint32_t> class_of_stage(count, 0);
    WEFT_TRY(dag::Split split,
             dag::split({&job_->graph, cut.stage_of_op, classes, class_of_stage}, dag::op_table()));
    for (uint32_t s = 0; s < count; ++s) {
      std::vector<ValueId> sends;
      for (const dag::CutEdge& edge : split.cut_edges)
        if (edge.from_stage == s) sends.push_back(edge.sent);
      WEFT_TRY(Stage stage, make_stage(std::move(split.stages[s]), std::move(sends), *job_, backend_));
      cut.stages.push_back(std::move(stage));
    }
    return cut;
  }

  // In turns with the device, so that a change of the machine's speed befalls both.
  Status time(Cut& cut) {
    double patience = kPatienceSeconds;
    for (int round = 0; round < options_.rounds; ++round) {
      WEFT_TRY_STATUS(measure_device());
      for (Stage& stage : cut.stages) {
        WEFT_TRY_STATUS(run_once(stage));  // warm
        observe(stage);
        const double begin = now();
        for (size_t runs = 0; runs < kRunsMin || (now() - begin < kSecondsForEach && runs < kRunsMax);) {
          const size_t before = stage.update.size();
          WEFT_TRY_STATUS(quiet_.wait(patience));
          const double began = now();
          WEFT_TRY_STATUS(run_once(stage));
          WEFT_TRY(const bool quiet, quiet_.look());
          if (!quiet && patience > 0) {
            patience -= now() - began;
            forget(stage, before);
            continue;
          }
          ++runs, ++runs_, disturbed_ += !quiet;
        }
      }
    }
    if (options_.groups) print_groups(cut.stages[0]);
    for (Stage& stage : cut.stages) sum_kernels(stage);
    return {};
  }
  static void forget(Stage& stage, size_t runs) {
    stage.update.resize(runs);
    for (std::vector<double>& seconds : stage.seconds) seconds.resize(runs);
    for (std::vector<double>& seconds : stage.kernels) seconds.resize(std::min(runs - 1, seconds.size()));
  }
  // What each segment takes when nothing disturbs any of its kernels.
  static void sum_kernels(Stage& stage) {
    for (std::vector<double>& seconds : stage.seconds) seconds.assign(1, 0);
    for (size_t g = 0; g < stage.kernels.size(); ++g) {
      const dag::OpId first = stage.executor->program().groups[g].ops.front();
      stage.seconds[stage.segment_of_op[first.index]][0] += typical(stage.kernels[g]);
    }
  }

  void observe(Stage& stage) {
    stage.executor->set_observer([this, &stage](size_t group, bool begins) {
      if (begins)
        begun_ = now();
      else
        stage.kernels[group].push_back(now() - begun_);
    });
  }

  void print_groups(const Stage& stage) const {
    const peer::Executor& executor = *stage.executor;
    const GroupSeconds& of_group = stage.kernels;
    const plan::Rates rates = meter_.rates();
    const dag::Graph& graph = executor.graph();
    struct Sum {
      double measured = 0, predicted = 0, roofline = 0;
    };
    std::map<std::string, Sum> families;
    for (size_t g = 0; g < of_group.size(); ++g) {
      const peer::GroupSignature& group = executor.program().groups[g];
      const auto cost = plan::cost_of_group(graph, group.ops, group.inputs, group.outputs);
      const double measured = typical(of_group[g]);
      const double ours = plan::seconds_of(cost, rates), theirs = roofline(cost, rates);
      const std::string family(to_string(dag::op_table().row(graph.op(group.ops[0]).kind).family));
      Sum& sum = families[family];
      sum.measured += measured, sum.predicted += ours, sum.roofline += theirs;
      if (!options_.family.empty() && options_.family != family) continue;
      std::string kinds, shapes;
      int64_t flops = 0;
      for (const dag::OpId id : group.ops) {
        kinds += (kinds.empty() ? "" : "+") + std::string(to_string(graph.op(id).kind));
        flops += op_flops(graph, graph.op(id)).value;
      }
      for (const auto* values : {&group.inputs, &group.outputs}) {
        shapes += values == &group.inputs ? "" : " ->";
        for (const ValueId v : *values)
          shapes += " " + dag::to_string(graph.spec(v).shape) +
                    (graph.value(v).layout == dag::Layout::Plain ? "" : "b");
      }
      std::printf("group\t%s\t%s\t%.3f\t%.3f\t%.3f\t%lld\t%lld\t%s\t%s\t%s\n", family.c_str(), kinds.c_str(),
                  1e6 * measured, 1e6 * ours, 1e6 * theirs, static_cast<long long>(flops),
                  static_cast<long long>(cost.moved.value), shapes.c_str(),
                  dag::to_string(graph.op(group.ops[0]).attributes).c_str(),
                  std::string(executor.kernel(g).implementation()).c_str());
    }
    for (const auto& [family, sum] : families)
      std::printf("family %-14s measured %9.3f ms, predicted %9.3f (%+.3f), four rates %9.3f (%+.3f)\n",
                  family.c_str(), 1e3 * sum.measured, 1e3 * sum.predicted,
                  1e3 * (sum.predicted - sum.measured), 1e3 * sum.roofline,
                  1e3 * (sum.roofline - sum.measured));
  }

  Status print(const std::string& path, const Cut& cut) {
    const auto count = static_cast<uint32_t>(cut.stages.size());
    const std::vector<plan::StageDevice> devices(count, plan::StageDevice{.rates = meter_.rates()});
    WEFT_TRY(const auto pipeline, plan::make_pipeline(model_, cut.stage_of_op, devices,
                                                      {.microbatches = job_->microbatches,
                                                       .optimizer_slots = job_->request().optimizer_slots}));
    const std::vector<double> four = four_rates(cut);
    for (uint32_t s = 0; s < count; ++s) {
      const Stage& stage = cut.stages[s];
      double microbatch = 0;
      std::string parts;
      double predicted_microbatch = 0;
      for (uint32_t k = 0; k < stage.segments; ++k) {
        const double predicted = seconds(pipeline.stages[s].segments[k].compute);
        predicted_microbatch += predicted;
        microbatch += typical(stage.seconds[k]);
        parts += ratio_text(predicted, typical(stage.seconds[k]));
      }
      const double update = seconds(pipeline.stages[s].update);
      const double measured = microbatch * job_->microbatches + typical(stage.update);
      const double ratio = (predicted_microbatch * job_->microbatches + update) / measured;
      if (count == 1) whole_ = ratio;
      std::printf(
          "%-40s stage %u of %u  %9.3f ms  predicted %+6.1f%%  corrected %+6.1f%%  four rates %+6.1f%%  "
          "segments%s update%s\n",
          path.size() > 40 ? path.substr(path.size() - 40).c_str() : path.c_str(), s + 1, count,
          1e3 * measured, 100 * (ratio - 1), 100 * (ratio / whole_ - 1), 100 * (four[s] / measured - 1),
          parts.c_str(), ratio_text(update, typical(stage.update)).c_str());
      const std::string name = path + " stage " + std::to_string(s + 1) + " of " + std::to_string(count);
      all_.note(name, ratio);
      if (count > 1) corrected_.note(name, ratio / whole_);
      near_with_four_ += is_near(four[s] / measured);
    }
    return {};
  }

  static std::string ratio_text(double predicted, double measured) {
    char text[64];
    std::snprintf(text, sizeof(text), " %.3f ms %+.1f%%", 1e3 * measured,
                  100 * (predicted / std::max(measured, 1e-9) - 1));
    return text;
  }

  // By stage: seconds of a step by the roofline.
  std::vector<double> four_rates(const Cut& cut) const {
    std::vector<double> sums(cut.stages.size(), 0);
    const plan::Model::Class& of = model_.classes[0];
    const plan::Rates rates = meter_.rates();
    for (size_t s = 0; s < sums.size(); ++s) {
      for (const plan::GroupCost& group : of.groups)
        if (cut.stage_of_op[of.lowered->source_op[group.begin].index] == s)
          sums[s] += roofline(group, rates) * job_->microbatches;
      for (const dag::GraphOutput& output : job_->graph.outputs()) {
        if (output.role != dag::OutputRole::Gradient ||
            cut.stage_of_op[job_->graph.value(output.value).producer.index] != s)
          continue;
        const auto bytes = static_cast<double>(job_->graph.spec(output.value).bytes().value);
        const double slots = job_->request().optimizer_slots;
        const double accumulates = job_->microbatches > 1 ? job_->microbatches : 0;
        sums[s] += (3 + 2 * slots + 3 * accumulates) * bytes / rates.memory_bytes_per_second +
                   (1 + accumulates) * rates.kernel_seconds;
      }
    }
    return sums;
  }

  static bool is_near(double ratio) { return std::abs(ratio - 1) <= 0.1; }
  struct Score {
    size_t seen = 0, near = 0;
    double worst = 0;
    std::string worst_name;
    void note(const std::string& name, double ratio) {
      ++seen;
      near += is_near(ratio);
      if (std::abs(ratio - 1) > std::abs(worst)) worst = ratio - 1, worst_name = name;
    }
  };

  const Options& options_;
  peer::Backend& backend_;
  Quiet quiet_;
  cli::PlannedJob* job_ = nullptr;
  plan::Model model_;
  peer::DeviceMeter meter_{backend_, {}, now};
  int rounds_ = 0;
  double begun_ = 0;
  double whole_ = 1;  // predicted over measured, of the job's whole step
  Score all_, corrected_;
  size_t near_with_four_ = 0, runs_ = 0, disturbed_ = 0;
};

int measure(const Options& options) {
  const auto backend = peer::make_cpu_backend({.threads = 1, .pin = false});
  if (!backend) return 1;
  std::printf("%s\n", (*backend)->numerics_fingerprint().c_str());
  auto quiet = Quiet::create(**backend);
  if (!quiet) return 1;
  Bench bench(options, **backend, std::move(*quiet));
  int failed = 0;
  for (const std::string& job : options.jobs)
    if (const Status status = bench.run(job); !status) {
      std::printf("%s: %s\n", job.c_str(), status.error().message.c_str());
      failed = 1;
    }
  bench.print_worst();
  return failed;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  weft::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--rounds" && i + 1 < argc)
      options.rounds = std::max(1, weft::bench::number_of<int>(argv[++i]));
    else if (word == "--groups")
      options.groups = true;
    else if (word == "--rates")
      options.rates = true;
    else if (word == "--family" && i + 1 < argc)
      options.family = argv[++i];
    else
      options.jobs.push_back(word);
  }
  return weft::measure(options);
}
