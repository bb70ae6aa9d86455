// What every backend promises of slots in eight bits: an update's bits are those of the update of what they
// widen to, in float32, narrowed again. Both of that by dag/slot_codes.h, one element after another.
#pragma once

#include <cstring>
#include <limits>

#include "dag/slot_codes.h"
#include "dag/slots.h"
#include "tests/backend/run_graph.h"

namespace weft::test {

// The rules that have slots.
inline std::vector<dag::OptimizerSpec> rules_with_slots() {
  std::vector<dag::OptimizerSpec> rules(5);
  rules[0].momentum = 0.9, rules[0].weight_decay = 0.1;
  rules[1].momentum = 0.9, rules[1].dampening = 0.2;
  rules[2].momentum = 0.8, rules[2].nesterov = true;
  rules[3].type = dag::OptimizerType::Adam, rules[3].weight_decay = 0.1;
  rules[4].type = dag::OptimizerType::AdamW, rules[4].weight_decay = 0.1;
  return rules;
}

// About a block of elements, a chunk of a device's and a thread's.
inline std::vector<int64_t> sizes_about_blocks() {
  return {5, 0, 256, 1, 255, 257, 4096 + 3, 512, 16384 + 300};
}

inline dag::Tensor widened(const dag::Tensor& coded, int64_t count, dag::StateSlot slot) {
  const auto bytes = coded.as<uint8_t>();
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = dag::widen_code(dag::slot_format(slot), bytes[i],
                                bytes[values.size() + i / static_cast<size_t>(dag::kSlotBlock)]);
  return dag::make_tensor({count}, std::span<const float>(values));
}

inline dag::Tensor narrowed(const dag::Tensor& plain, dag::StateSlot slot, uint64_t update, bool second) {
  const auto values = plain.as<float>();
  const auto& format = dag::slot_format(slot);
  const auto count = static_cast<int64_t>(values.size());
  dag::Tensor coded({dag::DType::U8, {dag::coded_slot_bytes(count)}});
  const auto bytes = coded.mutable_as<uint8_t>();
  for (int64_t begin = 0; begin < count; begin += dag::kSlotBlock) {
    const auto block = values.subspan(static_cast<size_t>(begin),
                                      static_cast<size_t>(std::min(dag::kSlotBlock, count - begin)));
    float largest = 0;
    for (const float value : block)
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    const uint8_t scale = bytes[static_cast<size_t>(count + begin / dag::kSlotBlock)] =
        dag::slot_scale(format, largest);
    for (size_t i = 0; i < block.size(); ++i)
      bytes[static_cast<size_t>(begin) + i] =
          dag::narrow_code(format, block[i], scale,
                           dag::slot_chance(dag::slot_draw(update), begin + static_cast<int64_t>(i), second));
  }
  return coded;
}

// Parameters with their gradients and slots, on a backend for one update.
class OneUpdate {
 public:
  explicit OneUpdate(peer::Backend& backend) : backend_(backend) {}
  void add(const dag::Tensor& parameter, const dag::Tensor& gradient, const std::vector<dag::Tensor>& slots) {
    peer::ParameterUpdate& update =
        updates_.emplace_back(peer::ParameterUpdate{parameter.spec(), place(parameter), place(gradient), {}});
    for (const dag::Tensor& slot : slots) {
      update.slots.push_back(place(slot));
      slot_spec_[updates_.size() - 1] = slot.spec();
    }
  }
  void run(const dag::OptimizerSpec& rule, const dag::UpdateStep& step, bool one_at_a_time = false) {
    const std::span<const peer::ParameterUpdate> all = updates_;
    for (size_t i = 0; one_at_a_time && i < all.size(); ++i)
      EXPECT_TRUE(backend_.update(rule, step, all.subspan(i, 1)).has_value());
    if (!one_at_a_time) {
      EXPECT_TRUE(backend_.update(rule, step, all).has_value());
    }
  }
  dag::Tensor parameter(size_t i) { return read(updates_[i].parameter, updates_[i].spec); }
  dag::Tensor slot(size_t i, size_t which) { return read(updates_[i].slots[which], slot_spec_.at(i)); }

 private:
  peer::View place(const dag::Tensor& tensor) {
    auto memory = backend_.allocate(backend_.storage_bytes(tensor.spec(), dag::Layout::Plain));
    EXPECT_TRUE(memory.has_value());
    EXPECT_TRUE(backend_.upload(tensor, {memory->get(), 0}, dag::Layout::Plain).has_value());
    memory_.push_back(std::move(*memory));
    return {memory_.back().get(), 0};
  }
  dag::Tensor read(peer::View view, const dag::TensorSpec& spec) {
    return *backend_.download(view, spec, dag::Layout::Plain);
  }

  peer::Backend& backend_;
  std::vector<std::unique_ptr<peer::Memory>> memory_;
  std::vector<peer::ParameterUpdate> updates_;
  std::map<size_t, dag::TensorSpec> slot_spec_;
};

// Of any size of number: some are zero, some not finite where `spoilt` says so.
inline dag::Tensor gradient_of(int64_t count, uint64_t seed, bool spoilt) {
  Rng rng(seed, 3);
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const double size = std::pow(10.0, -static_cast<double>(rng.below(i % 7 == 0 ? 25 : 4)));
    values[i] = i % 11 == 3 ? 0.0F : static_cast<float>(rng.normal() * size);
    if (spoilt && i % 97 == 4)
      values[i] =
          i % 2 == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return dag::make_tensor({count}, std::span<const float>(values));
}

// One NaN is as good as another.
inline bool same_numbers(const dag::Tensor& a, const dag::Tensor& b) {
  const auto x = a.as<float>(), y = b.as<float>();
  for (size_t i = 0; i < x.size(); ++i)
    if (std::memcmp(&x[i], &y[i], sizeof(float)) != 0 && !(std::isnan(x[i]) && std::isnan(y[i])))
      return false;
  return x.size() == y.size();
}

inline void expect_steps_of_widened_slots(peer::Backend& backend, const dag::OptimizerSpec& rule,
                                          bool one_at_a_time = false) {
  dag::OptimizerSpec coded_rule = rule;
  coded_rule.slots = dag::SlotType::Int8;
  const std::vector<dag::StateSlot> kinds = dag::optimizer_slots(rule);
  std::vector<dag::Tensor> parameters;
  std::vector<std::vector<dag::Tensor>> slots;
  for (const int64_t size : sizes_about_blocks()) {
    parameters.push_back(peer::random_tensor({size}, static_cast<uint64_t>(size) + 1));
    slots.emplace_back(kinds.size(), dag::Tensor(dag::spec_of_state(kinds[0], parameters.back().spec(),
                                                                    dag::SlotType::Int8)));
  }
  for (uint64_t step = 1; step <= 4; ++step) {
    const dag::UpdateStep now{step, 0.05 / static_cast<double>(step), 0.5};
    OneUpdate coded(backend), plain(backend);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int64_t size = parameters[i].element_count();
      const dag::Tensor gradient = gradient_of(size, 100 * step + i, step == 3);
      coded.add(parameters[i], gradient, slots[i]);
      std::vector<dag::Tensor> wide;
      for (size_t s = 0; s < kinds.size(); ++s) wide.push_back(widened(slots[i][s], size, kinds[s]));
      plain.add(parameters[i], gradient, wide);
    }
    coded.run(coded_rule, now, one_at_a_time);
    plain.run(rule, now);
    for (size_t i = 0; i < parameters.size(); ++i) {
      SCOPED_TRACE("step " + std::to_string(step) + ", " + dag::to_string(parameters[i].spec()));
      parameters[i] = coded.parameter(i);
      EXPECT_TRUE(same_numbers(parameters[i], plain.parameter(i)));
      for (size_t s = 0; s < kinds.size(); ++s) {
        slots[i][s] = coded.slot(i, s);
        EXPECT_TRUE(peer::same_bytes(slots[i][s], narrowed(plain.slot(i, s), kinds[s], step, s == 1))) << s;
        EXPECT_EQ(dag::is_finite_state(dag::of_initializer("w", kinds[s]), slots[i][s]),
                  step < 3 || parameters[i].element_count() < 5);
      }
    }
  }
}

}  // namespace weft::test
