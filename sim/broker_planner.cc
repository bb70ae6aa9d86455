#include "sim/broker_planner.h"

#include <algorithm>
#include <cstdlib>

#include "broker/place/pace.h"

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The submitted weights as blobs, made anew where they were collected.
Status BrokerPlanner::make_initial_values(const broker::PlannedRun& run, const JobSpec& spec) {
  for (const auto& stage : run.stages)
    for (const auto& tensor : stage.assignment->tensors)
      if (!blobs_.has(tensor.sha256) && tensor.sha256 == digest_of(initial_value(spec.seed, tensor.key.name)))
        if (!blobs_.put(tensor.sha256, tensor.spec.bytes().value, true, world_.now()))
          return fail(ErrorCode::Infeasible, "the disk is full");
  return {};
}

void BrokerPlanner::plan(broker::StartPlanning request, Done done) {
  const uint32_t index = static_cast<uint32_t>(std::strtoul(request.submission->job.c_str(), nullptr, 10));
  const Duration time = request.previous && !request.placed.empty()
                            ? draw_.between(milliseconds(1), milliseconds(10))
                            : draw_.doubling(milliseconds(20), seconds(2));
  free_ = std::max(free_, world_.now()) + time;
  world_.at(free_, [this, life = life_, index, secret = draw_.next(), request = std::move(request),
                    done = std::move(done)] {
    if (life != life_) return;
    auto planned = options_.by_pace ? plan_by_pace(specs_[index], request, secret, options_.copy_rate)
                                    : plan_run(specs_[index], request, secret, options_.copy_rate);
    if (planned)
      if (const Status made = make_initial_values(**planned, specs_[index]); !made)
        planned = fail(made.error());
    world_.note(What::Planned, request.job, request.plan_version, planned.has_value());
    done(broker::PlanningDone{request.job, request.plan_version, std::move(planned)});
  });
}

void BrokerPlanner::reconsider(broker::Reconsider request, Done done) {
  const uint32_t index =
      static_cast<uint32_t>(std::strtoul(request.request.submission->job.c_str(), nullptr, 10));
  free_ = std::max(free_, world_.now()) + draw_.doubling(milliseconds(20), seconds(2));
  const uint64_t turn = draw_.next(), secret = draw_.next();
  world_.at(free_,
            [this, life = life_, index, turn, secret, request = std::move(request), done = std::move(done)] {
              if (life != life_) return;
              done(broker::Reconsidered{request.request.job, request.request.plan_version,
                                        compare(index, request, turn, secret)});
            });
}

Result<broker::Reconsidered::Other> BrokerPlanner::compare(uint32_t index, const broker::Reconsider& request,
                                                           uint64_t turn, uint64_t secret) const {
  const uint64_t rate = options_.copy_rate;
  if (options_.by_pace) {
    WEFT_TRY(const auto other, plan_by_pace(specs_[index], request.request, secret, rate));
    return compare_runs(request, *other);
  }
  // Others than now, if there are any.
  WEFT_TRY(const auto other, plan_run(specs_[index], request.request, secret, rate, turn));
  broker::Reconsidered::Other compared{.as_it_is = seconds(2), .as_planned = seconds(2), .peers = {}};
  if (moves_by_chance_ && turn % 3 != 0) compared.as_planned = milliseconds(20);
  if (other->local_steps) compared.replicas = other->local_steps->terms.count;
  for (const auto& stage : other->stages) compared.peers.push_back(stage.peer);
  return compared;
}

}  // namespace weft::sim
