// Blobs into a store, from connections that are the test. What is work is done when the test says so.
#include "broker/service/upload_desk.h"

#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>

#include "proto/codec/codec.h"
#include "storage/packed.h"
#include "tests/gate/fake_connections.h"
#include "tests/support/keys.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

using test::key;

using test_desks::kThen;
using Bytes = std::vector<std::byte>;

Bytes of(size_t size, uint8_t fill) { return Bytes(size, std::byte{fill}); }

class UploadDeskTest : public ::testing::Test, protected UploadDesk::Outside {
 protected:
  UploadDeskTest() {
    line_.on_refused = [this](ConnectionId which) { desk_.end(which); };
    leases_.connect(key(1));
  }
  void work(ConnectionId whose, size_t size, Work work) override {
    in_work_ += size;
    work_.push_back([this, whose, size, work = std::move(work)] {
      in_work_ -= size;
      if (const auto answer = work()) line_.send(whose, *answer);
    });
  }
  void do_work() {
    while (!work_.empty()) {
      work_.front()();
      work_.pop_front();
    }
  }
  void put(ConnectionId whose, uint64_t request, const Bytes& blob, bool durable = true,
           bool packed = false) {
    desk_.put(whose, key(1),
              {.request = request,
               .sha256 = storage::sha256(blob),
               .size = blob.size(),
               .durable = durable,
               .packed = packed},
              kThen);
  }
  void chunk(ConnectionId whose, uint64_t request, std::span<const std::byte> bytes) {
    Bytes payload = proto::encode_chunk_head(request);
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    net::InFrame frame{.kind = static_cast<uint8_t>(proto::FrameKind::Chunk),
                       .payload = net::Buffer(payload.size())};
    std::copy(payload.begin(), payload.end(), frame.payload.span().begin());
    desk_.on_chunk(whose, std::move(frame), kThen);
  }
  // The error that the one answer tells; nothing: it is stored.
  std::optional<ErrorCode> answer(ConnectionId whose, uint64_t request) {
    do_work();
    const auto answers = line_.take<proto::BlobAnswer>(whose);
    EXPECT_EQ(answers.size(), 1u);
    if (answers.size() != 1) return ErrorCode::Cancelled;
    EXPECT_EQ(answers[0].request, request);
    return answers[0].message.empty() ? std::nullopt : std::optional(answers[0].code);
  }

  test::Scratch scratch_;
  std::unique_ptr<storage::BlobStore> blobs_ = *storage::BlobStore::open(scratch_.folder() / "blobs");
  BlobLeases leases_{{.bytes = 10'000, .blobs = 10}};
  test_desks::FakeConnections line_;
  UploadDesk desk_{line_, *this, *blobs_, leases_};
  std::deque<std::function<void()>> work_;
  size_t in_work_ = 0;
};

TEST_F(UploadDeskTest, WhatComesInChunksIsStoredAndLeased) {
  const Bytes blob = of(1000, 1);
  put(1, 5, blob);
  chunk(1, 5, std::span(blob).first(600));
  chunk(1, 5, std::span(blob).last(400));
  EXPECT_FALSE(blobs_->is_here(storage::sha256(blob))) << "nothing is done on the gate's thread";
  EXPECT_GE(in_work_, 1000u) << "and all of it counts";
  EXPECT_EQ(answer(1, 5), std::nullopt);
  EXPECT_EQ(in_work_, 0u);
  EXPECT_EQ(*blobs_->read(storage::sha256(blob), 1000), blob);
  EXPECT_TRUE(leases_.held(kThen).contains(storage::sha256(blob)));
  EXPECT_EQ(leases_.use_of(key(1)).bytes, 1000u);
}

TEST_F(UploadDeskTest, AnEmptyBlobIsStoredAtOnce) {
  put(1, 5, {});
  EXPECT_EQ(answer(1, 5), std::nullopt);
  EXPECT_TRUE(blobs_->is_here(storage::sha256({})));
}

TEST_F(UploadDeskTest, OtherBytesThanPromisedAreNotStoredAndCountForNobody) {
  const Bytes blob = of(1000, 1);
  put(1, 5, blob);
  chunk(1, 5, of(1000, 2));
  EXPECT_EQ(answer(1, 5), ErrorCode::Corrupted);
  EXPECT_FALSE(blobs_->is_here(storage::sha256(blob)));
  EXPECT_EQ(leases_.use_of(key(1)).bytes, 0u);
  put(1, 6, blob);
  chunk(1, 6, blob);
  EXPECT_EQ(answer(1, 6), std::nullopt) << "the connection goes on";
}

TEST_F(UploadDeskTest, WhatIsBeyondTheQuotaIsTakenAndNotKept) {
  const Bytes blob = of(20'000, 1);
  put(1, 5, blob);
  chunk(1, 5, blob);
  EXPECT_EQ(answer(1, 5), ErrorCode::ResourceExhausted);
  EXPECT_FALSE(blobs_->is_here(storage::sha256(blob)));
  put(1, 6, blob, /*durable=*/false);
  chunk(1, 6, blob);
  EXPECT_EQ(answer(1, 6), std::nullopt) << "copies of a state do not count";
  EXPECT_EQ(leases_.use_of(key(1)).bytes, 0u);
}

TEST_F(UploadDeskTest, WhatWasNotAnnouncedEndsTheConnection) {
  const Bytes blob = of(100, 1);
  const auto is_refused = [&](ConnectionId which) { return line_.refused.contains(which); };
  chunk(1, 5, blob);
  EXPECT_TRUE(is_refused(1)) << "of nothing";
  put(2, 5, blob);
  chunk(2, 6, blob);
  EXPECT_TRUE(is_refused(2)) << "of another request";
  put(3, 5, blob);
  chunk(3, 5, of(101, 1));
  EXPECT_TRUE(is_refused(3)) << "more than was promised";
  put(4, 5, blob);
  chunk(4, 5, {});
  EXPECT_TRUE(is_refused(4)) << "nothing at all";
  put(5, 5, blob);
  chunk(5, 5, blob);
  EXPECT_FALSE(is_refused(5));
  chunk(5, 5, blob);
  EXPECT_TRUE(is_refused(5)) << "all of it had come";
  put(6, 5, blob);
  put(6, 6, blob);
  EXPECT_TRUE(is_refused(6)) << "before the one before was complete";
  desk_.put(7, key(1), {.request = 1, .size = uint64_t{1} << 40}, kThen);
  EXPECT_TRUE(is_refused(7)) << "too large";
}

// Few bytes of a packed blob may become many: what they become counts, and a chunk holds one unit at most.
TEST_F(UploadDeskTest, PackedBytesCountAsWhatTheyBecome) {
  const Bytes blob = of(2 * storage::kPackedUnit, 0);
  storage::Packer packer;
  const Bytes unit = packer.pack(std::span(blob).first(storage::kPackedUnit), {});
  ASSERT_LT(unit.size(), storage::kPackedUnit / 100);
  put(1, 5, blob, false, true);
  do_work();
  chunk(1, 5, unit);
  EXPECT_EQ(in_work_, storage::kPackedUnit);
  chunk(1, 5, unit);
  EXPECT_EQ(answer(1, 5), std::nullopt);
  EXPECT_EQ(*blobs_->size(storage::sha256(blob)), blob.size());

  const Bytes other = of(2 * storage::kPackedUnit, 1);
  put(2, 6, other, false, true);
  Bytes both = packer.pack(std::span(other).first(storage::kPackedUnit), {});
  const Bytes second = both;
  both.insert(both.end(), second.begin(), second.end());
  chunk(2, 6, both);
  EXPECT_TRUE(line_.refused.contains(2));
}

TEST_F(UploadDeskTest, WhatIsMissingIsSaidAndTheRestIsLeased) {
  const Digest here = *blobs_->put(of(10, 1));
  desk_.have(1, key(1), {.request = 9, .blobs = {here, storage::sha256(of(10, 2))}, .durable = true}, kThen);
  EXPECT_TRUE(line_.sent[1].empty());
  do_work();
  const auto missing = line_.take<proto::MissingBlobs>(1);
  ASSERT_EQ(missing.size(), 1u);
  EXPECT_EQ(missing[0].request, 9u);
  EXPECT_EQ(missing[0].blobs, std::vector<Digest>{storage::sha256(of(10, 2))});
  EXPECT_EQ(leases_.held(kThen), std::set<Digest>{here});
}

// As if it had been uploaded: it counts, and what the file has by now has to be what was asked for.
TEST_F(UploadDeskTest, WhatLiesInTheBrokersFolderIsNotMissing) {
  const auto folder = scratch_.folder() / "checkpoints";
  std::filesystem::create_directories(folder);
  const std::string header = R"({"w":{"dtype":"U8","shape":[100],"data_offsets":[0,100]}})";
  const auto write = [&](const Bytes& bytes) {
    std::ofstream file(folder / "m.safetensors", std::ios::binary | std::ios::trunc);
    const uint64_t length = header.size();
    file.write(reinterpret_cast<const char*>(&length), sizeof length) << header;
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  for (const bool has_changed : {false, true}) {
    const Bytes blob = of(100, has_changed ? 7 : 8);
    const Digest digest = storage::sha256(blob);
    write(blob);
    std::shared_ptr<const weights::WeightIndex> index = *weights::WeightIndex::open({.folder = folder});
    index->wait();
    if (has_changed) write(of(100, 9));
    UploadDesk desk(line_, *this, *blobs_, leases_, index);
    for (const bool durable : {false, true}) {
      desk.have(1, key(1), {.request = 9, .blobs = {digest}, .durable = durable}, kThen);
      do_work();
      const auto missing = line_.take<proto::MissingBlobs>(1);
      ASSERT_EQ(missing.size(), 1u);
      EXPECT_EQ(missing[0].blobs.empty(), durable && !has_changed) << "copies of a state are no checkpoints";
    }
    EXPECT_EQ(blobs_->is_here(digest), !has_changed);
    EXPECT_EQ(leases_.use_of(key(1)).bytes, 100u);
    EXPECT_EQ(index->size_of(digest).has_value(), !has_changed);
  }
}

// A recipe makes what it says of what lies there, or nothing.
TEST_F(UploadDeskTest, WhatARecipeMakesIsNotMissing) {
  const auto folder = scratch_.folder() / "checkpoints";
  std::filesystem::create_directories(folder);
  Bytes source(100);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i);
  const std::string header = R"({"w":{"dtype":"U8","shape":[100],"data_offsets":[0,100]}})";
  const uint64_t length = header.size();
  std::ofstream file(folder / "m.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length) << header;
  file.write(reinterpret_cast<const char*>(source.data()), 100);
  file.close();
  std::shared_ptr<const weights::WeightIndex> index = *weights::WeightIndex::open({.folder = folder});
  index->wait();
  UploadDesk desk(line_, *this, *blobs_, leases_, index);
  const dag::Recipe recipe{.source = storage::sha256(source),
                           .source_size = 100,
                           .cut = dag::Recipe::Cut{.first = 10, .size = 20}};
  const auto missing = [&](const Digest& blob, const dag::Recipe& by, bool durable) {
    desk.have(1, key(1), {.request = 9, .blobs = {blob}, .durable = durable, .recipes = {{blob, by}}}, kThen);
    do_work();
    const auto said = line_.take<proto::MissingBlobs>(1);
    return said.size() != 1 || !said[0].blobs.empty();
  };
  const Bytes part(source.begin() + 10, source.begin() + 30);
  const Digest digest = storage::sha256(part);
  EXPECT_TRUE(missing(digest, recipe, false)) << "copies of a state are no checkpoints";
  EXPECT_TRUE(missing(storage::sha256(of(20, 1)), recipe, true)) << "it makes something else";
  EXPECT_EQ(leases_.use_of(key(1)).bytes, 0u);
  EXPECT_TRUE(index->has_source_of(recipe)) << "the file is what it was";
  dag::Recipe other = recipe;
  other.source = {};
  EXPECT_TRUE(missing(digest, other, true)) << "there is no such tensor";
  EXPECT_FALSE(missing(digest, recipe, true));
  EXPECT_TRUE(blobs_->is_here(digest));
  EXPECT_EQ(leases_.use_of(key(1)).bytes, 20u);
  EXPECT_FALSE(missing(digest, other, true)) << "it is there now";
}

TEST(RecipeBudget, EndsForARequestAndForAKeyOnADay) {
  RecipeBudget budget;
  const uint64_t large = RecipeBudget::kRequestMax;
  budget.begin_request();
  EXPECT_TRUE(budget.take(key(1), 2 * large, kThen)) << "whatever comes first";
  EXPECT_FALSE(budget.take(key(1), 1, kThen));
  for (uint64_t read = 2 * large; read < RecipeBudget::kDayMax; read += large) {
    budget.begin_request();
    EXPECT_TRUE(budget.take(key(1), large, kThen));
  }
  budget.begin_request();
  EXPECT_FALSE(budget.take(key(1), 1, kThen));
  EXPECT_TRUE(budget.take(key(2), 1, kThen));
  EXPECT_FALSE(budget.take(key(1), 1, kThen + std::chrono::hours(23)));
  EXPECT_TRUE(budget.take(key(1), 1, kThen + std::chrono::hours(24)));
}

// Chunks that are still to be written are, when their connection ends; a blob that is not complete is not
// kept.
TEST_F(UploadDeskTest, AConnectionThatEndsLeavesNothingHalf) {
  const Bytes whole = of(100, 1), half = of(100, 2);
  put(1, 5, whole);
  chunk(1, 5, whole);
  desk_.end(1);
  put(2, 5, half);
  chunk(2, 5, std::span(half).first(50));
  desk_.end(2);
  do_work();
  EXPECT_TRUE(blobs_->is_here(storage::sha256(whole)));
  EXPECT_FALSE(blobs_->is_here(storage::sha256(half)));
  chunk(2, 5, std::span(half).last(50));
  EXPECT_TRUE(line_.refused.contains(2));
}

}  // namespace
}  // namespace weft::broker
