// What the core keeps, lets go and looks after of blobs; work on the disk is done when the test says so.
#include "broker/service/blob_keeper.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/keys.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

using std::chrono::minutes;
using test::key;

constexpr Instant kKeeperBegin{std::chrono::hours(1000)};

class BlobKeeperTest : public ::testing::Test, protected BlobKeeper::Outside {
 protected:
  void on_disk(std::function<void()> work) override { work_.push_back(std::move(work)); }
  void on_verified(const BlobsVerified& verified) override { verified_.push_back(verified); }
  void on_kept(const BlobsKept& kept) override { kept_.push_back(kept); }
  void on_line(const std::string& line) override { lines_.push_back(line); }

  // How much of it there was.
  size_t do_work() {
    const auto work = std::exchange(work_, {});
    for (const auto& item : work) item();
    return work.size();
  }
  Digest put(uint8_t fill, std::chrono::hours ago = std::chrono::hours(2)) {
    const Digest blob = *blobs_->put(std::vector<std::byte>(100, std::byte{fill}));
    std::filesystem::last_write_time(*blobs_->find(blob),
                                     std::filesystem::file_time_type::clock::now() - ago);
    return blob;
  }
  void damage(const Digest& blob) {
    const auto path = *blobs_->find(blob);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    std::ofstream(path, std::ios::binary | std::ios::in).put('x');
  }
  static proto::TensorReference reference(const Digest& blob) {
    return {dag::of_initializer("w"), {dag::DType::F32, {}}, blob};
  }
  template <typename M>
  void sent(ConnectionId to, M message) {
    keeper_.on_sent({to, std::make_shared<const proto::Message>(std::move(message))});
  }
  void says_damaged(ConnectionId from, const Digest& blob, Duration later = {}) {
    proto::StageFailed failed;
    failed.damaged = blob;
    keeper_.on_received({from, std::make_shared<const proto::Message>(failed)}, kKeeperBegin + later);
  }

  test::Scratch scratch_;
  std::unique_ptr<storage::BlobStore> blobs_ = *storage::BlobStore::open(scratch_.folder() / "blobs");
  BlobLeases leases_;
  BlobKeeper keeper_{*blobs_, leases_, *this, minutes(30)};
  std::vector<std::function<void()>> work_;
  std::vector<BlobsVerified> verified_;
  std::vector<BlobsKept> kept_;
  std::vector<std::string> lines_;
};

TEST_F(BlobKeeperTest, CollectsWhatNobodySpeaksOfNowAndThen) {
  const Digest open = put(1), ended = put(2), leased = put(3), forgotten = put(4);
  leases_.connect(key(1));
  leases_.ask(key(1), leased, kKeeperBegin);
  ASSERT_TRUE(keeper_.collection_is_due(kKeeperBegin));
  keeper_.collect(kKeeperBegin, {open}, std::set<Digest>{ended});
  EXPECT_TRUE(blobs_->is_here(forgotten)) << "that is the disk's work";
  do_work();
  for (const Digest& kept : {open, ended, leased}) EXPECT_TRUE(blobs_->is_here(kept));
  EXPECT_FALSE(blobs_->is_here(forgotten));
  EXPECT_EQ(lines_, std::vector<std::string>{"info blobs_collected bytes_freed=100"});
  EXPECT_FALSE(keeper_.collection_is_due(kKeeperBegin + minutes(29)));
  EXPECT_TRUE(keeper_.collection_is_due(kKeeperBegin + minutes(30)));
}

TEST_F(BlobKeeperTest, WithoutTheStoresWordNothingIsCollected) {
  const Digest forgotten = put(4);
  keeper_.collect(kKeeperBegin, {}, fail(ErrorCode::Unavailable, "locked"));
  EXPECT_EQ(do_work(), 0u);
  EXPECT_TRUE(blobs_->is_here(forgotten));
  EXPECT_EQ(lines_.size(), 1u);
}

// A copy of which the job's record is yet to be written: it stays through the next collection, too.
TEST_F(BlobKeeperTest, ACopyIsMadeDurableWhole) {
  const auto put_transient = [&](uint8_t fill) {
    const std::vector<std::byte> bytes(100, std::byte{fill});
    const Digest blob = storage::sha256(bytes);
    const auto writer = *blobs_->begin(blob, bytes.size(), storage::Durability::Transient);
    EXPECT_TRUE(writer->write(bytes).has_value() && writer->finish().has_value());
    return blob;
  };
  const Digest first = put_transient(1), second = put_transient(2), durable = put(3);
  keeper_.make_durable({.job = 4, .step = 32, .blobs = {first, second, durable}});
  EXPECT_TRUE(kept_.empty()) << "that is the disk's work";
  do_work();
  ASSERT_EQ(kept_.size(), 1u);
  EXPECT_EQ(kept_[0].job, 4u);
  EXPECT_EQ(kept_[0].step, 32u);
  EXPECT_TRUE(kept_[0].kept.has_value());
  const auto again = *storage::BlobStore::open(scratch_.folder() / "blobs", {.wipe_transient = true});
  for (const Digest& blob : {first, second, durable}) EXPECT_TRUE(again->is_here(blob));

  keeper_.make_durable({.job = 4, .step = 40, .blobs = {first, storage::sha256({})}});
  do_work();
  ASSERT_EQ(kept_.size(), 2u);
  ASSERT_FALSE(kept_[1].kept.has_value());
  EXPECT_EQ(kept_[1].kept.error().code, ErrorCode::NotFound);
}

TEST_F(BlobKeeperTest, WhatIsDurableIsNobodysUploadAnyMore) {
  leases_.connect(key(1));
  const Digest used = put(1), other = put(2);
  for (const Digest& blob : {used, other}) leases_.ask(key(1), blob, kKeeperBegin);
  CheckpointCommitted checkpoint;
  checkpoint.tensors = {reference(used)};
  const std::vector<Record> records{checkpoint};
  keeper_.on_durable(records);
  EXPECT_EQ(leases_.held(kKeeperBegin), std::set<Digest>{other});
}

// A peer may have what was damaged on its way: what of ours it was to fetch is looked at, and no more of it.
TEST_F(BlobKeeperTest, DamageIsLookedForInWhatAPeerWasToFetch) {
  const Digest stage = put(1), other = put(2);
  keeper_.begin(1, key(1));
  keeper_.begin(2, key(2));
  proto::AssignStage assigned{.run = 4, .plan_version = 1};
  assigned.tensors = {reference(stage)};
  sent(1, assigned);
  damage(stage);
  damage(other);
  says_damaged(1, other);
  says_damaged(2, stage);
  says_damaged(9, stage);
  EXPECT_EQ(do_work(), 0u) << "none of these was to fetch that";
  says_damaged(1, stage);
  EXPECT_EQ(do_work(), 1u);
  EXPECT_FALSE(blobs_->is_here(stage));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_NE(lines_[0].find(to_hex(stage)), std::string::npos) << lines_[0];
}

TEST_F(BlobKeeperTest, APeerOfTwoStagesIsToFetchBoths) {
  const Digest trains = put(1), serves = put(2);
  keeper_.begin(1, key(1));
  for (const auto& [run, blob] : {std::pair{4, trains}, {7, serves}}) {
    proto::AssignStage assigned{.run = static_cast<proto::JobNumber>(run), .plan_version = 1};
    assigned.tensors = {reference(blob)};
    sent(1, assigned);
  }
  says_damaged(1, trains);
  EXPECT_EQ(do_work(), 1u);
  sent(1, proto::ReleaseStage{.run = 4, .plan_version = 1});
  says_damaged(1, trains, std::chrono::seconds(100));
  EXPECT_EQ(do_work(), 0u) << "that was let go of";
  says_damaged(1, serves, std::chrono::seconds(200));
  EXPECT_EQ(do_work(), 1u);
}

TEST_F(BlobKeeperTest, AClaimOfDamageCostsAHashAMinute) {
  const Digest stage = put(1);
  keeper_.begin(1, key(1));
  proto::AssignStage assigned{.run = 4, .plan_version = 1};
  assigned.tensors = {reference(stage)};
  sent(1, assigned);
  for (int i = 0; i < 5; ++i) says_damaged(1, stage, std::chrono::seconds(i));
  EXPECT_EQ(do_work(), 1u);
  EXPECT_TRUE(blobs_->is_here(stage)) << "it is sound";
  EXPECT_TRUE(lines_.empty());
  keeper_.end(1);
  keeper_.begin(2, key(1));
  sent(2, assigned);
  says_damaged(2, stage, std::chrono::seconds(30));
  EXPECT_EQ(do_work(), 0u) << "of the peer, not of its connection";
  says_damaged(2, stage, std::chrono::seconds(61));
  EXPECT_EQ(do_work(), 1u);
  sent(2, proto::ReleaseStage{.run = 4, .plan_version = 1});
  says_damaged(2, stage, minutes(10));
  EXPECT_EQ(do_work(), 0u) << "let go";
}

TEST_F(BlobKeeperTest, VerifyingNamesHowManyAreBad) {
  const Digest sound = put(1), damaged = put(2);
  damage(damaged);
  keeper_.verify({.job = 7, .step = 9, .blobs = {sound, damaged, Digest{}}});
  EXPECT_TRUE(verified_.empty());
  do_work();
  ASSERT_EQ(verified_.size(), 1u);
  EXPECT_EQ(verified_[0].job, 7u);
  EXPECT_EQ(verified_[0].step, 9u);
  EXPECT_EQ(verified_[0].bad, 2u);
  EXPECT_EQ(lines_.size(), 2u);
}

TEST_F(BlobKeeperTest, FilesOfJobsThatAreNotOpenGoAndCountsWhatIsNotHere) {
  const auto jobs = scratch_.folder() / "jobs";
  for (const char* job : {"7", "8", "9.old"}) std::filesystem::create_directories(jobs / job / "data");
  keeper_.remove_old(jobs, {7});
  EXPECT_FALSE(std::filesystem::exists(jobs / "8")) << "at once: it may be resumed before they are gone";
  EXPECT_TRUE(std::filesystem::exists(jobs / "8.old"));
  do_work();
  EXPECT_TRUE(std::filesystem::exists(jobs / "7" / "data"));
  EXPECT_FALSE(std::filesystem::exists(jobs / "8.old"));

  proto::CheckpointReport report;
  report.tensors = {reference(put(1)), reference({}), reference({})};
  EXPECT_EQ(keeper_.missing_of(report), 2u);
}

}  // namespace
}  // namespace weft::broker
