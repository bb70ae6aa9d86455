#include "cli/plan_outcome.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <tuple>

#include "dag/op_kind.h"
#include "plan/explain.h"
#include "plan/free_links.h"
#include "plan/strategy.h"

namespace weft::cli {
namespace {

constexpr Bytes kEndless{int64_t{1} << 50};  // memory that is not to matter

bool computes(const dag::Op& op) {
  return op.phase == dag::Phase::Forward && op.kind != dag::OpKind::Input &&
         op.kind != dag::OpKind::Initializer && op.kind != dag::OpKind::Constant;
}

const plan::DeviceView& device_of(const plan::ClusterView& cluster, const plan::StagePlan& stage) {
  return cluster.devices()[stage.devices.front()];
}

plan::LinkView link_of(const plan::ClusterView& cluster, const plan::Plan& plan,
                       const plan::PlannedLink& link) {
  return cluster.link(plan.stages[link.from_stage].devices.front(),
                      plan.stages[link.to_stage].devices.front());
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Devices that a plan cannot tell apart.
using Kind = std::tuple<double, double, double, double, int64_t, int64_t>;
Kind kind_of(const plan::DeviceView& device) {
  return {device.rates.matmul_flops_per_second,
          device.rates.convolution_flops_per_second,
          device.rates.memory_bytes_per_second,
          device.rates.kernel_seconds,
          device.memory.value,
          device.host_memory.value};
}

class Comparing {
 public:
  Comparing(const PlannedJob& job, const plan::ClusterView& cluster) : job_(job), cluster_(cluster) {}

  Result<Comparison> run() {
    const double begun = now();
    std::optional<Error> problem;
    for (const plan::NamedStrategy& strategy : plan::strategies()) {
      const double before = now();
      plan::PlanRequest request = on(cluster_);
      request.strategy = strategy.name;
      StrategyOutcome& outcome = comparison_.strategies.emplace_back();
      outcome.name = strategy.name;
      auto plan = plan::make_plan(request, plan::SearchOptions{}, models_);
      outcome.planning_seconds = now() - before;
      if (plan) {
        outcome.plan = std::move(*plan);
        if (request.compression.policy == plan::CompressionPolicy::None) {
          request.compression.policy = plan::CompressionPolicy::Auto;
          outcome.compressed = rate(request);
        }
        continue;
      }
      outcome.problem = plan.error().message;
      if (!problem || request.strategy == plan::PlanRequest{}.strategy) problem = plan.error();
    }
    const auto& rows = comparison_.strategies;
    if (std::none_of(rows.begin(), rows.end(), [](const auto& row) { return row.plan.has_value(); }))
      return fail(*problem);
    comparison_.free_network = rate(on(plan::with_free_links(cluster_)));
    look_at_machines();
    look_at_sites();
    comparison_.planning_seconds = now() - begun;
    return std::move(comparison_);
  }

 private:
  plan::PlanRequest on(plan::ClusterView cluster) const {
    plan::PlanRequest request = job_.request();
    request.cluster = std::move(cluster);
    return request;
  }
  // What pins name may not be there.
  plan::PlanRequest on_part(std::span<const uint32_t> devices) const {
    plan::PlanRequest request = on(cluster_.only(devices));
    request.pins.clear();
    return request;
  }
  std::optional<double> rate(const plan::PlanRequest& request) const {
    const auto plan = plan::make_plan(request, plan::SearchOptions{}, models_);
    if (!plan) return std::nullopt;
    return job_.samples_per_second(seconds(plan->predicted_step));
  }
  static void raise(std::optional<double>& best, std::optional<double> value) {
    if (value && (!best || *value > *best)) best = value;
  }

  // Each kind of device once: what it reaches, and what it would reach were its memory endless.
  void look_at_machines() {
    std::map<Kind, double> reached;
    for (uint32_t i = 0; i < cluster_.devices().size(); ++i) {
      const auto [at, fresh] = reached.emplace(kind_of(cluster_.devices()[i]), 0.0);
      if (fresh) at->second = look_at_machine(i);
      comparison_.bound += at->second;
    }
  }
  double look_at_machine(uint32_t i) {
    plan::PlanRequest request = on_part({&i, 1});
    request.stages = 1;
    raise(comparison_.best_machine, rate(request));
    plan::DeviceView roomy = cluster_.devices()[i];
    roomy.memory = roomy.host_memory = kEndless;
    request.cluster = plan::ClusterView({roomy});
    const auto plan = plan::make_plan(request, plan::SearchOptions{}, models_);
    return plan ? job_.samples_per_second(seconds(plan->predicted_alone)) : 0;
  }

  // Regions of equal devices with equal links are one to a planner: each such once.
  void look_at_sites() {
    std::set<std::pair<std::vector<std::tuple<Kind, double, double>>, std::pair<double, int64_t>>> known;
    const auto regions = by_region(cluster_);
    for (const std::vector<uint32_t>& region : regions) {
      std::vector<std::tuple<Kind, double, double>> kinds;
      for (const uint32_t i : region) {
        const plan::DeviceView& device = cluster_.devices()[i];
        kinds.push_back({kind_of(device), device.uplink, device.downlink});
      }
      const uint32_t site = cluster_.devices()[region.front()].site;
      const plan::LinkView& within = cluster_.between(site, site);
      const bool is_new =
          known.emplace(std::move(kinds), std::pair(within.bytes_per_second, within.latency.count())).second;
      if (is_new || cluster_.has_pairs()) raise(comparison_.best_site, rate(on_part(region)));
    }
  }

  const PlannedJob& job_;
  const plan::ClusterView& cluster_;
  mutable plan::ModelCache models_;  // one graph is planned again and again
  Comparison comparison_;
};

}  // namespace

std::vector<StageFacts> stage_facts(const dag::Graph& graph, const plan::Plan& plan) {
  std::vector<StageFacts> facts(plan.stages.size());
  std::vector<std::map<std::string, uint32_t>> counts(plan.stages.size());
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const dag::Op& op = graph.ops()[i];
    if (!computes(op)) continue;
    ++facts[plan.stage_of_op[i]].ops;
    ++counts[plan.stage_of_op[i]][std::string(to_string(op.kind))];
  }
  for (const dag::Initializer& initializer : graph.initializers())
    if (initializer.role == dag::InitializerRole::Parameter)
      facts[plan.stage_of_op[graph.value(initializer.value).producer.index]].parameters +=
          graph.spec(initializer.value).element_count();
  for (size_t s = 0; s < facts.size(); ++s) {
    facts[s].kinds.assign(counts[s].begin(), counts[s].end());
    std::stable_sort(facts[s].kinds.begin(), facts[s].kinds.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
  }
  return facts;
}

std::vector<MemoryPoint> memory_over_time(const plan::Plan& plan, size_t stage) {
  const plan::StagePlan& planned = plan.stages[stage];
  std::vector<MemoryPoint> points = {{Duration{}, planned.persistent}};
  for (const plan::HeldMicrobatches& held : plan.timeline.held[stage]) {
    if (held.at == points.back().at) points.pop_back();
    points.push_back({held.at, planned.persistent + planned.microbatch * held.count});
  }
  return points;
}

Bottleneck bottleneck_of(const PlannedJob& job, const plan::ClusterView& cluster, const plan::Plan& plan) {
  Bottleneck most;
  const auto look = [&](double microbatch_seconds, const auto& name) {
    if (microbatch_seconds * job.microbatches <= most.seconds) return;
    most = {name(), microbatch_seconds * job.microbatches};
  };
  for (size_t s = 0; s < plan.stages.size(); ++s)
    look(seconds(plan.stages[s].forward + plan.stages[s].backward),
         [&] { return "stage " + std::to_string(s + 1) + " on " + device_of(cluster, plan.stages[s]).name; });
  for (const plan::PlannedLink& link : plan.links) {
    const plan::LinkView over = link_of(cluster, plan, link);
    look(static_cast<double>(link.bytes.value) / over.bytes_per_second, [&] {
      return "stage " + std::to_string(link.from_stage + 1) + " to stage " +
             std::to_string(link.to_stage + 1) + " over " + plan::show(over);
    });
  }
  return most;
}

int64_t bytes_over_slowest_link(const PlannedJob& job, const plan::ClusterView& cluster,
                                const plan::Plan& plan) {
  double slowest = 0;
  int64_t bytes = 0;
  for (const plan::PlannedLink& link : plan.links) {
    const double rate = link_of(cluster, plan, link).bytes_per_second;
    const int64_t sent = link.bytes.value * job.microbatches;
    if (slowest == 0 || rate < slowest) {
      slowest = rate;
      bytes = sent;
    } else if (rate == slowest) {
      bytes = std::max(bytes, sent);
    }
  }
  return bytes;
}

Result<Comparison> compare_strategies(const PlannedJob& job, const plan::ClusterView& cluster) {
  return Comparing(job, cluster).run();
}

}  // namespace weft::cli
