#include "peer/service/seat_agreement.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "replicas/agreements_kept.h"
#include "storage/blob_store.h"

namespace weft::peer {

using dag::StateKey;
using dag::Tensor;
using replicas::OuterRound;

namespace {

double sum_of_squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return sum;
}

// What a seat has sent for the round that ends with the step, as whoever has it reads it.
Result<std::vector<float>> read_sent(const proto::AssignStage& assign, const AgreedWeight& weight,
                                     uint64_t step, const Tensor& sent) {
  std::vector<float> values(weight.elements());
  const compress::Codec codec = weight.codec(assign);
  if (codec.kind == compress::Kind::Dense) {
    std::ranges::copy(sent.as<float>(), values.begin());
    return values;
  }
  const auto draw = replicas::draw_of(assign.training.seed, round_of(assign.local->steps, step).steps_before,
                                      weight.tensor->number, static_cast<uint16_t>(assign.seat.replica));
  WEFT_TRY_STATUS(compress::decode(codec, draw, sent.bytes(), values));
  return values;
}

}  // namespace

Result<std::unique_ptr<SeatAgreement>> SeatAgreement::create(
    std::shared_ptr<const proto::AssignStage> assignment, State& state, const Kept& kept) {
  std::unique_ptr<SeatAgreement> made(new SeatAgreement(std::move(assignment), state));
  WEFT_TRY(made->held_, read_agreed_state(*made->assignment_, state, kept));
  return made;
}

OuterRound SeatAgreement::round(const Task& task) const {
  const OuterRound round = round_of(local(), task.key.step);
  return task.left_out ? replicas::leave_out(round, task.left_out->replicas).round : round;
}

SeatAgreement::UnderWay& SeatAgreement::under_way(const Task& task) {
  const auto at = std::find_if(under_way_.begin(), under_way_.end(),
                               [&](const UnderWay& round) { return round.step == task.key.step; });
  WEFT_CHECK(at != under_way_.end());
  return *at;
}

uint32_t SeatAgreement::owner_of(const Held& held, const Task& task) const {
  const uint32_t planned = held.weight.tensor->owner;
  return task.left_out ? task.left_out->owner_of(planned) : planned;
}

// Its place; held_.size(): it is not here.
size_t SeatAgreement::find(uint32_t number) const {
  const auto at = std::lower_bound(held_.begin(), held_.end(), number, [](const Held& held, uint32_t sought) {
    return replicas::is_before(held.weight.tensor->number, sought);
  });
  const bool is_here = at != held_.end() && at->weight.tensor->number == number;
  return is_here ? static_cast<size_t>(at - held_.begin()) : held_.size();
}

tl::unexpected<Error> SeatAgreement::diverged(const Held& held, const char* what) {
  not_finite_ = held.weight.key;
  return fail(ErrorCode::OutOfRange,
              std::string(what) + " of '" + to_string(held.weight.key) + "' is not finite");
}

// `values` are then what is read of it.
Result<Tensor> SeatAgreement::payload_of(Held& held, uint64_t before, bool is_mean,
                                         std::vector<float>& values) {
  const uint32_t number = held.weight.tensor->number;
  const compress::Codec codec = held.weight.codec(*assignment_);
  const auto from = is_mean ? replicas::kOwner : static_cast<uint16_t>(assignment_->seat.replica);
  const auto size =
      replicas::pass_through(codec, replicas::draw_of(assignment_->training.seed, before, number, from),
                             values, is_mean ? held.return_residue : held.residue, scratch_);
  if (!size) return diverged(held, is_mean ? "the mean" : "the difference");
  if (codec.kind == compress::Kind::Dense) return Tensor(held.weight.spec, std::as_bytes(std::span(values)));
  const auto payload = std::span(scratch_.payload).first(*size);
  const dag::TensorSpec spec{dag::DType::U8, {static_cast<int64_t>(*size)}};
  return Tensor(spec, payload);
}

SentShare SeatAgreement::share(const Held& held, const Task& task, bool is_mean, uint32_t to,
                               Tensor payload) const {
  const proto::AgreedTensor& tensor = *held.weight.tensor;
  return {.to = {tensor.stages[to], to},
          .header = {.run = assignment_->run,
                     .plan_version = assignment_->plan_version,
                     .step = round(task).steps_before,
                     .microbatch = task.attempt(),
                     .edge = tensor.number,
                     .program = proto::ProgramKind::Agree,
                     .direction = is_mean ? proto::Direction::Backward : proto::Direction::Forward,
                     .replica = static_cast<uint16_t>(assignment_->seat.replica),
                     .spec = held.weight.spec,
                     .codec = held.weight.codec(*assignment_)},
          .payload = std::move(payload)};
}

Result<std::vector<SentShare>> SeatAgreement::differ(const Task& task) {
  std::vector<SentShare> shares;
  const bool is_again = std::any_of(under_way_.begin(), under_way_.end(),
                                    [&](const UnderWay& round) { return round.step == task.key.step; });
  if (!is_again)
    under_way_.push_back({.step = task.key.step,
                          .sent = std::vector<std::optional<Tensor>>(held_.size()),
                          .squares = std::vector<double>(held_.size(), 0),
                          .evidence = replicas::MeanEvidence(&storage::sha256)});
  UnderWay& here = under_way(task);
  here.begin(task, local(), held_.size());
  const bool goes_on = !is_again && !task.settles && under_way_.size() == 1;
  for (size_t begin = 0; begin < held_.size(); begin = end_of_tensor(held_, begin)) {
    // Again: it has it already, unless it was to be about less.
    if (!here.is_about(held_[begin].weight) || here.sent[begin]) continue;
    if (here.steps_of(held_[begin].weight, assignment_->seat.replica) == 0) continue;
    WEFT_TRY_STATUS(differ_in(task, here, begin, goes_on));
  }
  send(task, here, shares);
  return shares;
}

// The tensor that begins there, in all its parts.
Status SeatAgreement::differ_in(const Task& task, UnderWay& here, size_t begin, bool goes_on) {
  const size_t end = end_of_tensor(held_, begin);
  const uint64_t before = round(task).steps_before;
  WEFT_TRY(const Tensor weights, state_.read(held_[begin].weight.key));
  for (size_t at = begin; at < end; ++at) {
    Held& held = held_[at];
    const auto values = part_of(weights, held.weight);
    std::vector<float> difference(values.begin(), values.end());
    if (!held.weight.is_statistic) {
      const std::vector<float>& begun = held.start.empty() ? held.agreed : held.start;
      for (size_t i = 0; i < difference.size(); ++i) difference[i] -= begun[i];
    }
    WEFT_TRY(here.sent[at], payload_of(held, before, false, difference));
    here.squares[at] = sum_of_squares(difference);
    if (goes_on) go_on(held, difference);
  }
  if (!goes_on || held_[begin].weight.is_statistic) return {};
  return state_.write(held_[begin].weight.key, whole_tensor(held_, begin, end, &Held::start));
}

void SeatAgreement::send(const Task& task, const UnderWay& round, std::vector<SentShare>& to) const {
  for (size_t i = 0; i < held_.size(); ++i)
    if (round.sent[i] && !is_ours(held_[i], task))
      to.push_back(share(held_[i], task, false, owner_of(held_[i], task), *round.sent[i]));
}

std::optional<replicas::Outlier> SeatAgreement::find_outlier(const Task& task,
                                                             const std::vector<AgreedShare>& differences) {
  const double bound = assignment_->local->norm_bound;
  if (bound <= 0) return std::nullopt;
  const UnderWay& here = under_way(task);
  const uint32_t own = assignment_->seat.replica;
  const size_t replicas = round(task).steps.size();
  std::vector<double> squares(replicas, 0);
  std::vector<uint64_t> steps(replicas, 0);  // that its differences are of
  const auto is_compared = [&](const Held& held) {
    return here.is_about(held.weight) && is_ours(held, task) && !held.weight.is_statistic;
  };
  bool adds_up = false;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (!is_compared(held_[i])) continue;
    adds_up = true;
    for (uint32_t replica = 0; replica < replicas; ++replica)
      steps[replica] = std::max(steps[replica], here.steps_of(held_[i].weight, replica));
    squares[own] += here.squares[i];
  }
  if (!adds_up) return std::nullopt;
  for (const AgreedShare& one : differences)
    if (const size_t i = find(one.number);
        i < held_.size() && is_compared(held_[i]) && steps[one.replica] > 0)
      squares[one.replica] += sum_of_squares(one.tensor.as<float>());
  std::vector<std::optional<double>> norms(replicas);
  for (uint32_t replica = 0; replica < replicas; ++replica)
    if (steps[replica] > 0)
      norms[replica] = std::sqrt(squares[replica]) / static_cast<double>(steps[replica]);
  return guards_[here.about(local().terms)].look_at(norms, own, bound);
}

Result<std::vector<float>> SeatAgreement::mean_of(const Task& task, size_t index, const Came& came) {
  const Held& held = held_[index];
  const UnderWay& here = under_way(task);
  replicas::Mean mean(held.agreed.size());
  for (uint32_t replica = 0; replica < local().terms.count; ++replica) {
    const uint64_t samples = here.steps_of(held.weight, replica) * assignment_->training.batch_size;
    if (samples == 0) continue;
    if (replica == assignment_->seat.replica) {
      WEFT_TRY(const std::vector<float> own,
               read_sent(*assignment_, held.weight, task.key.step, *here.sent[index]));
      mean.add(own, samples);
    } else {
      mean.add(came.at({held.weight.tensor->number, replica})->as<float>(), samples);
    }
  }
  std::vector<float> taken(held.agreed.size());
  mean.take(taken);
  return taken;
}

Result<SeatAgreement::Means> SeatAgreement::take_means(const Task& task,
                                                       const std::vector<AgreedShare>& differences) {
  const OuterRound now = round(task);
  Means means;
  means.refused = find_outlier(task, differences);
  if (means.refused) return means;
  Came came;
  for (const AgreedShare& one : differences) came[{one.number, one.replica}] = &one.tensor;
  UnderWay& here = under_way(task);
  here.evidence = replicas::MeanEvidence(&storage::sha256);
  for (size_t i = 0; i < held_.size(); ++i) {
    Held& held = held_[i];
    if (!here.is_about(held.weight) || !is_ours(held, task)) continue;
    if (task.attempt() > 0 && !held.weight.is_statistic && local().terms.codec.kind != compress::Kind::Dense)
      held.return_residue.assign(held.agreed.size(), 0.0F);
    WEFT_TRY(here.means[i], mean_of(task, i, came));
    // What it takes in somebody's place is not in its tree: nothing was owed of it.
    const std::vector<float> owed =
        are_looked_at() && held.weight.is_ours ? held.return_residue : std::vector<float>();
    WEFT_TRY(const Tensor payload, payload_of(held, now.steps_before, true, here.means[i]));
    if (are_looked_at()) {
      const bool is_by_parts = compress::is_by_parts(held.weight.codec(*assignment_));
      here.evidence.take(held.weight.tensor->number, owed,
                         is_by_parts ? std::span<const float>() : std::span<const float>(here.means[i]));
    }
    for (uint32_t replica = 0; replica < now.steps.size(); ++replica)
      if (replica != assignment_->seat.replica && !(task.left_out && task.left_out->has(replica)))
        means.sent.push_back(share(held, task, true, replica, payload));
  }
  if (are_looked_at()) keep_evidence(task, here, differences);
  return means;
}

// ---- for who looks at means a second time

void SeatAgreement::keep_evidence(const Task& task, UnderWay& round,
                                  const std::vector<AgreedShare>& differences) {
  for (const AgreedShare& one : differences)
    if (const size_t i = find(one.number);
        i < held_.size() && round.is_about(held_[i].weight) && is_ours(held_[i], task))
      round.evidence.hear(one.number, one.replica, one.tensor.as<float>());
  std::vector<std::span<const float>> owed;
  for (const Held& held : held_)
    if (held.weight.is_ours && !held.return_residue.empty()) owed.emplace_back(held.return_residue);
  round.evidence.owe(owed, owed_);
  owed_ = round.evidence.owed();
}

Result<replicas::ShownPiece> SeatAgreement::show(const proto::MeanCheck& check) const {
  const ShownRounds::Round* round = shown_.find(check.agreement);
  const size_t i = find(check.tensor);
  if (round == nullptr || i == held_.size() || check.piece >= replicas::pieces_of(held_[i].agreed.size()))
    return fail(ErrorCode::NotFound, "a piece of means that is not here");
  const Held& held = held_[i];
  if (round->fragment && *round->fragment != held.weight.tensor->fragment)
    return fail(ErrorCode::NotFound, "a piece of means on which nobody agreed then");
  std::vector<float> difference;
  if (round->sent[i]) {
    WEFT_TRY(difference, read_sent(*assignment_, held.weight, round->step, *round->sent[i]));
  }
  size_t leaf = check.piece;  // of what is owed here
  for (size_t before = 0; before < i; ++before)
    if (held_[before].weight.is_ours) leaf += replicas::pieces_of(held_[before].return_residue.size());
  return round->evidence.show(check.tensor, check.piece, difference, leaf, local().terms.count);
}

// By owner: how large its means are beside what this replica has learnt of the same tensors.
std::optional<replicas::Outlier> SeatAgreement::weigh(const Task& task,
                                                      const std::vector<AgreedShare>& means) {
  const UnderWay& here = under_way(task);
  if (!here.has_sent()) return std::nullopt;
  const size_t replicas = round(task).steps.size();
  std::vector<double> own(replicas, 0), theirs(replicas, 0);
  for (size_t i = 0; i < held_.size(); ++i) {
    if (held_[i].weight.is_statistic || !here.sent[i]) continue;
    own[owner_of(held_[i], task)] += here.squares[i];
    if (is_ours(held_[i], task)) theirs[assignment_->seat.replica] += sum_of_squares(here.means[i]);
  }
  for (const AgreedShare& one : means)
    if (const size_t i = find(one.number); one.range == task.attempt() && here.sent[i] &&
                                           !held_[i].weight.is_statistic &&
                                           one.replica == owner_of(held_[i], task))
      theirs[one.replica] += sum_of_squares(one.tensor.as<float>());
  std::vector<std::optional<double>> norms(replicas);
  for (size_t owner = 0; owner < replicas; ++owner)
    if (own[owner] > 0) norms[owner] = std::sqrt(theirs[owner] / own[owner]);
  return guards_of_means_[here.about(local().terms)].look_at(norms, assignment_->seat.replica,
                                                             assignment_->local->norm_bound);
}

// Until the mean of its difference is there. Running statistics are what the replica has seen last.
void SeatAgreement::go_on(Held& held, std::span<const float> difference) {
  if (held.weight.is_statistic) return;
  held.start.resize(held.agreed.size());
  replicas::look_ahead(local().terms.outer, difference, held.momentum, held.agreed, held.start);
}

Status SeatAgreement::agree(const Task& task, const std::vector<AgreedShare>& means) {
  WEFT_CHECK(!under_way_.empty() && under_way_.front().step == task.key.step);
  UnderWay here = std::move(under_way_.front());
  under_way_.pop_front();
  for (const AgreedShare& one : means) {
    const size_t i = find(one.number);
    if (one.range != task.attempt() || one.replica != owner_of(held_[i], task)) continue;
    const auto values = one.tensor.as<float>();
    here.means[i].assign(values.begin(), values.end());
  }
  WEFT_CHECK(here.settles() || !under_way_.empty());
  const UnderWay* next = here.settles() ? nullptr : &under_way_.front();
  for (size_t begin = 0, end = 0; begin < held_.size(); begin = end) {
    end = end_of_tensor(held_, begin);
    for (size_t i = begin; i < end && here.is_about(held_[i].weight); ++i) {
      Held& held = held_[i];
      WEFT_CHECK(here.means[i].size() == held.agreed.size());
      if (are_looked_at()) here.evidence.read(held.weight.tensor->number, here.means[i]);
      if (held.weight.is_statistic)
        held.agreed = std::move(here.means[i]);
      else
        replicas::take_outer_step(local().terms.outer, here.means[i], held.momentum, held.agreed);
      here.means[i] = {};
    }
    WEFT_TRY_STATUS(take_next(begin, here, next));
  }
  if (are_looked_at())
    shown_.add({here.step, std::move(here.sent), here.fragment, std::move(here.evidence)},
               agreements_kept(local().terms));
  return {};
}

// What the stage goes on with, of the tensor that begins there: the round of `here` is agreed on, and `next`
// has been made meanwhile; nullptr: here all wait. A follower only waits.
Status SeatAgreement::take_next(size_t begin, const UnderWay& here, const UnderWay* next) {
  const size_t end = end_of_tensor(held_, begin);
  const StateKey& key = held_[begin].weight.key;
  if (next == nullptr) {
    for (size_t i = begin; i < end; ++i) held_[i].start = {};
    return state_.write(key, whole_tensor(held_, begin, end, &Held::agreed));
  }
  const bool follows = local().terms.follows(assignment_->seat.replica);
  if (next->settles() || follows || held_[begin].weight.is_statistic) return {};
  if (next->is_about(held_[begin].weight)) {
    for (size_t i = begin; i < end; ++i) {
      WEFT_TRY(const std::vector<float> own,
               read_sent(*assignment_, held_[i].weight, next->step, *next->sent[i]));
      go_on(held_[i], own);
    }
    return state_.write(key, whole_tensor(held_, begin, end, &Held::start));
  }
  if (!here.is_about(held_[begin].weight)) return {};
  WEFT_TRY(const Tensor now, state_.read(key));
  Tensor moved(now.spec(), now.bytes());
  for (size_t i = begin; i < end; ++i) {
    Held& held = held_[i];
    replicas::move_on(held.start, held.agreed,
                      moved.mutable_as<float>().subspan(held.weight.first(), held.agreed.size()));
    held.start = {};
  }
  return state_.write(key, moved);
}

std::vector<std::pair<StateKey, Tensor>> SeatAgreement::tensors() const {
  return kept_tensors(held_, assignment_->seat.replica);
}

Bytes SeatAgreement::bytes() const {
  size_t numbers = 0;
  for (const Held& held : held_)
    numbers += held.agreed.size() * (local().terms.overlap() && !held.weight.is_statistic ? 2 : 1) +
               held.momentum.size() + held.residue.size() + held.return_residue.size();
  return {static_cast<int64_t>(numbers * sizeof(float))};
}

}  // namespace weft::peer
