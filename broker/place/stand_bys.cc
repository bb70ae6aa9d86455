#include "broker/place/stand_bys.h"

#include <algorithm>

#include "broker/place/stage_state.h"
#include "broker/pool/candidates.h"

namespace weft::broker {

namespace {

// Of one spare, straight from their peers: each sends at the rate, and all come over its one line and through
// its one thread. With more the broker is the better way (bench/recovery.sh).
constexpr size_t kStagesFetchedMax = 2;

// Of the recovery point those of one stage, and what no snapshot holds because it never changes.
std::vector<proto::TensorReference> tensors_of(const CheckpointCommitted& point,
                                               const proto::AssignStage& stage) {
  const StageState state(stage);
  std::set<std::string_view> saved;
  std::vector<proto::TensorReference> tensors;
  for (const auto& tensor : point.tensors) {
    if (!state.has(tensor.key)) continue;
    tensors.push_back(tensor);
    saved.insert(tensor.key.name);
  }
  for (const auto& tensor : stage.tensors)
    if (!saved.contains(tensor.key.name)) tensors.push_back(tensor);
  return tensors;
}

proto::BlobSource source_of(const Peer& peer) {
  return {.peer = peer.id, .addresses = peer.device.addresses, .region = peer.device.region, .tensors = {}};
}

}  // namespace

bool Standing::holds(uint32_t stage, uint64_t of_step) const {
  return complete == of_step && std::find(stages.begin(), stages.end(), stage) != stages.end();
}

const Standing* StandBys::find(const PeerId& peer, proto::JobNumber run) const {
  const auto all = standing_.find(peer);
  if (all == standing_.end()) return nullptr;
  const auto at = all->second.find(run);
  return at == all->second.end() ? nullptr : &at->second;
}

bool StandBys::is_fetching(const PeerId& peer) const {
  const auto all = standing_.find(peer);
  return all != standing_.end() && std::any_of(all->second.begin(), all->second.end(), [](const auto& entry) {
           return entry.second.complete != entry.second.step;
         });
}

// ---- dealing out

// The peers that may stand by for the job.
std::vector<Holder> StandBys::holders_for(const Job& job, const std::map<PeerId, int64_t>& free,
                                          std::vector<PeerId>& ids) const {
  std::vector<Holder> holders;
  for (const auto& [id, left] : free) {
    const Peer& peer = pool_.at(id);
    if (job.losses.excluded.contains(id) || job.excludes(peer.name) || !job.suits(peer)) continue;
    ids.push_back(id);
    holders.push_back({.memory = peer.device.memory.value,
                       .free = left,
                       .fingerprint = peer.device.fingerprint,
                       .owner = owner_of({id, peer.name, peer.device}),
                       .traits = peer.device.traits});
  }
  return holders;
}

void StandBys::update() {
  step_.stand_bys = false;
  std::map<PeerId, int64_t> free;
  for (const auto& [id, peer] : pool_.peers())
    if (peer.connection && peer.is_idle() && !peer.draining && !pool_.is_left_out(peer))
      free[id] = peer.device.memory.value;
  std::map<PeerId, std::set<proto::JobNumber>> wanted;
  for (auto& [number, job] : book_.jobs()) deal(job, free, wanted);
  let_go(wanted);
}

void StandBys::deal(Job& job, std::map<PeerId, int64_t>& free,
                    std::map<PeerId, std::set<proto::JobNumber>>& wanted) {
  phase::Running* at = job.running();
  if (at == nullptr) return;
  at->run->let_copies_go_direct(false);
  const bool serves = at->run->serves();
  if (at->over || !(at->run->training() || serves)) return;
  at->run->let_copies_stay(options_.copies_go_direct && can_replicas_give(*at->crew.plan, pool_));
  if (job.points.stays()) return drop_direct_copies(job);
  std::vector<PeerId> ids;
  const std::vector<Holder> holders = holders_for(job, free, ids);
  if (ids.empty()) return drop_direct_copies(job);
  const PlannedRun& plan = *at->crew.plan;
  std::vector<StageToHold> stages;
  const std::vector<int64_t> memory = at->crew.memory();
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    const proto::DeviceClass device_class = class_of(plan, s);
    stages.push_back({.bytes = at->crew.loaded_bytes[s],
                      .memory = memory[s],
                      .fingerprint = device_class.fingerprint,
                      .owner = plan.stages[s].owner,
                      .traits = device_class.traits});
  }
  const DealtStages dealt = deal_stages(stages, holders, plan.equal_bits_required);
  std::map<uint32_t, PeerId> first;
  for (uint32_t s = 0; s < stages.size(); ++s)
    if (dealt.first[s]) first[s] = ids[*dealt.first[s]];
  std::map<PeerId, size_t> held_by;
  for (const auto& [stage, id] : first) ++held_by[id];
  // With shared slots a stage has no copy of all that its peer needs: the broker has it.
  const bool each_can = options_.copies_go_direct && !serves && !plan.shares_slots() &&
                        first.size() == stages.size() &&
                        std::all_of(held_by.begin(), held_by.end(),
                                    [](const auto& held) { return held.second <= kStagesFetchedMax; }) &&
                        std::all_of(first.begin(), first.end(), [&](const auto& entry) {
                          return pool_.at(plan.stages[entry.first].peer).may_give() &&
                                 pool_.at(entry.second).minor >= proto::kProtocolMinorOfDirectCopies;
                        });
  at->run->let_copies_go_direct(each_can);
  if (!each_can) drop_direct_copies(job);
  if (at->over) return;
  const auto copy = at->run->rounds().copy_to_fetch();
  Point point{copy ? &*copy : job.points.newest(), copy || job.points.is_direct()};
  const CheckpointCommitted as_assigned{.job = job.number(), .step = 0, .tensors = {}};
  if (serves) point = {&as_assigned, false};  // nothing of a served model changes
  if (point.snapshot == nullptr) return;
  for (size_t h = 0; h < ids.size(); ++h) {
    std::vector<uint32_t> held = dealt.by_holder[h];
    // A direct copy leaves its stage once.
    if (point.is_direct) std::erase_if(held, [&](uint32_t s) { return first.at(s) != ids[h]; });
    if (held.empty()) continue;
    for (const uint32_t s : held) free[ids[h]] -= stages[s].bytes;
    wanted[ids[h]].insert(job.number());
    tell(pool_.at(ids[h]), job, held, point);
  }
}

// Of a run that is between two plans the peers of the pool keep what they hold.
void StandBys::let_go(const std::map<PeerId, std::set<proto::JobNumber>>& wanted) {
  for (auto& [id, all] : standing_) {
    const auto is_wanted = wanted.find(id);
    const Peer& peer = pool_.at(id);
    std::erase_if(all, [&, &holder = id](const auto& entry) {
      if (is_wanted != wanted.end() && is_wanted->second.contains(entry.first)) return false;
      const Job* job = book_.find(entry.first);
      const bool between = job != nullptr && job->running() == nullptr && !job->has_ended();
      if (between && (peer.is_idle() || peer.works_on(entry.first))) return false;
      if (peer.is_idle()) pool_.send(holder, proto::StandBy{.run = entry.first});
      return true;
    });
  }
  std::erase_if(standing_, [](const auto& entry) { return entry.second.empty(); });
}

void StandBys::tell(Peer& peer, Job& job, const std::vector<uint32_t>& stages, const Point& point) {
  const PlannedRun& plan = *job.crew()->plan;
  const uint64_t step = point.snapshot->step;
  if (point.is_direct && (peer.minor < proto::kProtocolMinorOfDirectCopies ||
                          std::any_of(stages.begin(), stages.end(),
                                      [&](uint32_t s) { return !pool_.at(plan.stages[s].peer).may_give(); })))
    return;
  Standing& standing = standing_[peer.id][job.number()];
  if (standing.step == step && standing.stages == stages) return;
  // Tensors that it holds of an earlier step are still worth something: most of the way is done.
  if (standing.stages != stages) standing.complete.reset();
  standing.step = step;
  standing.stages = stages;
  standing.list = ++lists_;
  standing.is_direct = point.is_direct;
  proto::StandBy message{.run = job.number(),
                         .step = step,
                         .tensors = {},
                         .rate = options_.run.copy_rate,
                         .sources = {},
                         .list = standing.list};
  std::set<Digest> in_point;
  std::set<dag::StateKey> listed;  // stages of two replicas have some in common
  if (point.is_direct)
    for (const auto& tensor : point.snapshot->tensors) in_point.insert(tensor.sha256);
  for (const uint32_t s : stages) {
    proto::BlobSource source = source_of(pool_.at(plan.stages[s].peer));
    for (auto& tensor : tensors_of(*point.snapshot, *plan.stages[s].assignment)) {
      if (!listed.insert(tensor.key).second) continue;
      if (in_point.contains(tensor.sha256))
        source.tensors.push_back(static_cast<uint32_t>(message.tensors.size()));
      message.tensors.push_back(std::move(tensor));
    }
    if (!source.tensors.empty()) message.sources.push_back(std::move(source));
  }
  pool_.send(peer.id, std::move(message));
}

void StandBys::on_standing_by(Peer& peer, const proto::StandingBy& message) {
  const auto all = standing_.find(peer.id);
  if (all == standing_.end()) return;
  const auto known = all->second.find(message.run);
  if (known == all->second.end()) return;
  Standing& standing = known->second;
  const bool is_old = peer.minor < proto::kProtocolMinorOfDirectCopies;  // it does not say of which list
  if (is_old ? message.step > standing.step : message.list != standing.list) return;
  if (!message.failure) standing.complete = message.step;
  Job* job = book_.find(message.run);
  phase::Running* at = job != nullptr ? job->running() : nullptr;
  if (at == nullptr || at->over || is_old) return;
  if (message.failure) {
    step_.log("warning stand_by_failed job=" + job->text() + " peer=" + peer.name + " reason=\"" +
              message.failure->message + "\"");
    const Error why{message.failure->code, "peer " + peer.name + ": " + message.failure->message};
    if (standing.is_direct)
      (void)runs_.tell(*job, [&](Run& run, Instant now) { return run.give_up_direct(now, why); });
    return;
  }
  if (!standing.is_direct) return;
  const std::vector<uint32_t> stages = standing.stages;
  (void)runs_.tell(*job, [&](Run& run, Instant now) {
    RunEffects effects;
    for (const uint32_t stage : stages)
      for (RunEffect& effect : run.on_fetched(now, stage, message.step)) effects.push_back(std::move(effect));
    return effects;
  });
}

void StandBys::drop_direct_copies(Job& job) {
  (void)runs_.tell(job, [](Run& run, Instant now) { return run.drop_direct(now); });
}

// ---- copies that peers have and the broker has not

void StandBys::find_holders(Job& job) {
  const phase::Running& at = *job.running();
  const auto holders_of = [&](uint32_t stage, uint64_t step) {
    std::vector<PeerId> holders;
    if (at.crew.stages[stage].left_out) return holders;
    if (at.run->followers().has(stage) && !at.run->followers().have_part(step)) return holders;
    const PeerId& own = at.crew.plan->stages[stage].peer;
    for (const auto& [id, peer] : pool_.peers()) {
      if (!peer.connection || peer.device_lost) continue;
      const Standing* standing = find(id, job.number());
      const bool stands_by = peer.is_idle() && standing != nullptr && standing->holds(stage, step);
      if (id == own || stands_by) holders.push_back(id);
    }
    return holders;
  };
  auto newest = at.run->rounds().newest_copy(
      at.run->sure_step(), [&](uint32_t stage, uint64_t step) { return !holders_of(stage, step).empty(); });
  const CheckpointCommitted* point = job.points.newest();
  if (newest && (point == nullptr || newest->step > point->step)) {
    step_.log("info copy_is_with_peers job=" + job.text() + " step=" + std::to_string(newest->step));
    job.points.commit_round(std::move(*newest), /*direct=*/true);
  }
  job.points.holders.clear();
  if (!job.points.is_direct()) return;
  const CheckpointCommitted& round = *job.points.newest();
  for (uint32_t s = 0; s < at.crew.plan->stages.size(); ++s) {
    const std::vector<PeerId> holders = holders_of(s, round.step);
    const proto::AssignStage stage = at.run->absence().taking_over(*at.crew.plan->stages[s].assignment);
    const StageState state(stage);
    for (const auto& tensor : round.tensors)
      if (state.has(tensor.key))
        for (const PeerId& holder : holders) job.points.holders[tensor.sha256].insert(holder);
  }
}

StandBys::Left StandBys::lose_holders(Job& job) {
  if (!job.points.is_direct()) return Left::All;
  for (auto& [sha256, holders] : job.points.holders)
    std::erase_if(holders,
                  [&](const PeerId& id) { return !pool_.at(id).connection || pool_.at(id).device_lost; });
  std::set<Digest> lost;
  for (const auto& tensor : job.points.newest()->tensors)
    if (const auto at = job.points.holders.find(tensor.sha256);
        at == job.points.holders.end() || at->second.empty())
      lost.insert(tensor.sha256);
  if (lost.empty()) return Left::All;
  if (job.points.inherit(lost)) {
    step_.log("info state_inherited job=" + job.text() + " step=" + std::to_string(job.points.steps_made()) +
              " tensors=" + std::to_string(lost.size()));
    if (const std::string what = job.points.describe_heirs(); !what.empty()) book_.notice(job, what);
    return Left::Inherited;
  }
  step_.transient = true;
  job.points.drop_round();
  return Left::Nothing;
}

// Rather one that keeps it for the plan; of several the one that gives least until now.
std::optional<PeerId> StandBys::giver_of(const std::set<PeerId>& holders, const PlannedRun& plan,
                                         const std::map<PeerId, int64_t>& given) const {
  std::optional<PeerId> best;
  const auto rank = [&](const PeerId& id) {
    const bool is_told = std::any_of(plan.stages.begin(), plan.stages.end(),
                                     [&](const PlannedStage& stage) { return stage.peer == id; });
    const auto bytes = given.find(id);
    return std::pair(!is_told, bytes != given.end() ? bytes->second : 0);
  };
  for (const PeerId& id : holders)
    if (pool_.at(id).may_give() && (!best || rank(id) < rank(*best))) best = id;
  return best;
}

std::optional<std::vector<StateSources>> StandBys::find_sources(const Job& job) const {
  const PlannedRun& plan = *job.crew()->plan;
  std::vector<StateSources> found(plan.stages.size());
  if (!job.points.is_direct()) return found;
  std::map<PeerId, std::vector<Digest>> lends;
  std::map<PeerId, int64_t> given;  // bytes
  for (size_t s = 0; s < found.size(); ++s) {
    const std::vector<proto::TensorReference>& tensors = plan.stages[s].assignment->tensors;
    const Peer& taker = pool_.at(plan.stages[s].peer);
    std::map<PeerId, proto::BlobSource> sources;
    std::set<Digest> fetched;  // one that several tensors name is fetched once
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const Digest& sha256 = tensors[t].sha256;
      const auto held = job.points.holders.find(sha256);
      if (held == job.points.holders.end() || held->second.contains(taker.id)) continue;
      const auto giver = giver_of(held->second, plan, given);
      if (!giver || taker.minor < proto::kProtocolMinorOfDirectCopies) return std::nullopt;
      sources.try_emplace(*giver, source_of(pool_.at(*giver))).first->second.tensors.push_back(t);
      if (!fetched.insert(sha256).second) continue;
      lends[*giver].push_back(sha256);
      given[*giver] += tensors[t].spec.bytes().value;
    }
    for (auto& [id, source] : sources) found[s].sources.push_back(std::move(source));
  }
  for (size_t s = 0; s < found.size(); ++s)
    if (const auto lent = lends.find(plan.stages[s].peer); lent != lends.end()) found[s].lends = lent->second;
  return found;
}

void StandBys::keep_transient() {
  step_.transient = false;
  KeepTransient keep;
  for (const auto& [number, job] : book_.jobs()) {
    job.points.add_transient(keep.blobs);
    const phase::Running* at = job.running();
    if (at == nullptr) continue;
    at->run->rounds().under_way().add_reported(keep.blobs);
    if (const auto since = at->run->rounds().under_way().uploading_since())
      keep.young = std::max(keep.young, step_.now.monotonic - *since);
  }
  keep.young += std::chrono::seconds(5);  // what is written while this is on its way to the disk
  step_.effect(std::move(keep));
}

}  // namespace weft::broker
