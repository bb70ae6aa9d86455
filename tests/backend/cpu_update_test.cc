// The optimizers' rules and the other duties of a backend beside kernels, against the reference.

#include <cstdlib>

#include "dag/state.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/cpu.h"
#include "tests/backend/run_graph.h"

namespace weft::peer {
namespace {

using dag::Layout;
using dag::Tensor;

std::unique_ptr<Memory> uploaded(Backend& backend, const Tensor& tensor, Layout layout = Layout::Plain) {
  auto memory = backend.allocate(backend.storage_bytes(tensor.spec(), layout));
  EXPECT_TRUE(memory.has_value());
  EXPECT_TRUE(backend.upload(tensor, {memory->get(), 0}, layout).has_value());
  return std::move(*memory);
}

// The parameter and its slots after three steps.
std::vector<Tensor> after_three_steps(Backend& backend, const dag::OptimizerSpec& optimizer,
                                      const Tensor& start) {
  const dag::TensorSpec& spec = start.spec();
  const auto parameter = uploaded(backend, start);
  std::vector<std::unique_ptr<Memory>> slots;
  std::vector<View> views;
  for (size_t i = 0; i < dag::optimizer_slots(optimizer).size(); ++i) {
    slots.push_back(uploaded(backend, Tensor(spec)));
    views.push_back({slots.back().get(), 0});
  }
  for (uint64_t step = 1; step <= 3; ++step) {
    const auto gradient = uploaded(backend, random_tensor(spec.shape, 100 + step));
    const ParameterUpdate update{spec, {parameter.get(), 0}, {gradient.get(), 0}, views};
    const Status status =
        backend.update(optimizer, {step, 0.05 / static_cast<double>(step), 0.5}, {&update, 1});
    EXPECT_TRUE(status.has_value());
  }
  std::vector<Tensor> results{*backend.download({parameter.get(), 0}, spec, Layout::Plain)};
  for (const View view : views) results.push_back(*backend.download(view, spec, Layout::Plain));
  return results;
}

TEST(CpuUpdate, EveryRuleAgreesWithTheReferenceForAnyNumberOfThreads) {
  std::vector<dag::OptimizerSpec> rules(6);
  rules[1].momentum = 0.9, rules[1].weight_decay = 0.1;
  rules[2].momentum = 0.9, rules[2].dampening = 0.2;
  rules[3].momentum = 0.8, rules[3].nesterov = true;
  rules[4].type = dag::OptimizerType::Adam, rules[4].weight_decay = 0.1;
  rules[5].type = dag::OptimizerType::AdamW, rules[5].weight_decay = 0.1;
  const Tensor start = random_tensor({301, 207}, 5);
  const auto reference = make_reference_backend(), one = cpu(1), three = cpu(3);
  for (size_t r = 0; r < rules.size(); ++r) {
    SCOPED_TRACE("rule " + std::to_string(r));
    const auto expected = after_three_steps(*reference, rules[r], start);
    const auto actual = after_three_steps(*one, rules[r], start),
               again = after_three_steps(*three, rules[r], start);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LE(relative_error(actual[i], expected[i]), 1e-6);
      EXPECT_TRUE(same_bytes(actual[i], again[i]));
    }
  }
}

TEST(CpuUpdate, SumOfSquaresIsTheSameForAnyNumberOfThreads) {
  const Tensor x = random_tensor({123'457}, 6);
  double exact = 0;
  for (const float v : x.as<float>()) exact += static_cast<double>(v) * static_cast<double>(v);
  const auto one = cpu(1), three = cpu(3);
  const auto a = uploaded(*one, x), b = uploaded(*three, x);
  const TensorView of_one{{a.get(), 0}, x.spec()}, of_three{{b.get(), 0}, x.spec()};
  const auto first = *one->sums_of_squares({&of_one, 1});
  ASSERT_EQ(first.size(), 1u);
  EXPECT_NEAR(first[0], exact, 1e-9 * exact);
  EXPECT_EQ(first, *three->sums_of_squares({&of_three, 1}));
}

// Blocks of one array begin where the blocks of another end, wherever the team's ranges are cut.
TEST(CpuUpdate, AllParametersAtOnceGiveTheBitsOfOneAtATime) {
  const int64_t sizes[] = {5, 16'384, 0, 70'001, 1, 16'385, 0};
  dag::OptimizerSpec rule{.type = dag::OptimizerType::Adam, .learning_rate = 0.1, .weight_decay = 0.01};
  for (const int threads : {1, 2, 5}) {
    const auto backend = cpu(threads);
    std::vector<std::unique_ptr<Memory>> memory;
    const auto fresh = [&] {
      std::vector<ParameterUpdate> updates;
      for (size_t i = 0; i < std::size(sizes); ++i) {
        const auto view = [&](uint64_t seed) -> View {
          memory.push_back(uploaded(*backend, random_tensor({sizes[i]}, 10 * i + seed)));
          return {memory.back().get(), 0};
        };
        updates.push_back({{dag::DType::F32, {sizes[i]}}, view(1), view(2), {view(3), view(4)}});
      }
      return updates;
    };
    const auto together = fresh(), apart = fresh();
    ASSERT_TRUE(backend->update(rule, {.step = 2, .learning_rate = 0.1}, together).has_value());
    std::vector<TensorView> gradients;
    std::vector<double> squares;
    for (const ParameterUpdate& update : apart) {
      ASSERT_TRUE(backend->update(rule, {.step = 2, .learning_rate = 0.1}, {&update, 1}).has_value());
      gradients.push_back({update.gradient, update.spec});
      squares.push_back(backend->sums_of_squares({&gradients.back(), 1})->at(0));
    }
    EXPECT_EQ(*backend->sums_of_squares(gradients), squares);
    for (size_t i = 0; i < std::size(sizes); ++i) {
      const auto bytes = [&](View view) { return *backend->download(view, together[i].spec, Layout::Plain); };
      EXPECT_TRUE(same_bytes(bytes(together[i].parameter), bytes(apart[i].parameter))) << i;
      EXPECT_TRUE(same_bytes(bytes(together[i].slots[1]), bytes(apart[i].slots[1]))) << i;
    }
  }
}

TEST(CpuUpdate, AccumulateCopyAndZeroDoWhatTheySay) {
  const auto backend = cpu(2);
  const Tensor x = random_tensor({70'001}, 7), y = random_tensor({70'001}, 8);
  const auto a = uploaded(*backend, x), b = uploaded(*backend, y), c = uploaded(*backend, y);
  ASSERT_TRUE(backend->accumulate({a.get(), 0}, {b.get(), 0}, x.spec()).has_value());
  ASSERT_TRUE(backend->copy({a.get(), 0}, {c.get(), 0}, x.spec()).has_value());
  ASSERT_TRUE(backend->fill_zero({a.get(), 0}, x.spec()).has_value());
  const Tensor sum = *backend->download({b.get(), 0}, x.spec(), Layout::Plain);
  const Tensor copied = *backend->download({c.get(), 0}, x.spec(), Layout::Plain);
  const Tensor zero = *backend->download({a.get(), 0}, x.spec(), Layout::Plain);
  for (size_t i = 0; i < 70'001; ++i) ASSERT_EQ(sum.as<float>()[i], x.as<float>()[i] + y.as<float>()[i]);
  EXPECT_TRUE(same_bytes(copied, x));
  EXPECT_TRUE(same_bytes(zero, Tensor(x.spec())));
}

TEST(CpuUpdate, BlockedLayoutsComeBackAsTheyWent) {
  const auto backend = cpu(2);
  for (const Layout layout : {Layout::Blocked8, Layout::Blocked16}) {
    const Tensor x = random_tensor({3, 32, 5, 7}, 9);
    const auto memory = uploaded(*backend, x, layout);
    EXPECT_TRUE(same_bytes(*backend->download({memory.get(), 0}, x.spec(), layout), x));
  }
}

TEST(CpuBackend, TooManyThreadsAndTooMuchMemoryAreErrors) {
  EXPECT_EQ(make_cpu_backend({.threads = -1}).error().code, ErrorCode::InvalidArgument);
  const auto memory = cpu(1)->allocate({int64_t{1} << 60});
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(memory.error().code, ErrorCode::ResourceExhausted);
}

TEST(Backends, KeepToTheirLimit) {
  for (const bool reference : {false, true}) {
    const auto backend = reference ? make_reference_backend() : cpu(1);
    backend->set_limit({1 << 20});
    auto first = backend->allocate({768 << 10});
    ASSERT_TRUE(first.has_value());
    const auto second = backend->allocate({512 << 10});
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code, ErrorCode::ResourceExhausted);
    EXPECT_NE(second.error().message.find("limit of 1 MiB"), std::string::npos) << second.error().message;
    first->reset();
    EXPECT_TRUE(backend->allocate({512 << 10}).has_value()) << "what was given back may be taken";
  }
}

TEST(CpuBackend, FingerprintNamesLibraryAndInstructionSet) {
  const std::string fingerprint = cpu(1)->numerics_fingerprint();
  EXPECT_NE(fingerprint.find("oneDNN"), std::string::npos);
  EXPECT_NE(fingerprint.find("isa="), std::string::npos);
  EXPECT_EQ(fingerprint, cpu(2)->numerics_fingerprint());
}

// The environment is read once a process, so that the test is run once for each value (see CMakeLists.txt).
TEST(CpuBackend, OneSwitchLimitsOneDnnAndTheLoops) {
  const char* limit = std::getenv("ONEDNN_MAX_CPU_ISA");
  const auto backend = cpu(1);
  const std::string fingerprint = backend->numerics_fingerprint();
  const auto names = [&](const char* part) { return fingerprint.find(part) != std::string::npos; };
  if (names("isa=sse41")) {
    EXPECT_TRUE(names("loops=baseline")) << fingerprint;
    EXPECT_EQ(backend->traits().convolution_layout, Layout::Plain);
  }
  if (names("isa=avx2")) {
    EXPECT_TRUE(names("loops=v3")) << fingerprint;
    EXPECT_EQ(backend->traits().convolution_layout, Layout::Blocked8);
  }
  if (names("isa=avx512")) {
    EXPECT_TRUE(names("loops=v4")) << fingerprint;
    EXPECT_EQ(backend->traits().convolution_layout, Layout::Blocked16);
  }
#ifdef __x86_64__
  const std::string limited = limit == nullptr ? "" : limit;
  EXPECT_TRUE(limited != "sse41" || names("isa=sse41")) << fingerprint;
  EXPECT_TRUE(limited != "avx2" || !names("avx512")) << fingerprint;
#endif
}

}  // namespace
}  // namespace weft::peer
