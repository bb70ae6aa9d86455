// The shim itself: right kernels run right in every order of threads, and each planted fault is found in all
// of them.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "peer/backend/cuda/shim/shim.h"
#include "tests/cuda/planted.h"

namespace weft::peer::cuda {
namespace {

constexpr int64_t kBlocks = 5;

struct Outcome {
  std::string fault;
  std::vector<float> y;
};
Outcome run(Planted::Fault fault, uint64_t seed) {
  std::vector<float> x(64 * kBlocks), y(x.size(), -1);
  std::iota(x.begin(), x.end(), 0.0f);
  const Planted p{
      {x.data(), static_cast<int64_t>(x.size())}, {y.data(), static_cast<int64_t>(y.size())}, fault};
  const std::string found = shim::run_grid(k_planted, {kBlocks, 64}, &p, seed);
  return {found, y};
}

TEST(Shim, RunsAKernelInAnyOrderOfThreads) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const Outcome outcome = run(Planted::kNone, seed);
    EXPECT_EQ(outcome.fault, "");
    for (int64_t block = 0; block < kBlocks; ++block)
      for (int64_t t = 0; t < 64; ++t) {
        // The reversed half that this warp read, summed.
        const auto first = static_cast<float>(block * 64 + (t < 32 ? 32 : 0));
        EXPECT_EQ(outcome.y[static_cast<size_t>(block * 64 + t)], 32 * first + 31 * 16) << t;
      }
  }
}

struct Expected {
  Planted::Fault fault;
  const char* words;
};
class PlantedFaults : public testing::TestWithParam<Expected> {};

TEST_P(PlantedFaults, IsFoundInEveryOrder) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const std::string found = run(GetParam().fault, seed).fault;
    EXPECT_NE(found.find(GetParam().words), std::string::npos) << "seed " << seed << ": '" << found << "'";
    EXPECT_NE(found.find("planted, block"), std::string::npos) << found;
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, PlantedFaults,
                         testing::Values(Expected{Planted::kMissingBarrier, "tile["},
                                         Expected{Planted::kBarrierNotForAll, "not all threads reach"},
                                         Expected{Planted::kDivergentBarrier, "divergent barrier"},
                                         Expected{Planted::kGoneBeforeExchange,
                                                  "thread 40 is gone before an exchange"},
                                         Expected{Planted::kDivergentExchange, "divergent exchange"},
                                         Expected{Planted::kUnwrittenShared, "was never written"},
                                         Expected{Planted::kBeyondShared, "tile: index 64 of 64"},
                                         Expected{Planted::kBeyondGlobal, "index 320 of 320"},
                                         Expected{Planted::kNegativeGlobal, "index -1 of 320"},
                                         Expected{Planted::kWriteWhileRead, "tile["},
                                         Expected{Planted::kTwoWriters, "tile[34] is written, and so it was"},
                                         Expected{Planted::kExchangeInPartOfWarp, "of some lanes"}));

TEST(Shim, RefusesAGridThatNoGpuTakes) {
  const Planted p{};
  EXPECT_NE(shim::run_grid(k_planted, {1, 1056}, &p, 1), "");
  EXPECT_NE(shim::run_grid(k_planted, {0, 32}, &p, 1), "");
  EXPECT_NE(shim::run_grid(k_planted, {1, 32, 70000}, &p, 1), "");
}

}  // namespace
}  // namespace weft::peer::cuda
