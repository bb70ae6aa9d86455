#include "peer/backend/cpu/update.h"

#include <algorithm>
#include <cmath>

#include "dag/slot_codes.h"

namespace weft::peer::cpu {
namespace {

// The elements of several arrays as one row of blocks: kGrain elements each, or what is left of an array.
class BlockRow {
 public:
  void add(int64_t count) {
    counts_.push_back(count);
    starts_.push_back(starts_.back() + (count + kGrain - 1) / kGrain);
    elements_ += count;
  }
  int64_t blocks() const { return starts_.back(); }
  int64_t start(size_t array) const { return starts_[array]; }

  // Calls f(array, begin, end) for the elements of the blocks [first, last).
  template <typename F>
  void each(int64_t first, int64_t last, const F& f) const {
    size_t array =
        static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin()) - 1;
    for (; first < last; ++array) {
      const int64_t end = std::min(last, starts_[array + 1]), start = starts_[array];
      if (end > first) f(array, (first - start) * kGrain, std::min((end - start) * kGrain, counts_[array]));
      first = end;
    }
  }
  // f as above, on the team; few elements are not worth waking it.
  template <typename F>
  void each(const Team& team, const F& f) const {
    team.ranges(blocks(), elements_ <= kGrain ? std::max<int64_t>(1, blocks()) : 1,
                [&](int64_t first, int64_t last) { each(first, last, f); });
  }

 private:
  std::vector<int64_t> counts_, starts_{0};
  int64_t elements_ = 0;
};

SgdArgs sgd_args(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step) {
  SgdArgs args{};
  args.learning_rate = static_cast<float>(step.learning_rate);
  args.weight_decay = static_cast<float>(optimizer.weight_decay);
  args.momentum = static_cast<float>(optimizer.momentum);
  args.keep = static_cast<float>(1 - optimizer.dampening);
  args.gradient_scale = static_cast<float>(step.gradient_scale);
  args.first = step.step == 1;
  args.nesterov = optimizer.nesterov;
  return args;
}

AdamArgs adam_args(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step) {
  const bool decoupled = optimizer.type == dag::OptimizerType::AdamW;
  const double t = static_cast<double>(step.step);
  AdamArgs args{};
  args.decay_factor = decoupled ? static_cast<float>(1 - step.learning_rate * optimizer.weight_decay) : 1.0f;
  args.weight_decay = decoupled ? 0.0f : static_cast<float>(optimizer.weight_decay);
  args.beta1 = static_cast<float>(optimizer.beta1);
  args.one_minus_beta1 = static_cast<float>(1 - optimizer.beta1);
  args.beta2 = static_cast<float>(optimizer.beta2);
  args.one_minus_beta2 = static_cast<float>(1 - optimizer.beta2);
  args.step_size = static_cast<float>(step.learning_rate / (1 - std::pow(optimizer.beta1, t)));
  args.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(optimizer.beta2, t)));
  args.epsilon = static_cast<float>(optimizer.epsilon);
  args.gradient_scale = static_cast<float>(step.gradient_scale);
  return args;
}

}  // namespace

std::vector<double> sums_of_squares(const Team& team, const LoopTable& loops,
                                    std::span<const TensorView> sources) {
  BlockRow row;
  for (const TensorView& source : sources) row.add(source.spec.element_count());
  std::vector<double> of_block(static_cast<size_t>(row.blocks()));
  row.each(team, [&](size_t array, int64_t begin, int64_t end) {
    const float* x = pointer<const float>(sources[array].view);
    for (int64_t at = begin; at < end; at += kGrain)
      of_block[static_cast<size_t>(row.start(array) + at / kGrain)] =
          loops.sum_of_squares(x + at, std::min(kGrain, end - at));
  });
  std::vector<double> sums(sources.size());
  for (size_t array = 0; array < sums.size(); ++array)
    for (int64_t block = row.start(array); block < row.start(array + 1); ++block)
      sums[array] += of_block[static_cast<size_t>(block)];
  return sums;
}

void update_parameters(const Team& team, const LoopTable& loops, const dag::OptimizerSpec& optimizer,
                       const dag::UpdateStep& step, std::span<const ParameterUpdate> parameters) {
  BlockRow row;
  for (const ParameterUpdate& parameter : parameters) row.add(parameter.spec.element_count());
  const auto slot = [&](size_t array, size_t index, int64_t begin) -> float* {
    const std::vector<View>& slots = parameters[array].slots;
    return index < slots.size() ? pointer<float>(slots[index]) + begin : nullptr;
  };
  const bool sgd = optimizer.type == dag::OptimizerType::Sgd;
  std::vector<SgdArgs> of_sgd;  // by group, after those of no group
  std::vector<AdamArgs> of_adam;
  for (size_t i = 0; i <= optimizer.groups.size(); ++i) {
    const auto of = dag::update_of_group(optimizer, step, i == 0 ? std::nullopt : std::optional(i - 1));
    if (sgd)
      of_sgd.push_back(sgd_args(of.optimizer, of.step));
    else
      of_adam.push_back(adam_args(of.optimizer, of.step));
  }
  const auto args = [&](size_t array) {
    const auto& group = parameters[array].group;
    return group ? *group + 1 : 0;
  };
  static_assert(kGrain % kSlotBlock == 0 && kSlotBlock == dag::kSlotBlock);
  const bool coded = optimizer.slots == dag::SlotType::Int8 && !optimizer_slots(optimizer).empty();
  const uint32_t draw = dag::slot_draw(step.step);
  const auto coded_slot = [&](size_t array, size_t index, int64_t begin) -> CodedSlot {
    auto* codes = pointer<uint8_t>(parameters[array].slots[index]);
    uint8_t* scales = codes + parameters[array].spec.element_count();
    return {codes + begin, scales + begin / kSlotBlock, begin, draw};
  };
  row.each(team, [&](size_t array, int64_t begin, int64_t end) {
    float* p = pointer<float>(parameters[array].parameter) + begin;
    const float* g = pointer<const float>(parameters[array].gradient) + begin;
    if (sgd && coded)
      loops.coded_sgd(p, g, coded_slot(array, 0, begin), end - begin, of_sgd[args(array)]);
    else if (coded)
      loops.coded_adam(p, g, coded_slot(array, 0, begin), coded_slot(array, 1, begin), end - begin,
                       of_adam[args(array)]);
    else if (sgd)
      loops.sgd(p, g, slot(array, 0, begin), end - begin, of_sgd[args(array)]);
    else
      loops.adam(p, g, slot(array, 0, begin), slot(array, 1, begin), end - begin, of_adam[args(array)]);
  });
}

}  // namespace weft::peer::cpu
