// The desk of events between connections and a core that are the test.
#include "broker/service/event_desk.h"

#include <gtest/gtest.h>

#include "tests/gate/fake_connections.h"

namespace weft::broker {
namespace {

using proto::JobEvent;

constexpr size_t kMuch = 1 << 20;  // more than a reader may leave in its queue

class EventDeskTest : public ::testing::Test, protected EventDesk::Outside {
 protected:
  EventDeskTest() {
    line_.on_refused = [this](ConnectionId which) { desk_.end(which); };
  }
  bool may_ask(ConnectionId) const override { return core_is_free_; }
  void ask(ConnectionId whose, const proto::GetEvents& page) override { asked_.push_back({whose, page}); }
  void come_back(ConnectionId whose) override { to_come_back_.push_back(whose); }

  void turn() {
    for (const ConnectionId whose : std::exchange(to_come_back_, {})) desk_.go_on(whose);
  }
  // What the core was asked for since the last time, as the sequence that a page begins with.
  std::vector<uint64_t> asked_from() {
    turn();
    std::vector<uint64_t> from;
    for (const auto& [whose, page] : std::exchange(asked_, {})) from.push_back(page.from_sequence);
    return from;
  }
  void happens(proto::JobNumber job, uint64_t sequence, proto::JobState state = proto::JobState::Running) {
    desk_.on_event(std::make_shared<const JobEvent>(
        JobEvent{.job = job, .sequence = sequence, .kind = proto::JobEventKind::State, .state = state}));
  }
  void follow(ConnectionId whose, proto::JobNumber job, uint64_t after) {
    desk_.get(whose, {.job = job, .from_sequence = after + 1, .follow = true});
    EXPECT_EQ(asked_from(), std::vector<uint64_t>{after + 1});
    desk_.on_page({.connection = whose, .job = job, .follows_after = after});
    desk_.follow(whose, job, after);
  }
  std::vector<uint64_t> got(ConnectionId whose) {
    std::vector<uint64_t> sequences;
    for (const JobEvent& event : line_.take<JobEvent>(whose)) sequences.push_back(event.sequence);
    return sequences;
  }
  using Sequences = std::vector<uint64_t>;

  test_desks::FakeConnections line_;
  EventDesk desk_{line_, *this};
  bool core_is_free_ = true;
  std::vector<std::pair<ConnectionId, proto::GetEvents>> asked_;
  std::vector<ConnectionId> to_come_back_;
};

TEST_F(EventDeskTest, ThePageAfterOneIsAskedForWhenThatWasTaken) {
  desk_.get(1, {.job = 7, .from_sequence = 1, .follow = false});
  EXPECT_TRUE(asked_.empty()) << "not from within";
  EXPECT_EQ(asked_from(), Sequences{1});
  EventsPage page{.connection = 1, .job = 7, .events = {{.job = 7, .sequence = 1}}};
  page.rest = proto::GetEvents{.job = 7, .from_sequence = 2};
  desk_.on_page(page);
  EXPECT_EQ(got(1), Sequences{1});
  line_.queued[1] = kMuch;
  EXPECT_EQ(asked_from(), Sequences{});
  line_.queued[1] = 0;
  core_is_free_ = false;
  desk_.go_on(1);
  EXPECT_EQ(asked_from(), Sequences{}) << "the core has not taken what it said before";
  core_is_free_ = true;
  desk_.go_on(1);
  EXPECT_EQ(asked_from(), Sequences{2});
  desk_.go_on(1);
  EXPECT_EQ(asked_from(), Sequences{}) << "once";
  desk_.on_page({.connection = 1, .job = 7});
  EXPECT_EQ(line_.take<proto::EventsEnd>(1).size(), 1u);
}

TEST_F(EventDeskTest, NewOnesComeInOrderOnceToWhoFollows) {
  follow(1, 7, 0);
  desk_.get(2, {.job = 8, .from_sequence = 1, .follow = true});
  for (const uint64_t sequence : {1, 2}) happens(7, sequence);
  happens(7, 2);
  EXPECT_EQ(got(1), (Sequences{1, 2}));
  EXPECT_EQ(got(2), Sequences{}) << "another job's";
  happens(7, 3, proto::JobState::Finished);
  happens(7, 4);
  ASSERT_EQ(line_.sent[1].size(), 2u);
  EXPECT_TRUE(std::holds_alternative<proto::EventsEnd>(line_.sent[1].back())) << "and no more behind it";
}

// What came between the store's answer and the subscription is not missed, nor told twice.
TEST_F(EventDeskTest, TheWayFromTheStoreToTheStreamIsBridged) {
  for (uint64_t sequence = 1; sequence <= 5; ++sequence) happens(7, sequence);
  follow(1, 7, 3);
  EXPECT_EQ(got(1), (Sequences{4, 5}));
  happens(7, 6);
  EXPECT_EQ(got(1), Sequences{6});
}

TEST_F(EventDeskTest, WhoTakesLessThanComesAsksTheStoreAgain) {
  follow(1, 7, 0);
  happens(7, 1);
  line_.queued[1] = kMuch;
  for (const uint64_t sequence : {2, 3, 4}) happens(7, sequence);
  EXPECT_EQ(got(1), Sequences{1});
  EXPECT_EQ(asked_from(), Sequences{}) << "it has taken nothing yet";
  line_.queued[1] = 0;
  desk_.go_on(1);
  EXPECT_EQ(asked_from(), Sequences{2}) << "from where it stands, once";
}

TEST_F(EventDeskTest, AGapIsFilledFromTheStore) {
  follow(1, 7, 0);
  happens(7, 1);
  happens(7, 3);
  EXPECT_EQ(got(1), Sequences{1});
  EXPECT_EQ(asked_from(), Sequences{2});
}

// Its last events may have made way for those of many other jobs.
TEST_F(EventDeskTest, AJobThatEndedLongAgoIsReadToItsEnd) {
  happens(7, 4, proto::JobState::Finished);
  for (proto::JobNumber job = 100; job < 200; ++job) happens(job, 1);
  follow(1, 7, 3);
  EXPECT_EQ(got(1), Sequences{});
  EXPECT_EQ(asked_from(), Sequences{4});
}

TEST_F(EventDeskTest, OneThatAsksForTooMuchIsSentAway) {
  core_is_free_ = false;
  for (proto::JobNumber job = 1; job <= 64; ++job) desk_.get(1, {.job = job});
  turn();
  EXPECT_TRUE(line_.refused.empty());
  desk_.get(1, {.job = 65});
  turn();
  ASSERT_TRUE(line_.refused.contains(1));
  EXPECT_EQ(line_.refused[1].code, ErrorCode::ResourceExhausted);
}

TEST_F(EventDeskTest, NothingIsDoneForWhoHasGone) {
  follow(1, 7, 0);
  desk_.get(1, {.job = 8, .from_sequence = 1});
  desk_.end(1);
  happens(7, 1);
  desk_.on_page({.connection = 1, .job = 8, .events = {{.job = 8, .sequence = 1}}, .follows_after = 1});
  desk_.follow(1, 8, 1);
  happens(8, 2);
  EXPECT_EQ(asked_from(), Sequences{});
  EXPECT_EQ(got(1), Sequences{});
}

}  // namespace
}  // namespace weft::broker
