// Blobs that need not survive: there for readers at once, gone with the process, durable when asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "storage/blob_store.h"
#include "tests/storage/failing.h"
#include "tests/support/scratch.h"

namespace weft::storage {
namespace {

namespace fs = std::filesystem;

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}
::testing::AssertionResult ok(const Status& status) {
  return status ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << status.error().message;
}
std::vector<std::byte> bytes_of(uint8_t number, size_t size = 1000) {
  return std::vector<std::byte>(size, static_cast<std::byte>(number));
}

class TransientBlobsTest : public testing::Test {
 protected:
  std::unique_ptr<BlobStore> open(BlobStoreOptions options) {
    options.wipe_transient = true;
    return value_or_fail(BlobStore::open(folder_, std::move(options)));
  }
  static Status put(BlobStore& store, std::span<const std::byte> bytes) {
    WEFT_TRY(const auto writer, store.begin(sha256(bytes), bytes.size(), Durability::Transient));
    WEFT_TRY_STATUS(writer->write(bytes));
    return writer->finish();
  }
  Digest put(uint8_t number) {
    const auto bytes = bytes_of(number);
    EXPECT_TRUE(ok(put(*store_, bytes)));
    return sha256(bytes);
  }
  void reopen(BlobStoreOptions options = {}) {
    store_.reset();
    store_ = open(std::move(options));
  }

  test::Scratch scratch_;
  fs::path folder_ = scratch_.folder() / "blobs";
  std::unique_ptr<BlobStore> store_ = open({});
};

TEST_F(TransientBlobsTest, AreReadLikeOthersAndGoWithTheProcess) {
  const Digest digest = put(1);
  EXPECT_TRUE(store_->has(digest));
  EXPECT_EQ(value_or_fail(store_->size(digest)), 1000u);
  EXPECT_EQ(value_or_fail(store_->read(digest, 1000)), bytes_of(1));
  EXPECT_EQ(value_or_fail(store_->find(digest)).parent_path().parent_path(), folder_ / "transient");
  EXPECT_TRUE(value_or_fail(store_->have(digest, Durability::Transient)));
  reopen();
  EXPECT_FALSE(store_->has(digest));
  EXPECT_FALSE(fs::exists(folder_ / "transient"));
}

TEST_F(TransientBlobsTest, ThoseOfAnEarlierProcessAreNeverTrusted) {
  const Digest digest = put(1);
  const auto other = value_or_fail(BlobStore::open(folder_));  // leaves the folder alone
  EXPECT_FALSE(other->has(digest));
  EXPECT_TRUE(fails_with(other->find(digest), ErrorCode::NotFound, to_hex(digest)));
  EXPECT_TRUE(store_->has(digest));
}

TEST_F(TransientBlobsTest, AreMadeDurableWhenAskedForAsSuch) {
  const Digest digest = put(1), never = sha256(bytes_of(2));
  EXPECT_TRUE(value_or_fail(store_->have(digest, Durability::Durable)));
  EXPECT_FALSE(value_or_fail(store_->have(never, Durability::Durable)));
  EXPECT_TRUE(fails_with(store_->make_durable(never), ErrorCode::NotFound, to_hex(never)));
  EXPECT_TRUE(ok(store_->make_durable(digest))) << "again is fine";
  reopen();
  EXPECT_EQ(value_or_fail(store_->read(digest, 1000)), bytes_of(1));
}

TEST_F(TransientBlobsTest, PuttingTheBytesDurablyMakesThemSo) {
  const Digest digest = put(1);
  EXPECT_EQ(value_or_fail(store_->put(bytes_of(1))), digest);
  reopen();
  EXPECT_TRUE(store_->has(digest));
}

TEST_F(TransientBlobsTest, WhatIsNotSpokenOfAnyMoreGoes) {
  reopen({.transient_young = std::chrono::milliseconds(0)});
  const Digest kept = put(1), gone = put(2), durable_too = put(3);
  ASSERT_TRUE(ok(store_->make_durable(durable_too)));
  EXPECT_EQ(store_->keep_transient({kept}), 2000u);
  EXPECT_TRUE(store_->has(kept));
  EXPECT_FALSE(store_->has(gone));
  EXPECT_EQ(value_or_fail(store_->read(durable_too, 1000)), bytes_of(3));
  EXPECT_EQ(store_->keep_transient({}), 1000u);
  EXPECT_EQ(store_->keep_transient({}), 0u);
}

TEST_F(TransientBlobsTest, WhatCameLatelyStaysForItMayBeNamedYet) {
  const Digest digest = put(1);
  EXPECT_EQ(store_->keep_transient({}), 0u);
  EXPECT_TRUE(store_->has(digest));
}

TEST_F(TransientBlobsTest, CollectingDurableOnesLeavesThem) {
  const Digest digest = put(1);
  fs::last_write_time(value_or_fail(store_->find(digest)),
                      fs::file_time_type::clock::now() - std::chrono::hours(5));
  EXPECT_EQ(value_or_fail(store_->collect({})), 0u);
  EXPECT_TRUE(store_->has(digest));
}

TEST_F(TransientBlobsTest, ReadersNeverMissABlobThatBecomesDurableAndGoesFromAmongTheTransient) {
  reopen({.transient_young = std::chrono::milliseconds(0)});
  for (uint8_t round = 0; round < 50; ++round) {
    const Digest digest = put(round);
    std::thread other([&] {
      EXPECT_TRUE(value_or_fail(store_->have(digest, Durability::Durable)));
      store_->keep_transient({});
    });
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(store_->find(digest).has_value());
    other.join();
    EXPECT_TRUE(store_->read(digest, 1000).has_value());
  }
}

// ---- damage

TEST_F(TransientBlobsTest, ADamagedBlobIsMovedAsideAndCanComeAgain) {
  const Digest digest = value_or_fail(store_->put(bytes_of(1)));
  const fs::path path = value_or_fail(store_->find(digest));
  EXPECT_FALSE(value_or_fail(store_->quarantine(digest))) << "it is sound";
  for (const bool shorter : {true, false}) {
    if (shorter)
      fs::resize_file(path, 999);
    else
      std::ofstream(path, std::ios::binary | std::ios::in) << "X";
    EXPECT_TRUE(store_->has(digest)) << "a cheap look cannot see it";
    EXPECT_TRUE(fails_with(store_->read(digest, 1000), ErrorCode::Corrupted, path.string()));
    EXPECT_TRUE(value_or_fail(store_->quarantine(digest)));
    EXPECT_FALSE(value_or_fail(store_->have(digest, Durability::Durable)));
    EXPECT_TRUE(fs::exists(folder_ / "damaged" / to_hex(digest))) << "for whoever wants to know why";
    EXPECT_TRUE(fails_with(store_->quarantine(digest), ErrorCode::NotFound, to_hex(digest)));
    EXPECT_EQ(value_or_fail(store_->put(bytes_of(1))), digest);
    EXPECT_EQ(value_or_fail(store_->read(digest, 1000)), bytes_of(1));
  }
  fs::last_write_time(folder_ / "damaged" / to_hex(digest),
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(value_or_fail(store_->collect({digest})), 1000u);
  EXPECT_FALSE(fs::exists(folder_ / "damaged" / to_hex(digest)));
}

TEST_F(TransientBlobsTest, DamageUnderTwoNamesIsMovedAsideWhole) {
  const Digest digest = put(1);
  ASSERT_TRUE(ok(store_->make_durable(digest)));
  std::ofstream(value_or_fail(store_->find(digest)), std::ios::binary | std::ios::in) << "X";
  EXPECT_TRUE(value_or_fail(store_->quarantine(digest)));
  EXPECT_FALSE(store_->has(digest));
  EXPECT_TRUE(ok(put(*store_, bytes_of(1))));
  EXPECT_EQ(value_or_fail(store_->read(digest, 1000)), bytes_of(1));
}

// ---- a full disk

size_t files_in(const fs::path& folder) {
  size_t files = 0;
  if (fs::exists(folder))
    for (const auto& entry : fs::recursive_directory_iterator(folder)) files += entry.is_regular_file();
  return files;
}

TEST_F(TransientBlobsTest, UploadsLeaveTheReserveFree) {
  reopen({.reserve = uint64_t{1} << 62});
  EXPECT_TRUE(fails_with(store_->put(bytes_of(1)), ErrorCode::ResourceExhausted, "make room"));
  EXPECT_TRUE(fails_with(put(*store_, bytes_of(1)), ErrorCode::ResourceExhausted, "make room"));
}

TEST_F(TransientBlobsTest, PromisesKeepNobodyOut) {
  const uint64_t free = fs::space(folder_).available;
  reopen({.reserve = 0, .transient_in_memory = 2000});
  EXPECT_TRUE(fails_with(store_->begin(Digest{}, 2 * free), ErrorCode::ResourceExhausted, "make room"));
  std::vector<std::unique_ptr<BlobStore::Writer>> promises;
  for (int i = 0; i < 5; ++i) {
    promises.push_back(value_or_fail(store_->begin(Digest{}, free / 4 * 3)));
    promises.push_back(value_or_fail(store_->begin(Digest{}, 2000, Durability::Transient)));
  }
  EXPECT_EQ(value_or_fail(store_->put(bytes_of(1))), sha256(bytes_of(1)));
  EXPECT_TRUE(store_->begin(Digest{}, free / 2).has_value());
  put(2);
  EXPECT_EQ(files_in(folder_ / "transient"), 0u) << "memory was kept for a promise";
}

TEST_F(TransientBlobsTest, GoToAFileWhenOthersHaveTheMemoryByThen) {
  reopen({.transient_in_memory = 1500, .transient_young = std::chrono::milliseconds(0)});
  const auto bytes = bytes_of(1);
  const auto slow = value_or_fail(store_->begin(sha256(bytes), 1000, Durability::Transient));
  EXPECT_TRUE(ok(slow->write(std::span(bytes).first(400))));
  put(2);
  EXPECT_TRUE(ok(slow->write(std::span(bytes).subspan(400, 400))));
  EXPECT_TRUE(ok(slow->write(std::span(bytes).last(200))));
  EXPECT_TRUE(ok(slow->finish()));
  EXPECT_EQ(files_in(folder_ / "transient"), 1u);
  EXPECT_EQ(value_or_fail(store_->read(sha256(bytes), 1000)), bytes);
  EXPECT_EQ(store_->keep_transient({}), 2000u);
  put(3);
  EXPECT_EQ(files_in(folder_ / "transient"), 0u) << "its memory was given back";
}

TEST_F(TransientBlobsTest, AWriteThatFailsGivesItsRoomBackAtOnce) {
  bool is_full = false;
  reopen({.hook = [&](std::string_view operation, const fs::path& path) -> Status {
    if (is_full && operation == "write") return fail(ErrorCode::ResourceExhausted, path.string() + ": full");
    return {};
  }});
  const auto bytes = bytes_of(1);
  auto writer = value_or_fail(store_->begin(sha256(bytes), 1000));
  EXPECT_TRUE(ok(writer->write(std::span(bytes).first(500))));
  is_full = true;
  EXPECT_TRUE(fails_with(writer->write(std::span(bytes).last(500)), ErrorCode::ResourceExhausted, "full"));
  EXPECT_TRUE(fs::is_empty(folder_)) << "while the writer is still held";
  EXPECT_TRUE(fails_with(writer->finish(), ErrorCode::ResourceExhausted, "full"));
  is_full = false;
  EXPECT_EQ(value_or_fail(store_->put(bytes)), sha256(bytes));
}

TEST_F(TransientBlobsTest, LieInMemoryAsFarAsTheyMay) {
  reopen({.transient_in_memory = 2500});
  const Digest one = put(1), two = put(2), three = put(3);
  EXPECT_EQ(files_in(folder_), 1u) << "the third did not fit";
  for (const auto& [digest, number] : {std::pair(one, 1), std::pair(two, 2), std::pair(three, 3)}) {
    EXPECT_TRUE(store_->has(digest));
    EXPECT_EQ(value_or_fail(store_->size(digest)), 1000u);
    EXPECT_EQ(value_or_fail(store_->read(digest, 1000)), bytes_of(static_cast<uint8_t>(number)));
    const BlobView view = value_or_fail(store_->view(digest));
    EXPECT_TRUE(std::ranges::equal(view.bytes, bytes_of(static_cast<uint8_t>(number))));
    EXPECT_FALSE(value_or_fail(store_->quarantine(digest))) << "it is sound";
  }
  EXPECT_EQ(store_->read(one, 999).error().code, ErrorCode::ResourceExhausted);
  EXPECT_EQ(store_->find(one).error().code, ErrorCode::NotFound);
  reopen();
  EXPECT_FALSE(store_->has(one));
}

TEST_F(TransientBlobsTest, MemoryIsGivenBack) {
  reopen({.transient_in_memory = 3500, .transient_young = std::chrono::milliseconds(0)});
  for (int round = 0; round < 3; ++round) {
    const Digest one = put(1);
    put(2);
    put(1);  // again: counts once
    EXPECT_EQ(files_in(folder_), 0u) << "round " << round;
    const BlobView view = value_or_fail(store_->view(one));
    EXPECT_EQ(store_->keep_transient({one}), 1000u);
    EXPECT_EQ(store_->keep_transient({}), 1000u);
    EXPECT_EQ(store_->view(one).error().code, ErrorCode::NotFound);
    EXPECT_TRUE(std::ranges::equal(view.bytes, bytes_of(1))) << "who reads it has it still";
    {  // promised and never kept
      const auto writer = value_or_fail(store_->begin(sha256(bytes_of(7)), 3500, Durability::Transient));
      EXPECT_TRUE(ok(writer->write(bytes_of(7))));
      EXPECT_EQ(writer->finish().error().code, ErrorCode::Corrupted);
      EXPECT_EQ(writer->write(bytes_of(7, 2501)).error().code, ErrorCode::OutOfRange);
    }
    const auto wrong = value_or_fail(store_->begin(sha256(bytes_of(7)), 1000, Durability::Transient));
    EXPECT_TRUE(ok(wrong->write(bytes_of(8))));
    EXPECT_EQ(wrong->finish().error().code, ErrorCode::Corrupted);
    EXPECT_FALSE(store_->has(sha256(bytes_of(7))));
  }
}

TEST_F(TransientBlobsTest, TheSameInMemoryAndInAFileIsOneAndGoesAsOne) {
  for (const bool file_first : {true, false}) {
    reopen({.transient_in_memory = 1000, .transient_young = std::chrono::milliseconds(0)});
    const auto bytes = bytes_of(1);
    const auto held = value_or_fail(store_->begin(sha256(bytes), 1000, Durability::Transient));
    const auto filed = value_or_fail(store_->begin(sha256(bytes), 1000, Durability::Transient));
    for (BlobStore::Writer* writer :
         {file_first ? filed.get() : held.get(), file_first ? held.get() : filed.get()}) {
      EXPECT_TRUE(ok(writer->write(bytes)));
      EXPECT_TRUE(ok(writer->finish()));
    }
    EXPECT_EQ(value_or_fail(store_->read(sha256(bytes), 1000)), bytes);
    EXPECT_EQ(store_->keep_transient({}), 1000u);
    EXPECT_EQ(files_in(folder_ / "transient"), 0u);
    put(2);
    EXPECT_EQ(files_in(folder_ / "transient"), 0u) << "its memory was given back";
  }
}

TEST_F(TransientBlobsTest, ThoseInMemoryAreMadeDurableWhenAskedForAsSuch) {
  reopen({.transient_in_memory = 2500, .transient_young = std::chrono::milliseconds(0)});
  const Digest digest = put(1);
  EXPECT_TRUE(value_or_fail(store_->have(digest, Durability::Durable)));
  EXPECT_EQ(files_in(folder_), 1u);
  store_->keep_transient({});
  reopen();
  EXPECT_EQ(value_or_fail(store_->read(digest, 1000)), bytes_of(1));
}

}  // namespace
}  // namespace weft::storage
