#include "train/replicas_in_turn.h"

#include <algorithm>
#include <utility>

#include "replicas/fragments.h"
#include "replicas/parts.h"

namespace weft::train {

using dag::StateKey;
using dag::StateSlot;
using dag::Tensor;
using replicas::OuterRound;

namespace {

StateKey key_of(const StateKey& weight, StateSlot slot, uint32_t replica = 0) {
  return {.owner = weight.owner, .name = weight.name, .slot = slot, .replica = replica};
}

Tensor tensor_of(const dag::TensorSpec& spec, const std::vector<float>& values) {
  return Tensor(spec, std::as_bytes(std::span(values)));
}

// Finds tensors of a checkpoint by what they are of.
class Kept {
 public:
  explicit Kept(const storage::CheckpointTensors& tensors) : tensors_(tensors) {}

  Result<Tensor> need(const StateKey& key, const dag::TensorSpec& spec) const {
    const auto at = tensors_.find(key);
    if (at == tensors_.end() || at->second.spec() != spec)
      return fail(ErrorCode::InvalidArgument, "the checkpoint holds no '" + to_string(key) + "' of " +
                                                  dag::to_string(spec) +
                                                  ": it is of another job or optimizer");
    return at->second;
  }
  // What was never written is zero.
  Status take(const StateKey& key, const dag::TensorSpec& spec, std::vector<float>& values) const {
    if (values.empty() || !tensors_.contains(key)) return {};
    WEFT_TRY(const Tensor tensor, need(key, spec));
    const auto kept = tensor.as<float>();
    values.assign(kept.begin(), kept.end());
    return {};
  }
  // As peers write what is owed of a mean (replicas/parts.h). Who was left out took some parts along.
  Status take_parts(StateKey key, const std::vector<replicas::Part>& parts,
                    std::vector<float>& values) const {
    for (const replicas::Part& part : parts) {
      ++key.replica;
      if (values.empty() || parts.size() == 1 || !tensors_.contains(key)) continue;
      WEFT_TRY(const Tensor tensor, need(key, {dag::DType::F32, {static_cast<int64_t>(part.count)}}));
      std::ranges::copy(tensor.as<float>(), values.begin() + static_cast<ptrdiff_t>(part.first));
    }
    return {};
  }

 private:
  const storage::CheckpointTensors& tensors_;
};

}  // namespace

std::string describe_other_replicas(size_t then, size_t now) {
  return "the checkpoint has the optimizer's state of " + std::to_string(then) +
         (then == 1 ? " replica" : " replicas") + ", and the job has " + std::to_string(now) +
         (now > then ? ": further ones go on with that of the first, and owe nothing"
                     : ": that of others, and what they owed, is left out");
}

std::string describe_replicas(const replicas::ReplicaTerms& terms) {
  std::string text = std::to_string(terms.count) +
                     (terms.count == 1 ? " replica agrees" : " replicas, one after the other, agree") +
                     " whenever each has made " + std::to_string(terms.every) + " steps";
  if (terms.fragments > 1)
    text += ", about one of " + std::to_string(terms.fragments) + " parts of the model in turn";
  if (terms.overlap())
    text += "; all take that a round later, but for every " + std::to_string(terms.settle_every) + " rounds";
  return text;
}

Result<std::unique_ptr<ReplicasInTurn>> ReplicasInTurn::create(const configs::Job& job,
                                                               const std::vector<StateKey>& trained_state,
                                                               std::shared_ptr<peer::State> state,
                                                               Options options) {
  std::unique_ptr<ReplicasInTurn> made(new ReplicasInTurn(job, std::move(state), std::move(options)));
  WEFT_TRY_STATUS(made->begin(trained_state));
  return made;
}

Status ReplicasInTurn::begin(const std::vector<StateKey>& trained_state) {
  Own own;
  for (const StateKey& key : trained_state) {
    if (!is_weight(key.slot)) {  // of a replica alone, whatever they are kept as
      slots_.push_back(key);
      WEFT_TRY(Tensor slot, state_->read(key));
      own.slots.push_back(std::move(slot));
      continue;
    }
    WEFT_TRY(Tensor tensor, read_float(key));
    const auto count = static_cast<size_t>(tensor.element_count());
    const bool is_statistic = key.slot == StateSlot::RunningStatistic;
    const bool has_momentum = !is_statistic && job_.replicas.outer.type == replicas::OuterType::Nesterov;
    const size_t owed = !is_statistic && owes() ? count : 0;
    shared_.push_back({.key = key,
                       .agreed = std::move(tensor),
                       .is_statistic = is_statistic,
                       .mean = replicas::Mean(count),
                       .momentum = std::vector<float>(has_momentum ? count : 0),
                       .return_residue = std::vector<float>(owed)});
    own.residues.emplace_back(owed);
  }
  std::vector<uint64_t> elements;
  for (const Shared& shared : shared_)
    elements.push_back(static_cast<uint64_t>(shared.agreed.element_count()));
  const std::vector<uint32_t> fragments = replicas::fragments_of(elements, job_.replicas.fragments);
  for (size_t i = 0; i < shared_.size(); ++i) shared_[i].fragment = fragments[i];
  own.starts.resize(shared_.size());
  own.differences.resize(shared_.size());
  own.now.resize(shared_.size());
  own.steps.resize(job_.replicas.fragments);
  own_.assign(job_.replicas.count, own);
  updates_.assign(job_.replicas.count, 0);
  return {};
}

Result<Tensor> ReplicasInTurn::read_float(const StateKey& key) const {
  WEFT_TRY(Tensor tensor, state_->read(key));
  if (tensor.dtype() != dag::DType::F32)
    return fail(job_.error(ErrorCode::Unsupported, "sync",
                           "'" + to_string(key) + "' is " + dag::to_string(tensor.spec()) +
                               ", and replicas agree about float32 alone"));
  return tensor;
}

Result<std::string> ReplicasInTurn::resume(const storage::Checkpoint& checkpoint) {
  const Kept kept(checkpoint.tensors);
  size_t all = 0;
  for (const Shared& shared : shared_) all += static_cast<size_t>(shared.agreed.element_count());
  for (Shared& shared : shared_) {
    const dag::TensorSpec spec = shared.agreed.spec();
    WEFT_TRY(const Tensor agreed, kept.need(shared.key, spec));
    shared.agreed = Tensor(spec, agreed.bytes());  // ours alone: it is written in place
    WEFT_TRY_STATUS(kept.take(key_of(shared.key, StateSlot::OuterMomentum), spec, shared.momentum));
    const StateKey returned = key_of(shared.key, StateSlot::ReturnResidue);
    WEFT_TRY_STATUS(kept.take(returned, spec, shared.return_residue));
    const auto parts = replicas::parts_of(static_cast<size_t>(spec.element_count()), all);
    WEFT_TRY_STATUS(kept.take_parts(returned, parts, shared.return_residue));
  }
  const size_t then = std::max<size_t>(checkpoint.replica_updates.size(), 1), now = own_.size();
  become(job_.may_grow() ? then : std::min(then, now));
  for (uint32_t replica = 0; replica < own_.size(); ++replica) {
    Own& own = own_[replica];
    for (size_t i = 0; i < slots_.size(); ++i) {
      WEFT_TRY(own.slots[i], kept.need(key_of(slots_[i], slots_[i].slot, replica), own.slots[i].spec()));
    }
    for (size_t i = 0; i < shared_.size(); ++i)
      WEFT_TRY_STATUS(kept.take(key_of(shared_[i].key, StateSlot::Residue, replica), shared_[i].agreed.spec(),
                                own.residues[i]));
    updates_[replica] = checkpoint.replica_updates.empty() ? checkpoint.step - checkpoint.skipped_steps
                                                           : checkpoint.replica_updates[replica];
  }
  if (job_.may_grow() || then == now) return std::string();
  become(now);
  return describe_other_replicas(then, now);
}

void ReplicasInTurn::inherit(const replicas::Inherited& inherited) {
  const std::vector<Own> before = own_;
  const std::vector<uint64_t> updates = updates_;
  for (uint32_t replica = 0; replica < std::min(own_.size(), inherited.sets.size()); ++replica) {
    const uint32_t set = inherited.sets[replica];
    if (set >= before.size()) continue;
    own_[replica].slots = before[set].slots;
    updates_[replica] = updates[set];
  }
  for (const uint32_t replica : inherited.debtless) {
    if (replica >= own_.size()) continue;
    for (auto& residue : own_[replica].residues) std::fill(residue.begin(), residue.end(), 0.0F);
  }
  if (!inherited.returns_are_lost) return;
  for (Shared& shared : shared_) std::fill(shared.return_residue.begin(), shared.return_residue.end(), 0.0F);
}

// Those that are new go on with the slots of the first one, and owe nothing.
void ReplicasInTurn::become(size_t replicas) {
  if (replicas <= own_.size()) {
    own_.resize(replicas);
  } else {
    Own first = own_.front();
    for (auto& residue : first.residues) std::fill(residue.begin(), residue.end(), 0.0F);
    own_.resize(replicas, first);
  }
  updates_.resize(replicas, updates_.front());
}

OuterRound ReplicasInTurn::next_round(uint64_t steps_before) {
  for (const OuterRound& round : options_.replayed)
    if (round.steps_before == steps_before) return round;
  OuterRound round = replicas::next_round(job_.replicas, steps_before, options_.steps);
  taken_.give_again(round);
  return round;
}

Result<StepPlace> ReplicasInTurn::before(uint64_t step) {
  if (!is_under_way_) {
    under_way_ = {.round = next_round(step - 1)};
    inherit(under_way_.round.inherited);
    become(under_way_.round.steps.size());
  }
  is_under_way_ = true;
  const replicas::LocalStep place = replicas::locate(under_way_.round, step);
  if (place.index == 0) WEFT_TRY_STATUS(load(own_[place.replica]));
  return StepPlace{.step = replicas::samples_of(under_way_.round, step),
                   .scheduled = place.scheduled,
                   .update = updates_[place.replica] + 1};
}

Status ReplicasInTurn::load(const Own& own) {
  for (size_t i = 0; i < shared_.size(); ++i) {
    const Shared& shared = shared_[i];
    const std::vector<float>& values = own.now[i].empty() ? own.starts[i] : own.now[i];
    WEFT_TRY_STATUS(
        state_->write(shared.key, values.empty() ? shared.agreed : tensor_of(shared.agreed.spec(), values)));
  }
  for (size_t i = 0; i < slots_.size(); ++i) WEFT_TRY_STATUS(state_->write(slots_[i], own.slots[i]));
  return {};
}

bool ReplicasInTurn::ends_round(uint64_t step) const {
  return is_under_way_ && step == under_way_.round.steps_after();
}

Result<std::optional<Agreed>> ReplicasInTurn::after(uint64_t step, bool updates, bool ends) {
  const replicas::LocalStep place = replicas::locate(under_way_.round, step);
  updates_[place.replica] += updates ? 1 : 0;
  if (!place.ends_block && !ends) return std::nullopt;
  WEFT_TRY(under_way_.not_finite, collect(place.replica, place.index + 1));
  const bool is_diverged = !under_way_.not_finite.empty();
  if (!ends && !ends_round(step) && !is_diverged) return std::nullopt;
  under_way_.round = replicas::cut_after(under_way_.round, step);
  if (!is_diverged) {
    WEFT_TRY(under_way_.not_finite, agree());
  }
  is_under_way_ = false;
  return std::optional(std::exchange(under_way_, {}));
}

// The replica's slots go home, and what it has learnt into the means; where a round may be about a part of
// the model, home as well until it has ended, for it may be cut and then be about all. What is not finite, if
// anything.
Result<std::string> ReplicasInTurn::collect(uint32_t replica, uint64_t steps) {
  Own& own = own_[replica];
  for (uint64_t& since : own.steps) since += steps;
  for (size_t i = 0; i < slots_.size(); ++i) {
    WEFT_TRY(own.slots[i], state_->read(slots_[i]));
  }
  for (size_t i = 0; i < shared_.size(); ++i) {
    WEFT_TRY(const Tensor now, read_float(shared_[i].key));
    std::vector<float> values(now.as<float>().begin(), now.as<float>().end());
    if (job_.replicas.fragments > 1) {
      own.now[i] = std::move(values);
    } else if (std::string not_finite = add(i, replica, std::move(values)); !not_finite.empty()) {
      return not_finite;
    }
  }
  return std::string();
}

// Of who has learnt something since the tensor was agreed about, in this round or before it.
std::string ReplicasInTurn::add_kept(size_t i) {
  const std::vector<uint32_t>& absent = under_way_.round.absent;
  for (uint32_t replica = 0; replica < own_.size(); ++replica) {
    Own& own = own_[replica];
    if (own.steps[shared_[i].fragment] == 0 || std::ranges::binary_search(absent, replica)) continue;
    std::string not_finite = add(i, replica, std::exchange(own.now[i], {}));
    if (!not_finite.empty()) return not_finite;
  }
  return std::string();
}

std::string ReplicasInTurn::add(size_t i, uint32_t replica, std::vector<float> values) {
  Shared& shared = shared_[i];
  Own& own = own_[replica];
  if (!shared.is_statistic) {
    const std::span<const float> begun =
        own.starts[i].empty() ? shared.agreed.as<float>() : std::span<const float>(own.starts[i]);
    for (size_t k = 0; k < values.size(); ++k) values[k] -= begun[k];
    const auto draw = replicas::draw_of(job_.seed, under_way_.round.dealt_after(), static_cast<uint32_t>(i),
                                        static_cast<uint16_t>(replica));
    const auto sent = replicas::pass_through(job_.replicas.codec, draw, values, own.residues[i], scratch_);
    if (!sent) return to_string(shared.key) + " of replica " + std::to_string(replica + 1);
    under_way_.sent_bytes += *sent;
  }
  shared.mean.add(values, own.steps[shared.fragment] * job_.batch_size);
  if (under_way_.round.overlaps) own.differences[i] = std::move(values);
  return std::string();
}

// The mean as it is read where it is sent to. What of it is not finite, if anything.
Result<std::string> ReplicasInTurn::pass_mean(size_t i, std::vector<float>& mean) {
  Shared& shared = shared_[i];
  shared.mean.take(mean);
  if (shared.is_statistic) return std::string();
  const auto draw = replicas::draw_of(job_.seed, under_way_.round.dealt_after(), static_cast<uint32_t>(i),
                                      replicas::kOwner);
  const auto returned =
      replicas::pass_through(job_.replicas.codec, draw, mean, shared.return_residue, scratch_);
  if (!returned) return to_string(shared.key) + ", as agreed";
  under_way_.returned_bytes += *returned;
  under_way_.dense_bytes += mean.size() * sizeof(float);
  return std::string();
}

void ReplicasInTurn::take(Shared& shared, const std::vector<float>& mean) const {
  const std::span<float> agreed = shared.agreed.mutable_as<float>();
  if (shared.is_statistic)
    std::ranges::copy(mean, agreed.begin());
  else
    replicas::take_outer_step(job_.replicas.outer, mean, shared.momentum, agreed);
}

// Until the mean of this round is taken. Running statistics are what each replica has seen last.
void ReplicasInTurn::go_on(size_t i) {
  const Shared& shared = shared_[i];
  for (Own& own : own_) {
    std::vector<float>& start = own.starts[i];
    std::vector<float> difference = std::exchange(own.differences[i], {});
    if (difference.empty() || shared.is_statistic) {
      start = std::move(difference);
      continue;
    }
    start.resize(difference.size());
    replicas::look_ahead(job_.replicas.outer, difference, shared.momentum, shared.agreed.as<float>(), start);
  }
}

// What each replica goes on with, once the mean is there that it did not wait for.
void ReplicasInTurn::move_on(size_t i) {
  const Shared& shared = shared_[i];
  for (Own& own : own_) {
    if (!shared.is_statistic && !own.now[i].empty() && !own.starts[i].empty())
      replicas::move_on(own.starts[i], shared.agreed.as<float>(), own.now[i]);
    own.starts[i].clear();
  }
}

// The state has what was agreed when it returns.
Result<std::string> ReplicasInTurn::agree() {
  for (size_t i = 0; i < shared_.size(); ++i) {
    Shared& shared = shared_[i];
    const bool is_about = under_way_.round.is_about(shared.fragment);
    // Each is agreed about from where the replica began.
    if (std::string not_finite = is_about && job_.replicas.fragments > 1 ? add_kept(i) : std::string();
        !not_finite.empty())
      return not_finite;
    if (!shared.overlapped.empty()) {
      take(shared, std::exchange(shared.overlapped, {}));
      if (!is_about) move_on(i);
    }
    if (is_about) {
      std::vector<float> mean(static_cast<size_t>(shared.agreed.element_count()));
      WEFT_TRY(std::string not_finite, pass_mean(i, mean));
      if (!not_finite.empty()) return not_finite;
      if (under_way_.round.overlaps) {
        shared.overlapped = std::move(mean);
        go_on(i);
      } else {
        take(shared, mean);
        for (Own& own : own_) own.starts[i].clear(), own.differences[i].clear(), own.now[i].clear();
      }
    }
    WEFT_TRY_STATUS(state_->write(shared.key, shared.agreed));
  }
  for (Own& own : own_)
    for (uint32_t fragment = 0; fragment < own.steps.size(); ++fragment)
      if (under_way_.round.is_about(fragment)) own.steps[fragment] = 0;
  return std::string();
}

storage::CheckpointTensors ReplicasInTurn::tensors() const {
  storage::CheckpointTensors tensors;
  for (size_t i = 0; i < shared_.size(); ++i) {
    const Shared& shared = shared_[i];
    const dag::TensorSpec& spec = shared.agreed.spec();
    tensors[shared.key] = shared.agreed;
    const auto put = [&](StateSlot slot, uint32_t replica, const std::vector<float>& values) {
      if (!values.empty()) tensors[key_of(shared.key, slot, replica)] = tensor_of(spec, values);
    };
    put(StateSlot::OuterMomentum, 0, shared.momentum);
    put(StateSlot::ReturnResidue, 0, shared.return_residue);
    for (uint32_t replica = 0; replica < own_.size(); ++replica)
      put(StateSlot::Residue, replica, own_[replica].residues[i]);
  }
  for (uint32_t replica = 0; replica < own_.size(); ++replica)
    for (size_t i = 0; i < slots_.size(); ++i)
      tensors[key_of(slots_[i], slots_[i].slot, replica)] = own_[replica].slots[i];
  return tensors;
}

}  // namespace weft::train
