#include "sim/agreement.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "replicas/agreement.h"

namespace weft::sim {

using dag::StateSlot;
using replicas::OuterRound;

// ---- the rules

uint64_t difference_of(uint64_t now, uint64_t begun) { return mix(now, mix(begun)); }

PassedHash pass_through(const compress::Codec& codec, uint64_t draw, uint64_t value, uint64_t residue) {
  if (codec.kind == compress::Kind::Dense) return {value, 0};
  const uint64_t owed = mix(value, residue);
  return {mix(owed, draw), mix(mix(owed, draw), 0x6f7765)};
}

uint64_t draw_of(uint64_t seed, uint64_t steps_before, uint32_t number, uint32_t replica) {
  return mix(mix(seed, steps_before), (uint64_t{number} << 32) | replica);
}

double square_of_difference(uint64_t read, uint64_t steps) {
  const double norm = static_cast<double>(steps) * (1 + static_cast<double>(read % 1024) / 1024);
  return norm * norm;
}

void take_outer_step(const replicas::OuterSpec& outer, uint64_t mean, uint64_t& momentum, uint64_t& agreed) {
  agreed = mix(agreed, mean);
  if (outer.type == replicas::OuterType::Average) return;
  momentum = mix(momentum, mean);
  agreed = mix(agreed, momentum);
}

// ---- a seat

HashAgreement::HashAgreement(std::shared_ptr<const proto::AssignStage> assignment, const Kept& kept, Bug bug)
    : assignment_(std::move(assignment)), bug_(bug), weights_(peer::agreed_weights(*assignment_)) {
  const auto find = [&](const dag::StateKey& weight, StateSlot slot, uint32_t replica) {
    const auto at = kept.find({weight.owner, weight.name, slot, replica});
    return at == kept.end() ? 0 : at->second;
  };
  for (const peer::AgreedWeight& weight : weights_)
    held_.push_back(
        {.agreed = kept.at(weight.key),
         .momentum = bug == Bug::MomentumForgotten ? 0 : find(weight.key, StateSlot::OuterMomentum, 0),
         .residue = find(weight.key, StateSlot::Residue, seat()),
         .return_residue = find(weight.key, StateSlot::ReturnResidue, 0),
         .owes_returns = weight.is_ours});
}

OuterRound HashAgreement::round(uint64_t step) const {
  const OuterRound round = round_of(local(), step);
  return left_out_ ? leave_out(round, left_out_->replicas).round : round;
}

uint32_t HashAgreement::owner_of(size_t index) const {
  const uint32_t planned = weights_[index].tensor->owner;
  return left_out_ ? left_out_->owner_of(planned) : planned;
}

HashAgreement::Sent HashAgreement::packet(size_t index, uint64_t before, bool is_mean, uint32_t to,
                                          const Difference& of) const {
  const peer::AgreedWeight& weight = weights_[index];
  return {.to = {weight.tensor->stages[to], to},
          .packet = {.header = {.run = assignment_->run,
                                .plan_version = assignment_->plan_version,
                                .step = before,
                                .microbatch = 0,
                                .edge = weight.tensor->number,
                                .program = proto::ProgramKind::Agree,
                                .direction = is_mean ? proto::Direction::Backward : proto::Direction::Forward,
                                .replica = static_cast<uint16_t>(seat()),
                                .spec = weight.spec,
                                .codec = weight.codec(*assignment_)},
                     .value = of.value,
                     .square = of.square}};
}

std::vector<HashAgreement::Sent> HashAgreement::differ(const peer::Task& task, Weights& weights) {
  if (task.left_out) left_out_ = task.left_out;
  const OuterRound now = round(task.key.step);
  std::vector<Sent> sent;
  const bool is_again = std::exchange(differed_, task.key.step) == task.key.step;
  if (now.steps[seat()] == 0) return sent;
  if (is_again) return send_again(now.steps_before);
  for (size_t i = 0; i < held_.size(); ++i) {
    Held& held = held_[i];
    const peer::AgreedWeight& weight = weights_[i];
    const uint64_t value = weights.at(weight.key.name);
    const uint64_t difference = difference_of(value, held.start.value_or(held.agreed));
    const uint64_t draw =
        draw_of(assignment_->training.seed, now.steps_before, weight.tensor->number, seat());
    const PassedHash passed = pass_through(weight.codec(*assignment_), draw, difference, held.residue);
    held.residue = passed.residue;
    const Difference read{passed.read, square_of_difference(passed.read, now.steps[seat()])};
    held.read = passed.read;
    if (now.overlaps && !is_late_) weights[weight.key.name] = go_on(held);
    if (owner_of(i) == seat()) {
      held.own = read;
      continue;
    }
    held.sent = read;
    held.sent_to = owner_of(i);
    sent.push_back(packet(i, now.steps_before, false, held.sent_to, read));
  }
  is_late_ = is_late_ || now.overlaps;
  return sent;
}

uint64_t HashAgreement::go_on(Held& held) const {
  uint64_t momentum = held.momentum, start = held.agreed;
  take_outer_step(local().terms.outer, held.read, momentum, start);
  held.start = start;
  return start;
}

std::vector<HashAgreement::Sent> HashAgreement::send_again(uint64_t before) {
  std::vector<Sent> sent;
  for (size_t i = 0; i < held_.size(); ++i) {
    Held& held = held_[i];
    if (!held.sent || held.sent_to == owner_of(i)) continue;
    held.sent_to = owner_of(i);
    if (held.sent_to == seat())
      held.own = std::exchange(held.sent, std::nullopt);
    else
      sent.push_back(packet(i, before, false, held.sent_to, *held.sent));
  }
  return sent;
}

std::optional<replicas::Outlier> HashAgreement::find_outlier(const OuterRound& now,
                                                             const std::vector<HashShare>& differences) {
  std::vector<double> squares(now.steps.size(), 0);
  std::set<uint32_t> ours;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (owner_of(i) != seat()) continue;
    ours.insert(weights_[i].tensor->number);
    if (held_[i].own) squares[seat()] += held_[i].own->square;
  }
  if (ours.empty() || assignment_->local->norm_bound <= 0) return std::nullopt;
  for (const HashShare& one : differences)
    if (ours.contains(one.number) && now.steps[one.replica] > 0) squares[one.replica] += one.square;
  std::vector<std::optional<double>> norms(now.steps.size());
  for (uint32_t replica = 0; replica < norms.size(); ++replica)
    if (now.steps[replica] > 0)
      norms[replica] = std::sqrt(squares[replica]) / static_cast<double>(now.steps[replica]);
  return guard_.look_at(norms, seat(), assignment_->local->norm_bound);
}

// In the order of replicas, whenever they came.
Result<uint64_t> HashAgreement::mean_of(size_t index, const OuterRound& now,
                                        const std::vector<HashShare>& differences) const {
  std::vector<HashShare> added;
  for (const HashShare& one : differences)
    if (one.number == weights_[index].tensor->number && now.steps[one.replica] > 0) added.push_back(one);
  if (held_[index].own) added.push_back({.replica = seat(), .value = held_[index].own->value});
  if (bug_ != Bug::MeanAsItComes)
    std::sort(added.begin(), added.end(),
              [](const HashShare& a, const HashShare& b) { return a.replica < b.replica; });
  const auto wanted =
      std::count_if(now.steps.begin(), now.steps.end(), [](uint64_t steps) { return steps > 0; });
  if (static_cast<ptrdiff_t>(added.size()) != wanted && bug_ != Bug::LeftOutCounts)
    return fail(ErrorCode::Internal,
                "a mean of " + std::to_string(added.size()) + " differences, not " + std::to_string(wanted));
  HashMean mean;
  for (const HashShare& one : added)
    mean.add(one.value, now.steps[one.replica] * assignment_->training.batch_size);
  return mean.take();
}

Result<HashAgreement::Means> HashAgreement::take_means(const peer::Task& task,
                                                       std::vector<HashShare> differences) {
  if (task.left_out) left_out_ = task.left_out;
  const OuterRound now = round(task.key.step);
  differences.insert(differences.end(), kept_.begin(), kept_.end());
  kept_.clear();
  if (const auto outlier = find_outlier(now, differences)) {
    kept_ = std::move(differences);
    return Means{.refused = outlier};
  }
  const OuterRound counted = bug_ == Bug::LeftOutCounts ? round_of(local(), task.key.step) : now;
  Means means;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (owner_of(i) != seat()) continue;
    Held& held = held_[i];
    const uint32_t number = weights_[i].tensor->number;
    if (left_out_) held.return_residue = 0;
    held.owes_returns = true;
    WEFT_TRY(const uint64_t mean, mean_of(i, counted, differences));
    held.own.reset();
    const uint64_t draw = draw_of(assignment_->training.seed, now.steps_before, number, replicas::kOwner);
    const PassedHash passed = pass_through(weights_[i].codec(*assignment_), draw, mean, held.return_residue);
    held.return_residue = passed.residue;
    held.mean = passed.read;
    for (uint32_t replica = 0; replica < now.steps.size(); ++replica)
      if (replica != seat() && !(left_out_ && left_out_->has(replica)))
        means.sent.push_back(packet(i, now.steps_before, true, replica, {passed.read, 0}));
  }
  return means;
}

Result<HashAgreement::Weights> HashAgreement::agree(const peer::Task& task,
                                                    const std::vector<HashShare>& means) {
  if (task.left_out) left_out_ = task.left_out;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> came;
  for (const HashShare& one : means) came[{one.number, one.replica}] = one.value;
  is_late_ = is_late(task) && round(differed_.value()).overlaps;
  Weights agreed;
  for (size_t i = 0; i < held_.size(); ++i) {
    Held& held = held_[i];
    held.sent.reset();
    if (const auto at = came.find({weights_[i].tensor->number, owner_of(i)}); at != came.end())
      held.mean = at->second;
    if (!held.mean) return fail(ErrorCode::Internal, "weights are to be agreed without a mean");
    take_outer_step(local().terms.outer, *held.mean, held.momentum, held.agreed);
    held.mean.reset();
    const std::string& name = weights_[i].key.name;
    if (is_late_) agreed[name] = go_on(held);
    if (is_late(task)) continue;
    held.start.reset();
    agreed[name] = held.agreed;
  }
  return agreed;
}

std::vector<HashAgreement::Named> HashAgreement::tensors() const {
  std::vector<Named> named;
  for (size_t i = 0; i < held_.size(); ++i) {
    const Held& held = held_[i];
    const auto put = [&](StateSlot slot, uint32_t replica, uint64_t value) {
      named.push_back(
          {{weights_[i].key.owner, weights_[i].key.name, slot, replica}, weights_[i].spec, value});
    };
    if (local().terms.outer.type == replicas::OuterType::Nesterov)
      put(StateSlot::OuterMomentum, 0, held.momentum);
    if (local().terms.codec.kind == compress::Kind::Dense) continue;
    put(StateSlot::Residue, seat(), held.residue);
    if (held.owes_returns) put(StateSlot::ReturnResidue, 0, held.return_residue);
  }
  return named;
}

}  // namespace weft::sim
