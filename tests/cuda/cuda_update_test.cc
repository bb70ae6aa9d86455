// The optimizers' rules, sums of gradients and of their squares, against the reference, the kernels on the
// shim.

#include "dag/state.h"
#include "peer/backend/cuda/kernels/update.h"
#include "peer/backend/cuda/update.h"
#include "peer/backend/reference/reference_backend.h"
#include "tests/backend/coded_slots.h"
#include "tests/backend/run_graph.h"
#include "tests/cuda/backend_on_host.h"

namespace weft::peer {
namespace {

using cuda::kSquaresTensors;
using cuda::kUpdateChunk;
using cuda::kUpdateTensors;
using dag::Layout;
using dag::Tensor;
using test::cuda_on_host;

std::unique_ptr<Memory> uploaded(Backend& backend, const Tensor& tensor) {
  auto memory = backend.allocate(backend.storage_bytes(tensor.spec(), Layout::Plain));
  EXPECT_TRUE(memory.has_value());
  EXPECT_TRUE(backend.upload(tensor, {memory->get(), 0}, Layout::Plain).has_value());
  return std::move(*memory);
}

// Parameters with random contents, of the seed and their places alone.
class Parameters {
 public:
  Parameters(Backend& backend, std::span<const int64_t> sizes, size_t slots, uint64_t seed)
      : backend_(backend) {
    for (const int64_t size : sizes) {
      const auto view = [&](double low) -> View {
        std::vector<double> values = dag::to_doubles(random_tensor({size}, ++seed));
        for (double& v : values) v = std::max(v, low);
        memory_.push_back(uploaded(backend, dag::from_doubles({dag::DType::F32, {size}}, values)));
        return {memory_.back().get(), 0};
      };
      updates_.push_back({{dag::DType::F32, {size}}, view(-1), view(-1), {}});
      // Of a second moment near zero, rounding would be all that is left.
      for (size_t slot = 0; slot < slots; ++slot) updates_.back().slots.push_back(view(slot == 1 ? 0.1 : -1));
    }
  }
  std::span<const ParameterUpdate> updates() const { return updates_; }
  std::vector<TensorView> gradients() const {
    std::vector<TensorView> views;
    for (const ParameterUpdate& update : updates_) views.push_back({update.gradient, update.spec});
    return views;
  }
  // The parameters and slots.
  std::vector<Tensor> results() const {
    std::vector<Tensor> tensors;
    for (const ParameterUpdate& update : updates_) {
      tensors.push_back(*backend_.download(update.parameter, update.spec, Layout::Plain));
      for (const View slot : update.slots)
        tensors.push_back(*backend_.download(slot, update.spec, Layout::Plain));
    }
    return tensors;
  }

 private:
  Backend& backend_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<ParameterUpdate> updates_;
};

std::vector<dag::OptimizerSpec> rules() {
  std::vector<dag::OptimizerSpec> rules(6);
  rules[1].momentum = 0.9, rules[1].weight_decay = 0.1;
  rules[2].momentum = 0.9, rules[2].dampening = 0.2;
  rules[3].momentum = 0.8, rules[3].nesterov = true;
  rules[4].type = dag::OptimizerType::Adam, rules[4].weight_decay = 0.1;
  rules[5].type = dag::OptimizerType::AdamW, rules[5].weight_decay = 0.1;
  return rules;
}

// Sizes about those of a chunk and of four elements, and more of them than a table holds.
std::vector<int64_t> odd_sizes() {
  std::vector<int64_t> sizes{5, kUpdateChunk,     0, 4 * kUpdateChunk + 3,
                             1, kUpdateChunk + 1, 0, kUpdateChunk - 1};
  for (int64_t i = 0; i < kUpdateTensors; ++i) sizes.push_back(1 + i * 37 % 101);
  sizes.push_back(2 * kUpdateChunk + 77);
  return sizes;
}

TEST(CudaUpdate, EveryRuleAgreesWithTheReference) {
  const auto reference = make_reference_backend(), backend = cuda_on_host();
  const std::vector<int64_t> sizes = odd_sizes();
  for (size_t r = 0; r < rules().size(); ++r) {
    SCOPED_TRACE("rule " + std::to_string(r));
    const dag::OptimizerSpec rule = rules()[r];
    const size_t slots = dag::optimizer_slots(rule).size();
    const Parameters expected(*reference, sizes, slots, r), actual(*backend, sizes, slots, r);
    for (uint64_t step = 1; step <= 3; ++step) {
      const dag::UpdateStep now{step, 0.05 / static_cast<double>(step), 0.5};
      ASSERT_TRUE(reference->update(rule, now, expected.updates()).has_value());
      ASSERT_TRUE(backend->update(rule, now, actual.updates()).has_value());
    }
    const std::vector<Tensor> e = expected.results(), a = actual.results();
    ASSERT_EQ(e.size(), a.size());
    for (size_t i = 0; i < e.size(); ++i) EXPECT_LE(relative_error(a[i], e[i]), 1e-6) << i;
  }
}

// At the first step what a slot holds is not read, whatever it is.
TEST(CudaUpdate, FirstMomentumIsTheGradient) {
  const auto backend = cuda_on_host();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto of = [&](float value) {
    const std::vector<float> values(7, value);
    return uploaded(*backend, dag::make_tensor({7}, std::span<const float>(values)));
  };
  const auto parameter = of(1), gradient = of(0.5), momentum = of(nan);
  const ParameterUpdate update{
      {dag::DType::F32, {7}}, {parameter.get(), 0}, {gradient.get(), 0}, {{momentum.get(), 0}}};
  dag::OptimizerSpec rule{.momentum = 0.9};
  ASSERT_TRUE(backend->update(rule, {.step = 1, .learning_rate = 0.5}, {&update, 1}).has_value());
  const Tensor after = *backend->download(update.parameter, update.spec, Layout::Plain);
  for (const float v : after.as<float>()) EXPECT_EQ(v, 0.75f);
}

TEST(CudaUpdate, AllParametersAtOnceGiveTheBitsOfOneAtATime) {
  const std::vector<int64_t> sizes = odd_sizes();
  const auto backend = cuda_on_host({.seed = 3});
  for (const dag::OptimizerSpec& rule : rules()) {
    const size_t slots = dag::optimizer_slots(rule).size();
    const Parameters together(*backend, sizes, slots, 5), apart(*backend, sizes, slots, 5);
    const dag::UpdateStep now{.step = 2, .learning_rate = 0.1};
    ASSERT_TRUE(backend->update(rule, now, together.updates()).has_value());
    for (const ParameterUpdate& update : apart.updates())
      ASSERT_TRUE(backend->update(rule, now, {&update, 1}).has_value());
    const std::vector<Tensor> a = together.results(), b = apart.results();
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bytes(a[i], b[i])) << i;
  }
}

TEST(CudaUpdate, SlotsInEightBitsStepAsWhatTheyWidenTo) {
  for (const dag::OptimizerSpec& rule : test::rules_with_slots()) {
    test::expect_steps_of_widened_slots(*cuda_on_host({.seed = 4}), rule);
    test::expect_steps_of_widened_slots(*cuda_on_host(), rule, /*one_at_a_time=*/true);
  }
}

TEST(CudaUpdate, SumsOfSquaresAreExactAndIndependentOfTheBatch) {
  std::vector<int64_t> sizes = odd_sizes();
  sizes.insert(sizes.end(), kSquaresTensors, 9);  // more than one launch
  const auto backend = cuda_on_host(), other = cuda_on_host({.seed = 9});
  const Parameters parameters(*backend, sizes, 0, 6), again(*other, sizes, 0, 6);
  const std::vector<TensorView> gradients = parameters.gradients();
  const std::vector<double> sums = *backend->sums_of_squares(gradients);
  ASSERT_EQ(sums.size(), sizes.size());
  EXPECT_EQ(sums, *other->sums_of_squares(again.gradients()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    double exact = 0;
    const Tensor gradient = *backend->download(gradients[i].view, gradients[i].spec, Layout::Plain);
    for (const float v : gradient.as<float>()) exact += static_cast<double>(v) * static_cast<double>(v);
    EXPECT_NEAR(sums[i], exact, 1e-12 * exact) << i;
    if (i % 16 == 0) {
      EXPECT_EQ(*backend->sums_of_squares({&gradients[i], 1}), std::vector{sums[i]});
    }
  }
  EXPECT_TRUE(backend->sums_of_squares({})->empty());
}

TEST(CudaUpdate, SumsOfSquaresOfAnyModelNeedLittleMemory) {
  constexpr int64_t kBytesMax = 960 << 10;
  std::vector<TensorView> sources(3000, {{}, {dag::DType::F32, {1600, 6400}}});
  EXPECT_LE(cuda::sums_scratch_bytes(sources), kBytesMax);
  EXPECT_GT(cuda::sums_scratch_bytes(sources), kBytesMax / 2) << "few launches";
  sources.insert(sources.begin() + 7, {{}, {dag::DType::F32, {50257, 1600}}});
  EXPECT_LE(cuda::sums_scratch_bytes(sources), kBytesMax);
  const TensorView one{{}, {dag::DType::F32, {int64_t{1} << 30}}};
  EXPECT_EQ(cuda::sums_scratch_bytes({&one, 1}), (int64_t{1} << 30) / kUpdateChunk * 8);
}

TEST(CudaUpdate, SquaresBeyondFloatsRangeAreCounted) {
  const auto backend = cuda_on_host();
  const std::vector<float> values{3e30f, 1e-30f, 4e30f};
  const auto memory = uploaded(*backend, dag::make_tensor({3}, std::span<const float>(values)));
  const TensorView view{{memory.get(), 0}, {dag::DType::F32, {3}}};
  EXPECT_NEAR(backend->sums_of_squares({&view, 1})->at(0), 25e60, 1e55);
}

TEST(CudaUpdate, AccumulateCopyAndZeroDoWhatTheySay) {
  const auto backend = cuda_on_host();
  for (const int64_t size : {int64_t{1}, int64_t{7}, kUpdateChunk, 2 * kUpdateChunk + 33}) {
    const Tensor x = random_tensor({size}, 7), y = random_tensor({size}, 8);
    const auto a = uploaded(*backend, x), b = uploaded(*backend, y), c = uploaded(*backend, y);
    ASSERT_TRUE(backend->accumulate({a.get(), 0}, {b.get(), 0}, x.spec()).has_value());
    ASSERT_TRUE(backend->copy({a.get(), 0}, {c.get(), 0}, x.spec()).has_value());
    ASSERT_TRUE(backend->fill_zero({a.get(), 0}, x.spec()).has_value());
    const Tensor sum = *backend->download({b.get(), 0}, x.spec(), Layout::Plain);
    const Tensor copied = *backend->download({c.get(), 0}, x.spec(), Layout::Plain);
    const Tensor zero = *backend->download({a.get(), 0}, x.spec(), Layout::Plain);
    for (size_t i = 0; i < static_cast<size_t>(size); ++i)
      ASSERT_EQ(sum.as<float>()[i], x.as<float>()[i] + y.as<float>()[i]);
    EXPECT_TRUE(same_bytes(copied, x));
    EXPECT_TRUE(same_bytes(zero, Tensor(x.spec())));
  }
}

TEST(CudaUpdate, WhatIsNotFloatIsRefused) {
  const auto backend = cuda_on_host();
  const auto memory = uploaded(*backend, random_tensor({8}, 1));
  const TensorView view{{memory.get(), 0}, {dag::DType::F64, {4}}};
  EXPECT_EQ(backend->sums_of_squares({&view, 1}).error().code, ErrorCode::Unsupported);
  EXPECT_EQ(backend->accumulate(view.view, view.view, view.spec).error().code, ErrorCode::Unsupported);
}

}  // namespace
}  // namespace weft::peer
