#include "peer/service/statistic_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "dag/gradient_order.h"
#include "dag/op_table.h"
#include "peer/machine/train_commands.h"

namespace weft::peer {

using dag::Tensor;

namespace {

// The rows of one replica's microbatches, as one tensor.
class Rows final : public Download {
 public:
  Rows(dag::TensorSpec spec, std::vector<std::unique_ptr<Download>> values)
      : spec_(std::move(spec)), values_(std::move(values)) {}
  Result<Tensor> take() override {
    Tensor all(spec_);
    std::span<std::byte> into = all.mutable_bytes();
    for (const auto& value : values_) {
      WEFT_TRY(const Tensor tensor, value->take());
      std::memcpy(into.data(), tensor.bytes().data(), tensor.bytes().size());
      into = into.subspan(tensor.bytes().size());
    }
    return all;
  }

 private:
  dag::TensorSpec spec_;
  std::vector<std::unique_ptr<Download>> values_;
};

}  // namespace

std::vector<dag::ValueId> fresh_values(const proto::AssignStage& assign, const dag::Graph& training) {
  std::vector<dag::ValueId> values;
  if (!assign.exact) return values;
  const auto statistics = dag::fresh_statistics(training);
  if (!statistics) return values;
  for (const dag::FreshStatistic& statistic : *statistics)
    values.insert(values.end(), statistic.values.begin(), statistic.values.end());
  return values;
}

Result<std::unique_ptr<StatisticExchange>> StatisticExchange::create(
    std::shared_ptr<const proto::AssignStage> assignment, const proto::StageProgram& training,
    std::vector<SummedTensor> statistics, std::shared_ptr<State> state) {
  std::unique_ptr<StatisticExchange> made(
      new StatisticExchange(std::move(assignment), training, std::move(state)));
  WEFT_TRY_STATUS(made->build(std::move(statistics)));
  return made;
}

Status StatisticExchange::build(std::vector<SummedTensor> statistics) {
  std::vector<dag::FreshStatistic> ours;
  for (SummedTensor& statistic : statistics) {
    if (statistic.is_ours) ours.push_back(*statistic.fresh);
    held_.push_back({.statistic = std::move(statistic)});
    begin_step(held_.back());
  }
  if (ours.empty()) return {};
  auto graph =
      std::make_shared<const dag::Graph>(dag::blending_graph(*training_.graph, ours, dag::op_table()));
  ExecutorOptions options;
  options.precision.compute = assignment_->arithmetic;
  WEFT_TRY(blending_, Executor::create(std::move(graph), state_, std::move(options)));
  WEFT_TRY(microbatch_, blending_->make_microbatch());
  return {};
}

void StatisticExchange::begin_step(Held& held) const {
  held.rows.clear();
  held.missing = microbatches_of(*assignment_).count * held.statistic.fresh->values.size();
}

const StatisticExchange::Held* StatisticExchange::find(uint32_t number) const {
  const auto at = std::find_if(held_.begin(), held_.end(),
                               [&](const Held& held) { return held.statistic.tensor->number == number; });
  return at == held_.end() ? nullptr : &*at;
}

Status StatisticExchange::after_segment(const Task& task, Executor& training,
                                        const MicrobatchMemory& microbatch, std::vector<SendingShare>& sent) {
  for (Held& held : held_) {
    const dag::FreshStatistic& fresh = *held.statistic.fresh;
    for (size_t v = 0; v < fresh.values.size(); ++v) {
      if (segment_of(training_, fresh.values[v]) != task.segment) continue;
      Row& row = held.rows[task.key.microbatch];
      row.resize(fresh.values.size());
      WEFT_TRY(row[v], training.begin_value(microbatch, fresh.values[v]));
      if (--held.missing > 0 || held.statistic.is_ours) continue;
      Row all;
      for (auto& [number, of] : held.rows) std::move(of.begin(), of.end(), std::back_inserter(all));
      const uint32_t own = assignment_->seat.replica;
      dag::TensorSpec spec = fresh_spec(*assignment_, fresh, own);
      sent.push_back({sum_share(*assignment_, *held.statistic.tensor, spec, task.key.step,
                                dag::share_of(assignment_->exact->ranges, own).first, /*is_sum=*/false,
                                held.statistic.tensor->owner),
                      std::make_unique<Rows>(std::move(spec), std::move(all))});
      begin_step(held);
    }
  }
  return {};
}

// One row for each microbatch of this seat's share.
Status StatisticExchange::add_own(Held& held, std::map<uint32_t, Tensor>& rows) {
  WEFT_CHECK_MSG(held.missing == 0, "running statistics are blended before they were all made");
  const dag::FreshStatistic& fresh = *held.statistic.fresh;
  for (auto& [microbatch, row] : held.rows) {
    WEFT_TRY(rows[microbatch], Rows({fresh.dtype, {1, fresh.count}}, std::move(row)).take());
  }
  begin_step(held);
  return {};
}

Status StatisticExchange::blend(const std::vector<AgreedShare>& fresh) {
  if (!blending_) return {};
  std::map<uint32_t, std::map<uint32_t, Tensor>> rows;  // by number and microbatch
  const uint32_t length = assignment_->training.microbatches() / assignment_->training.gradient_ranges;
  for (const AgreedShare& one : fresh) {
    const Held* held = find(one.number);
    if (held == nullptr) continue;
    const dag::FreshStatistic& statistic = *held->statistic.fresh;
    const uint32_t first = dag::share_of(assignment_->exact->ranges, one.replica).first * length;
    const dag::TensorSpec spec{statistic.dtype, {1, statistic.count}};
    const auto size = static_cast<size_t>(spec.bytes().value);
    for (uint32_t m = 0; m < one.tensor.bytes().size() / size; ++m)
      rows[one.number][first + m] = Tensor(spec, one.tensor.bytes().subspan(m * size, size));
  }
  for (Held& held : held_)
    if (held.statistic.is_ours) WEFT_TRY_STATUS(add_own(held, rows[held.statistic.tensor->number]));
  for (uint32_t m = 0; m < assignment_->training.microbatches(); ++m) {
    for (const Held& held : held_) {
      if (!held.statistic.is_ours) continue;
      std::span<const std::byte> row = rows.at(held.statistic.tensor->number).at(m).bytes();
      for (const dag::ValueId value : held.statistic.fresh->values) {
        const dag::TensorSpec& spec = training_.graph->spec(value);
        const auto size = static_cast<size_t>(spec.bytes().value);
        WEFT_TRY_STATUS(
            blending_->set_input(*microbatch_, dag::fresh_input(value), Tensor(spec, row.first(size))));
        row = row.subspan(size);
      }
    }
    WEFT_TRY_STATUS(blending_->run(*microbatch_, 0));
  }
  return {};
}

Result<std::vector<SentShare>> StatisticExchange::blended(uint64_t step) const {
  std::vector<SentShare> sent;
  for (const Held& held : held_) {
    if (!held.statistic.is_ours) continue;
    const proto::AgreedTensor& tensor = *held.statistic.tensor;
    WEFT_TRY(const Tensor blended,
             state_->read(dag::of_initializer(tensor.name, dag::StateSlot::RunningStatistic)));
    for (uint32_t replica = 0; replica < tensor.stages.size(); ++replica) {
      if (replica == assignment_->seat.replica) continue;
      sent.push_back(sum_share(*assignment_, tensor, held.statistic.spec, step, 0, /*is_sum=*/true, replica));
      sent.back().payload = blended;
    }
  }
  return sent;
}

Status StatisticExchange::take(const AgreedShare& blended) {
  const Held& held = *find(blended.number);
  return state_->write(dag::of_initializer(held.statistic.tensor->name, dag::StateSlot::RunningStatistic),
                       blended.tensor);
}

}  // namespace weft::peer
