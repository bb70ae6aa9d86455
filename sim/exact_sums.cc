#include "sim/exact_sums.h"

#include <iterator>
#include <utility>

#include "dag/gradient_order.h"

namespace weft::sim {

HashSums::HashSums(std::shared_ptr<const proto::AssignStage> assignment)
    : assignment_(std::move(assignment)) {
  for (peer::SummedTensor& summed : peer::summed_tensors(*assignment_)) {
    const std::string& name = summed.tensor->name;
    tensors_[name].summed = std::move(summed);
  }
}

HashSums::Sent HashSums::packet(const Tensor& tensor, uint64_t step, uint32_t range, bool is_sum, uint32_t to,
                                uint64_t value) const {
  const proto::AgreedTensor& of = *tensor.summed.tensor;
  return {.to = {of.stages[to], to},
          .packet = {.header = {.run = assignment_->run,
                                .plan_version = assignment_->plan_version,
                                .step = step,
                                .microbatch = range,
                                .edge = of.number,
                                .program = proto::ProgramKind::Sum,
                                .direction = is_sum ? proto::Direction::Backward : proto::Direction::Forward,
                                .replica = static_cast<uint16_t>(assignment_->seat.replica),
                                .spec = tensor.summed.spec},
                     .value = value}};
}

void HashSums::add(const std::string& parameter, const peer::MicrobatchKey& key, uint64_t gradient,
                   std::vector<Sent>& sent) {
  Tensor& tensor = tensors_.at(parameter);
  const dag::TrainingSpec& training = assignment_->training;
  const uint32_t length = training.microbatches() / training.gradient_ranges;
  const dag::RangeShare share = dag::share_of(assignment_->exact->ranges, assignment_->seat.replica);
  uint64_t& sum = tensor.ranges[key.microbatch / length];
  sum = key.microbatch % length == 0 ? gradient : mix(sum, gradient);
  const auto complete =
      dag::sum_completed(key.microbatch, training.microbatches(), training.gradient_ranges, share);
  if (!complete) return;
  uint64_t value = tensor.ranges.at(share.first == 0 ? 0 : *complete);
  if (share.first == 0)
    for (auto range = std::next(tensor.ranges.begin()); range != tensor.ranges.end(); ++range)
      value = mix(value, range->second);
  if (tensor.summed.is_ours)
    tensor.own[*complete] = value;
  else
    sent.push_back(packet(tensor, key.step, *complete, /*is_sum=*/false, tensor.summed.tensor->owner, value));
}

Result<uint64_t> HashSums::add_up(const std::string& parameter, const std::vector<HashShare>& ranges) {
  Tensor& tensor = tensors_.at(parameter);
  std::map<uint32_t, uint64_t> all = std::exchange(tensor.own, {});
  for (const HashShare& share : ranges)
    if (share.number == tensor.summed.tensor->number && !all.emplace(share.attempt, share.value).second)
      return fail(ErrorCode::Internal,
                  "range " + std::to_string(share.attempt) + " of a gradient came twice");
  size_t wanted = 0;
  for (uint32_t replica = 0; replica < assignment_->exact->ranges.size(); ++replica)
    wanted += replica == 0 ? 1 : assignment_->exact->ranges[replica];
  if (all.size() != wanted)
    return fail(ErrorCode::Internal, "a gradient of " + std::to_string(all.size()) + " sums of ranges, not " +
                                         std::to_string(wanted));
  uint64_t sum = all.begin()->second;
  for (auto range = std::next(all.begin()); range != all.end(); ++range) sum = mix(sum, range->second);
  return sum;
}

void HashSums::send(const std::string& parameter, uint64_t step, uint64_t value,
                    std::vector<Sent>& sent) const {
  const Tensor& tensor = tensors_.at(parameter);
  for (uint32_t replica = 0; replica < tensor.summed.tensor->stages.size(); ++replica)
    if (replica != assignment_->seat.replica)
      sent.push_back(packet(tensor, step, 0, /*is_sum=*/true, replica, value));
}

Result<uint64_t> HashSums::taken(const std::string& parameter, const std::vector<HashShare>& sums) const {
  for (const HashShare& share : sums)
    if (share.number == tensors_.at(parameter).summed.tensor->number) return share.value;
  return fail(ErrorCode::Internal, "what the owner of '" + parameter + "' made of it has not come");
}

}  // namespace weft::sim
