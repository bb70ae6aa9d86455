#include "plan/row.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "plan/placement.h"

namespace weft::plan {

std::vector<uint32_t> deal_row(const std::vector<double>& weight_before, const std::vector<double>& shares,
                               uint32_t tail) {
  const auto stages = static_cast<uint32_t>(shares.size());
  WEFT_CHECK(stages >= 1 && stages <= tail && tail < weight_before.size());
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0), total = weight_before.back();
  // By position before the tail, and one more; the tail's weight as if it stood in the first one.
  std::vector<double> before(weight_before.begin(), weight_before.begin() + tail + 1);
  for (size_t p = 1; p < before.size(); ++p) before[p] += total - weight_before[tail];
  std::vector<uint32_t> ends;
  double share = 0;
  for (uint32_t stage = 0, begin = 0; stage < stages; ++stage) {
    share += shares[stage];
    const double wanted = all > 0 ? total * share / all : total * (stage + 1) / stages;
    const auto at = std::lower_bound(before.begin(), before.end(), wanted);
    auto end = static_cast<uint32_t>(std::min<ptrdiff_t>(at - before.begin(), tail));
    if (end > 0 && wanted - before[end - 1] < before[end] - wanted) --end;  // the nearer one
    begin = std::clamp(end, begin + 1, tail - (stages - 1 - stage));
    ends.push_back(begin);
  }
  ends.back() = tail;
  return ends;
}

void respect_memory(const PartitionProblem& problem, std::vector<uint32_t>& ends) {
  const auto stages = static_cast<uint32_t>(ends.size());
  const auto begin = [&](uint32_t stage) { return stage == 0 ? 0 : ends[stage - 1]; };
  for (uint32_t stage = 0; stage + 1 < stages; ++stage) {
    const uint32_t first = problem.first_end(stage, begin(stage));
    ends[stage] = std::max(ends[stage], first);
    while (ends[stage] > first && !problem.fits(begin(stage), ends[stage], stage)) --ends[stage];
  }
  for (uint32_t stage = stages; stage-- > 1;) {
    while (ends[stage - 1] + 1 < ends[stage] && !problem.fits(ends[stage - 1], ends[stage], stage))
      ++ends[stage - 1];
    ends[stage - 1] = std::min(ends[stage - 1], ends[stage] - 1);
  }
}

namespace {

struct Dealt {
  Proposal proposal;
  bool fits = true;
};
Dealt deal_out(const Scope& scope, PartitionProblem problem, const std::vector<uint32_t>& order,
               const Deal& deal) {
  if (scope.tight)
    for (auto& stage : problem.stages) stage.in_flight = 1;
  std::vector<uint32_t> ends = deal(problem);
  respect_memory(problem, ends);
  Dealt dealt{{order, ends, estimate(problem.cost_of(ends), scope.request->microbatches)}};
  for (uint32_t stage = 0; stage < ends.size(); ++stage)
    dealt.fits = dealt.fits && problem.fits(stage == 0 ? 0 : ends[stage - 1], ends[stage], stage);
  return dealt;
}

}  // namespace

std::optional<Proposal> deal_out(const Scope& scope, const std::vector<uint32_t>& order, const Deal& deal) {
  const Model& model = *scope.model;
  if (order.size() > model.positions) return std::nullopt;
  const Dealt row = deal_out(scope, partition_problem(*scope.request, model, order), order, deal);
  if (!model.ring || order.size() < 2) return row.proposal;
  const uint32_t tail = model.ring->tails.front();
  if (order.size() > tail - model.ring->head_end) return row.proposal;
  const Dealt ring = deal_out(scope, ring_problem(*scope.request, model, order, tail), order, deal);
  const bool is_better = ring.proposal.score < row.proposal.score && (ring.fits || !row.fits);
  return is_better ? ring.proposal : row.proposal;
}

}  // namespace weft::plan
