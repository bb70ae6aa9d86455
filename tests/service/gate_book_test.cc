// What the core tells gates, and which feeds are open to them, without a bus.
#include "broker/service/gate_book.h"

#include <gtest/gtest.h>

#include "broker/service/feed_openings.h"

namespace weft::broker {
namespace {

using std::chrono::seconds;

constexpr Instant kBookBegin{seconds(1000)};

class GateBookTest : public ::testing::Test, protected GateBook::Outside {
 protected:
  void send(uint32_t gate, std::shared_ptr<const ToGate> message) override { told_[gate].push_back(message); }
  void publish(std::shared_ptr<const Published> value) override { published_.push_back(value); }

  // All that a gate was told since the last time, by kind, in order: "expected 7 1" is of job 7, under key 1.
  std::vector<std::string> told(uint32_t gate) {
    std::vector<std::string> words;
    const auto number = [](const proto::Secret& secret) { return " " + std::to_string(secret[0]); };
    for (const auto& message : std::exchange(told_[gate], {})) {
      if (const auto* e = std::get_if<FeedExpected>(message.get()))
        words.push_back("expected " + std::to_string(e->job) + number(e->data_key));
      else if (const auto* opened = std::get_if<FeedOpened>(message.get()))
        words.push_back("opened " + std::to_string(opened->job) + number(opened->data_key));
      else if (const auto* closed = std::get_if<CloseFeed>(message.get()))
        words.push_back("closed " + std::to_string(closed->job));
      else if (const auto* grant = std::get_if<GrantRelay>(message.get()))
        words.push_back("granted" + number(grant->ticket));
      else if (const auto* revoke = std::get_if<RevokeRelay>(message.get()))
        words.push_back("revoked" + number(revoke->ticket));
      else if (const auto* entry = std::get_if<ServedEntry>(message.get()))
        words.push_back("entry " + std::to_string(entry->job));
      else
        words.push_back("other");
    }
    return words;
  }
  using Words = std::vector<std::string>;

  GateBook book_{*this};
  std::map<uint32_t, std::vector<std::shared_ptr<const ToGate>>> told_;
  std::vector<std::shared_ptr<const Published>> published_;
};

TEST_F(GateBookTest, AGateThatComesLaterIsToldWhatStillHolds) {
  book_.on_ready(0, kBookBegin);
  book_.set_feed(7, FeedExpected{7, {1}});
  book_.set_feed(7, FeedOpened{7, {2}});
  book_.set_feed(8, FeedOpened{8, {3}});
  book_.close_feed(8);
  book_.grant({5});
  book_.grant({6});
  book_.revoke({5});
  book_.set_entry({.job = 4, .plan_version = 1, .entry = PeerId{}});
  book_.set_entry({.job = 9, .plan_version = 1, .entry = PeerId{}});
  book_.set_entry({.job = 9});
  EXPECT_EQ(told(0).size(), 10u) << "the first hears of each as it comes";
  published_.clear();
  book_.set_peers({.peers = {proto::PeerStatus{}}});
  book_.on_ready(3, kBookBegin);
  EXPECT_EQ(told(3), (Words{"opened 7 2", "granted 6", "entry 4"}));
  EXPECT_EQ(told(0), Words{});
  ASSERT_EQ(published_.size(), 2u);
  EXPECT_EQ(published_[0], published_[1]) << "the newest peers, again";
}

TEST_F(GateBookTest, AConnectionsGateAloneIsToldWhatConcernsIt) {
  book_.on_ready(0, kBookBegin);
  book_.on_ready(3, kBookBegin);
  book_.tell(first_connection_of(3) + 5, Close{first_connection_of(3) + 5});
  EXPECT_EQ(told(0), Words{});
  EXPECT_EQ(told(3), Words{"other"});
  book_.tell_all(CloseAll{});
  EXPECT_EQ(told(0), Words{"other"});
  EXPECT_EQ(told(3), Words{"other"});
}

TEST_F(GateBookTest, HeardUntilIsTheGatesThatIsTheFurthestBehind) {
  EXPECT_EQ(book_.heard_until(), std::nullopt);
  book_.on_ready(0, kBookBegin);
  book_.on_ready(1, kBookBegin + seconds(1));
  EXPECT_EQ(book_.heard_until(), kBookBegin);
  book_.on_hearing(0, kBookBegin + seconds(5));
  EXPECT_EQ(book_.heard_until(), kBookBegin + seconds(1));
}

class FeedOpeningsTest : public GateBookTest {
 protected:
  FeedOpeningsTest() { book_.on_ready(0, kBookBegin); }
  bool open(proto::JobNumber job, uint8_t key, bool goes_on) {
    OpenFeed feed{.job = job, .data_key = {key}};
    if (goes_on) feed.submission.emplace(proto::SubmitJob{});
    return feeds_.open(feed);
  }
  JobFeeds known_;
  FeedOpenings feeds_{known_, book_};
};

TEST_F(FeedOpeningsTest, OneThatIsKnownIsOpenAtOnce) {
  EXPECT_FALSE(open(7, 1, false));
  known_.set(8, std::make_shared<const JobFeed>());
  EXPECT_FALSE(open(8, 2, true));
  EXPECT_EQ(told(0), (Words{"opened 7 1", "opened 8 2"}));
}

TEST_F(FeedOpeningsTest, OneOfARunThatGoesOnIsOpenedOnceUnderItsNewestKey) {
  EXPECT_TRUE(open(7, 1, true));
  EXPECT_FALSE(open(7, 2, true)) << "placed again meanwhile";
  EXPECT_TRUE(feeds_.on_opened(7, {}));
  EXPECT_EQ(told(0), (Words{"expected 7 1", "expected 7 2", "opened 7 2"}));
  EXPECT_TRUE(feeds_.on_opened(7, fail(ErrorCode::NotFound, "late")));
  EXPECT_EQ(told(0), Words{});
}

TEST_F(FeedOpeningsTest, WhatCannotBeOpenedIsClosedAndOthersAreNot) {
  EXPECT_TRUE(open(7, 1, true));
  EXPECT_FALSE(feeds_.on_opened(7, fail(ErrorCode::NotFound, "no data")));
  EXPECT_EQ(told(0), (Words{"expected 7 1", "closed 7"}));
  EXPECT_FALSE(book_.has_feed(7));
}

TEST_F(FeedOpeningsTest, OneThatWasClosedOrIsOverStaysSo) {
  EXPECT_TRUE(open(7, 1, true));
  feeds_.close(7);
  EXPECT_TRUE(feeds_.on_opened(7, {}));
  EXPECT_TRUE(open(8, 1, true));
  feeds_.forget(8);
  EXPECT_TRUE(feeds_.on_opened(8, fail(ErrorCode::NotFound, "its files are gone")));
  EXPECT_EQ(told(0), (Words{"expected 7 1", "closed 7", "expected 8 1"}));
  EXPECT_TRUE(open(8, 2, true)) << "resumed";
}

}  // namespace
}  // namespace weft::broker
