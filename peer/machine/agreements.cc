#include "peer/machine/agreements.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace weft::peer {

using proto::Direction;
using proto::ProgramKind;
using replicas::LocalSteps;

namespace {

tl::unexpected<Error> wrong(const proto::TensorHeader& header, const std::string& what) {
  return fail(ErrorCode::InvalidArgument, "agreed tensor " + std::to_string(header.edge) +
                                              " of the round after step " + std::to_string(header.step) +
                                              ": " + what);
}

plan::Seat holder(const AgreedWeight& weight, uint32_t replica) {
  return {weight.tensor->stages[replica], replica};
}

}  // namespace

Status check_agreed_tensor(const proto::AssignStage& assign, const std::vector<AgreedWeight>& weights,
                           const proto::TensorHeader& header) {
  const AgreedWeight* weight = find_agreed(weights, header.edge);
  if (weight == nullptr) return wrong(header, "the stage has none of that number");
  const bool is_mean = header.direction == Direction::Backward;
  if (is_mean && weight->is_ours) return wrong(header, "the mean of one that is taken here");
  // Others than its owner and this seat may have heard that the owner was lost.
  if (!is_mean && !weight->is_ours && header.replica == weight->tensor->owner)
    return wrong(header, "it is not added up here");
  if (header.microbatch >= assign.local->steps.terms.count) return wrong(header, "of an attempt too many");
  if (header.spec != weight->spec)
    return wrong(header, "it is " + to_string(header.spec) + ", expected " + to_string(weight->spec));
  const compress::Codec codec = weight->codec(assign);
  if (header.codec != codec)
    return wrong(header,
                 "it comes as " + compress::name(header.codec) + ", expected " + compress::name(codec));
  return {};
}

Agreements::Agreements(std::shared_ptr<const proto::AssignStage> assignment)
    : assignment_(std::move(assignment)), weights_(agreed_weights(*assignment_)) {}

uint64_t Agreements::round_before(uint64_t step) const {
  return round_of(assignment_->local->steps, step).steps_before;
}

// Of the round before the one under way, if it overlaps that.
std::optional<uint64_t> Agreements::overlapped_end(uint64_t completed) const {
  const LocalSteps& local = assignment_->local->steps;
  const uint64_t end = completed - (completed - local.begun_after) % local.terms.every;
  return agrees_after(local, end) ? std::nullopt : std::optional(end);
}

bool Agreements::is_its_time(uint64_t before, uint64_t completed) const {
  const LocalSteps& local = assignment_->local->steps;
  if (finished_ && before <= *finished_) return false;
  if (const auto end = overlapped_end(completed); end && round_before(*end) == before) return true;
  uint64_t step = completed;
  for (int ahead = 0; ahead < 2 && step < last_inner_step(local); ++ahead) {
    step = next_end(local, step + 1);
    if (round_before(step) == before) return true;
  }
  return false;
}

std::optional<uint64_t> Agreements::end_of(uint64_t before, uint64_t completed) const {
  const LocalSteps& local = assignment_->local->steps;
  if (finished_ && before <= *finished_) return std::nullopt;
  if (const auto end = overlapped_end(completed); end && round_before(*end) == before) return end;
  if (completed >= last_inner_step(local)) return std::nullopt;
  const uint64_t end = next_end(local, completed + 1);
  return round_before(end) == before ? std::optional(end) : std::nullopt;
}

Status Agreements::on_tensor(const plan::Seat& from, const proto::TensorHeader& header, uint64_t completed) {
  if (!assignment_->local) return wrong(header, "the stage agrees with nobody");
  WEFT_TRY_STATUS(check_agreed_tensor(*assignment_, weights_, header));
  const AgreedWeight& weight = *find_agreed(weights_, header.edge);
  const bool is_mean = header.direction == Direction::Backward;
  if (header.replica != from.replica || from.replica >= weight.tensor->stages.size() ||
      holder(weight, from.replica) != from || from.replica == assignment_->seat.replica)
    return wrong(header, "it belongs to another seat");
  if (!is_its_time(header.step, completed)) return wrong(header, "it is not its time");
  Arrived& there = arrived_[header.step];
  auto& of_its_kind = is_mean ? there.means : there.differences;
  const auto [at, is_new] = of_its_kind.try_emplace({header.edge, from.replica}, header.microbatch);
  if (!is_new && at->second >= header.microbatch) return wrong(header, "it came twice");
  at->second = header.microbatch;
  (is_mean ? there.last_mean : there.last_difference) = from;
  return {};
}

const Agreements::Arrived* Agreements::arrived(uint64_t step) const {
  const auto at = arrived_.find(round_before(step));
  return at == arrived_.end() ? nullptr : &at->second;
}

uint32_t Agreements::owner_of(const AgreedWeight& weight, uint64_t step) const {
  const auto without = left_out(step);
  return without ? without->owner_of(weight.tensor->owner) : weight.tensor->owner;
}

// Of the attempt that is under way.
bool Agreements::has(uint64_t step, Attempts Arrived::*which, const AgreedWeight& weight,
                     uint32_t replica) const {
  const Arrived* there = arrived(step);
  if (there == nullptr) return false;
  const auto without = left_out(step);
  const Attempts& attempts = there->*which;
  const auto at = attempts.find({weight.tensor->number, replica});
  return at != attempts.end() && at->second == (without ? without->attempt : 0);
}

const Agreements::Round& Agreements::round(uint64_t step) const {
  const auto [at, is_new] = rounds_.try_emplace(step);
  Round& round = at->second;
  if (!is_new) return round;
  const LocalSteps& local = assignment_->local->steps;
  round.dealt = round_of(local, step);
  round.makers.resize(local.terms.fragments);
  for (uint32_t fragment = 0; fragment < local.terms.fragments; ++fragment) {
    const std::vector<uint64_t> steps = steps_since(local, step, fragment);
    for (uint32_t replica = 0; replica < steps.size(); ++replica)
      if (steps[replica] > 0) round.makers[fragment].push_back(replica);
  }
  for (size_t i = 0; i < weights_.size(); ++i) {
    const AgreedWeight& weight = weights_[i];
    if (!is_about(weight, round, step)) continue;
    const bool is_ours = owner_of(weight, step) == assignment_->seat.replica;
    (is_ours ? round.owned : round.awaited).push_back(i);
    if (!is_ours) continue;
    for (const uint32_t replica : round.makers[weight.tensor->fragment])
      round.differences += is_sender(weight, round, step, replica) ? 1 : 0;
  }
  return round;
}

bool Agreements::is_sender(const AgreedWeight& weight, const Round& round, uint64_t step,
                           uint32_t replica) const {
  const std::vector<uint32_t>& makers = round.makers[weight.tensor->fragment];
  return replica != assignment_->seat.replica && std::binary_search(makers.begin(), makers.end(), replica) &&
         !(step >= first_without_ && left_out_ && left_out_->has(replica));
}

bool Agreements::takes_means(uint64_t step) const { return !round(step).owned.empty(); }

// What has come of all attempts is counted first: asked after each tensor, all of them would be looked up
// each time.
bool Agreements::are_differences_there(uint64_t step) const {
  const Round& wanted = round(step);
  const Arrived* there = arrived(step);
  if ((there == nullptr ? 0 : there->differences.size()) < wanted.differences) return false;
  return std::ranges::all_of(wanted.owned, [&](size_t i) {
    const AgreedWeight& weight = weights_[i];
    return std::ranges::all_of(wanted.makers[weight.tensor->fragment], [&](uint32_t replica) {
      return !is_sender(weight, wanted, step, replica) || has(step, &Arrived::differences, weight, replica);
    });
  });
}

bool Agreements::are_means_there(uint64_t step) const {
  const Round& wanted = round(step);
  const Arrived* there = arrived(step);
  if ((there == nullptr ? 0 : there->means.size()) < wanted.awaited.size()) return false;
  return std::ranges::all_of(wanted.awaited, [&](size_t i) {
    return has(step, &Arrived::means, weights_[i], owner_of(weights_[i], step));
  });
}

bool Agreements::has_all_of(const std::vector<uint32_t>& replicas, uint64_t step, bool has_means) const {
  const Round& wanted = round(step);
  const bool is_one_of_them = std::ranges::binary_search(replicas, assignment_->seat.replica);
  if (is_one_of_them && !wanted.owned.empty()) return false;
  for (const size_t i : wanted.owned)
    for (const uint32_t replica : replicas)
      if (!has_means && is_sender(weights_[i], wanted, step, replica) &&
          !has(step, &Arrived::differences, weights_[i], replica))
        return false;
  for (const size_t i : wanted.awaited)
    for (const uint32_t replica : replicas)
      if (owner_of(weights_[i], step) == replica && !has(step, &Arrived::means, weights_[i], replica))
        return false;
  return true;
}

std::optional<plan::Seat> Agreements::last_to_come(uint64_t step, bool means) const {
  const Arrived* there = arrived(step);
  if (there == nullptr) return std::nullopt;
  return means ? there->last_mean : there->last_difference;
}

void Agreements::finish(uint64_t step) {
  finished_ = round_before(step);
  arrived_.erase(*finished_);
  rounds_.erase(rounds_.begin(), rounds_.upper_bound(step));
}

}  // namespace weft::peer
