// Slots in eight bits on the host's backends.
#include "tests/backend/coded_slots.h"

#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/cpu.h"

namespace weft::peer {
namespace {

TEST(CodedSlots, StepAsWhatTheyWidenToOnEveryBackend) {
  const auto reference = make_reference_backend(), one = cpu(1), three = cpu(3);
  for (const dag::OptimizerSpec& rule : test::rules_with_slots()) {
    test::expect_steps_of_widened_slots(*reference, rule);
    test::expect_steps_of_widened_slots(*one, rule);
    test::expect_steps_of_widened_slots(*three, rule);
    test::expect_steps_of_widened_slots(*one, rule, /*one_at_a_time=*/true);
  }
}

// The rest of a block is what it would be without the numbers that are not finite.
TEST(CodedSlots, WhatIsNotFiniteSpoilsNothingElse) {
  const auto backend = cpu(1);
  dag::OptimizerSpec rule{.type = dag::OptimizerType::AdamW, .slots = dag::SlotType::Int8};
  const dag::Tensor start = random_tensor({300}, 1), gradient = random_tensor({300}, 2);
  std::vector<float> values(gradient.as<float>().begin(), gradient.as<float>().end());
  values[17] = std::numeric_limits<float>::quiet_NaN(), values[299] = std::numeric_limits<float>::infinity();
  const dag::Tensor spoilt = dag::make_tensor({300}, std::span<const float>(values));
  const dag::Tensor zero(dag::spec_of_state(dag::StateSlot::M, start.spec(), rule.slots));
  test::OneUpdate clean(*backend), dirty(*backend);
  clean.add(start, gradient, {zero, zero});
  dirty.add(start, spoilt, {zero, zero});
  for (test::OneUpdate* each : {&clean, &dirty}) each->run(rule, {.step = 1, .learning_rate = 0.1});
  const auto p = dirty.parameter(0), q = clean.parameter(0);
  for (size_t s = 0; s < 2; ++s) {
    const auto a = dirty.slot(0, s), b = clean.slot(0, s);
    for (size_t i = 0; i < 300; ++i) {
      const bool bad = i == 17 || i == 299;
      EXPECT_EQ(p.as<float>()[i] == q.as<float>()[i], !bad) << i;
      EXPECT_EQ(a.as<uint8_t>()[i], bad ? (s == 0 ? 0x80 : 0xFF) : b.as<uint8_t>()[i]) << i;
    }
  }
}

// A constant gradient is what m and the root of v come to, though a step changes v by a thousandth: far less
// than what lies between two codes.
TEST(CodedSlots, ComeToTheMeanInTheEnd) {
  const auto backend = cpu(1);
  const dag::OptimizerSpec rule{
      .type = dag::OptimizerType::Adam, .beta2 = 0.99, .slots = dag::SlotType::Int8};
  constexpr int64_t kCount = 4096;
  const dag::Tensor start({dag::DType::F32, {kCount}});
  std::vector<float> values(kCount);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 1.0F : 0.01F;
  const dag::Tensor gradient = dag::make_tensor({kCount}, std::span<const float>(values));
  const dag::Tensor zero(dag::spec_of_state(dag::StateSlot::M, start.spec(), rule.slots));
  test::OneUpdate update(*backend);
  update.add(start, gradient, {zero, zero});
  for (uint64_t step = 1; step <= 1000; ++step) update.run(rule, {.step = step, .learning_rate = 1e-3});
  const auto m = test::widened(update.slot(0, 0), kCount, dag::StateSlot::M),
             v = test::widened(update.slot(0, 1), kCount, dag::StateSlot::V);
  for (const size_t odd : {0, 1}) {
    double first = 0, second = 0;
    for (size_t i = odd; i < values.size(); i += 2) {
      first += static_cast<double>(m.as<float>()[i]) / values[i] / (kCount / 2);
      second += static_cast<double>(v.as<float>()[i]) / values[i] / values[i] / (kCount / 2);
    }
    EXPECT_NEAR(first, 1, 0.02) << odd;
    EXPECT_NEAR(second, 1, 0.02) << odd;
  }
}

}  // namespace
}  // namespace weft::peer
