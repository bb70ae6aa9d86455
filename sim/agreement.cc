#include "sim/agreement.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "replicas/agreement.h"
#include "replicas/agreements_kept.h"
#include "sim/arithmetic.h"

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

uint64_t move_on(uint64_t now, uint64_t start, uint64_t agreed) { return mix(now, mix(start, agreed)); }

std::vector<float> piece_of(uint64_t value, size_t count) {
  std::vector<float> piece(count, 0.0F);
  piece.at(0) = std::bit_cast<float>(static_cast<uint32_t>(value));
  piece.at(1) = std::bit_cast<float>(static_cast<uint32_t>(value >> 32));
  return piece;
}

namespace {

uint64_t value_of(std::span<const float> piece) {
  return piece.size() < 2 ? 0
                          : std::bit_cast<uint32_t>(piece[0]) |
                                static_cast<uint64_t>(std::bit_cast<uint32_t>(piece[1])) << 32;
}

}  // namespace

Digest hash_of_bytes(std::span<const std::byte> bytes) {
  uint64_t hash = bytes.size();
  for (; !bytes.empty(); bytes = bytes.subspan(std::min<size_t>(8, bytes.size()))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), std::min<size_t>(8, bytes.size()));
    hash = mix(hash, word);
  }
  return digest_of(hash);
}

std::optional<replicas::TakenPiece> take_piece(const replicas::CheckedPiece& piece,
                                               std::span<const std::span<const float>> differences,
                                               const replicas::ShownPiece& owner) {
  HashMean mean;
  for (size_t replica = 0; replica < differences.size(); ++replica)
    if (!differences[replica].empty()) mean.add(value_of(differences[replica]), piece.samples[replica]);
  const PassedHash passed =
      pass_through(piece.codec, draw_of(piece.seed, piece.steps_before, piece.tensor, replicas::kOwner),
                   mean.take(), value_of(owner.owed));
  return replicas::TakenPiece{piece_of(passed.read, piece.range.count),
                              piece_of(passed.residue, piece.range.count)};
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

OuterRound HashAgreement::round(const peer::Task& task) const {
  const OuterRound round = round_of(local(), task.key.step);
  return task.left_out ? leave_out(round, task.left_out->replicas).round : round;
}

HashAgreement::UnderWay& HashAgreement::under_way(const peer::Task& task) {
  const auto at = std::find_if(under_way_.begin(), under_way_.end(),
                               [&](const UnderWay& round) { return round.step == task.key.step; });
  if (at != under_way_.end()) return *at;
  under_way_.push_back(
      {.step = task.key.step, .means = {}, .evidence = replicas::MeanEvidence(&hash_of_bytes)});
  return under_way_.back();
}

uint32_t HashAgreement::owner_of(size_t index, const peer::Task& task) const {
  const uint32_t planned = weights_[index].tensor->owner;
  return task.left_out ? task.left_out->owner_of(planned) : planned;
}

HashAgreement::Sent HashAgreement::packet(size_t index, const peer::Task& task, bool is_mean, uint32_t to,
                                          const Difference& of) const {
  const peer::AgreedWeight& weight = weights_[index];
  return {.to = {weight.tensor->stages[to], to},
          .packet = {.header = {.run = assignment_->run,
                                .plan_version = assignment_->plan_version,
                                .step = round(task).steps_before,
                                .microbatch = task.attempt(),
                                .edge = weight.tensor->number,
                                .program = proto::ProgramKind::Agree,
                                .direction = is_mean ? proto::Direction::Backward : proto::Direction::Forward,
                                .replica = static_cast<uint16_t>(seat()),
                                .spec = weight.spec,
                                .codec = weight.codec(*assignment_)},
                     .value = of.value,
                     .square = of.square}};
}

bool HashAgreement::UnderWay::has_sent() const {
  return std::ranges::any_of(sent, [](const auto& one) { return one.has_value(); });
}

uint64_t HashAgreement::steps_of(size_t index, const peer::Task& task, uint32_t replica) const {
  if (task.left_out && task.left_out->has(replica) && bug_ != Bug::LeftOutCounts) return 0;
  return steps_since(local(), task.key.step, weights_[index].tensor->fragment)[replica];
}

uint32_t HashAgreement::guard_of(const UnderWay& round) const {
  const uint32_t fragments = local().terms.fragments;
  return fragments > 1 ? round.fragment.value_or(fragments) : 0;
}

std::vector<HashAgreement::Sent> HashAgreement::differ(const peer::Task& task, Weights& weights) {
  const OuterRound now = round(task);
  std::vector<Sent> sent;
  UnderWay& here = under_way(task);
  const bool is_again = !here.sent.empty();
  here.sent.resize(held_.size());
  here.fragment = task.settles ? std::nullopt : std::optional(now.fragment);
  here.means.assign(held_.size(), std::nullopt);
  const bool goes_on = !is_again && !task.settles && under_way_.size() == 1;
  for (size_t i = 0; i < held_.size(); ++i) {
    const peer::AgreedWeight& weight = weights_[i];
    const uint64_t steps = steps_of(i, task, seat());
    if (!here.is_about(weight) || here.sent[i] || steps == 0) continue;
    Held& held = held_[i];
    const uint64_t value = weights.at(weight.key.name);
    const uint64_t difference = difference_of(value, held.start.value_or(held.agreed));
    const uint64_t draw =
        draw_of(assignment_->training.seed, now.steps_before, weight.tensor->number, seat());
    const PassedHash passed = pass_through(weight.codec(*assignment_), draw, difference, held.residue);
    held.residue = passed.residue;
    here.sent[i] = {passed.read, square_of_difference(passed.read, steps)};
    if (goes_on) weights[weight.key.name] = go_on(held, passed.read);
  }
  for (size_t i = 0; i < held_.size(); ++i)
    if (here.sent[i] && owner_of(i, task) != seat())
      sent.push_back(packet(i, task, false, owner_of(i, task), *here.sent[i]));
  return sent;
}

uint64_t HashAgreement::go_on(Held& held, uint64_t difference) const {
  uint64_t momentum = held.momentum, start = held.agreed;
  take_outer_step(local().terms.outer, difference, momentum, start);
  held.start = start;
  return start;
}

std::optional<replicas::Outlier> HashAgreement::find_outlier(const peer::Task& task,
                                                             const std::vector<HashShare>& differences) {
  const UnderWay& here = under_way(task);
  const size_t replicas = round(task).steps.size();
  std::vector<double> squares(replicas, 0);
  std::vector<uint64_t> steps(replicas, 0);
  std::set<uint32_t> ours;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (!here.is_about(weights_[i]) || owner_of(i, task) != seat()) continue;
    ours.insert(weights_[i].tensor->number);
    for (uint32_t replica = 0; replica < replicas; ++replica)
      steps[replica] = std::max(steps[replica], steps_of(i, task, replica));
    if (here.sent[i]) squares[seat()] += here.sent[i]->square;
  }
  if (ours.empty() || assignment_->local->norm_bound <= 0) return std::nullopt;
  for (const HashShare& one : differences)
    if (ours.contains(one.number) && steps[one.replica] > 0) squares[one.replica] += one.square;
  std::vector<std::optional<double>> norms(replicas);
  for (uint32_t replica = 0; replica < replicas; ++replica)
    if (steps[replica] > 0)
      norms[replica] = std::sqrt(squares[replica]) / static_cast<double>(steps[replica]);
  return guards_[guard_of(here)].look_at(norms, seat(), assignment_->local->norm_bound);
}

// In the order of replicas, whenever they came.
Result<HashAgreement::Difference> HashAgreement::mean_of(size_t index, const peer::Task& task,
                                                         const UnderWay& here,
                                                         const std::vector<HashShare>& differences) const {
  std::vector<HashShare> added;
  for (const HashShare& one : differences)
    if (one.number == weights_[index].tensor->number && steps_of(index, task, one.replica) > 0)
      added.push_back(one);
  if (const auto& own = here.sent[index])
    added.push_back({.replica = seat(), .value = own->value, .square = own->square});
  if (bug_ != Bug::MeanAsItComes)
    std::sort(added.begin(), added.end(),
              [](const HashShare& a, const HashShare& b) { return a.replica < b.replica; });
  size_t wanted = 0;
  for (uint32_t replica = 0; replica < local().terms.count; ++replica)
    wanted += steps_of(index, task, replica) > 0 ? 1 : 0;
  if (added.size() != wanted && bug_ != Bug::LeftOutCounts)
    return fail(ErrorCode::Internal,
                "a mean of " + std::to_string(added.size()) + " differences, not " + std::to_string(wanted));
  HashMean mean;
  double squares = 0;
  for (const HashShare& one : added) {
    mean.add(one.value, steps_of(index, task, one.replica) * assignment_->training.batch_size);
    squares += one.square;
  }
  if (added.size() != wanted) mean.add(0, 1);  // the bug: as if they had a part
  return Difference{mean.take(), added.empty() ? 0 : squares / static_cast<double>(added.size())};
}

Result<HashAgreement::Means> HashAgreement::take_means(const peer::Task& task,
                                                       const std::vector<HashShare>& differences) {
  const OuterRound now = round(task);
  if (const auto outlier = find_outlier(task, differences)) return Means{.refused = outlier};
  UnderWay& here = under_way(task);
  here.evidence = replicas::MeanEvidence(&hash_of_bytes);
  const bool distorts = distorts_ && distorts_();
  Means means;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (!here.is_about(weights_[i]) || owner_of(i, task) != seat()) continue;
    Held& held = held_[i];
    const uint32_t number = weights_[i].tensor->number;
    if (task.attempt() > 0) held.return_residue = 0;
    held.owes_returns = true;
    WEFT_TRY(const Difference mean, mean_of(i, task, here, differences));
    const uint64_t draw = draw_of(assignment_->training.seed, now.steps_before, number, replicas::kOwner);
    const compress::Codec codec = weights_[i].codec(*assignment_);
    here.evidence.take(number,
                       codec.kind == compress::Kind::Dense || !weights_[i].is_ours
                           ? std::vector<float>()
                           : whole(i, held.return_residue),
                       {});
    const PassedHash passed = pass_through(codec, draw, mean.value, held.return_residue);
    held.return_residue = passed.residue;
    here.means[i] = Difference{distorts ? mix(passed.read, 1) : passed.read, mean.square};
    for (uint32_t replica = 0; replica < now.steps.size(); ++replica)
      if (replica != seat() && !(task.left_out && task.left_out->has(replica)))
        means.sent.push_back(packet(i, task, true, replica, *here.means[i]));
  }
  keep_evidence(task, here, differences);
  return means;
}

std::vector<float> HashAgreement::whole(size_t index, uint64_t value) const {
  const size_t elements = weights_[index].elements();
  std::vector<float> values(elements, 0.0F);
  for (size_t piece = 0; piece < replicas::pieces_of(elements); ++piece) {
    const auto [begin, count] = replicas::range_of(piece, elements);
    std::ranges::copy(piece_of(value, count), values.begin() + static_cast<ptrdiff_t>(begin));
  }
  return values;
}

void HashAgreement::keep_evidence(const peer::Task& task, UnderWay& round,
                                  const std::vector<HashShare>& differences) {
  std::vector<std::vector<float>> owed;
  for (size_t i = 0; i < held_.size(); ++i) {
    for (const HashShare& one : differences)
      if (one.number == weights_[i].tensor->number && round.is_about(weights_[i]) &&
          owner_of(i, task) == seat())
        round.evidence.hear(one.number, one.replica, whole(i, one.value));
    if (weights_[i].is_ours && weights_[i].codec(*assignment_).kind != compress::Kind::Dense)
      owed.push_back(whole(i, held_[i].return_residue));
  }
  round.evidence.owe({owed.begin(), owed.end()}, owed_);
  owed_ = round.evidence.owed();
}

std::optional<Digest> HashAgreement::owed() const {
  if (agreed_.empty() || !agreed_.back().evidence.owed()) return std::nullopt;
  return agreed_.back().evidence.owed()->root();
}

Result<replicas::ShownPiece> HashAgreement::show(const proto::MeanCheck& check) const {
  const auto round = std::find_if(agreed_.begin(), agreed_.end(),
                                  [&](const UnderWay& one) { return one.step == check.agreement; });
  if (round == agreed_.end()) {
    std::string kept;
    for (const UnderWay& one : agreed_) kept += " " + std::to_string(one.step);
    return fail(ErrorCode::Internal, "of means agreed on after " + std::to_string(check.agreement) +
                                         " a piece is asked for; here are those after" + kept);
  }
  const size_t leaf = proto::first_owed_piece(*assignment_, weights_, check.tensor) + check.piece;
  for (size_t i = 0; i < held_.size(); ++i)
    if (weights_[i].tensor->number == check.tensor && round->is_about(weights_[i]))
      return round->evidence.show(check.tensor, check.piece,
                                  round->sent[i] ? whole(i, round->sent[i]->value) : std::vector<float>(),
                                  leaf, local().terms.count);
  return fail(ErrorCode::Internal, "a piece of a tensor that is not here");
}

std::optional<replicas::Outlier> HashAgreement::weigh(const peer::Task& task,
                                                      const std::vector<HashShare>& means) {
  const UnderWay& here = under_way(task);
  if (!here.has_sent()) return std::nullopt;
  const size_t replicas = round(task).steps.size();
  std::vector<double> own(replicas, 0), theirs(replicas, 0);
  for (size_t i = 0; i < held_.size(); ++i) {
    if (!here.sent[i]) continue;
    own[owner_of(i, task)] += here.sent[i]->square;
    if (here.means[i] && owner_of(i, task) == seat()) theirs[seat()] += here.means[i]->square;
    for (const HashShare& one : means)
      if (one.number == weights_[i].tensor->number && one.attempt == task.attempt() &&
          one.replica == owner_of(i, task))
        theirs[one.replica] += one.square;
  }
  std::vector<std::optional<double>> norms(replicas);
  for (size_t owner = 0; owner < replicas; ++owner)
    if (own[owner] > 0) norms[owner] = std::sqrt(theirs[owner] / own[owner]);
  return guards_of_means_[guard_of(here)].look_at(norms, seat(), assignment_->local->norm_bound);
}

Result<HashAgreement::Weights> HashAgreement::agree(const peer::Task& task,
                                                    const std::vector<HashShare>& means, const Weights& now) {
  if (under_way_.empty() || under_way_.front().step != task.key.step)
    return fail(ErrorCode::Internal, "an agreement that is not the next");
  UnderWay here = std::move(under_way_.front());
  under_way_.pop_front();
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> came;
  for (const HashShare& one : means)
    if (one.attempt == task.attempt()) came[{one.number, one.replica}] = one.value;
  Weights agreed = now;
  for (size_t i = 0; i < held_.size(); ++i) {
    Held& held = held_[i];
    if (here.is_about(weights_[i])) {
      std::optional<uint64_t> mean;
      if (here.means[i]) mean = here.means[i]->value;
      if (const auto at = came.find({weights_[i].tensor->number, owner_of(i, task)}); at != came.end())
        mean = at->second;
      if (!mean) return fail(ErrorCode::Internal, "weights are to be agreed without a mean");
      here.evidence.read(weights_[i].tensor->number, whole(i, *mean));
      take_outer_step(local().terms.outer, *mean, held.momentum, held.agreed);
    }
    if (here.fragment) {
      take_next(i, here, under_way_.at(0), agreed);
    } else {
      held.start.reset();
      agreed[weights_[i].key.name] = held.agreed;
    }
  }
  agreed_.push_back(std::move(here));
  if (agreed_.size() > agreements_kept(local().terms)) agreed_.pop_front();
  return agreed;
}

void HashAgreement::take_next(size_t index, const UnderWay& here, const UnderWay& next, Weights& weights) {
  Held& held = held_[index];
  uint64_t& value = weights[weights_[index].key.name];
  if (!next.fragment || local().terms.follows(seat())) return;
  if (next.is_about(weights_[index])) {
    value = go_on(held, next.sent[index]->value);
  } else if (here.is_about(weights_[index]) && held.start) {
    value = move_on(value, *held.start, held.agreed);
    held.start.reset();
  }
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
