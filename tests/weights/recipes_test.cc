// What recipes make is what a job has: parts of published tensors, and numbers in fewer bits. What has
// another hash is not given.
#include "weights/recipes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "storage/sha256.h"
#include "tests/weights/written.h"
#include "weights/cuts.h"
#include "weights/index.h"

namespace weft::weights {
namespace {

using dag::Recipe;
using dag::Rounding;
using Bytes = std::vector<std::byte>;

Digest digest_of(std::span<const std::byte> bytes) { return *digest_from_hex(storage::sha256_hex(bytes)); }

// In pieces of that size.
ReadSource in_pieces(std::span<const std::byte> bytes, size_t size) {
  return [bytes, size](const data::ByteSink& sink) -> Status {
    for (size_t at = 0; at < bytes.size(); at += size)
      WEFT_TRY_STATUS(sink(bytes.subspan(at, std::min(size, bytes.size() - at))));
    return {};
  };
}
Result<Bytes> made(const Recipe& recipe, const ReadSource& source) {
  Bytes all;
  WEFT_TRY_STATUS(follow(recipe, source, [&](std::span<const std::byte> piece) {
    EXPECT_LE(piece.size(), size_t{1} << 20);
    all.insert(all.end(), piece.begin(), piece.end());
    return Status{};
  }));
  return all;
}
Bytes bytes_of_tensor(const dag::Tensor& tensor) { return {tensor.bytes().begin(), tensor.bytes().end()}; }

TEST(Recipes, TakeRowsAndColumns) {
  Rng rng(5, 1);
  const int64_t rows = 7, columns = 12;
  const dag::Tensor matrix = random_tensor({dag::DType::F32, {rows, columns}}, rng);
  const Recipe some_rows{.source_size = 7 * 48, .cut = Recipe::Cut{.first = 2 * 48, .size = 3 * 48}};
  const Recipe some_columns{.source_size = 7 * 48,
                            .cut = Recipe::Cut{.first = 8, .size = 20, .stride = 48, .count = 7}};
  for (const size_t piece : {1, 5, 47, 1000}) {
    const auto source = in_pieces(matrix.bytes(), piece);
    const Bytes plain = bytes_of_tensor(matrix.elements(2 * columns, 3 * columns));
    EXPECT_EQ(made(some_rows, source).value(), plain);
    Bytes expected;
    for (int64_t r = 0; r < rows; ++r) {
      const Bytes row = bytes_of_tensor(matrix.elements(r * columns + 2, 5));
      expected.insert(expected.end(), row.begin(), row.end());
    }
    EXPECT_EQ(made(some_columns, source).value(), expected);
    EXPECT_EQ(dag::bytes_of(some_columns), expected.size());
  }
}

// The rule by itself, in double.
TEST(Recipes, RoundAsIsSaid) {
  Rng rng(5, 2);
  for (const int bits : {4, 8})
    for (const dag::DType scale : {dag::DType::F32, dag::DType::F16, dag::DType::BF16}) {
      dag::Tensor numbers(dag::TensorSpec{dag::DType::F32, {6, 64}});
      for (float& number : numbers.mutable_as<float>())
        number = static_cast<float>(static_cast<int>(rng.below(2001)) - 1000) / 777;
      Recipe recipe{.source_size = 6 * 64 * 4,
                    .rounding = Rounding{.bits = bits, .block = 32, .scale = scale}};
      const auto integers = made(recipe, in_pieces(numbers.bytes(), 13));
      recipe.rounding->part = Rounding::Part::Scales;
      const auto scales = made(recipe, in_pieces(numbers.bytes(), 1000));
      ASSERT_TRUE(integers && scales);
      ASSERT_EQ(integers->size(), 6u * 64 * static_cast<size_t>(bits) / 8);
      const dag::Tensor read({scale, {12}}, *scales);
      const std::vector<double> steps = dag::to_doubles(read);
      const double middle = bits == 4 ? 8 : 128;
      for (size_t i = 0; i < 6 * 64; ++i) {
        const double number = numbers.as<float>()[i];
        const auto byte = static_cast<unsigned>((*integers)[bits == 8 ? i : i / 2]);
        const double integer = bits == 8 ? byte : byte >> (i % 2 * 4) & 15u;
        // All but the numbers at the other end, of which there is no step more.
        const double most = std::abs(steps[i / 32]) * (integer == 2 * middle - 1 ? 1.01 : 0.501);
        EXPECT_NEAR((integer - middle) * steps[i / 32], number, most) << bits << " " << i;
      }
    }
}

TEST(Recipes, RoundAPartAndHalves) {
  Rng rng(5, 3);
  const dag::Tensor matrix = random_tensor({dag::DType::F32, {40, 64}}, rng);
  const Recipe::Cut cut{.first = 8 * 256, .size = 16 * 256};
  const dag::Tensor part = matrix.elements(8 * 64, 16 * 64);
  for (const auto part_of : {Rounding::Part::Numbers, Rounding::Part::Scales, Rounding::Part::Halves}) {
    const Rounding how{.part = part_of, .block = 16};
    const Recipe of_part{.source_size = 40 * 256, .cut = cut, .rounding = how};
    const Recipe of_whole{.source_size = 16 * 256, .rounding = how};
    EXPECT_EQ(made(of_part, in_pieces(matrix.bytes(), 100)).value(),
              made(of_whole, in_pieces(part.bytes(), 999)).value());
  }
  const Recipe halves{.source_size = 40 * 256, .rounding = Rounding{.part = Rounding::Part::Halves}};
  EXPECT_EQ(made(halves, in_pieces(matrix.bytes(), 77)).value(),
            bytes_of_tensor(dag::round_to_half(matrix, dag::DType::BF16)));
}

TEST(Recipes, OfAShorterSourceAreAnError) {
  const Bytes bytes(1000);
  EXPECT_EQ(made({.source_size = 2000, .cut = Recipe::Cut{.size = 1004}}, in_pieces(bytes, 64)).error().code,
            ErrorCode::Corrupted);
  EXPECT_EQ(made({.source_size = 2000, .cut = Recipe::Cut{.size = 900}}, in_pieces(bytes, 64))->size(), 900u);
  const auto broken = made({.source_size = 1000, .cut = Recipe::Cut{.size = 900}}, [](const data::ByteSink&) {
    return Status(fail(ErrorCode::Unavailable, "gone"));
  });
  EXPECT_EQ(broken.error().code, ErrorCode::Unavailable);
}

// Whatever somebody says of them, nothing is taken that is not there, and no number runs over.
TEST(Recipes, ThatCannotBeAreRefused) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  using Cut = Recipe::Cut;
  const Cut wrong[] = {{.first = 0, .size = 0},
                       {.first = 1000, .size = 25},
                       {.first = most, .size = 2},
                       {.first = 0, .size = most},
                       {.first = 0, .size = 8, .stride = 16, .count = 0},
                       {.first = 0, .size = 8, .stride = 4, .count = 3},
                       {.first = 0, .size = 8, .stride = 0, .count = 3},
                       {.first = 0, .size = 8, .stride = most, .count = 2},
                       {.first = 0, .size = 512, .stride = 512, .count = 3},
                       {.first = 0, .size = 8, .stride = 8, .count = most},
                       {.first = 0, .size = 3}};  // next to nothing
  for (const Cut& cut : wrong)
    EXPECT_EQ(dag::bytes_of({.source_size = 1024, .cut = cut}).error().code, ErrorCode::OutOfRange)
        << cut.first << " " << cut.size << " " << cut.stride << " " << cut.count;
  const Rounding roundings[] = {{.bits = 3},
                                {.bits = 4, .block = 24},
                                {.bits = 4, .block = 0},
                                {.bits = 8, .block = int64_t{1} << 17},
                                {.bits = 4, .block = 512},  // more than there are
                                {.bits = 4, .block = 32, .scale = dag::DType::I64}};
  for (const Rounding& how : roundings)
    EXPECT_EQ(dag::bytes_of({.source_size = 1024, .rounding = how}).error().code, ErrorCode::OutOfRange);
  EXPECT_FALSE(dag::bytes_of({.source_size = 1022, .rounding = Rounding{.part = Rounding::Part::Halves}}));
  EXPECT_FALSE(dag::bytes_of({.source_size = 1024})) << "it changes nothing";
  EXPECT_FALSE(dag::bytes_of({.source_size = 0, .cut = Cut{.size = 1}}));
  EXPECT_FALSE(dag::bytes_of({.source_size = most, .cut = Cut{.size = most}}));
}

// ---- of what lies in a folder

std::unique_ptr<WeightIndex> looked_at(const std::filesystem::path& folder) {
  auto index = WeightIndex::open({.folder = folder});
  EXPECT_TRUE(index.has_value());
  (*index)->wait();
  return std::move(*index);
}
Recipe rounding_of(const dag::Tensor& tensor, const Rounding& how) {
  return {.source = digest_of(tensor.bytes()), .source_size = tensor.bytes().size(), .rounding = how};
}

TEST(RecipesOfAFolder, MakeWhatTheHashSays) {
  const auto folder = fresh_folder();
  Rng rng(5, 4);
  const dag::Tensor published = random_tensor({dag::DType::BF16, {32, 48}}, rng);
  const Written written(folder / "m.safetensors", {published});
  const auto index = looked_at(folder);
  const dag::Tensor wide = dag::widen_half(published);
  const Recipe recipe = rounding_of(wide, {.bits = 4, .block = 16});
  ASSERT_TRUE(index->has_source_of(recipe));
  const auto expected = made(recipe, in_pieces(wide.bytes(), 1 << 20));
  ASSERT_TRUE(expected.has_value());
  EXPECT_EQ(index->read(digest_of(*expected), recipe).value(), *expected);

  Recipe other = recipe;
  other.rounding->bits = 8;
  EXPECT_EQ(index->read(digest_of(*expected), other).error().code, ErrorCode::OutOfRange);
  EXPECT_TRUE(index->has_source_of(recipe)) << "the file is as it was";
  other.source_size /= 2;
  EXPECT_FALSE(index->has_source_of(other));
  EXPECT_TRUE(index->verify(recipe.source).has_value());

  // Another file by now.
  const Written again(folder / "m.safetensors", {random_tensor({dag::DType::BF16, {32, 48}}, rng)});
  EXPECT_EQ(index->read(digest_of(*expected), recipe).error().code, ErrorCode::Corrupted);
  EXPECT_FALSE(index->has_source_of(recipe));
  EXPECT_EQ(index->verify(recipe.source).error().code, ErrorCode::NotFound);
}

// ---- what an exporter cut out

dag::Tensor transposed(const dag::Tensor& matrix) {
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  dag::Tensor turned({matrix.dtype(), {columns, rows}});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      turned.mutable_as<float>()[static_cast<size_t>(c * rows + r)] =
          matrix.as<float>()[static_cast<size_t>(r * columns + c)];
  return turned;
}
dag::Tensor rows_of(const dag::Tensor& matrix, int64_t first, int64_t count) {
  const int64_t columns = matrix.shape()[1];
  return dag::Tensor({matrix.dtype(), {count, columns}},
                     matrix.elements(first * columns, count * columns).bytes());
}
SoughtTensor sought(const dag::Tensor& tensor) {
  SoughtTensor one{.sha256 = digest_of(tensor.bytes()), .spec = tensor.spec()};
  const auto element = static_cast<size_t>(dag::element_size(tensor.dtype()));
  const auto columns = static_cast<size_t>(tensor.shape().back());
  const auto add = [&](Bytes& to, size_t at) {
    const auto number = tensor.bytes().subspan(at * element, element);
    to.insert(to.end(), number.begin(), number.end());
  };
  for (size_t i = 0; i < kAnchorNumbers && columns >= kAnchorNumbers; ++i) add(one.row, i);
  const bool is_high = tensor.spec().rank() == 2 && tensor.shape()[0] >= 16;
  for (size_t i = 0; i < kAnchorNumbers && is_high; ++i) add(one.column, i * columns);
  return one;
}

// Queries, keys and values in one matrix, as it is published and the other way round; the exporter has either
// way round, too. And a list of as many.
TEST(Cuts, AreFoundWhicheverWayTheMatrixLies) {
  const auto folder = fresh_folder();
  Rng rng(5, 6);
  const dag::Tensor half = random_tensor({dag::DType::BF16, {96, 40}}, rng);
  const dag::Tensor full = random_tensor({dag::DType::F32, {48, 64}}, rng);
  const dag::Tensor list = random_tensor({dag::DType::F32, {96}}, rng);
  const Written written(folder / "m.safetensors", {half, full, list});
  std::vector<dag::Tensor> cut;
  for (const dag::Tensor& matrix : {dag::widen_half(half), full})
    for (const dag::Tensor& way : {matrix, transposed(matrix)})
      for (int64_t first = 0; first + 20 <= way.shape()[0]; first += 20) {
        cut.push_back(rows_of(way, first, 20));
        cut.push_back(transposed(cut.back()));
      }
  cut.push_back(rows_of(half, 32, 32));
  cut.push_back(list.elements(32, 32));
  std::vector<SoughtTensor> all;
  for (const dag::Tensor& tensor : cut) all.push_back(sought(tensor));
  all.push_back(sought(full));  // whole: no part
  all.push_back(sought(random_tensor({dag::DType::F32, {20, 40}}, rng)));
  dag::Tensor nearly = cut[0].elements(0, cut[0].element_count()).reshaped(cut[0].shape());
  nearly = dag::Tensor(nearly.spec(), nearly.bytes());
  nearly.mutable_as<float>()[500] += 1;
  all.push_back(sought(nearly));
  const auto found = find_cuts(folder, all);
  ASSERT_TRUE(found.has_value()) << found.error().message;
  const auto index = looked_at(folder);
  for (const dag::Tensor& tensor : cut) {
    const auto at = found->find(digest_of(tensor.bytes()));
    ASSERT_NE(at, found->end()) << to_string(tensor.spec());
    ASSERT_TRUE(index->has_source_of(at->second));
    EXPECT_EQ(index->read(at->first, at->second).value(), bytes_of_tensor(tensor));
  }
  EXPECT_EQ(found->size(), cut.size());
}

// Rows that begin alike are told apart, and not all of them are tried.
TEST(Cuts, OfMatricesFullOfZerosEnd) {
  const auto folder = fresh_folder();
  dag::Tensor zeros(dag::TensorSpec{dag::DType::F32, {4000, 32}});
  const Written written(folder / "m.safetensors", {zeros});
  dag::Tensor other(dag::TensorSpec{dag::DType::F32, {32, 32}});
  other.mutable_as<float>()[900] = 1;
  const std::vector<SoughtTensor> all{sought(other), sought(rows_of(zeros, 0, 20))};
  const auto found = find_cuts(folder, all);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->size(), 1u);
}

TEST(Cuts, WantAFolder) {
  EXPECT_EQ(find_cuts(fresh_folder() / "none", {}).error().code, ErrorCode::NotFound);
}

}  // namespace
}  // namespace weft::weights
