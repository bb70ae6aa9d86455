// What a step and a snapshot of it cost the broker's core, by how many parameters a model has: each report is
// decoded, judged by its stage's assignment and taken by the run, as the broker does. What is quadratic in
// parameters shows as a time for each of them that grows.
// usage: weft_bench_broker_steps [STEPS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/numbers.h"
#include "broker/run/claims.h"
#include "broker/run/run.h"
#include "dag/state.h"
#include "proto/codec/codec.h"
#include "tests/broker/programs.h"

namespace weft::broker {
namespace {

constexpr uint32_t kStages = 4;
using Clock = std::chrono::steady_clock;

// Keeps nothing but what the run sends.
struct Heard {
  size_t sent = 0, snapshots = 0;

  void carry_out(const RunEffects& effects) {
    for (const RunEffect& effect : effects) {
      if (const auto* issued = std::get_if<IssueCommand>(&effect))
        sent += kStages * proto::encode(issued->command).size();
      if (const auto* told = std::get_if<TellStage>(&effect)) sent += proto::encode(told->message).size();
      snapshots += std::holds_alternative<WholeSnapshot>(effect);
    }
  }
};

struct Bench {
  std::shared_ptr<const PlannedRun> plan;
  std::vector<StageClaims> claims;
  std::vector<std::vector<proto::TensorReference>> tensors;  // by stage
};

Bench make(uint32_t parameters, uint64_t steps) {
  Bench bench;
  auto plan = std::make_shared<PlannedRun>();
  plan->training.steps = steps;
  plan->training.batch_size = 32;
  plan->microbatches = 4;
  plan->training.microbatch_size = 8;
  plan->parameter_count = parameters;
  plan->training.clip_norm = 1;
  plan->borders.checkpoint.steps = 1;
  for (uint32_t s = 0; s < kStages; ++s) {
    auto assignment = std::make_shared<proto::AssignStage>();
    std::vector<uint32_t> own;
    for (uint32_t p = s * (parameters / kStages); p < (s + 1) * (parameters / kStages); ++p) {
      Digest digest{};
      for (size_t i = 0; i < 4; ++i) digest.bytes[i] = static_cast<uint8_t>(p >> (8 * i));
      assignment->tensors.push_back({dag::of_initializer("blocks.layer." + std::to_string(p) + ".weight"),
                                     {dag::DType::F32, dag::Shape({64})},
                                     digest});
      own.push_back(p);
    }
    assignment->programs.push_back(test::make_program(
        proto::ProgramKind::Train, {.trained = assignment->tensors, .losses = s + 1 == kStages ? 1u : 0u}));
    bench.claims.emplace_back(*assignment);
    bench.tensors.push_back(assignment->tensors);
    plan->stages.push_back({{.parameters = std::move(own)}, assignment});
  }
  bench.plan = plan;
  return bench;
}

template <typename Report>
Report arrived(const std::vector<std::byte>& bytes) {
  auto message = proto::decode(bytes);
  WEFT_CHECK(message.has_value());
  return std::get<Report>(std::move(*message));
}

struct Cost {
  double step = 0, snapshot = 0;  // seconds
};

Cost measure(uint32_t parameters, uint64_t steps) {
  const Bench bench = make(parameters, steps);
  Run run(1, 1, bench.plan, {}, {});
  Heard heard;
  Instant now = Instant{} + std::chrono::hours(1);
  heard.carry_out(run.start(now));
  Cost cost;
  const auto must = [](const auto& result) {
    if (result) return;
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(1);
  };
  const auto hear = [&](const Result<RunEffects>& effects) {
    must(effects);
    heard.carry_out(*effects);
  };
  for (uint64_t step = 1; step <= steps; ++step) {
    now += std::chrono::milliseconds(33);
    std::vector<std::vector<std::byte>> reports, updates, snapshots;
    for (uint32_t s = 0; s < kStages; ++s) {
      proto::StepReport report{.run = 1, .plan_version = 1, .step = step};
      report.squares.assign(bench.tensors[s].size(), 0.25);
      if (s + 1 == kStages) report.losses.assign(bench.plan->microbatches, 1.0);
      reports.push_back(proto::encode(report));
      report.updated = true;
      report.squares.clear();
      report.losses.clear();
      updates.push_back(proto::encode(report));
      snapshots.push_back(proto::encode(proto::CheckpointReport{
          .run = 1, .plan_version = 1, .step = step, .tensors = bench.tensors[s], .failure = {}}));
    }
    const auto began = Clock::now();
    for (const auto* round : {&reports, &updates})
      for (uint32_t s = 0; s < kStages; ++s) {
        const auto report = arrived<proto::StepReport>((*round)[s]);
        if (round == &reports) must(bench.claims[s].check_losses(report, bench.plan->microbatches));
        hear(run.on_report(now, s, report));
      }
    const auto stepped = Clock::now();
    cost.step += std::chrono::duration<double>(stepped - began).count() / static_cast<double>(steps);
    for (uint32_t s = 0; s < kStages; ++s) {
      const auto report = arrived<proto::CheckpointReport>(snapshots[s]);
      must(bench.claims[s].check(report));
      hear(run.on_report(now, s, report, 0));
    }
    cost.snapshot +=
        std::chrono::duration<double>(Clock::now() - stepped).count() / static_cast<double>(steps);
  }
  WEFT_CHECK(run.committed_step() == steps && heard.snapshots > 0);
  return cost;
}

int main_of(uint64_t steps) {
  std::printf("%10s %12s %12s %16s %20s %22s\n", "parameters", "step us", "snapshot us", "ns a parameter",
              "snapshot ns a par.", "core at 30 steps/s");
  for (const uint32_t parameters : {1'500u, 6'000u, 24'000u}) {
    const Cost cost = measure(parameters, steps);
    std::printf("%10u %12.0f %12.0f %16.1f %20.1f %21.1f%%\n", parameters, 1e6 * cost.step,
                1e6 * cost.snapshot, 1e9 * cost.step / parameters, 1e9 * cost.snapshot / parameters,
                100 * 30 * cost.step);
  }
  return 0;
}

}  // namespace
}  // namespace weft::broker

int main(int argc, char** argv) {
  return weft::broker::main_of(argc > 1 ? std::max(1, weft::bench::number_of<int>(argv[1])) : 100);
}
