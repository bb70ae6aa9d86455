// The executor asks a backend for nothing but what its contract gives: on a device that does everything as
// late as it may and repeats segments from recordings, training ends in the same bits.
#include <gtest/gtest.h>

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
  // others are repeated.
  EXPECT_EQ(late.recorded(), 3u);
  EXPECT_EQ(late.repeated(), kSteps * kMicrobatches - late.recorded());
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
  EXPECT_EQ(kernels, kSteps * kMicrobatches * training.executor().program().groups.size());
}

INSTANTIATE_TEST_SUITE_P(Models, LateDevice, testing::Values("residual", "transformer"),
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
