// The executor asks a backend for nothing but what its contract gives: on a device that does everything as
// late as it may and repeats segments from recordings, training ends in the same bits.
#include <gtest/gtest.h>

#include <algorithm>

#include "peer/backend/reference/reference_backend.h"
#include "tests/peer/training.h"
#include "tests/support/late_backend.h"

namespace weft::peer {
namespace {

class LateDevice : public testing::TestWithParam<const char*> {};

TEST_P(LateDevice, TrainsToTheSameBits) {
  const test::Model model = model_of(GetParam());
  const auto device = make_reference_backend();
  test::LateBackend late(*device);
  const auto expected = Training(model, *device).run();
  EXPECT_EQ(Training(model, late).run(), expected);
  // Both arenas for what is written and what is added to, but for the second as the first of a step: the
  // others are repeated. What is made once a step is one more.
  const bool rounds = model.graph.ops().end() !=
                      std::find_if(model.graph.ops().begin(), model.graph.ops().end(),
                                   [](const dag::Op& op) { return op.kind == dag::OpKind::RoundToHalf; });
  EXPECT_EQ(late.recorded(), rounds ? 4u : 3u);
  EXPECT_EQ(late.repeated(), kSteps * (kMicrobatches + rounds) - late.recorded());
}

TEST_P(LateDevice, AddsUpRangesToTheSameBits) {
  const test::Model model = model_of(GetParam());
  const auto device = make_reference_backend();
  test::LateBackend late(*device);
  EXPECT_EQ(Training(model, late, kMicrobatches).run(), Training(model, *device, kMicrobatches).run());
}

TEST_P(LateDevice, RecordsNothingUnderAnObserver) {
  const test::Model model = model_of(GetParam());
  const auto device = make_reference_backend();
  test::LateBackend late(*device);
  Training training(model, late);
  size_t kernels = 0;
  training.executor().set_observer([&](size_t, bool begins) { kernels += begins; });
  EXPECT_EQ(training.run(), Training(model, *device).run());
  EXPECT_EQ(late.recorded(), 0u);
  const std::vector<bool>& once = training.executor().program().runs_once;
  const auto of_step = static_cast<size_t>(std::count(once.begin(), once.end(), true));
  EXPECT_EQ(kernels, kSteps * (kMicrobatches * (once.size() - of_step) + of_step));
}

// Made anew in each microbatch they are the same numbers.
TEST(OnceAStep, WeightsAreRoundedOnceForEachStateOfThem) {
  const test::Model model = model_of("rounded");
  const auto device = make_reference_backend();
  const auto expected = Training(model, *device).run();
  Training anew(model, *device);
  size_t rounded = 0;
  const std::vector<bool>& once = anew.executor().program().runs_once;
  anew.executor().set_observer([&](size_t group, bool begins) {
    if (begins && once[group]) ++rounded;
    if (!once[group]) anew.executor().state().note_change();
  });
  EXPECT_EQ(anew.run(), expected);
  const auto of_step = static_cast<size_t>(std::count(once.begin(), once.end(), true));
  EXPECT_EQ(of_step, anew.executor().parameters().size());
  EXPECT_EQ(rounded, kSteps * kMicrobatches * of_step);
}

INSTANTIATE_TEST_SUITE_P(Models, LateDevice, testing::Values("residual", "transformer", "rounded"),
                         [](const auto& p) { return std::string(p.param); });

TEST(LateMemory, GoesWhenItsWorkIsDone) {
  const auto device = make_reference_backend();
  test::LateBackend late(*device);
  const Tensor tensor = test::random_tensor(1, 1, {100});
  auto memory = value_or_fail(late.allocate(late.storage_bytes(tensor.spec(), dag::Layout::Plain)));
  ok_or_fail(late.upload(tensor, {memory.get(), 0}, dag::Layout::Plain));
  const auto download =
      value_or_fail(late.begin_download({memory.get(), 0}, tensor.spec(), dag::Layout::Plain, {}));
  ok_or_fail(late.fill_zero({memory.get(), 0}, tensor.spec()));
  memory.reset();
  EXPECT_EQ(to_doubles(value_or_fail(download->take())), to_doubles(tensor));
}

}  // namespace
}  // namespace weft::peer
