#include "peer/service/gradient_exchange.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "dag/gradient_order.h"
#include "peer/machine/train_commands.h"
#include "peer/service/encoding.h"
#include "peer/service/updated_weights.h"

namespace weft::peer {

using dag::Tensor;

Result<std::unique_ptr<GradientExchange>> GradientExchange::create(
    std::shared_ptr<const proto::AssignStage> assignment, Executor& executor, std::shared_ptr<State> state) {
  std::unique_ptr<GradientExchange> made(new GradientExchange(std::move(assignment), executor));
  std::vector<SummedTensor> statistics;
  for (SummedTensor& summed : summed_tensors(*made->assignment_))
    if (summed.fresh)
      statistics.push_back(std::move(summed));
    else
      WEFT_TRY_STATUS(made->add_gradient(std::move(summed)));
  if (statistics.empty()) return made;
  const proto::StageProgram& training = *find_program(*made->assignment_, proto::ProgramKind::Train);
  WEFT_TRY(made->statistics_,
           StatisticExchange::create(made->assignment_, training, std::move(statistics), std::move(state)));
  return made;
}

Status GradientExchange::add_gradient(SummedTensor gradient) {
  if (gradient.spec.dtype != dag::DType::F32)
    return fail(ErrorCode::Unsupported, "the gradient of '" + gradient.tensor->name +
                                            "' is no float32, and replicas add up that alone");
  const auto& parameters = executor_.parameters();
  const auto at = std::find_if(parameters.begin(), parameters.end(), [&](const Executor::Parameter& one) {
    return one.name == gradient.tensor->name;
  });
  WEFT_CHECK_MSG(at != parameters.end(), "a gradient to be added up that the stage does not have");
  Held held{.gradient = std::move(gradient)};
  held.parameter = static_cast<size_t>(at - parameters.begin());
  held_.push_back(std::move(held));
  return {};
}

Status GradientExchange::after_segment(const Task& task, const MicrobatchMemory& microbatch,
                                       std::vector<SendingShare>& sent) {
  if (proto::is_comparison(task.key.microbatch)) return {};
  if (statistics_) WEFT_TRY_STATUS(statistics_->after_segment(task, executor_, microbatch, sent));
  const dag::TrainingSpec& training = assignment_->training;
  const auto range =
      dag::sum_completed(task.key.microbatch, training.microbatches(), training.gradient_ranges,
                         dag::share_of(assignment_->exact->ranges, assignment_->seat.replica));
  if (!range) return {};
  for (Held& held : held_) {
    if (executor_.segment_of_gradient(held.parameter) != task.segment) continue;
    const TensorView& place = executor_.gradient_place(held.parameter);
    WEFT_TRY(auto download,
             executor_.state().backend().begin_download(place.view, place.spec, dag::Layout::Plain, {}));
    if (held.gradient.is_ours) {
      held.own[*range] = std::move(download);
      continue;
    }
    sent.push_back({sum_share(*assignment_, *held.gradient.tensor, held.gradient.spec, task.key.step, *range,
                              /*is_sum=*/false, held.gradient.tensor->owner),
                    std::move(download), training.seed});
    sent.back().share.header.codec = held.gradient.codec(*assignment_);
  }
  return {};
}

// In float32 and one by one, as a backend accumulates.
Result<Tensor> GradientExchange::add_up(Held& held, const std::map<uint32_t, const Tensor*>& of_others) {
  std::map<uint32_t, Tensor> own;
  for (auto& [range, download] : held.own) {
    WEFT_TRY(own[range], download->take());
  }
  held.own.clear();
  std::map<uint32_t, const Tensor*> ranges = of_others;
  for (const auto& [range, tensor] : own) ranges[range] = &tensor;
  Tensor sum(held.gradient.spec, ranges.begin()->second->bytes());
  const std::span<float> into = sum.mutable_as<float>();
  for (auto range = std::next(ranges.begin()); range != ranges.end(); ++range) {
    const std::span<const float> values = range->second->as<float>();
    for (size_t i = 0; i < into.size(); ++i) into[i] += values[i];
  }
  return sum;
}

// For this seat itself; others get the same.
SentShare GradientExchange::encoded_sum(const Held& held, uint64_t step, const Tensor& sum) {
  SentShare share = sum_share(*assignment_, *held.gradient.tensor, held.gradient.spec, step, 0,
                              /*is_sum=*/true, assignment_->seat.replica);
  share.header.codec = held.gradient.codec(*assignment_);
  share.payload = encode_tensor(share.header, sum, assignment_->training.seed, scratch_);
  return share;
}

Result<std::vector<SentShare>> GradientExchange::reduce(uint64_t step,
                                                        const std::vector<AgreedShare>& ranges) {
  std::map<uint32_t, std::map<uint32_t, const Tensor*>> came;  // by number and range
  for (const AgreedShare& one : ranges) came[one.number][one.range] = &one.tensor;
  std::vector<SentShare> sent;
  const bool shares_slots = proto::shares_slots(*assignment_);
  if (statistics_) WEFT_TRY_STATUS(statistics_->blend(ranges));
  if (statistics_ && !shares_slots) {
    WEFT_TRY(sent, statistics_->blended(step));
  }
  for (Held& held : held_) {
    if (!held.gradient.is_ours) continue;
    const proto::AgreedTensor& tensor = *held.gradient.tensor;
    WEFT_TRY(const Tensor sum, add_up(held, came[tensor.number]));
    if (shares_slots) {
      WEFT_TRY_STATUS(put_sum(held, sum));
      continue;
    }
    held.sum = encoded_sum(held, step, sum);
    for (uint32_t replica = 0; replica < tensor.stages.size(); ++replica) {
      if (replica == assignment_->seat.replica) continue;
      sent.push_back(held.sum);
      sent.back().to = {tensor.stages[replica], replica};
    }
  }
  return sent;
}

Status GradientExchange::put_sum(Held& held, const Tensor& sum) {
  return executor_.state().backend().upload(sum, executor_.gradient_place(held.parameter).view,
                                            dag::Layout::Plain);
}

// Also of a step that was skipped: then they are what they were.
Status GradientExchange::send_updated(uint64_t step, std::vector<SendingShare>& sent) {
  for (const Held& held : held_)
    if (held.gradient.is_ours)
      WEFT_TRY_STATUS(send_weight(*assignment_, *held.gradient.tensor, held.gradient.spec, step,
                                  executor_.state(), sent));
  if (!statistics_) return {};
  WEFT_TRY(std::vector<SentShare> blended, statistics_->blended(step));
  for (SentShare& share : blended) {
    auto payload = std::make_unique<FinishedDownload>(std::exchange(share.payload, {}));
    sent.push_back({std::move(share), std::move(payload)});
  }
  return {};
}

Status GradientExchange::gather(const std::vector<AgreedShare>& sums) {
  std::map<uint32_t, const AgreedShare*> came;
  for (const AgreedShare& one : sums)
    if (statistics_ && statistics_->has(one.number))
      WEFT_TRY_STATUS(statistics_->take(one));
    else
      came[one.number] = &one;
  const bool shares_slots = proto::shares_slots(*assignment_);
  for (Held& held : held_) {
    const proto::AgreedTensor& tensor = *held.gradient.tensor;
    if (shares_slots) {
      if (!held.gradient.is_ours)
        WEFT_TRY_STATUS(take_weight(tensor, *came.at(tensor.number), executor_.state()));
      continue;
    }
    // Decoded only now: meanwhile the others' sums are on their way.
    WEFT_TRY(const Tensor sum,
             held.gradient.is_ours
                 ? decode_tensor(held.sum.header, held.sum.payload, assignment_->training.seed)
                 : Result<Tensor>(came.at(tensor.number)->tensor));
    WEFT_TRY_STATUS(put_sum(held, sum));
    held.sum = {};
  }
  return {};
}

}  // namespace weft::peer
