#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>

#include "data/dataset.h"
#include "tests/data/reading.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

using test::Scratch;

std::string idx(std::initializer_list<uint32_t> dims, std::string_view elements, char type = 8) {
  std::string text{'\0', '\0', type, static_cast<char>(dims.size())};
  for (const uint32_t dim : dims)
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(dim >> shift);
  return text + std::string(elements);
}

std::string gzip(const std::string& plain) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&z, plain.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  z.avail_in = static_cast<uInt>(plain.size());
  z.next_out = reinterpret_cast<Bytef*>(packed.data());
  z.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  packed.resize(z.total_out);
  deflateEnd(&z);
  return packed;
}

const std::string kImages =
    idx({3, 2, 2}, std::string("\x00\x01\x02\x03\x10\x11\x12\x13\xfc\xfd\xfe\xff", 12));
const std::string kLabels = idx({3}, std::string("\x05\x00\x09", 3));

TEST(Idx, PlainFilesBecomeImagesAndLabels) {
  const Scratch scratch;
  const auto dataset = open_idx({scratch.write("i", kImages), scratch.write("l", kLabels), 0.5, 1, 2});
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(), "3 samples of image f32[1,2,2], label i64[]");
  const auto images = read_column(**dataset, "image", {2, 0});
  EXPECT_EQ(images.shape(), (dag::Shape{2, 1, 2, 2}));
  EXPECT_FLOAT_EQ(images.as<float>()[0], (252 * 0.5f - 1) / 2);
  EXPECT_FLOAT_EQ(images.as<float>()[7], (3 * 0.5f - 1) / 2);
  const auto labels = read_column(**dataset, "label", {2, 1, 0});
  EXPECT_EQ(dag::to_int64s(labels), (std::vector<int64_t>{9, 0, 5}));
}

TEST(Idx, GzippedFilesReadTheSame) {
  const Scratch scratch;
  const auto dataset = open_idx({scratch.write("i", gzip(kImages)), scratch.write("l", gzip(kLabels))});
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_FLOAT_EQ(read_column(**dataset, "image", {1}).as<float>()[3], 19);
}

TEST(Idx, SeveralGzipMembersAreOneFile) {
  const Scratch scratch;
  const auto path = scratch.write("i", gzip(kImages.substr(0, 7)) + gzip(kImages.substr(7)));
  const auto dataset = open_idx({path, scratch.write("l", kLabels)});
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_FLOAT_EQ(read_column(**dataset, "image", {2}).as<float>()[3], 255);
}

TEST(Idx, RankFourKeepsItsChannels) {
  const Scratch scratch;
  const auto dataset =
      open_idx({scratch.write("i", idx({3, 2, 1, 2}, kImages.substr(16))), scratch.write("l", kLabels)});
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->columns()[0].sample.shape, (dag::Shape{2, 1, 2}));
}

TEST(Idx, SampleBeyondTheEndIsOutOfRange) {
  const Scratch scratch;
  const auto dataset = open_idx({scratch.write("i", kImages), scratch.write("l", kLabels)});
  std::array<std::byte, 8> out{};
  EXPECT_TRUE(
      fails_with((*dataset)->read(1, std::vector<uint32_t>{3}, out), ErrorCode::OutOfRange, "sample 3 of 3"));
}

TEST(Idx, EveryWrongFileIsRefusedByName) {
  struct Case {
    std::string what;
    std::string images;
    std::string labels;
    ErrorCode code;
    std::string message;
  };
  const std::string huge = idx({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, "");
  std::string flipped = gzip(kImages);
  flipped[flipped.size() - 6] = static_cast<char>(flipped[flipped.size() - 6] ^ 1);  // in the stored CRC
  const std::vector<Case> cases = {
      {"empty", "", kLabels, ErrorCode::Corrupted, "ends too early"},
      {"short header", kImages.substr(0, 9), kLabels, ErrorCode::Corrupted, "ends too early"},
      {"not idx", "hello, world", kLabels, ErrorCode::Corrupted, "not an idx file"},
      {"floats", idx({3, 2, 2}, std::string(48, 'x'), 13), kLabels, ErrorCode::Unsupported,
       "element type 13"},
      {"rank 200", std::string("\0\0\x08\xc8", 4), kLabels, ErrorCode::Unsupported, "rank 200"},
      {"cut", kImages.substr(0, kImages.size() - 1), kLabels, ErrorCode::Corrupted, "cannot hold"},
      {"longer", kImages + "x", kLabels, ErrorCode::Corrupted, "cannot hold"},
      {"overflow", huge, kLabels, ErrorCode::Corrupted, "2^40"},
      {"overflow gz", gzip(huge), kLabels, ErrorCode::Corrupted, "2^40"},
      {"bomb", gzip(idx({30000, 1000, 1000}, "")), kLabels, ErrorCode::Corrupted, "cannot hold"},
      {"cut gz", gzip(kImages).substr(0, 25), kLabels, ErrorCode::Corrupted, "cut off"},
      {"bad crc", flipped, kLabels, ErrorCode::Corrupted, "damaged"},
      {"longer gz", gzip(kImages + "more"), kLabels, ErrorCode::Corrupted, "holds more"},
      {"garbage after gz", gzip(kImages) + "garbage", kLabels, ErrorCode::Corrupted, "damaged"},
      {"swapped", kLabels, kImages, ErrorCode::InvalidArgument, "swapped"},
      {"counts", kImages, idx({2}, "ab"), ErrorCode::InvalidArgument, "2 labels for the 3 images"},
      {"none", idx({0, 2, 2}, ""), idx({0}, ""), ErrorCode::InvalidArgument, "no samples"},
      {"no pixels", idx({4000000000u, 0, 2}, ""), kLabels, ErrorCode::InvalidArgument, ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const Scratch scratch;
    const auto result =
        open_idx({scratch.write("images-file", c.images), scratch.write("labels-file", c.labels)});
    EXPECT_TRUE(fails_with(result, c.code, c.message));
    if (!result) {
      EXPECT_NE(result.error().message.find("s-file: "), std::string::npos) << result.error().message;
    }
  }
}

TEST(Idx, MissingFileAndFolderAreNamed) {
  const Scratch scratch;
  EXPECT_TRUE(fails_with(open_idx({scratch.folder() / "absent", "l"}), ErrorCode::NotFound, "absent"));
  EXPECT_TRUE(
      fails_with(open_idx({scratch.folder(), "l"}), ErrorCode::InvalidArgument, "not a regular file"));
}

TEST(Idx, FashionMnistIsRead) {
  const std::filesystem::path folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "the package dataset-fashion-mnist is not installed";
  const auto dataset = open_idx(
      {folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz", 1.0 / 255, 0.286, 0.353});
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(), "10000 samples of image f32[1,28,28], label i64[]");
  std::vector<uint32_t> all(10000);
  std::iota(all.begin(), all.end(), 0u);
  const auto labels = dag::to_int64s(read_column(**dataset, "label", all));
  std::array<int, 10> counts{};
  for (const int64_t label : labels) ++counts.at(static_cast<size_t>(label));
  for (const int count : counts) EXPECT_EQ(count, 1000);
  EXPECT_EQ(labels.front(), 9);  // an ankle boot
  double sum = 0;
  const auto images = read_column(**dataset, "image", all);
  for (const float v : images.as<float>()) sum += v;
  EXPECT_NEAR(sum / static_cast<double>(images.element_count()), 0, 0.01);
}

}  // namespace
}  // namespace weft::data
