// The backend over a device whose streams are as late or as early as they may be: training ends in the same
// bits whatever the order, whole or in stages, and a device that is lost is said to be, wherever that
// happens.
#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <thread>

#include "base/rng.h"
#include "dag/split.h"
#include "peer/backend/reference/reference_backend.h"
#include "plan/model.h"
#include "tests/cuda/backend_on_host.h"
#include "tests/peer/blended.h"

namespace weft::peer {
namespace {

using test::cuda_on;
using test::cuda_on_host;
using test::HostDevice;
using test::HostDeviceOptions;
using Pace = HostDeviceOptions::Pace;

class CudaExecutor : public testing::TestWithParam<const char*> {};

TEST_P(CudaExecutor, TrainsToTheSameBitsHoweverLateTheStreamsAre) {
  const test::Model model = model_of(GetParam());
  const auto expected = Training(model, *cuda_on_host({.pace = Pace::Early})).run();
  EXPECT_EQ(Training(model, *cuda_on_host({.pace = Pace::Late})).run(), expected) << "late";
  for (uint64_t seed = 1; seed <= 3; ++seed)
    EXPECT_EQ(Training(model, *cuda_on_host({.seed = seed})).run(), expected) << "seed " << seed;
}

TEST_P(CudaExecutor, TrainsAsTheReferenceDoes) {
  const test::Model model = model_of(GetParam());
  const auto actual = Training(model, *cuda_on_host()).run(),
             expected = Training(model, *make_reference_backend()).run();
  ASSERT_EQ(actual.size(), expected.size());
  // The losses, and the squares of each parameter's gradient. Not the parameters: AdamW steps by its rate
  // where the gradient is nothing but rounding (a key's bias has none).
  for (size_t i = 0; i < kSteps * (kMicrobatches + 1); ++i) {
    double difference = 0, norm = 0;
    for (size_t k = 0; k < actual[i].size(); ++k) {
      difference += std::pow(actual[i][k] - expected[i][k], 2);
      norm += std::pow(expected[i][k], 2);
    }
    EXPECT_LE(std::sqrt(difference), 1e-3 * std::sqrt(norm) + 1e-6) << "result " << i;
  }
}

// A device that forgets what a stream was to wait for gives other numbers: the tests above would see it.
TEST_P(CudaExecutor, AForgottenWaitIsSeen) {
  const test::Model model = model_of(GetParam());
  const auto expected = Training(model, *cuda_on_host({.pace = Pace::Early})).run();
  int seen = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed)
    seen += Training(model, *cuda_on_host({.seed = seed, .ignores_waits = true})).run() != expected;
  EXPECT_EQ(seen, 3);
}

TEST_P(CudaExecutor, StagesGiveTheBitsOfTheWhole) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const test::Model model = model_of(GetParam());
    const auto backend = cuda_on_host({.seed = seed});
    const Graph graph = value_or_fail(dag::differentiate(model.graph, dag::op_table()));
    const auto lowered =
        std::make_shared<const dag::Lowered>(dag::lower_traced(graph, dag::op_table(), backend->traits()));
    const std::vector classes{lowered};
    const plan::Model positions = plan::make_model(graph, classes);
    Rng rng(seed, 41);
    const auto cut = 1 + static_cast<uint32_t>(rng.below(positions.positions - 1));
    std::vector<uint32_t> stage_of_op;
    for (const uint32_t position : positions.position_of_op) stage_of_op.push_back(position < cut ? 0 : 1);
    const std::vector<const dag::Lowered*> ways{lowered.get()};
    const std::vector<uint32_t> way_of_stage{0, 0};
    const auto split = dag::split({&graph, stage_of_op, ways, way_of_stage}, dag::op_table());
    ASSERT_TRUE(split.has_value()) << split.error().message;
    const auto whole = run_whole(lowered->graph, *backend, model);
    expect_same_bits(whole, run_split(*split, *backend, model));
    expect_same_bits(whole, run_split(*split, *backend, model, Carry::OnDevice));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaExecutor, testing::Values("residual", "transformer", "rounded"),
                         [](const auto& p) { return std::string(p.param); });

TEST(CudaStatistics, ComeToTheSameBitsWhereAnotherGraphBlendsThemIn) {
  expect_blended_bits(*cuda_on_host({.pace = Pace::Late}));
  for (uint64_t seed = 1; seed <= 3; ++seed) expect_blended_bits(*cuda_on_host({.seed = seed}));
}

// Everything that a run asks of a backend; the first error. `at_end` is called when it is done and nothing
// was let go yet.
Status train(const test::Model& model, Backend& backend, const std::function<void()>& at_end) {
  WEFT_TRY(const Graph graph, dag::differentiate(model.graph, dag::op_table()));
  WEFT_TRY(
      const auto executor,
      Executor::create(std::make_shared<const Graph>(dag::lower(graph, dag::op_table(), backend.traits())),
                       std::make_shared<State>(backend),
                       {.optimizer = dag::OptimizerSpec{.type = dag::OptimizerType::Sgd, .momentum = 0.9}}));
  for (const auto& [name, tensor] : model.weights)
    WEFT_TRY_STATUS(executor->state().write(dag::of_initializer(name), tensor));
  WEFT_TRY(const auto microbatch, executor->make_microbatch());
  microbatch->context = kContext;
  for (uint64_t step = 1; step <= 3; ++step) {
    WEFT_TRY(const auto timer, backend.start_timer());
    for (const auto& [name, tensor] : model.inputs)
      WEFT_TRY_STATUS(executor->set_input(*microbatch, name, tensor));
    WEFT_TRY_STATUS(executor->run(*microbatch));
    WEFT_TRY(const auto loss,
             executor->begin_value(*microbatch, executor->graph().find_output(OutputRole::Loss)->value));
    WEFT_TRY(const auto squares, executor->begin_gradient_squares());
    WEFT_TRY_STATUS(executor->update({.step = step, .learning_rate = 0.01}));
    WEFT_TRY_STATUS(timer->stop());
    WEFT_TRY_STATUS(loss->take());
    WEFT_TRY_STATUS(squares->take());
    WEFT_TRY_STATUS(timer->elapsed());
  }
  WEFT_TRY_STATUS(backend.synchronize());
  at_end();
  return {};
}

Status train_on(
    const test::Model& model, std::shared_ptr<HostDevice> device,
    const std::function<void()>& at_end = [] {}) {
  WEFT_TRY(const auto backend,
           make_cuda_backend(device, {.staging = {16 << 10}, .pinned_uploads = {64 << 10}}));
  return train(model, *backend, at_end);
}

test::Model small_model() {
  return test::residual_net(3, {.batch = 2, .channels = 4, .size = 4, .blocks = 1});
}

TEST(CudaDeviceLost, IsSaidWhereverItHappens) {
  const test::Model model = small_model();
  const auto whole = std::make_shared<HostDevice>(HostDeviceOptions{.pace = Pace::Early});
  uint64_t asked = 0;  // the calls whose outcome somebody asks for: behind them all is let go
  ok_or_fail(train_on(model, whole, [&] { asked = whole->calls(); }));
  EXPECT_EQ(whole->device_bytes(), 0) << "all is given back";
  for (uint64_t call = 1; call <= whole->calls(); ++call) {
    const auto device = std::make_shared<HostDevice>(HostDeviceOptions{.pace = Pace::Early, .lose_at = call});
    const Status status = train_on(model, device);
    EXPECT_EQ(status.has_value(), call > asked) << "call " << call;
    if (!status.has_value()) {
      EXPECT_EQ(status.error().code, ErrorCode::DeviceLost)
          << "call " << call << ": " << status.error().message;
    }
    EXPECT_EQ(device->device_bytes(), 0) << "call " << call;
  }
}

TEST(CudaDeviceLost, ACallThatHangsIsLeftByWhoeverWaitsElsewhere) {
  const test::Model model = small_model();
  const auto whole = std::make_shared<HostDevice>(HostDeviceOptions{.pace = Pace::Early});
  ok_or_fail(train_on(model, whole));
  for (const uint64_t call : {whole->calls() / 3, whole->calls() / 2, whole->calls() * 3 / 4}) {
    const auto device = std::make_shared<HostDevice>(HostDeviceOptions{.pace = Pace::Early, .hang_at = call});
    auto outcome = std::async(std::launch::async, [&] { return train_on(model, device); });
    device->wait_until_hangs();
    device->let_go();
    const Status status = outcome.get();
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::DeviceLost);
  }
}

TEST(CudaMemory, GoesWhenItsWorkIsDone) {
  const auto device = std::make_shared<HostDevice>(HostDeviceOptions{.pace = Pace::Late});
  const auto backend = cuda_on(device);
  for (const int64_t size : {100, 100000}) {  // by way of staging, and straight
    const Tensor tensor = test::random_tensor(1, 1, {size});
    auto memory = value_or_fail(backend->allocate(tensor.spec().bytes()));
    ok_or_fail(backend->upload(tensor, {memory.get(), 0}, dag::Layout::Plain));
    const auto download =
        value_or_fail(backend->begin_download({memory.get(), 0}, tensor.spec(), dag::Layout::Plain, {}));
    ok_or_fail(backend->fill_zero({memory.get(), 0}, tensor.spec()));
    memory.reset();
    auto next = value_or_fail(backend->allocate(tensor.spec().bytes()));
    ok_or_fail(backend->fill_zero({next.get(), 0}, tensor.spec()));
    EXPECT_EQ(to_doubles(value_or_fail(download->take())), to_doubles(tensor));
  }
}

TEST(CudaMemory, IsTakenBeforeTheFirstStep) {
  for (const char* name : {"residual", "transformer"}) {
    SCOPED_TRACE(name);
    const auto device = std::make_shared<HostDevice>(HostDeviceOptions{.pace = Pace::Early});
    const auto backend = cuda_on(device);
    const test::Model model = model_of(name);
    Training training(model, *backend);
    const uint64_t before = device->allocations();
    training.run();
    EXPECT_EQ(device->allocations(), before);
  }
}

TEST(CudaMemory, TheLimitHoldsAndTheDisplayKeepsItsPart) {
  const auto backend = cuda_on_host({.memory = {int64_t{3} << 30}, .has_display = true});
  const MemoryUse use = value_or_fail(backend->memory());
  EXPECT_LE(use.free.value, int64_t{2} << 30);
  backend->set_limit({8 << 20});
  const auto refused = backend->allocate({16 << 20});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::ResourceExhausted);
}

TEST(CudaMemory, ADownloadOutlivesItsBackend) {
  auto backend = cuda_on_host({.pace = Pace::Late});
  const Tensor tensor = test::random_tensor(1, 2, {1000});
  auto memory = value_or_fail(backend->allocate(tensor.spec().bytes()));
  ok_or_fail(backend->upload(tensor, {memory.get(), 0}, dag::Layout::Plain));
  const auto download =
      value_or_fail(backend->begin_download({memory.get(), 0}, tensor.spec(), dag::Layout::Plain, {}));
  memory.reset();
  backend.reset();
  EXPECT_EQ(to_doubles(value_or_fail(download->take())), to_doubles(tensor));
}

TEST(CudaMemory, StagingRingsAreReusedOnlyWhenTheyAreEmpty) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto backend = cuda_on_host({.seed = seed});
    Rng rng(seed, 0);
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<Tensor> tensors;
    for (uint64_t i = 0; i < 40; ++i) {
      tensors.push_back(test::random_tensor(seed, i, {static_cast<int64_t>(1 + rng.below(3000))}));
      memory.push_back(value_or_fail(backend->allocate(tensors[i].spec().bytes())));
      ok_or_fail(backend->upload(tensors[i], {memory[i].get(), 0}, dag::Layout::Plain));
    }
    std::vector<std::unique_ptr<Download>> downloads;
    for (size_t i = 0; i < tensors.size(); ++i) {
      downloads.push_back(value_or_fail(
          backend->begin_download({memory[i].get(), 0}, tensors[i].spec(), dag::Layout::Plain, {})));
      ok_or_fail(backend->fill_zero({memory[i].get(), 0}, tensors[i].spec()));
    }
    for (size_t i = tensors.size(); i-- > 0;)
      EXPECT_EQ(to_doubles(value_or_fail(downloads[i]->take())), to_doubles(tensors[i])) << i;
  }
}

}  // namespace
}  // namespace weft::peer
