#include "peer/machine/gradient_sums.h"

#include <algorithm>
#include <string>

#include "dag/gradient_order.h"
#include "peer/machine/train_commands.h"
#include "replicas/gradient_codec.h"

namespace weft::peer {

using proto::Direction;

namespace {

tl::unexpected<Error> wrong_gradient(const proto::TensorHeader& header, const std::string& what) {
  return fail(ErrorCode::InvalidArgument, "gradient " + std::to_string(header.edge) + " of step " +
                                              std::to_string(header.step) + ": " + what);
}

const SummedTensor* find(const std::vector<SummedTensor>& gradients, uint32_t number) {
  const auto at = std::lower_bound(
      gradients.begin(), gradients.end(), number,
      [](const SummedTensor& gradient, uint32_t sought) { return gradient.tensor->number < sought; });
  return at == gradients.end() || at->tensor->number != number ? nullptr : &*at;
}

// As how many tensors the share of a replica comes.
uint32_t tensors_of(const SummedTensor& gradient, const proto::ExactTerms& exact, uint32_t replica) {
  const dag::RangeShare share = dag::share_of(exact.ranges, replica);
  return gradient.fresh || share.first == 0 ? 1 : share.count;
}

}  // namespace

compress::Codec SummedTensor::codec(const proto::AssignStage& assign) const {
  if (fresh || spec.dtype != dag::DType::F32) return {};
  return replicas::gradient_codec(assign.exact->codec, static_cast<size_t>(spec.element_count()));
}

std::vector<SummedTensor> summed_tensors(const proto::AssignStage& assign) {
  std::vector<SummedTensor> gradients;
  const proto::StageProgram* program = find_program(assign, proto::ProgramKind::Train);
  if (!assign.exact || program == nullptr) return gradients;
  const std::vector<dag::FreshStatistic> fresh =
      dag::fresh_statistics(*program->graph).value_or(std::vector<dag::FreshStatistic>());
  for (const proto::AgreedTensor& tensor : assign.exact->tensors) {
    gradients.push_back({.tensor = &tensor,
                         .spec = program->graph->spec(program->graph->find_initializer(tensor.name)->value),
                         .is_ours = tensor.owner == assign.seat.replica});
    const auto at = std::find_if(fresh.begin(), fresh.end(), [&](const dag::FreshStatistic& statistic) {
      return statistic.name == tensor.name;
    });
    if (at != fresh.end()) gradients.back().fresh = *at;
  }
  return gradients;
}

dag::TensorSpec fresh_spec(const proto::AssignStage& assign, const dag::FreshStatistic& fresh,
                           uint32_t replica) {
  const uint32_t length = assign.training.microbatches() / assign.training.gradient_ranges;
  const dag::RangeShare share = dag::share_of(assign.exact->ranges, replica);
  return {fresh.dtype, {int64_t{share.count} * length, fresh.count}};
}

Status check_gradient_sum(const proto::AssignStage& assign, const std::vector<SummedTensor>& gradients,
                          const proto::TensorHeader& header) {
  const SummedTensor* gradient = find(gradients, header.edge);
  if (gradient == nullptr) return wrong_gradient(header, "the stage has none of that number");
  const bool is_sum = header.direction == Direction::Backward;
  if (is_sum == gradient->is_ours)
    return wrong_gradient(header, is_sum ? "it is added up here" : "it is not added up here");
  if (header.replica >= assign.exact->ranges.size() || header.replica == assign.seat.replica ||
      (is_sum && header.replica != gradient->tensor->owner))
    return wrong_gradient(header, "it is not that replica's");
  const dag::RangeShare share = dag::share_of(assign.exact->ranges, header.replica);
  const bool is_of_share = is_sum            ? header.microbatch == 0
                           : gradient->fresh ? header.microbatch == share.first
                                             : is_sent_as(share, header.microbatch);
  if (!is_of_share) return wrong_gradient(header, "of a range that is not that replica's");
  const dag::TensorSpec spec =
      gradient->fresh && !is_sum ? fresh_spec(assign, *gradient->fresh, header.replica) : gradient->spec;
  if (header.spec != spec)
    return wrong_gradient(header, "it is " + to_string(header.spec) + ", expected " + to_string(spec));
  if (const compress::Codec codec = gradient->codec(assign); !proto::may_come_as(header.codec, codec))
    return wrong_gradient(
        header, "it comes as " + compress::name(header.codec) + ", expected " + compress::name(codec));
  return {};
}

GradientSums::GradientSums(std::shared_ptr<const proto::AssignStage> assignment)
    : assignment_(std::move(assignment)), gradients_(summed_tensors(*assignment_)) {
  if (gradients_.empty()) return;
  for (const SummedTensor& gradient : gradients_) {
    if (!gradient.is_ours) ++awaited_sums_;
    for (uint32_t replica = 0; gradient.is_ours && replica < assignment_->exact->ranges.size(); ++replica)
      if (replica != assignment_->seat.replica)
        awaited_ranges_ += tensors_of(gradient, *assignment_->exact, replica);
  }
}

Status GradientSums::on_tensor(const plan::Seat& from, const proto::TensorHeader& header,
                               uint64_t completed) {
  if (gradients_.empty()) return wrong_gradient(header, "the stage adds up nothing");
  WEFT_TRY_STATUS(check_gradient_sum(*assignment_, gradients_, header));
  const proto::AgreedTensor& tensor = *find(gradients_, header.edge)->tensor;
  if (header.replica != from.replica || tensor.stages[from.replica] != from.stage)
    return wrong_gradient(header, "it belongs to another seat");
  if (header.step <= completed || header.step > completed + 2 || header.step > assignment_->training.steps)
    return wrong_gradient(header, "it is not its time");
  Arrived& there = arrived_[header.step];
  const bool is_sum = header.direction == Direction::Backward;
  const bool is_new = is_sum ? there.sums.insert(header.edge).second
                             : there.ranges.emplace(header.edge, header.microbatch).second;
  if (!is_new) return wrong_gradient(header, "it came twice");
  (is_sum ? there.last_sum : there.last_range) = from;
  return {};
}

const GradientSums::Arrived* GradientSums::arrived(uint64_t step) const {
  const auto at = arrived_.find(step);
  return at == arrived_.end() ? nullptr : &at->second;
}

std::optional<Task> GradientSums::next(uint64_t step) {
  if (is_reduced_ ? !are_sums_there(step) : !are_ranges_there(step)) return std::nullopt;
  const TaskKind kind = is_reduced_ ? TaskKind::Gather : TaskKind::Reduce;
  if (is_reduced_) given_ = step;
  is_reduced_ = !is_reduced_;
  return Task{.kind = kind,
              .key = {proto::ProgramKind::Sum, step, 0},
              .ends_round = kind == TaskKind::Gather && end_step()};
}

bool GradientSums::are_due(uint64_t step, bool updated) const {
  if (gradients_.empty() || given_ == step) return false;
  return (is_reduced_ && end_step()) == updated;
}

bool GradientSums::are_ranges_there(uint64_t step) const {
  const Arrived* there = arrived(step);
  return (there == nullptr ? 0 : there->ranges.size()) == awaited_ranges_;
}

bool GradientSums::are_sums_there(uint64_t step) const {
  const Arrived* there = arrived(step);
  return (there == nullptr ? 0 : there->sums.size()) == awaited_sums_;
}

std::optional<plan::Seat> GradientSums::last_to_come(uint64_t step, bool sums) const {
  const Arrived* there = arrived(step);
  if (there == nullptr) return std::nullopt;
  return sums ? there->last_sum : there->last_range;
}

}  // namespace weft::peer
