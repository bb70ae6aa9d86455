// What is put together again is the file that was taken apart.
#include "storage/package.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tests/storage/failing.h"
#include "tests/support/scratch.h"

namespace weft::storage {
namespace {

namespace fs = std::filesystem;
using ByteVector = std::vector<std::byte>;

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}

class PackageTest : public testing::Test {
 protected:
  // What a client does: uploads the blobs.
  void upload(const Packed& packed) {
    for (const auto& [digest, source] : packed.blobs) {
      auto writer = value_or_fail(blobs_->begin(digest, source.range.size));
      ASSERT_TRUE(read_source(source, [&](std::span<const std::byte> part) {
                    return writer->write(part);
                  }).has_value());
      ASSERT_TRUE(writer->finish().has_value());
    }
  }
  ByteVector read(const fs::path& path) { return value_or_fail(Files().read(path, 1 << 30)); }

  test::Scratch scratch_;
  std::unique_ptr<BlobStore> blobs_ = value_or_fail(BlobStore::open(scratch_.folder() / "blobs"));
};

TEST_F(PackageTest, ComesBackByteForByte) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0xFAC);
    ByteVector bytes(rng.below(3'000'000));
    for (size_t i = 0; i < bytes.size(); i += 7) bytes[i] = static_cast<std::byte>(rng.next_u32());
    std::vector<Range> ranges;
    for (uint64_t at = 0; rng.below(8) != 0;) {
      at += rng.below(3) == 0 ? 0 : rng.below(200'000);
      const uint64_t size = rng.below(300'000);
      if (at + size > bytes.size()) break;
      ranges.push_back({at, size});
      at += size;
    }
    const fs::path file = scratch_.write("file", bytes);
    const Packed packed = value_or_fail(pack(file, ranges));
    uint64_t size = 0;
    for (const Piece& piece : packed.pieces) {
      size += piece.size;
      EXPECT_LE(piece.bytes.size(), kInlineSizeMax);
      EXPECT_EQ(piece.sha256.has_value(), piece.bytes.empty());
    }
    EXPECT_EQ(size, bytes.size());
    for (const Range& range : ranges) {
      if (range.size == 0) continue;
      const Digest digest = sha256(std::span(bytes).subspan(range.offset, range.size));
      EXPECT_TRUE(packed.blobs.contains(digest)) << "a range is a blob by itself";
    }
    upload(packed);
    const fs::path target = scratch_.folder() / "a" / "b" / "copy";
    ASSERT_TRUE(unpack(packed.pieces, *blobs_, target).has_value());
    EXPECT_EQ(read(target), bytes);
    EXPECT_EQ(fs::hard_link_count(target), 1u);
  }
}

TEST_F(PackageTest, AWholeFileIsOneBlob) {
  const ByteVector bytes(1 << 20, std::byte{5});
  const Packed packed = value_or_fail(pack(scratch_.write("data", bytes), {}));
  ASSERT_EQ(packed.pieces.size(), 1u);
  EXPECT_EQ(packed.pieces[0].sha256, sha256(bytes));
}

TEST_F(PackageTest, RangesOutsideTheFileAreRefused) {
  const fs::path file = scratch_.write("file", std::string(100, 'x'));
  const auto refused = [&](const std::vector<Range>& ranges) {
    EXPECT_TRUE(fails_with(pack(file, ranges), ErrorCode::InvalidArgument, file.string()));
  };
  refused({{101, 0}});
  refused({{0, 101}});
  refused({{50, ~uint64_t{0}}});
  refused({{~uint64_t{0}, 2}});
  refused({{0, 50}, {49, 10}});
  EXPECT_TRUE(fails_with(pack(scratch_.folder() / "nothing", {}), ErrorCode::NotFound, "nothing"));
}

TEST_F(PackageTest, AFileThatCannotBePutTogetherIsNotThere) {
  const ByteVector bytes(100'000, std::byte{5});
  Packed packed = value_or_fail(pack(scratch_.write("data", bytes), {}));
  const fs::path target = scratch_.folder() / "copy";
  EXPECT_TRUE(fails_with(unpack(packed.pieces, *blobs_, target), ErrorCode::NotFound, "uploaded"));
  upload(packed);
  packed.pieces[0].size = 7;
  EXPECT_TRUE(fails_with(unpack(packed.pieces, *blobs_, target), ErrorCode::Corrupted, "wants 7"));
  packed.pieces[0].size = 100'000;
  const fs::path blob = value_or_fail(blobs_->find(*packed.pieces[0].sha256));
  std::ofstream(blob, std::ios::binary | std::ios::in) << "X";
  EXPECT_TRUE(fails_with(unpack(packed.pieces, *blobs_, target), ErrorCode::Corrupted, blob.string()));
  EXPECT_FALSE(fs::exists(target));
}

}  // namespace
}  // namespace weft::storage
