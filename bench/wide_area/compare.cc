#include "bench/wide_area/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "base/check.h"
#include "bench/wide_area/player.h"
#include "plan/free_links.h"
#include "plan/plan.h"

namespace weft::bench {
namespace {

constexpr double kFactorMin = 1.0 / 64;  // of memories
constexpr double kFactorStep = 1.05;     // how exactly the largest factor is found

constexpr uint32_t kStepsPredicted = 3;  // plan/predict.cc plays so many
// What is run over real sockets: so long, and as much as cores can carry that emulate links and encrypt.
constexpr double kRealSeconds = 60, kRealBytesPerSecondOfCore = 50e6;
constexpr uint32_t kRealProcessesOfCore = 8;

std::string text_of(const char* format, double a, double b) {
  char text[128];
  std::snprintf(text, sizeof(text), format, a, b);
  return text;
}
// Why a row is not run over sockets.
std::string why_virtual(const Played& played, uint32_t stages) {
  const double three = 3 * seconds(played.step), cores = std::max(1u, std::thread::hardware_concurrency());
  if (three >= kRealSeconds) return text_of("three steps take %.0f s", three, 0);
  if (stages > kRealProcessesOfCore * cores) return text_of("%.0f peers on %.0f cores", stages, cores);
  const double rate = static_cast<double>(played.bytes_per_step) / seconds(played.step);
  if (rate > kRealBytesPerSecondOfCore * cores)
    return text_of("%.0f MB/s through %.0f cores", rate / 1e6, cores);
  if (stages == 1) return "one stage sends nothing";
  return "its plan cannot be given to a broker";
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

plan::Compression compression_of(const std::string& name) {
  if (name == "uniform") return {.policy = plan::CompressionPolicy::Uniform};
  if (name == "adatopk") return {.policy = plan::CompressionPolicy::AdaTopK};
  if (name == "auto") return {.policy = plan::CompressionPolicy::Auto};
  WEFT_CHECK(name == "none");
  return {};
}

class Comparing {
 public:
  Comparing(const Topology& topology, const Model& model, const CompareOptions& options)
      : topology_(topology), model_(model), options_(options) {}

  Summary run() {
    summary_.topology = topology_.name;
    summary_.model = model_.name;
    for (const std::string& setting : options_.settings) {
      if (setting == "free")
        add_rows(setting, request(topology_.cluster));
      else
        add_forced_rows();
    }
    look_at_parts();
    if (options_.replicas)
      for (const std::string& setting : options_.settings) add_replicas(setting);
    return std::move(summary_);
  }

 private:
  plan::PlanRequest request(plan::ClusterView cluster) const {
    return {.graph = &model_.graph,
            .classes = {model_.lowered},
            .microbatches = model_.microbatches,
            .samples = model_.samples(),
            .stages = model_.stages,
            .optimizer_slots = model_.optimizer_slots,
            .equal_bits = plan::EqualBits::Ignore,
            .cluster = std::move(cluster)};
  }
  double rate(Duration step) const { return model_.samples() / seconds(step); }

  void add_rows(const std::string& setting, const plan::PlanRequest& on) {
    for (const std::string& strategy : options_.strategies)
      for (const std::string& compression : options_.compressions) {
        Row row{.topology = topology_.name,
                .model = model_.name,
                .setting = setting,
                .strategy = strategy,
                .compression = compression};
        if (setting == "forced") {
          row.forced_by = summary_.forced_by;
          row.memory_factor = summary_.memory_factor;
        }
        plan::PlanRequest request = on;
        request.strategy = strategy;
        request.compression = compression_of(compression);
        fill(row, request);
        if (options_.on_row) options_.on_row(row);
        summary_.rows.push_back(std::move(row));
      }
  }
  void fill(Row& row, const plan::PlanRequest& request) const {
    const double before = now();
    const auto plan = plan::make_plan(request);
    const double planned = now();
    row.planning_seconds = planned - before;
    if (!plan) {
      row.problem = plan.error().message;
      return;
    }
    row.predicted_samples_per_second = rate(plan->predicted_step);
    row.stages = static_cast<uint32_t>(plan->stages.size());
    std::set<uint32_t> sites;
    for (const plan::StagePlan& stage : plan->stages)
      sites.insert(request.cluster.devices()[stage.devices.front()].site);
    row.sites = static_cast<uint32_t>(sites.size());
    const auto played =
        play(model_, *plan, request.cluster, {.steps = options_.steps, .tasks_ahead = options_.tasks_ahead});
    row.playing_seconds = now() - planned;
    if (!played) {
      row.problem = played.error().message;
      return;
    }
    row.samples_per_second = rate(played->step);
    row.bytes_per_step = played->bytes_per_step;
    row.from_start = played->step_ends.size() < kStepsPredicted
                         ? row.samples_per_second
                         : rate(played->step_ends[kStepsPredicted - 1] / kStepsPredicted);
    row.why = why_virtual(*played, row.stages);
  }

  // ---- forced ----

  bool fits(const plan::ClusterView& cluster, double factor, const std::string& strategy,
            const std::string& compression) const {
    plan::PlanRequest on = request(with_memory_scaled(cluster, factor));
    on.strategy = strategy;
    on.compression = compression_of(compression);
    return plan::make_plan(on).has_value();
  }
  // Sites that a planner can tell apart by what they hold: leaving out one of each kind shows all.
  std::vector<plan::ClusterView> without_one_site() const {
    const auto sites = by_site(topology_.cluster);
    std::set<std::vector<std::pair<int64_t, int64_t>>> known;
    std::vector<plan::ClusterView> rests;
    for (const auto& site : sites) {
      std::vector<std::pair<int64_t, int64_t>> kinds;
      kinds.reserve(site.size());
      for (const uint32_t device : site)
        kinds.emplace_back(topology_.cluster.devices()[device].memory.value,
                           topology_.cluster.devices()[device].host_memory.value);
      std::sort(kinds.begin(), kinds.end());
      if (!known.insert(std::move(kinds)).second) continue;
      std::vector<uint32_t> rest;
      for (const auto& other : sites)
        if (other != site) rest.insert(rest.end(), other.begin(), other.end());
      if (!rest.empty()) rests.push_back(topology_.cluster.only(rest));
    }
    // Who leaves the least out is the likeliest to fit.
    std::stable_sort(rests.begin(), rests.end(),
                     [](const auto& a, const auto& b) { return memory_of(a) > memory_of(b); });
    return rests;
  }
  static int64_t memory_of(const plan::ClusterView& cluster) {
    int64_t sum = 0;
    for (const plan::DeviceView& device : cluster.devices()) sum += device.memory.value;
    return sum;
  }
  // Memory that a plan needs grows with what travels: with the policy that sends least no site may be spared.
  // Links are free there: what a search tries depends on them, what fits does not, and so neither does the
  // factor.
  bool needs_all_sites(const std::vector<plan::ClusterView>& rests, double factor) const {
    return std::none_of(rests.begin(), rests.end(), [&](const plan::ClusterView& rest) {
      return fits(plan::with_free_links(rest), factor, "auto", "uniform");
    });
  }
  bool all_strategies_fit(double factor) {
    for (const std::string& one : options_.strategies)
      if (!fits(topology_.cluster, factor, one, "none")) {
        summary_.why_rule = text_of("with memories x %.4g, the largest factor that forces, ", factor, 0) +
                            one + " has no plan";
        return false;
      }
    return true;
  }
  // The largest factor of all memories at which no site can be left out, if every strategy then has a plan.
  std::optional<double> forcing_factor() {
    const auto rests = without_one_site();
    if (rests.empty()) return 1.0;
    if (needs_all_sites(rests, 1)) return all_strategies_fit(1) ? std::optional(1.0) : std::nullopt;
    double low = kFactorMin, high = 1;  // forces, if any does; does not
    if (!needs_all_sites(rests, low)) {
      summary_.why_rule = "a site can be left out whatever the memories are";
      return std::nullopt;
    }
    while (high > kFactorStep * low) {
      const double middle = std::sqrt(low * high);
      (needs_all_sites(rests, middle) ? low : high) = middle;
    }
    return all_strategies_fit(low) ? std::optional(low) : std::nullopt;
  }
  void add_forced_rows() {
    const auto factor = forcing_factor();
    summary_.forced_by = factor ? "memory" : "rule";
    summary_.memory_factor = factor.value_or(1);
    plan::PlanRequest on = request(with_memory_scaled(topology_.cluster, summary_.memory_factor));
    on.every_site = !factor.has_value();
    add_rows("forced", on);
  }

  // ---- what it is compared with ----

  std::optional<double> reached(const plan::PlanRequest& request) const {
    const auto plan = plan::make_plan(request);
    if (!plan) return std::nullopt;
    const auto played =
        play(model_, *plan, request.cluster, {.steps = options_.steps, .tasks_ahead = options_.tasks_ahead});
    return played ? std::optional(rate(played->step)) : std::nullopt;
  }
  // What each part reaches alone, parts of one kind once: the best of them, and the sum of all.
  template <typename Kind>
  struct Alone {
    std::map<Kind, std::optional<double>> known{};
    std::optional<double> best{}, sum{};

    template <typename Reach>
    void add(Kind kind, const Reach& reach) {
      const auto at = known.find(kind);
      const std::optional<double> rate = at == known.end() ? reach() : at->second;
      known.emplace(std::move(kind), rate);
      if (!rate) return;
      best = std::max(best.value_or(0), *rate);
      sum = sum.value_or(0) + *rate;
    }
  };
  void look_at_parts() {
    if (model_.stages) return;  // fewer are no answer
    summary_.free_network = reached(request(plan::with_free_links(topology_.cluster)));
    using Kind = std::tuple<double, double, int64_t>;
    const auto kind_of = [&](uint32_t device) {
      const plan::DeviceView& view = topology_.cluster.devices()[device];
      return Kind{view.rates.matmul_flops_per_second, view.rates.memory_bytes_per_second, view.memory.value};
    };
    Alone<Kind> machines;
    Alone<std::tuple<std::vector<Kind>, double, int64_t>> sites;
    for (const auto& site : by_site(topology_.cluster)) {
      std::vector<Kind> kinds;
      for (const uint32_t device : site) {
        kinds.push_back(kind_of(device));
        machines.add(kinds.back(), [&] {
          plan::PlanRequest alone = request(topology_.cluster.only({&device, 1}));
          alone.stages = 1;
          return reached(alone);
        });
      }
      const uint32_t at = topology_.cluster.devices()[site.front()].site;
      const plan::LinkView& within = topology_.cluster.between(at, at);
      sites.add({std::move(kinds), within.bytes_per_second, within.latency.count()}, [&] {
        plan::PlanRequest there = request(topology_.cluster.only(site));
        there.compression = compression_of("auto");
        return reached(there);
      });
    }
    summary_.best_machine = machines.best;
    summary_.machines_alone = machines.sum;
    summary_.best_site = sites.best;
    summary_.sites_alone = sites.sum;
  }

  // ---- replicas ----

  // That of the pipelines too, if they have it.
  std::string compression_of_replicas() const {
    const auto& all = options_.compressions;
    return std::find(all.begin(), all.end(), "auto") != all.end() ? "auto" : all.back();
  }
  void add_replicas(const std::string& setting) {
    const bool forced = setting == "forced";
    plan::PlanRequest pipeline =
        request(forced ? with_memory_scaled(topology_.cluster, summary_.memory_factor) : topology_.cluster);
    const std::string compression = compression_of_replicas();
    pipeline.compression = compression_of(compression);
    for (const compress::Codec& codec : options_.replicas->codecs)
      for (const uint64_t settle_every : options_.replicas->settle_every) {
        ReplicasRow row{.codec = codec, .every = options_.replicas->every, .settle_every = settle_every};
        if (forced && summary_.forced_by == "rule")
          row.problem = "that every site holds an op is a rule for one pipeline";
        else
          row =
              play_replicas(model_, pipeline, *options_.replicas, codec, settle_every, options_.tasks_ahead);
        row.topology = topology_.name;
        row.model = model_.name;
        row.setting = setting;
        row.compression = compression;
        compare_with_others(row);
        if (options_.on_replicas) options_.on_replicas(row);
        summary_.replicas.push_back(std::move(row));
      }
  }
  void compare_with_others(ReplicasRow& row) const {
    if (const Row* best = summary_.best(row.setting)) {
      row.best_pipeline = best->samples_per_second;
      row.best_strategy = best->strategy;
      row.best_compression = best->compression;
    }
    if (row.setting == "forced") return;  // with those memories nobody does it alone
    row.sites_alone = summary_.sites_alone;
    row.machines_alone = summary_.machines_alone;
  }

  const Topology& topology_;
  const Model& model_;
  const CompareOptions& options_;
  Summary summary_;
};

}  // namespace

const Row* Summary::find(const std::string& setting, const std::string& strategy,
                         const std::string& compression) const {
  for (const Row& row : rows)
    if (row.setting == setting && row.strategy == strategy && row.compression == compression &&
        row.has_plan())
      return &row;
  return nullptr;
}

const Row* Summary::best(const std::string& setting) const {
  const Row* best = nullptr;
  for (const Row& row : rows)
    if (row.setting == setting && row.has_plan() &&
        (!best || row.samples_per_second > best->samples_per_second))
      best = &row;
  return best;
}

Summary compare(const Topology& topology, const Model& model, const CompareOptions& options) {
  return Comparing(topology, model, options).run();
}

}  // namespace weft::bench
