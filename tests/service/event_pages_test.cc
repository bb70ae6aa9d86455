// Pages of a job's past events, out of a store in memory.
#include "broker/service/event_pages.h"

#include <gtest/gtest.h>

#include "tests/support/keys.h"
#include "tests/support/memory_store.h"

namespace weft::broker {
namespace {

using test::key;

class EventPagesTest : public ::testing::Test {
 protected:
  // Job 1 of key(1), with so many events.
  void fill(uint64_t count, size_t text, proto::JobState last = proto::JobState::Running) {
    std::vector<Record> records{
        JobSubmitted{.job = 1, .submitter = key(1), .submission = proto::SubmitJob{.name = "j"}},
        JobChanged{.job = 1}};
    for (uint64_t sequence = 1; sequence <= count; ++sequence)
      records.push_back(proto::JobEvent{.job = 1,
                                        .sequence = sequence,
                                        .kind = proto::JobEventKind::State,
                                        .state = sequence == count ? last : proto::JobState::Running,
                                        .text = std::string(text, 'x')});
    ASSERT_TRUE(store_.append(records));
  }
  EventsPage page(uint64_t from, bool follow, bool is_open, const std::optional<PeerId>& whose = key(1)) {
    auto page = events_page(
        store_,
        {.connection = 5, .whose = whose, .request = {.job = 1, .from_sequence = from, .follow = follow}},
        is_open);
    EXPECT_TRUE(std::holds_alternative<EventsPage>(page));
    return std::holds_alternative<EventsPage>(page) ? std::get<EventsPage>(page) : EventsPage{};
  }
  test::MemoryStore store_;
};

TEST_F(EventPagesTest, AFullPageSaysWhereTheNextBegins) {
  fill(700, 1);
  const EventsPage first = page(0, true, true);
  EXPECT_EQ(first.connection, 5u);
  ASSERT_EQ(first.events.size(), 500u);
  EXPECT_EQ(first.events.front().sequence, 1u);
  ASSERT_TRUE(first.rest);
  EXPECT_EQ(first.rest->from_sequence, 501u);
  EXPECT_TRUE(first.rest->follow);
  EXPECT_FALSE(first.follows_after);
  const EventsPage last = page(501, true, true);
  EXPECT_EQ(last.events.size(), 200u);
  EXPECT_FALSE(last.rest);
  EXPECT_EQ(last.follows_after, 700u);
  EXPECT_EQ(page(900, true, true).follows_after, 899u) << "of none";
}

TEST_F(EventPagesTest, LongTextsMakeAPageShorter) {
  fill(100, 60'000);
  const EventsPage first = page(1, false, true);
  EXPECT_EQ(first.events.size(), (size_t{1} << 20) / 60'000 + 1);
  ASSERT_TRUE(first.rest);
  EXPECT_EQ(first.rest->from_sequence, first.events.back().sequence + 1);
}

TEST_F(EventPagesTest, NobodyFollowsWhatHasEnded) {
  fill(10, 1, proto::JobState::Finished);
  EXPECT_FALSE(page(1, true, true).follows_after) << "the last says so";
  EXPECT_EQ(page(20, true, true).follows_after, 19u);
  EXPECT_FALSE(page(20, true, false).follows_after);
  EXPECT_FALSE(page(1, false, true).follows_after) << "nor who did not ask for it";
}

TEST_F(EventPagesTest, OthersJobsAreNotThere) {
  fill(10, 1);
  EXPECT_EQ(page(1, false, true, std::nullopt).events.size(), 10u) << "an admin's";
  const auto other = events_page(store_, {.whose = key(2), .request = {.job = 1}}, true);
  const auto none = events_page(store_, {.whose = key(1), .request = {.job = 2}}, true);
  for (const auto& answer : {other, none}) {
    ASSERT_TRUE(std::holds_alternative<proto::Refusal>(answer));
    EXPECT_EQ(std::get<proto::Refusal>(answer).code, ErrorCode::NotFound);
  }
}

}  // namespace
}  // namespace weft::broker
