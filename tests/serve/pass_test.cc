#include "serve/pass.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/rng.h"

namespace weft::serve {
namespace {

using dag::DType;
using dag::RowSpec;
using dag::Tensor;

const PassLimits kLimits{.rows_max = 8, .context = 64};
const std::vector<RowSpec> kEdges{{"pieces", DType::I64, 6}, {"x", DType::F32, 4}, {"y", DType::F16, 3}};

Pass some_pass() {
  Pass pass{.number = 3, .pieces = {{4}, {7, 0, 3, 1, 20, true}, {5, 12, 1, 1, 64}}};
  pass.rows.emplace("x", Tensor({DType::F32, {4, 4}}));
  pass.rows.emplace("y", Tensor({DType::F16, {4, 3}}));
  return pass;
}

std::string code(const auto& result) { return result ? "fine" : std::string(to_string(result.error().code)); }
const std::string kInvalid(to_string(ErrorCode::InvalidArgument));

TEST(Pass, IsTheSameOnTheOtherSide) {
  const Pass pass = some_pass();
  const auto tensors = tensors_of(pass, kEdges);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].spec(), (dag::TensorSpec{DType::I64, {3, 6}}));
  const auto back = pass_from(3, tensors, kEdges, kLimits);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->number, 3u);
  EXPECT_EQ(back->pieces, pass.pieces);
  EXPECT_EQ(back->rows.at("y").bytes().data(), pass.rows.at("y").bytes().data());
}

TEST(Pass, OfEndsAloneHasNoRows) {
  const Pass pass{.number = 1, .pieces = {{4}, {7}}};
  const auto tensors = tensors_of(pass, kEdges);
  ASSERT_EQ(tensors.size(), 1u);
  const auto back = pass_from(1, tensors, kEdges, kLimits);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->pieces, pass.pieces);
  EXPECT_EQ(code(pass_from(1, std::vector{tensors[0], Tensor({DType::F32, {0, 4}})}, kEdges, kLimits)),
            kInvalid);
}

TEST(Pass, PiecesOfNoSenseAreRefused) {
  const auto read = [](const std::vector<int64_t>& numbers) {
    return code(
        pieces_from(dag::make_tensor({static_cast<int64_t>(numbers.size() / 6), 6}, numbers), kLimits));
  };
  const std::vector<int64_t> fine{1, 0, 8, 8, 64, 0};
  EXPECT_EQ(read(fine), "fine");
  EXPECT_EQ(read({1, 0, 2, -1, 64, 1, 2, 0, 2, -1, 64, 1}), "fine");  // history
  EXPECT_EQ(read({1, 63, 1, 0, 0, 0}), "fine");
  EXPECT_EQ(read({1, 0, 0, 0, 0, 0}), "fine");
  const std::vector<std::vector<int64_t>> wrong{
      {},
      {-1, 0, 1, 0, 0, 0},  // a sequence
      {1, -1, 1, 0, 0, 0},  // before the first position
      {1, 64, 1, 0, 0, 0},  // beyond the last
      {1, INT64_MAX, 1, 0, 0, 0},
      {1, 0, -1, 0, 0, 0},  // less than no row
      {1, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, 0},
      {1, 0, 9, 0, 0, 0},  // more rows than may be
      {1, 0, INT64_MAX, 0, 0, 0},
      {1, 0, 2, 3, 0, 0},  // logits without a row
      {1, 0, 2, -2, 0, 0},
      {1, 0, 2, 0, 65, 0},  // memory
      {1, 0, 2, 0, -1, 0},
      {1, 1, 0, 0, 0, 0},  // an end with a position, logits, memory
      {1, 0, 0, 1, 0, 0},
      {1, 0, 0, 0, 1, 0},
      {1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0},   // twice
      {1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0},   // and ended
      {1, 0, 0, 0, 0, 1},                     // kept
      {1, 0, 1, 0, 0, 2},                     // neither kept nor not
      {1, 0, 1, -1, 0, 1, 2, 0, 1, 0, 0, 1},  // history beside what is none
      {1, 0, 1, -1, 0, 1, 2, 0, 0, 0, 0, 0},
      {1, 0, 5, 0, 0, 0, 2, 0, 4, 0, 0, 0},  // too many rows together
  };
  for (const auto& numbers : wrong) EXPECT_EQ(read(numbers), kInvalid) << ::testing::PrintToString(numbers);
}

TEST(Pass, PiecesInAnotherFormAreRefused) {
  const auto read = [](const Tensor& tensor) { return code(pieces_from(tensor, kLimits)); };
  EXPECT_EQ(read(Tensor({DType::I64, {6}})), kInvalid);
  EXPECT_EQ(read(Tensor({DType::I64, {1, 5}})), kInvalid);
  EXPECT_EQ(read(Tensor({DType::I64, {1, 6, 1}})), kInvalid);
  EXPECT_EQ(read(Tensor({DType::F64, {1, 6}})), kInvalid);
  EXPECT_EQ(read(Tensor()), kInvalid);
  std::vector<int64_t> ends;
  for (int64_t i = 0; i <= static_cast<int64_t>(kPassPiecesMax); ++i)
    ends.insert(ends.end(), {i, 0, 0, 0, 0, 0});
  EXPECT_EQ(read(dag::make_tensor({static_cast<int64_t>(kPassPiecesMax) + 1, 6}, ends)), kInvalid);
  ends.resize(kPassPiecesMax * 6);
  EXPECT_EQ(read(dag::make_tensor({static_cast<int64_t>(kPassPiecesMax), 6}, ends)), "fine");
}

TEST(Pass, TensorsThatDoNotFitAreRefused) {
  const auto with = [](const std::function<void(std::vector<Tensor>&)>& change) {
    auto tensors = tensors_of(some_pass(), kEdges);
    change(tensors);
    return code(pass_from(3, tensors, kEdges, kLimits));
  };
  EXPECT_EQ(with([](auto&) {}), "fine");
  EXPECT_EQ(with([](auto& t) { t.clear(); }), kInvalid);
  EXPECT_EQ(with([](auto& t) { t.pop_back(); }), kInvalid);
  EXPECT_EQ(with([](auto& t) { t.push_back(t.back()); }), kInvalid);
  EXPECT_EQ(with([](auto& t) { std::swap(t[1], t[2]); }), kInvalid);
  EXPECT_EQ(with([](auto& t) { t[1] = Tensor({DType::F32, {3, 4}}); }), kInvalid);
  EXPECT_EQ(with([](auto& t) { t[1] = Tensor({DType::F32, {4, 5}}); }), kInvalid);
  EXPECT_EQ(with([](auto& t) { t[1] = Tensor({DType::I32, {4, 4}}); }), kInvalid);
  EXPECT_EQ(with([](auto& t) { t[2] = Tensor(); }), kInvalid);
}

// Whatever numbers come: either they are refused, or they are what would be written for them.
TEST(Pass, AnyNumbersAreReadOrRefused) {
  const uint64_t seed = 20261126;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  int read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<int64_t> numbers(6 * rng.below(4));
    for (int64_t& number : numbers) {
      const auto small = static_cast<int64_t>(rng.below(4));
      number = rng.below(40) == 0 ? static_cast<int64_t>(rng.next_u64()) : small;
    }
    const Tensor tensor = dag::make_tensor({static_cast<int64_t>(numbers.size() / 6), 6}, numbers);
    const auto pieces = pieces_from(tensor, kLimits);
    if (!pieces) continue;
    ++read;
    EXPECT_EQ(dag::to_int64s(tensor_of(*pieces)), numbers);
    EXPECT_LE(row_count(*pieces), kLimits.rows_max);
  }
  EXPECT_GT(read, 500);
}

}  // namespace
}  // namespace weft::serve
