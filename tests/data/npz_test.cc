#include <gtest/gtest.h>

#include "data/dataset.h"
#include "data/npy.h"
#include "data/npz_writer.h"
#include "tests/data/npz_samples.h"
#include "tests/data/reading.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

using test::Scratch;

template <size_t N>
Result<std::unique_ptr<Dataset>> open_bytes(const Scratch& scratch, const unsigned char (&bytes)[N]) {
  return open_npz({scratch.write("data.npz", std::as_bytes(std::span(bytes)))});
}

TEST(Npz, SavezIsRead) {
  const Scratch scratch;
  const auto dataset = open_bytes(scratch, kSavez);
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(), "3 samples of x f32[2,2], y i64[]");
  EXPECT_EQ(dag::to_doubles(read_column(**dataset, "x", {2, 0})),
            (std::vector<double>{2, 2.25, 2.5, 2.75, 0, 0.25, 0.5, 0.75}));
  EXPECT_EQ(dag::to_int64s(read_column(**dataset, "y", {0, 1, 2})), (std::vector<int64_t>{7, -8, 9}));
}

TEST(Npz, SavezCompressedIsReadWithEveryDtype) {
  const Scratch scratch;
  const auto dataset = open_bytes(scratch, kSavezCompressed);
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(),
            "3 samples of x f32[2,2], y i64[], mask bool[2], half f16[], d f64[], i i32[], u u8[1]");
  const auto values = [&](std::string_view name) {
    return dag::to_doubles(read_column(**dataset, name, {0, 1, 2}));
  };
  EXPECT_EQ(values("mask"), (std::vector<double>{1, 0, 0, 1, 1, 1}));
  EXPECT_EQ(values("half"), (std::vector<double>{0.5, -2, 65504}));
  EXPECT_EQ(values("d"), (std::vector<double>{1e300, -0.0, 3.5}));
  EXPECT_EQ(values("i"), (std::vector<double>{1, -2, 3}));
  EXPECT_EQ(values("u"), (std::vector<double>{255, 0, 1}));
}

TEST(Npz, StreamedZipWithLaterNpyVersionsIsRead) {
  const Scratch scratch;
  const auto dataset = open_bytes(scratch, kStreamed);
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(), "3 samples of a f32[2,2], b f32[2,2]");
  EXPECT_EQ(dag::to_doubles(read_column(**dataset, "b", {1})), (std::vector<double>{1, 1.25, 1.5, 1.75}));
}

TEST(Npz, WrittenArraysComeBack) {
  const Scratch scratch;
  const std::vector<float> floats = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> ints = {-1, 1};
  const std::vector<NpzArray> arrays = {{"b", dag::make_tensor({2, 3}, floats)},
                                        {"a/c", dag::make_tensor({2}, ints)}};
  const auto bytes = npz_bytes(arrays);
  ASSERT_TRUE(bytes.has_value());
  const auto dataset = open_npz({scratch.write("data.npz", *bytes)});
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(), "2 samples of b f32[3], a/c i64[]");
  EXPECT_EQ(dag::to_doubles(read_column(**dataset, "b", {1, 0})), (std::vector<double>{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(dag::to_int64s(read_column(**dataset, "a/c", {0, 1})), ints);
}

TEST(Npz, WritingTwiceGivesTheSameBytes) {
  const std::vector<NpzArray> arrays = {{"x", dag::make_scalar(dag::DType::F64, 2)}};
  EXPECT_EQ(npz_bytes(arrays).value(), npz_bytes(arrays).value());
}

TEST(Npz, WriterRefusesWhatNumpyLacks) {
  const auto scalar = dag::make_scalar(dag::DType::F32, 1);
  EXPECT_TRUE(fails_with(npz_bytes(std::vector<NpzArray>{{"x", dag::make_scalar(dag::DType::BF16, 1)}}),
                         ErrorCode::Unsupported, "bf16"));
  EXPECT_TRUE(fails_with(npz_bytes(std::vector<NpzArray>{{"x", scalar}, {"x", scalar}}),
                         ErrorCode::InvalidArgument, "'x'"));
}

TEST(Npz, WriterPassesTheSinksErrorOn) {
  const std::vector<NpzArray> arrays = {{"x", dag::make_scalar(dag::DType::F32, 1)}};
  int calls = 0;
  const auto status = write_npz(arrays, [&](std::span<const std::byte>) -> Status {
    if (++calls == 3) return fail(ErrorCode::ResourceExhausted, "disk is full");
    return {};
  });
  EXPECT_TRUE(fails_with(status, ErrorCode::ResourceExhausted, "full"));
  EXPECT_EQ(calls, 3);
}

// x, and beside it what cannot be read or is of another length.
std::vector<std::byte> among_others() {
  const std::vector<float> two = {1, 2}, three = {1, 2, 3};
  auto bytes = npz_bytes(std::vector<NpzArray>{{"x", dag::make_tensor({2}, two)},
                                               {"longer", dag::make_tensor({3}, three)},
                                               {"scalar", dag::make_scalar(dag::DType::F32, 1)},
                                               {"text", dag::make_tensor({2}, two)}})
                   .value();
  // A dtype of text, in the last array's header.
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t at = all.rfind("'<f4'");
  bytes[at + 2] = std::byte{'U'};
  return bytes;
}

TEST(Npz, ColumnsThatNobodyAsksForDoNotMatter) {
  const Scratch scratch;
  const auto path = scratch.write("data.npz", among_others());
  EXPECT_FALSE(open_npz({path}).has_value());
  const auto dataset = open_npz({path, {"x", "absent"}});
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(), "2 samples of x f32[]");
  EXPECT_EQ(std::vector<std::string>((*dataset)->others().begin(), (*dataset)->others().end()),
            (std::vector<std::string>{"longer", "scalar", "text"}));
  EXPECT_EQ(dag::to_doubles(read_column(**dataset, "x", {1, 0})), (std::vector<double>{2, 1}));
}

TEST(Npz, ColumnsThatAreAskedForMustFit) {
  const Scratch scratch;
  const auto path = scratch.write("data.npz", among_others());
  EXPECT_TRUE(fails_with(open_npz({path, {"x", "text"}}), ErrorCode::Unsupported, ".astype("));
  EXPECT_TRUE(fails_with(open_npz({path, {"x", "scalar"}}), ErrorCode::InvalidArgument, "{value: "));
  EXPECT_TRUE(fails_with(open_npz({path, {"x", "longer"}}), ErrorCode::InvalidArgument, "np.moveaxis"));
  EXPECT_TRUE(fails_with(open_npz({path, {"a", "b"}}), ErrorCode::NotFound, "it holds 'x', 'longer'"));
}

TEST(Npz, RunsOfSamplesAreReadLikeSingleOnes) {
  const Scratch scratch;
  std::vector<float> values(40);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto bytes = npz_bytes(std::vector<NpzArray>{{"x", dag::make_tensor({20, 2}, values)}}).value();
  const auto dataset = open_npz({scratch.write("data.npz", bytes)});
  ASSERT_TRUE(dataset.has_value());
  const std::vector<uint32_t> samples = {3, 4, 5, 19, 0, 1, 1, 2, 7};
  std::vector<double> expected;
  for (const uint32_t sample : samples) expected.insert(expected.end(), {2.0 * sample, 2.0 * sample + 1});
  EXPECT_EQ(dag::to_doubles(read_column(**dataset, "x", samples)), expected);
}

// What a file holds whose pieces were written where they belong.
std::vector<std::byte> placed_bytes(const std::vector<NpzArray>& arrays, size_t piece) {
  std::vector<std::byte> file;
  std::vector<NpzRows::Array> specs;
  for (const NpzArray& array : arrays) specs.push_back({array.name, array.tensor.spec()});
  auto rows = NpzRows::create(specs, [&](uint64_t offset, std::span<const std::byte> bytes) -> Status {
    file.resize(std::max<size_t>(file.size(), offset + bytes.size()));
    std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(offset));
    return {};
  });
  EXPECT_TRUE(rows.has_value());
  bool left = true;
  for (size_t done = 0; left; done += piece) {
    left = false;
    for (size_t i = 0; i < arrays.size(); ++i) {
      const auto bytes = arrays[i].tensor.bytes();
      if (done >= bytes.size()) continue;
      left = true;
      EXPECT_TRUE(rows->append(i, bytes.subspan(done, std::min(piece, bytes.size() - done))).has_value());
    }
  }
  EXPECT_TRUE(rows->finish().has_value());
  return file;
}

TEST(Npz, RowsWrittenSideBySideAreTheSameFile) {
  std::vector<float> floats(1000);
  for (size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(i) / 3;
  const std::vector<int64_t> ints = {-1, 1, 7};
  const std::vector<NpzArray> arrays = {{"b", dag::make_tensor({10, 100}, floats)},
                                        {"a/c", dag::make_tensor({3}, ints)},
                                        {"none", dag::Tensor({dag::DType::F32, {0, 4}})}};
  for (const size_t piece : {1, 24, 400, 100'000})
    EXPECT_EQ(placed_bytes(arrays, piece), npz_bytes(arrays).value()) << piece;
}

TEST(Npz, RowsRefuseWhatNumpyLacks) {
  const auto create = [](std::vector<NpzRows::Array> arrays) {
    return NpzRows::create(std::move(arrays), [](uint64_t, std::span<const std::byte>) { return Status{}; });
  };
  EXPECT_TRUE(fails_with(create({{"x", {dag::DType::BF16, {2}}}}), ErrorCode::Unsupported, "bf16"));
  EXPECT_TRUE(fails_with(create({{"x", {}}, {"x", {}}}), ErrorCode::InvalidArgument, "'x'"));
}

TEST(Npy, HeaderOfEveryDtypeAndRankParsesBack) {
  for (const auto dtype : {dag::DType::F32, dag::DType::F64, dag::DType::F16, dag::DType::I8, dag::DType::U8,
                           dag::DType::I16, dag::DType::U16, dag::DType::I32, dag::DType::U32,
                           dag::DType::I64, dag::DType::U64, dag::DType::Bool})
    for (const dag::Shape& shape : {dag::Shape{}, dag::Shape{5}, dag::Shape{0, 3}, dag::Shape{1, 2, 3, 4}}) {
      const dag::TensorSpec spec{dtype, shape};
      const std::string header = npy_header(spec);
      EXPECT_EQ(header.size() % 64, 0u);
      const auto parsed = parse_npy_dictionary(std::string_view(header).substr(10));
      ASSERT_TRUE(parsed.has_value()) << header;
      EXPECT_EQ(*parsed, spec);
    }
}

TEST(Npy, HostileDictionariesAreRefused) {
  const std::vector<std::pair<std::string, ErrorCode>> cases = {
      {"", ErrorCode::Corrupted},
      {"{", ErrorCode::Corrupted},
      {"{}", ErrorCode::Corrupted},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)", ErrorCode::Corrupted},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} import os", ErrorCode::Corrupted},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}", ErrorCode::Corrupted},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", ErrorCode::Corrupted},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1099511627776)}",
       ErrorCode::OutOfRange},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}", ErrorCode::Corrupted},
      {"{'descr': '<f4', 'fortran_order': False}", ErrorCode::Corrupted},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", ErrorCode::Corrupted},
      {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (3,)}", ErrorCode::Corrupted},
      {"{'descr': '<f4', 'fortran_order': True, 'shape': (3, 2)}", ErrorCode::Unsupported},
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (3,)}", ErrorCode::Unsupported},
      {"{'descr': '|O', 'fortran_order': False, 'shape': (3,)}", ErrorCode::Unsupported},
      {"{'descr': '', 'fortran_order': False, 'shape': (3,)}", ErrorCode::Unsupported},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}", ErrorCode::Unsupported},
      {"{'descr: '<f4'", ErrorCode::Corrupted},
      {"{'shape': (" + std::string(1000, '1') + ",)}", ErrorCode::Corrupted},
      {"{'shape': ((((((1", ErrorCode::Corrupted},
  };
  for (const auto& [text, code] : cases) {
    SCOPED_TRACE(text.substr(0, 100));
    EXPECT_TRUE(fails_with(parse_npy_dictionary(text), code, ""));
  }
}

}  // namespace
}  // namespace weft::data
