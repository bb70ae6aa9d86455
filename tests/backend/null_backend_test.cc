#include "peer/backend/null/null_backend.h"

#include <gtest/gtest.h>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "peer/executor.h"
#include "plan/cost.h"
#include "plan/pipeline.h"
#include "tests/support/models.h"

namespace weft::peer {
namespace {

using dag::Layout;

struct Device {
  Duration waited{};
  int waits = 0;
  std::unique_ptr<Backend> backend;

  explicit Device(Bytes memory = {int64_t{1} << 40}, plan::Rates rates = {1e9, 1e9, 1e9, 1e-6}) {
    NullOptions options;
    options.type = "rtx3080";
    options.rates = rates;
    options.memory = memory;
    options.traits = {.fuse_elementwise = true, .convolution_layout = Layout::Blocked16};
    options.wait = [this](Duration time) {
      waited += time;
      ++waits;
    };
    backend = make_null_backend(std::move(options));
  }
};

TEST(NullBackend, SaysWhatItIs) {
  const Device device;
  EXPECT_EQ(device.backend->name(), "null");
  EXPECT_EQ(device.backend->numerics_fingerprint(), "null:rtx3080");
  EXPECT_TRUE(device.backend->traits().fuse_elementwise);
}

TEST(NullBackend, MemoryIsCountedAgainstTheDevices) {
  Device device({1000});
  auto first = device.backend->allocate({600});
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ((*first)->size().value, 600);
  const auto second = device.backend->allocate({600});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::ResourceExhausted);
  EXPECT_NE(second.error().message.find("400 bytes left"), std::string::npos) << second.error().message;
  const MemoryUse use = *device.backend->memory();
  EXPECT_EQ(use.used.value, 600);
  EXPECT_EQ(use.free.value, 400);
  EXPECT_EQ(use.total.value, 1000);
  first->reset();
  EXPECT_TRUE(device.backend->allocate({1000}).has_value());
}

TEST(NullBackend, ALargeDeviceCostsNoMemory) {
  Device device;
  const auto memory = device.backend->allocate({int64_t{64} << 30});
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_EQ((*memory)->size().value, int64_t{64} << 30);
}

TEST(NullBackend, ValuesReadAsZero) {
  Device device;
  const dag::Tensor tensor = test::random_tensor(1, 1, {4});
  const auto memory = device.backend->allocate(tensor.spec().bytes());
  ASSERT_TRUE(device.backend->upload(tensor, {memory->get(), 0}, Layout::Plain).has_value());
  const auto back = device.backend->download({memory->get(), 0}, tensor.spec(), Layout::Plain);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(dag::to_doubles(*back), (std::vector<double>(4, 0.0)));
  const TensorView view{{memory->get(), 0}, tensor.spec()};
  EXPECT_EQ(*device.backend->sums_of_squares({&view, 1}), std::vector{0.0});
}

TEST(NullBackend, WaitsOnlyWhereItsCallerWaits) {
  Device device;
  const dag::TensorSpec spec{dag::DType::F32, {1000}};
  ASSERT_TRUE(device.backend->accumulate({}, {}, spec).has_value());
  EXPECT_EQ(device.waits, 0);
  ASSERT_TRUE(device.backend->synchronize().has_value());
  EXPECT_EQ(device.waits, 1);
  EXPECT_EQ(device.waited, std::chrono::nanoseconds(13000));  // three passes over 4000 bytes, one launch
  ASSERT_TRUE(device.backend->synchronize().has_value());
  EXPECT_EQ(device.waits, 1) << "nothing was submitted";
}

// What is waited for later was not waited for, and a timer says what the device did between its ends.
TEST(NullBackend, ADownloadWaitsForWhatWasBefore) {
  Device device;
  const dag::TensorSpec spec{dag::DType::F32, {1000}};
  const auto timer = device.backend->start_timer();
  ASSERT_TRUE(device.backend->copy({}, {}, spec).has_value());  // two passes over 4000 bytes
  const auto first = device.backend->begin_download({}, spec, Layout::Plain, {});
  ASSERT_TRUE((*timer)->stop().has_value());
  ASSERT_TRUE(device.backend->copy({}, {}, spec).has_value());
  const auto second = device.backend->begin_download({}, spec, Layout::Plain, {});
  EXPECT_EQ(device.waits, 0);
  ASSERT_TRUE((*first)->take().has_value());
  EXPECT_EQ(device.waited, std::chrono::nanoseconds(8000));
  EXPECT_EQ(*(*timer)->elapsed(), std::chrono::nanoseconds(8000));
  ASSERT_TRUE((*second)->take().has_value());
  EXPECT_EQ(device.waited, std::chrono::nanoseconds(16000));
  EXPECT_EQ(device.waits, 2);
}

// A whole microbatch takes what the planner predicts for it.
TEST(NullBackend, AMicrobatchTakesThePredictedTime) {
  const plan::Rates rates{3e9, 2e9, 5e9, 2e-6};
  for (const bool convolutions : {false, true}) {
    const dag::Graph forward =
        convolutions ? test::residual_net(1, {.channels = 16}).graph : test::transformer(1).graph;
    const auto graph = std::make_shared<const dag::Graph>(
        dag::lower(dag::differentiate(forward, dag::op_table()).value(), dag::op_table(),
                   {.fuse_elementwise = true, .convolution_layout = Layout::Blocked16}));
    Device device({int64_t{1} << 40}, rates);
    auto executor = Executor::create(graph, std::make_shared<State>(*device.backend), {});
    ASSERT_TRUE(executor.has_value()) << executor.error().message;
    auto microbatch = (*executor)->make_microbatch();
    ASSERT_TRUE(microbatch.has_value());
    ASSERT_TRUE((*executor)->run(**microbatch).has_value());
    ASSERT_TRUE(device.backend->synchronize().has_value());

    const std::vector<uint32_t> one_stage(graph->ops().size(), 0);
    const plan::Pipeline pipeline =
        plan::make_pipeline(plan::make_model(*graph), one_stage, std::vector{plan::StageDevice{rates, 0}}, {})
            .value();
    Duration predicted{};
    for (const auto& segment : pipeline.stages[0].segments) predicted += segment.compute;
    EXPECT_NEAR(seconds(device.waited), seconds(predicted), 0.02 * seconds(predicted));
  }
}

}  // namespace
}  // namespace weft::peer
