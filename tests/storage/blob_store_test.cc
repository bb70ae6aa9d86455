// Blobs are whole or absent: whatever fails, whoever dies, and whoever writes at the same time.
#include "storage/blob_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

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
::testing::AssertionResult ok(const Status& status) {
  return status ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << status.error().message;
}

ByteVector random_bytes(uint64_t seed, size_t size) {
  Rng rng(seed, 0xB10B);
  ByteVector bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next_u32());
  return bytes;
}

size_t count_files(const fs::path& folder) {
  size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) count += entry.is_regular_file();
  return count;
}

class BlobStoreTest : public testing::Test {
 protected:
  test::Scratch scratch_;
  fs::path folder_ = scratch_.folder() / "blobs";
  std::unique_ptr<BlobStore> store_ = value_or_fail(BlobStore::open(folder_));
};

TEST_F(BlobStoreTest, KeepsWhatWasPut) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}, size_t{3'000'001}}) {
    const ByteVector bytes = random_bytes(size, size);
    const Digest digest = value_or_fail(store_->put(bytes));
    EXPECT_EQ(digest, sha256(bytes));
    EXPECT_TRUE(store_->has(digest));
    EXPECT_EQ(value_or_fail(store_->size(digest)), size);
    EXPECT_EQ(value_or_fail(store_->read(digest, size)), bytes);
    const std::string hex = to_hex(digest);
    EXPECT_EQ(value_or_fail(store_->find(digest)), folder_ / hex.substr(0, 2) / hex);
  }
  const Digest digest = value_or_fail(store_->put(random_bytes(7, 10)));
  const auto reopened = value_or_fail(BlobStore::open(folder_));
  EXPECT_TRUE(reopened->has(digest));
}

TEST_F(BlobStoreTest, SaysWhatIsNotThere) {
  const Digest nothing{};
  EXPECT_FALSE(store_->has(nothing));
  EXPECT_TRUE(fails_with(store_->find(nothing), ErrorCode::NotFound, to_hex(nothing)));
  EXPECT_TRUE(fails_with(store_->size(nothing), ErrorCode::NotFound, ""));
  EXPECT_TRUE(fails_with(store_->read(nothing, 100), ErrorCode::NotFound, ""));
  const Digest ten = value_or_fail(store_->put(random_bytes(1, 10)));
  EXPECT_TRUE(fails_with(store_->read(ten, 9), ErrorCode::ResourceExhausted, "10 bytes"));
}

TEST_F(BlobStoreTest, CopiesAFile) {
  const ByteVector bytes = random_bytes(3, 2'500'000);
  const fs::path file = scratch_.write("data", bytes);
  EXPECT_EQ(value_or_fail(sha256_of(file)), sha256(bytes));
  const Digest digest = value_or_fail(store_->put_file(file));
  fs::remove(file);
  EXPECT_EQ(value_or_fail(store_->read(digest, 1 << 30)), bytes);
  EXPECT_TRUE(fails_with(store_->put_file(file), ErrorCode::NotFound, "data"));
}

TEST_F(BlobStoreTest, AWriterKeepsItsPromiseOrLeavesNothing) {
  const ByteVector bytes = random_bytes(2, 1000);
  const auto part = std::span(bytes);
  {
    auto writer = value_or_fail(store_->begin(sha256(bytes), 1000));
    ASSERT_TRUE(ok(writer->write(part.first(300))));
    EXPECT_TRUE(fails_with(writer->finish(), ErrorCode::Corrupted, "700 bytes"));
    EXPECT_FALSE(store_->has(sha256(bytes)));
  }
  EXPECT_EQ(count_files(folder_), 0u) << "given up";
  {
    auto writer = value_or_fail(store_->begin(sha256(bytes), 1000));
    ASSERT_TRUE(ok(writer->write(part.first(900))));
    EXPECT_TRUE(fails_with(writer->write(part.first(101)), ErrorCode::OutOfRange, "100 are left"));
  }
  {
    auto writer = value_or_fail(store_->begin(sha256(bytes), 1000));
    ASSERT_TRUE(ok(writer->write(part.last(500))));
    ASSERT_TRUE(ok(writer->write(part.first(500))));
    EXPECT_TRUE(fails_with(writer->finish(), ErrorCode::Corrupted, "hash"));
    EXPECT_TRUE(fails_with(writer->finish(), ErrorCode::Corrupted, "hash")) << "asked again";
  }
  EXPECT_EQ(count_files(folder_), 0u);
  auto writer = value_or_fail(store_->begin(sha256(bytes), 1000));
  ASSERT_TRUE(ok(writer->write(part.first(500))));
  EXPECT_FALSE(store_->has(sha256(bytes))) << "not before it is whole";
  ASSERT_TRUE(ok(writer->write(part.last(500))));
  ASSERT_TRUE(ok(writer->finish()));
  EXPECT_EQ(value_or_fail(store_->read(sha256(bytes), 1000)), bytes);
}

TEST_F(BlobStoreTest, RefusesWhatDoesNotFitOnTheDisk) {
  EXPECT_TRUE(fails_with(store_->begin(Digest{}, uint64_t{1} << 62), ErrorCode::ResourceExhausted, "room"));
  EXPECT_EQ(count_files(folder_), 0u);
}

TEST_F(BlobStoreTest, SeesDamageAndMendsWhatIsPutAgain) {
  const ByteVector bytes = random_bytes(4, 100);
  const Digest digest = value_or_fail(store_->put(bytes));
  const fs::path path = value_or_fail(store_->find(digest));
  std::ofstream(path, std::ios::binary | std::ios::in) << "X";
  EXPECT_TRUE(fails_with(store_->read(digest, 1000), ErrorCode::Corrupted, path.string()));
  std::ofstream(path, std::ios::binary | std::ios::trunc) << "short";
  EXPECT_TRUE(fails_with(store_->read(digest, 1000), ErrorCode::Corrupted, path.string()));
  EXPECT_EQ(value_or_fail(store_->put(bytes)), digest);
  EXPECT_EQ(value_or_fail(store_->read(digest, 1000)), bytes);
}

TEST_F(BlobStoreTest, OpeningRemovesLeftoversButNotWhatIsBeingWritten) {
  auto writer = value_or_fail(store_->begin(Digest{}, 10));
  std::ofstream(folder_ / ".blob.1-0.weft-tmp") << "left by a crash";
  std::ofstream(folder_ / "notes.txt") << "of somebody";
  const auto second = value_or_fail(BlobStore::open(folder_));
  EXPECT_FALSE(fs::exists(folder_ / ".blob.1-0.weft-tmp"));
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
  EXPECT_EQ(count_files(folder_), 2u) << "the writer's file and the notes";
}

TEST_F(BlobStoreTest, CollectsWhatIsOldAndNotKept) {
  const auto age = [&](const Digest& digest, int hours) {
    fs::last_write_time(value_or_fail(store_->find(digest)),
                        fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  const Digest kept = value_or_fail(store_->put(random_bytes(1, 100)));
  const Digest old = value_or_fail(store_->put(random_bytes(2, 200)));
  const Digest young = value_or_fail(store_->put(random_bytes(3, 300)));
  const Digest asked = value_or_fail(store_->put(random_bytes(4, 400)));
  for (const Digest& digest : {kept, old, asked}) age(digest, 2);
  EXPECT_TRUE(store_->has(asked)) << "somebody is about to name it";
  std::ofstream(folder_ / "notes.txt") << "of somebody";
  EXPECT_EQ(value_or_fail(store_->collect({kept})), 200u);
  EXPECT_TRUE(store_->has(kept));
  EXPECT_FALSE(store_->has(old));
  EXPECT_TRUE(store_->has(young));
  EXPECT_TRUE(store_->has(asked));
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
}

TEST_F(BlobStoreTest, ManyThreadsPutTheSameAndOthers) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 20; ++i) {
        const ByteVector bytes = random_bytes(t % 2 == 0 ? i : i + 100, 5000);
        EXPECT_EQ(value_or_fail(store_->read(value_or_fail(store_->put(bytes)), 5000)), bytes);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count_files(folder_), 40u);
}

TEST_F(BlobStoreTest, AKilledWriterLeavesWholeBlobsOnly) {
  for (int round = 0; round < 10; ++round) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto store = BlobStore::open(folder_);
      for (uint64_t i = 0;; ++i) {
        const auto digest = (*store)->put(random_bytes(static_cast<uint64_t>(round) * 1000 + i, 20'000));
        if (!digest || ::write(ends[1], digest->bytes.data(), 32) != 32) ::_exit(1);
      }
    }
    ::close(ends[1]);
    // It is killed once it has acknowledged some blobs, and is in the middle of the next.
    std::vector<Digest> acknowledged(static_cast<size_t>(1 + round));
    for (Digest& digest : acknowledged) ASSERT_EQ(::read(ends[0], digest.bytes.data(), 32), 32);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ends[0]);
    store_ = value_or_fail(BlobStore::open(folder_));
    for (const Digest& digest : acknowledged) EXPECT_TRUE(store_->read(digest, 20'000).has_value());
    for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
      if (!entry.is_regular_file()) continue;
      const auto digest = digest_from_hex(entry.path().filename().string());
      ASSERT_TRUE(digest.has_value()) << entry.path() << " is a leftover";
      EXPECT_TRUE(store_->read(*digest, 20'000).has_value());
    }
  }
}

}  // namespace
}  // namespace weft::storage
