#include "sim/plans.h"

#include <algorithm>
#include <functional>
#include <set>

#include "broker/place/pace.h"
#include "broker/run/local_plan.h"
#include "dag/state.h"
#include "plan/places.h"
#include "replicas/fragments.h"

namespace weft::sim {

namespace {

proto::Secret secret_of(uint64_t draw) {
  proto::Secret secret;
  for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(mix(draw, i));
  return secret;
}

broker::DrawSecret secrets(uint64_t seed) {
  return [seed, drawn = uint64_t{0}]() mutable { return secret_of(mix(seed, drawn++)); };
}

dag::OptimizerSpec optimizer_of(const JobSpec& job) {
  dag::OptimizerSpec optimizer;
  optimizer.type = job.slots == 2 ? dag::OptimizerType::AdamW : dag::OptimizerType::Sgd;
  optimizer.learning_rate = 0.125;
  if (job.slots == 1) optimizer.momentum = 0.5;
  return optimizer;
}

// `local`: of a job with replicas.
broker::JobTerms terms_of(const JobSpec& job, const ModelGraphs& graphs,
                          const broker::JobTerms::Initial& initial,
                          const std::optional<replicas::LocalSteps>& local = {}) {
  broker::JobTerms terms;
  terms.run.training = {{.seed = job.seed,
                         .batch_size = job.microbatches * job.microbatch_size,
                         .microbatch_size = job.microbatch_size,
                         .optimizer = optimizer_of(job),
                         .schedule = {},
                         .clip_norm = job.clip_norm,
                         .gradient_ranges = job.ranges},
                        job.predicts ? 0 : job.steps};
  if (job.has_replicas()) {
    terms.run.local_steps = local;
    terms.run.replicas_max = job.replicas_max;
    terms.run.training.steps = last_inner_step(*local);
  }
  terms.run.borders = {job.evaluate_every, {job.checkpoint_every, job.checkpoint_steps}};
  for (const auto& [kind, program] : graphs.programs)
    terms.programs[kind] = {program.graph.get(), uint64_t{job.forward_microbatches} * job.microbatch_size};
  terms.initial = &initial;
  return terms;
}

broker::JobTerms::Initial initial_of(const JobSpec& job, const ModelGraphs& graphs) {
  broker::JobTerms::Initial initial;
  const dag::Graph& graph = *graphs.programs.begin()->second.graph;
  for (const dag::Initializer& initializer : graph.initializers())
    initial[initializer.name] = {weight_key(initializer), graph.spec(initializer.value),
                                 digest_of(initial_value(job.seed, initializer.name))};
  return initial;
}

// Computing one microbatch on a device of the promised speed: matmul flops per second stand for it.
Duration microbatch_time(const JobSpec& job, const ModelGraphs& graphs, uint32_t stage,
                         const broker::Candidate& peer) {
  uint64_t ops = 0;
  for (const broker::StagePiece& piece : graphs.programs.begin()->second.pieces) {
    if (piece.stage != stage) continue;
    const auto hashes = hashes_of(*piece.program.graph);
    for (uint32_t s = 0; s < piece.program.segment_count; ++s) ops += hashes->ops_in(s);
  }
  const double speed = peer.device.rates.matmul_flops_per_second / 1e9;
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(static_cast<double>(ops) * seconds(job.op) / speed));
}

plan::StagePlan stage_plan(const JobSpec& job, uint32_t stage, const broker::StartPlanning& request,
                           uint32_t device) {
  plan::StagePlan planned;
  planned.devices = {device};
  planned.microbatches_in_flight =
      stage == 0 && job.wraps ? job.microbatches : std::min(job.microbatches, job.stages - stage);
  planned.forward = microbatch_time(job, *graphs_of(job), stage, request.candidates[device]);
  return planned;
}

// On which of the candidates: of one kind, as many as there are.
Result<std::vector<uint32_t>> choose(JobSpec& job, const std::vector<broker::Candidate>& candidates,
                                     uint64_t first) {
  std::map<std::string, std::vector<uint32_t>> kinds;
  std::vector<uint32_t> all;
  for (uint32_t c = 0; c < candidates.size(); ++c) {
    all.push_back(static_cast<uint32_t>((c + first) % candidates.size()));
    kinds[candidates[all.back()].device.fingerprint].push_back(all.back());
  }
  std::vector<uint32_t> chosen;
  for (const auto& [fingerprint, group] : kinds)
    if (group.size() > chosen.size()) chosen = group;
  if (!job.any_stages && chosen.size() < job.stages) chosen = all;
  if (job.any_stages) job.stages = std::max(1u, std::min(job.stages, static_cast<uint32_t>(chosen.size())));
  if (chosen.size() < job.stages) return fail(ErrorCode::Infeasible, "there are fewer peers than stages");
  chosen.resize(job.stages);
  return chosen;
}

Result<std::shared_ptr<const broker::PlannedRun>> assemble(const JobSpec& job,
                                                           const broker::StartPlanning& request,
                                                           const std::vector<uint32_t>& placed,
                                                           Duration predicted_min, uint64_t secret,
                                                           uint64_t copy_rate) {
  const auto graphs = graphs_of(job);
  plan::Plan plan;
  plan.explanation = {"simulated"};
  Duration slowest{};
  for (uint32_t s = 0; s < placed.size(); ++s) {
    plan::StagePlan stage = stage_plan(job, s, request, placed[s]);
    slowest = std::max(slowest, stage.forward);
    plan.stages.push_back(std::move(stage));
  }
  plan.predicted_step =
      std::max(predicted_min, std::chrono::milliseconds(1) + slowest * (job.microbatches + job.stages));
  const auto initial = initial_of(job, *graphs);
  const auto terms = terms_of(job, *graphs, initial);
  broker::Assembly assembly(request, terms, plan, copy_rate, secrets(secret));
  for (const auto& [kind, program] : graphs->programs) assembly.add(program.pieces);
  return assembly.finish();
}

// ---- replicas

// As many of them as the job may have and there are peers for, each cut in its own way. Some peers may be
// left over, to stand by, and where replicas come and go there are not always as many as there might be.
Result<std::vector<JobSpec>> deal(const JobSpec& job, size_t candidates, Draw& draw) {
  const auto there = static_cast<uint32_t>(candidates);
  const uint32_t most = std::min(std::max(job.replicas, job.replicas_max), there);
  if (most < job.replicas) return fail(ErrorCode::Infeasible, "there are fewer peers than replicas");
  const uint32_t count = draw.one_in(3) ? static_cast<uint32_t>(draw.between(job.replicas, most)) : most;
  std::vector<JobSpec> dealt(count, job);
  uint32_t left = there - count;
  for (JobSpec& replica : dealt) {
    const uint32_t more = std::min({left, job.stages - 1, static_cast<uint32_t>(draw.below(job.stages))});
    replica.stages = 1 + more;
    replica.wraps = draw.one_in(4) && replica.stages > 1 && job.layers > replica.stages;
    left -= more;
  }
  return dealt;
}

// Of a job that leaves it open each plan would take others, but for what the first one chose.
uint64_t every_of(const JobSpec& job, const broker::StartPlanning& request) {
  if (!job.agreement.leaves_every_open) return job.every;
  return request.chosen.every > 0 ? request.chosen.every : 1 + (job.every + request.plan_version) % 6;
}

std::vector<uint64_t> shares_of(const JobSpec& job, const broker::StartPlanning& request, uint32_t count) {
  if (!job.has_shares) return {};
  if (job.replicas_max == 0 && request.chosen.shares.size() == count) return request.chosen.shares;
  Draw draw(job.seed, count);
  const uint64_t every = every_of(job, request);
  std::vector<uint64_t> shares;
  for (uint32_t replica = 0; replica < count; ++replica)
    shares.push_back(draw.between((every + replicas::kShareRatioMax - 1) / replicas::kShareRatioMax, every));
  shares[draw.below(count)] = every;
  return shares;
}

// Of a run that goes on: each keeps its number where it can, and who has nothing of it may follow.
void put_in_their_places(const broker::StartPlanning& request, std::vector<JobSpec>& dealt,
                         plan::ReplicasPlan& plan, Draw& draw) {
  plan::Groups groups;
  for (const plan::Plan& replica : plan.replicas) {
    plan::Group& group = groups.emplace_back();
    for (const plan::StagePlan& stage : replica.stages) group.push_back(stage.devices.front());
  }
  plan::ReplicasBefore before;
  for (const broker::Candidate& candidate : request.candidates) before.push_back(candidate.replica);
  const std::vector<JobSpec> specs = dealt;
  const std::vector<plan::Plan> replicas = plan.replicas;
  const std::vector<uint32_t> places = plan::places_of(groups, before);
  for (uint32_t replica = 0; replica < places.size(); ++replica) {
    dealt[replica] = specs[places[replica]];
    plan.replicas[replica] = replicas[places[replica]];
  }
  if (!request.may_follow || !plan::are_there(groups[places.front()], before) || draw.one_in(5)) return;
  for (uint32_t replica = 0; replica < places.size(); ++replica)
    if (!plan::are_there(groups[places[replica]], before)) plan.followers.push_back(replica);
}

std::vector<plan::AgreedWeight> agree_about(const JobSpec& job, const std::vector<JobSpec>& dealt,
                                            const std::vector<uint32_t>& followers, Draw& draw) {
  std::vector<uint32_t> owners;
  for (uint32_t replica = 0; replica < dealt.size(); ++replica)
    if (!std::binary_search(followers.begin(), followers.end(), replica)) owners.push_back(replica);
  std::vector<plan::AgreedWeight> agreed;
  const std::vector<uint32_t> fragments = fragments_of(job);
  for (const std::string& name : agreed_names(*graphs_of(job))) {
    plan::AgreedWeight& weight = agreed.emplace_back();
    weight.name = name;
    weight.number = static_cast<uint32_t>(agreed.size() - 1);
    weight.fragment = fragments[weight.number];
    weight.owner = owners[draw.below(owners.size())];
    for (const JobSpec& replica : dealt)
      for (const broker::StagePiece& piece :
           graphs_of(replica)->programs.at(proto::ProgramKind::Train).pieces)
        for (const std::string& trained : dag::trained_parameters(*piece.program.graph))
          if (trained == name) weight.stages.push_back(piece.stage);
  }
  return agreed;
}

// Each on the next of the candidates.
plan::ReplicasPlan plan_each(const std::vector<JobSpec>& dealt, const broker::StartPlanning& request,
                             uint64_t first) {
  plan::ReplicasPlan plan;
  plan.explanation = {"simulated"};
  uint64_t next = first;
  for (const JobSpec& replica : dealt) {
    plan::Plan& own = plan.replicas.emplace_back();
    Duration slowest{};
    for (uint32_t stage = 0; stage < replica.stages; ++stage) {
      const auto device = static_cast<uint32_t>(next++ % request.candidates.size());
      own.stages.push_back(stage_plan(replica, stage, request, device));
      slowest = std::max(slowest, own.stages.back().forward);
    }
    plan.predicted_step =
        std::max(plan.predicted_step,
                 std::chrono::milliseconds(1) + slowest * (replica.microbatches + replica.stages));
  }
  return plan;
}

Result<std::shared_ptr<const broker::PlannedRun>> plan_replicas(const JobSpec& job,
                                                                const broker::StartPlanning& request,
                                                                uint64_t secret, uint64_t copy_rate,
                                                                uint64_t first) {
  Draw draw(secret, 0x6465616c);
  WEFT_TRY(std::vector<JobSpec> dealt, deal(job, request.candidates.size(), draw));
  plan::ReplicasPlan plan = plan_each(dealt, request, first);
  if (job.replicas_max > 0) put_in_their_places(request, dealt, plan, draw);
  plan.agreed = agree_about(job, dealt, plan.followers, draw);
  plan.shares = shares_of(job, request, static_cast<uint32_t>(dealt.size()));
  replicas::LocalSteps local{.terms = replica_terms_of(job), .steps = job.steps};
  local.terms.count = static_cast<uint32_t>(dealt.size());
  local.terms.every = every_of(job, request);
  local.terms.shares = plan.shares;
  local.terms.followers = plan.followers;
  const auto graphs = graphs_of(dealt.front());
  const auto initial = initial_of(job, *graphs);
  const auto terms =
      terms_of(job, *graphs, initial, go_on_from(std::move(local), request.checkpoint, job.replicas_max > 0));
  broker::Assembly assembly(request, terms, plan, copy_rate, secrets(secret));
  for (uint32_t replica = 0; replica < dealt.size(); ++replica)
    for (const auto& [kind, program] : graphs_of(dealt[replica])->programs)
      if (kind == proto::ProgramKind::Train || replica == 0) assembly.add(program.pieces, replica);
  return assembly.finish();
}

// Those that add each step's gradients: as many as there may be and there are peers for, at least one.
Result<std::shared_ptr<const broker::PlannedRun>> plan_exact(const JobSpec& job,
                                                             const broker::StartPlanning& request,
                                                             uint64_t secret, uint64_t copy_rate,
                                                             uint64_t first) {
  Draw draw(secret, 0x65786163);
  JobSpec several = job;
  several.replicas_max = job.ranges;
  WEFT_TRY(const std::vector<JobSpec> dealt, deal(several, request.candidates.size(), draw));
  plan::ReplicasPlan plan = plan_each(dealt, request, first);
  const auto graphs = graphs_of(dealt.front());
  const auto initial = initial_of(job, *graphs);
  broker::JobTerms terms = terms_of(job, *graphs, initial);
  if (dealt.size() > 1) {
    plan.agreed = agree_about(job, dealt, {}, draw);
    plan.ranges.assign(dealt.size(), 1);
    for (size_t left = job.ranges - dealt.size(); left > 0; --left) ++plan.ranges[draw.below(dealt.size())];
    plan.shares_slots = job.shares_slots;
    terms.run.exact_ranges = plan.ranges;
  }
  broker::Assembly assembly(request, terms, plan, copy_rate, secrets(secret));
  for (uint32_t replica = 0; replica < dealt.size(); ++replica)
    for (const auto& [kind, program] : graphs_of(dealt[replica])->programs)
      if (kind == proto::ProgramKind::Train || replica == 0) assembly.add(program.pieces, replica);
  return assembly.finish();
}

}  // namespace

replicas::ReplicaTerms replica_terms_of(const JobSpec& job) {
  replicas::ReplicaTerms terms{.count = job.replicas, .every = job.every};
  if (job.agreement.is_lossy) terms.codec = compress::parse("int8").value();
  terms.settle_every = job.agreement.settle_every;
  terms.fragments = job.agreement.fragments;
  if (job.agreement.averages) terms.outer.type = replicas::OuterType::Average;
  return terms;
}

std::vector<std::string> agreed_names(const ModelGraphs& graphs) {
  std::vector<std::string> names;
  for (const dag::StateKey& key :
       dag::trained_state(*graphs.programs.at(proto::ProgramKind::Train).graph, {}))
    if (is_weight(key.slot)) names.push_back(key.name);
  return names;
}

std::vector<uint32_t> fragments_of(const JobSpec& job) {
  const std::vector<uint64_t> sizes(agreed_names(*graphs_of(job)).size(), 1);
  return replicas::fragments_of(sizes, job.agreement.fragments);
}

Result<std::shared_ptr<const broker::PlannedRun>> plan_run(const JobSpec& spec,
                                                           const broker::StartPlanning& request,
                                                           uint64_t secret, uint64_t copy_rate,
                                                           uint64_t first) {
  if (request.previous && request.placed.size() == request.previous->stages.size()) {
    JobSpec job = spec;
    job.stages = job.has_replicas() || job.is_exact() ? 1 : static_cast<uint32_t>(request.placed.size());
    const auto initial = initial_of(job, *graphs_of(job));
    return broker::place_stages_again(request, &initial, copy_rate, secrets(secret));
  }
  if (spec.has_replicas()) return plan_replicas(spec, request, secret, copy_rate, first);
  if (spec.is_exact()) return plan_exact(spec, request, secret, copy_rate, first);
  JobSpec job = spec;
  WEFT_TRY(const auto placed, choose(job, request.candidates, first));
  return assemble(job, request, placed, Duration{}, secret, copy_rate);
}

Result<std::shared_ptr<const broker::PlannedRun>> plan_by_pace(const JobSpec& job,
                                                               const broker::StartPlanning& request,
                                                               uint64_t secret, uint64_t copy_rate) {
  auto first = plan_run(job, request, secret, copy_rate);
  if (!first || request.previous) return first;
  const broker::Pace pace(**first, request.candidates, request.cluster);
  std::vector<uint32_t> placed, best;
  Duration least = Duration::max();
  // All ways to place them: there are few peers and stages in a scenario that asks for this.
  const std::function<void()> place_next = [&] {
    if (placed.size() == (*first)->stages.size()) {
      if (const Duration step = pace.predicted_step(placed); step < least) {
        least = step;
        best = placed;
      }
      return;
    }
    for (uint32_t candidate = 0; candidate < request.candidates.size(); ++candidate) {
      if (std::find(placed.begin(), placed.end(), candidate) != placed.end()) continue;
      placed.push_back(candidate);
      place_next();
      placed.pop_back();
    }
  };
  place_next();
  JobSpec placed_job = job;
  placed_job.stages = static_cast<uint32_t>(best.size());
  return assemble(placed_job, request, best, least, secret, copy_rate);
}

}  // namespace weft::sim
