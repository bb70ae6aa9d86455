// How long planning takes, and what is planned: over several sizes of graph and of cluster, and again after
// the loss of a peer. Aims: 0.2 s for 1,125 ops on 64 devices, the first time and after a loss; 1 s for
// 5,605 ops on 1,000; for GPT-2 small on 24 devices at 12 sites 1 s by itself, 2 s for all strategies.
//   ./dev bench plan [largest number of devices, default 1000]
//   ./dev bench plan vary    what each of the search's options costs and brings, halved and doubled
// Seconds are the processor's. A line ends with the predicted step and a digest of the whole plan: two builds
// that plan alike print the same ones, and bench/plan-against says whether they do.
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/plan_graphs.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "plan/free_links.h"
#include "plan/plan.h"
#include "plan/strategy.h"

namespace weft::plan {
namespace {

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// FNV-1a over all that a plan decides and says.
class PlanDigest {
 public:
  explicit PlanDigest(const Plan& plan) {
    for (const uint32_t stage : plan.stage_of_op) add(stage);
    for (const StagePlan& stage : plan.stages) {
      add(stage.devices.front());
      add(stage.microbatches_in_flight);
      add(static_cast<uint64_t>(stage.memory.value));
      add(stage.recomputes);
    }
    for (const PlannedLink& link : plan.links) add(static_cast<uint64_t>(link.bytes.value));
    for (const auto& stage : plan.timeline.stages)
      for (const TimelineTask& task : stage) add(static_cast<uint64_t>(task.begin.count()));
    for (const std::string& line : plan.explanation)
      for (const char letter : line) add(static_cast<unsigned char>(letter));
  }
  uint64_t value() const { return value_; }

 private:
  void add(uint64_t number) { value_ = (value_ ^ number) * 0x100000001b3; }
  uint64_t value_ = 0xcbf29ce484222325;
};

struct Case {
  std::string name;
  PlanRequest request;
};

Result<Plan> measure(const Case& one) {
  const double began = processor_seconds();
  auto plan = make_plan(one.request);
  std::printf("%-52s %7.3f s", one.name.c_str(), processor_seconds() - began);
  if (plan)
    std::printf(" %5zu stages %15" PRId64 " ns a step %016" PRIx64 "\n", plan->stages.size(),
                int64_t{plan->predicted_step.count()}, PlanDigest(*plan).value());
  else
    std::printf("   %.60s\n", plan.error().message.c_str());
  return plan;
}

std::string describe(const dag::Graph& graph, const ClusterView& cluster) {
  return std::to_string(graph.ops().size()) + " ops, " + std::to_string(cluster.devices().size()) +
         " devices, ";
}

void measure_residual(int64_t blocks, uint32_t devices) {
  const dag::Graph graph = residual_step(blocks);
  Case one{{}, {.graph = &graph, .microbatches = 16, .samples = 128, .optimizer_slots = 2}};
  one.request.cluster = world(devices);
  const std::string name = describe(graph, one.request.cluster);
  one.request.strategy = "op-fence";
  one.name = name + one.request.strategy;
  measure(one);
  one.request.strategy = "auto";
  one.name = name + one.request.strategy;
  const auto plan = measure(one);
  if (!plan) return;
  std::vector<uint32_t> left;
  for (uint32_t device = 0; device < devices; ++device)
    if (device != plan->stages.back().devices.front()) left.push_back(device);
  one.request.cluster = one.request.cluster.only(left);
  one.name += ", after a loss";
  measure(one);
}

// GPT-2 small, in the ways in which its planning differs.
struct Gpt2Case {
  std::string name;
  HomesOptions homes{};
  int64_t batch = 4;  // of a microbatch
  uint32_t microbatches = 16;
};
const std::vector<Gpt2Case> kGpt2Cases = {
    {"homes", {}},
    {"fast homes", {.megabits = 1000}},
    {"fast homes, small", {.megabits = 1000}, 1, 64},
    {"fast equal homes, small", {.megabits = 1000, .equal = true}, 1, 64},
    {"fast homes, little memory", {.megabits = 1000, .memory_gib = 2}, 4, 32},
};

PlanRequest request_of(const Gpt2Case& one, const dag::Graph& graph) {
  return {.graph = &graph,
          .classes = {std::make_shared<const dag::Lowered>(dag::lower_traced(
              graph, dag::op_table(), {.fuse_elementwise = true, .convolution_layout = dag::Layout::Plain}))},
          .microbatches = one.microbatches,
          .samples = static_cast<uint64_t>(one.batch) * one.microbatches,
          .optimizer_slots = 2,
          .copies = 12'500'000,
          .cluster = homes(one.homes)};
}

// As `weft plan --compare` has it: each strategy dense and compressed, the default over free links, and on
// one site by itself.
void measure_gpt2(const Gpt2Case& of) {
  const dag::Graph graph = gpt2_step(of.batch);
  Case one{{}, request_of(of, graph)};
  const std::string name = "GPT-2, " + of.name + ", ";
  const double began = processor_seconds();
  for (const NamedStrategy& strategy : strategies())
    for (const auto policy : {CompressionPolicy::None, CompressionPolicy::Auto}) {
      one.request.strategy = strategy.name;
      one.request.compression.policy = policy;
      one.name = name + one.request.strategy + (policy == CompressionPolicy::Auto ? ", compressed" : "");
      measure(one);
    }
  one.request.strategy = "auto";
  one.request.compression = {};
  one.request.cluster = with_free_links(one.request.cluster);
  one.name = name + "auto, free links";
  measure(one);
  one.request.cluster = homes(of.homes).only(std::vector<uint32_t>{0, 1});
  one.name = name + "auto, one site";
  measure(one);
  std::printf("%-52s %7.3f s\n", (name + "in all").c_str(), processor_seconds() - began);
}

// ---- the search's options ----

struct Variation {
  std::string name;
  std::function<void(SearchOptions&, double times)> change;
};
template <typename T>
Variation of(const char* name, T SearchOptions::*option) {
  return {name, [option](SearchOptions& options, double times) {
            options.*option = static_cast<T>(static_cast<double>(options.*option) * times);
          }};
}
// What is a part of a step: how much less than all of it.
Variation of_part(const char* name, double SearchOptions::*option) {
  return {name, [option](SearchOptions& options, double times) {
            options.*option = 1 + (options.*option - 1) * times;
          }};
}
const std::vector<Variation> kVariations = {
    of("coarse_positions", &SearchOptions::coarse_positions),
    of("numbers_one_by_one", &SearchOptions::numbers_one_by_one),
    of("numbers_stride", &SearchOptions::numbers_stride),
    of("tries_in_vain", &SearchOptions::tries_in_vain),
    of("sites_alone", &SearchOptions::sites_alone),
    of("evaluated", &SearchOptions::evaluated),
    of("evaluated_work", &SearchOptions::evaluated_work),
    of_part("hopeful", &SearchOptions::hopeful),
    of("refined", &SearchOptions::refined),
    of("polished", &SearchOptions::polished),
    of("starts_each", &SearchOptions::starts_each),
    of_part("nearly_as_good", &SearchOptions::nearly_as_good),
    of("polish_work", &SearchOptions::polish_work),
    of("small", &SearchOptions::small),
    of("polish_work_of_small", &SearchOptions::polish_work_of_small),
    of("strayed", &SearchOptions::strayed),
    of("strays_in_vain", &SearchOptions::strays_in_vain),
    of_part("worth_a_stage", &SearchOptions::worth_a_stage),
    of_part("worth_a_piece", &SearchOptions::worth_a_piece),
    of_part("worth_a_change", &SearchOptions::worth_a_change),
    of_part("worth_memory", &SearchOptions::worth_memory),
};

struct Tried {
  double took = 0;
  std::vector<double> steps;  // seconds; of what cannot be planned: endless
};
Tried try_options(const SearchOptions& options) {
  Tried tried;
  for (const Gpt2Case& one : kGpt2Cases) {
    const dag::Graph graph = gpt2_step(one.batch);
    PlanRequest request = request_of(one, graph);
    ModelCache models;
    for (const bool free : {false, true}) {
      if (free) request.cluster = with_free_links(request.cluster);
      const double began = processor_seconds();
      const auto plan = make_plan(request, options, models);
      tried.took += processor_seconds() - began;
      tried.steps.push_back(plan ? seconds(plan->predicted_step) : HUGE_VAL);
    }
  }
  return tried;
}

void vary() {
  const Tried usual = try_options({});
  std::printf("%-28s %8s %10s %10s\n", "GPT-2, auto", "seconds", "mean step", "worst");
  std::printf("%-28s %8.3f\n", "as it is", usual.took);
  for (const Variation& variation : kVariations)
    for (const double times : {0.5, 2.0}) {
      SearchOptions options;
      variation.change(options, times);
      const Tried tried = try_options(options);
      double sum = 0, worst = -HUGE_VAL;
      for (size_t i = 0; i < tried.steps.size(); ++i) {
        const double longer = 100 * (tried.steps[i] / usual.steps[i] - 1);
        sum += longer;
        worst = std::max(worst, longer);
      }
      std::printf("%-28s %8.3f %+9.2f%% %+9.2f%%\n",
                  (variation.name + (times < 1 ? ", halved" : ", doubled")).c_str(), tried.took,
                  sum / static_cast<double>(tried.steps.size()), worst);
    }
}

}  // namespace
}  // namespace weft::plan

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 1 && std::string_view(argv[1]) == "vary") {
    weft::plan::vary();
    return 0;
  }
  const auto most = static_cast<uint32_t>(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1000);
  for (const weft::plan::Gpt2Case& one : weft::plan::kGpt2Cases) weft::plan::measure_gpt2(one);
  for (const uint32_t devices : {16u, 64u, 250u, 1000u})
    for (const int64_t blocks : {70, 350})
      if (devices <= most) weft::plan::measure_residual(blocks, devices);
}
