// What a run of replicas with local steps is in these tests: a case, its job and model, and one executor that
// computes the replicas in turn, to compare seats with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "base/rng.h"
#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/split.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/machine/stage.h"
#include "peer/service/encoding.h"
#include "peer/service/inbox.h"
#include "peer/service/stage_runner.h"
#include "replicas/fragments.h"
#include "replicas/parts.h"
#include "tests/pipeline/layers.h"
#include "tests/support/cuts.h"
#include "tests/support/models.h"
#include "train/replicas_in_turn.h"

namespace weft {

using dag::Graph;
using dag::Tensor;
using peer::MicrobatchKey;
using peer::Task;
using peer::TaskKind;
using plan::Seat;
using State = std::map<dag::StateKey, Tensor>;

inline constexpr uint32_t kMicrobatches = 2, kMicrobatchSize = 4;

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}
inline void ok_or_fail(const Status& status) { ASSERT_TRUE(status.has_value()) << status.error().message; }

struct Case {
  std::string model;
  uint32_t replicas = 2;
  uint64_t every = 3, steps = 12;
  std::string codec = "dense";
  replicas::OuterType outer = replicas::OuterType::Nesterov;
  double clip_norm = 0;
  std::vector<uint64_t> shares{};
  uint64_t settle_every = 1;
  bool coded_slots = false;
  std::vector<uint32_t> followers{};
  uint32_t fragments = 1;
};
inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << ", " << c.replicas << " replicas every " << c.every << " of " << c.steps << ", "
             << c.codec << ", clip " << c.clip_norm << (c.shares.empty() ? "" : ", shares")
             << ", settle every " << c.settle_every << (c.coded_slots ? ", slots in eight bits" : "")
             << (c.followers.empty() ? "" : ", followers") << ", " << c.fragments << " fragments";
}

inline configs::Job job_of(const Case& of) {
  configs::Job job;
  job.seed = 7;
  job.microbatch_size = kMicrobatchSize;
  job.batch_size = kMicrobatches * kMicrobatchSize;
  job.optimizer.type = dag::OptimizerType::AdamW;
  job.optimizer.learning_rate = 0.01;
  job.optimizer.weight_decay = 0.01;
  if (of.coded_slots) job.optimizer.slots = dag::SlotType::Int8;
  job.schedule = {dag::ScheduleType::Cosine, 2, 0.1};
  job.clip_norm = of.clip_norm;
  job.replicas = {.count = of.replicas, .every = of.every, .codec = compress::parse(of.codec).value()};
  job.replicas.outer.type = of.outer;
  job.replicas.shares = of.shares;
  job.replicas.settle_every = of.settle_every;
  job.replicas.followers = of.followers;
  job.replicas.fragments = of.fragments;
  return job;
}

// A model of a case. "wide": two layers of a tensor that is long enough to be agreed about in parts each.
inline test::Model model_of(const std::string& name) {
  if (name == "residual") return test::residual_net(3, {.batch = kMicrobatchSize});
  if (name == "transformer") return test::transformer(3, {.batch = kMicrobatchSize});
  return test::layers(kMicrobatchSize, {260, 516, 260, 10}, 0.05);
}

// A case, and all that does not depend on who computes it.
struct World {
  explicit World(const Case& param)
      : of(param),
        job(job_of(param)),
        backend(value_or_fail(peer::make_cpu_backend({.threads = 1}))),
        model(model_of(param.model)),
        whole(dag::lower(
            value_or_fail(dag::differentiate(model.graph, dag::op_table())), dag::op_table(),
            {.fuse_elementwise = true, .convolution_layout = backend->traits().convolution_layout})) {
    for (const dag::StateKey& key : trained_state(whole, job.optimizer))
      if (is_weight(key.slot)) weights.push_back(key.name);
  }

  size_t elements(const std::string& weight) const {
    return static_cast<size_t>(whole.spec(whole.find_initializer(weight)->value).element_count());
  }
  // Samples of a step of the run, the same whoever takes them.
  std::map<std::string, Tensor> data(uint64_t step, uint32_t microbatch) const {
    std::map<std::string, Tensor> data;
    for (const dag::ValueId input : whole.inputs()) {
      const std::string& name = whole.value(input).name;
      const Tensor& sample = model.inputs.at(name);
      data[name] = is_float(sample.dtype()) ? test::random_tensor(step, microbatch, sample.shape()) : sample;
    }
    return data;
  }

  const Case of;
  const configs::Job job;
  std::unique_ptr<peer::Backend> backend;
  const test::Model model;
  const Graph whole;
  std::vector<std::string> weights;  // trained ones and statistics, in their order
};

// `record`: of the first rounds, after which it ends; empty: all of the run's.
inline State in_turn(const World& world, const std::vector<replicas::OuterRound>& record = {}) {
  const configs::Job& job = world.job;
  const Graph& whole = world.whole;
  auto state = std::make_shared<peer::State>(*world.backend);
  auto executor = value_or_fail(peer::Executor::create(std::make_shared<const Graph>(whole), state,
                                                       {.accumulates = true, .optimizer = job.optimizer}));
  for (const auto& initializer : whole.initializers())
    ok_or_fail(state->write(weight_key(initializer), world.model.weights.at(initializer.name)));
  const auto turns = value_or_fail(train::ReplicasInTurn::create(job, trained_state(whole, job.optimizer),
                                                                 state, {world.of.steps, record}));
  const auto microbatch = value_or_fail(executor->make_microbatch());
  const uint64_t last = record.empty() ? world.of.steps : record.back().steps_after();
  for (uint64_t step = 1; step <= last; ++step) {
    const train::StepPlace place = value_or_fail(turns->before(step));
    for (uint32_t m = 0; m < kMicrobatches; ++m) {
      microbatch->turn = dag::gradient_turn(m, kMicrobatches, 1);
      microbatch->context = {job.seed, place.step, m * kMicrobatchSize, kMicrobatchSize};
      for (const auto& [name, tensor] : world.data(place.step, m))
        ok_or_fail(executor->set_input(*microbatch, name, tensor));
      ok_or_fail(executor->run(*microbatch));
    }
    double sum = 0;
    for (const double square : value_or_fail(executor->gradient_squares())) sum += square;
    const double norm = std::sqrt(sum) / kMicrobatches;
    ok_or_fail(
        executor->update({.step = place.update,
                          .learning_rate = dag::scheduled_learning_rate(
                              job.schedule, job.optimizer.learning_rate, place.scheduled, world.of.steps),
                          .gradient_scale = dag::clip_factor(job.clip_norm, norm) / kMicrobatches}));
    const auto agreed = value_or_fail(turns->after(step, true, false));
    EXPECT_EQ(agreed ? agreed->not_finite : "", "");
  }
  return turns->tensors();
}

}  // namespace weft
