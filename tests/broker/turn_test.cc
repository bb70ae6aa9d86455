#include "broker/turn.h"

#include <gtest/gtest.h>

namespace weft::broker {
namespace {

Effects of_job(proto::JobNumber job, bool records) {
  Effects effects;
  if (records) effects.records.push_back(RunEnded{job});
  effects.effects.push_back(CloseFeed{job});
  return effects;
}

std::vector<proto::JobNumber> jobs_of(const Effects& turn) {
  std::vector<proto::JobNumber> jobs;
  for (const Effect& effect : turn.effects) jobs.push_back(std::get<CloseFeed>(effect).job);
  return jobs;
}

TEST(Turn, WithoutRecordsNothingIsWaitedFor) {
  Turn turn;
  turn.add(of_job(1, false));
  turn.add(of_job(2, false));
  ASSERT_TRUE(turn.is_durable());
  EXPECT_EQ(jobs_of(turn.finish()), (std::vector<proto::JobNumber>{1, 2}));
  EXPECT_TRUE(turn.finish().effects.empty());
}

TEST(Turn, AllRecordsAreAppendedAtOnceBeforeAnythingIsCarriedOutInOrder) {
  Turn turn;
  turn.add(of_job(1, false));
  turn.add(of_job(2, true));
  turn.add(of_job(3, true));
  ASSERT_FALSE(turn.is_durable());
  EXPECT_EQ(turn.records().size(), 2u);
  EXPECT_EQ(turn.on_appended({}), Turn::Verdict::Durable);
  const Effects done = turn.finish();
  EXPECT_EQ(done.records.size(), 2u);
  EXPECT_EQ(jobs_of(done), (std::vector<proto::JobNumber>{1, 2, 3}));
  EXPECT_TRUE(turn.records().empty());
}

TEST(Turn, AFullDiskIsWaitedForWithTheSameRecords) {
  Turn turn;
  turn.add(of_job(1, true));
  const Status full = fail(ErrorCode::ResourceExhausted, "the disk is full");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(turn.on_appended(full), Turn::Verdict::Waits);
    EXPECT_FALSE(turn.is_durable());
    EXPECT_EQ(turn.records().size(), 1u);
  }
  EXPECT_EQ(turn.on_appended({}), Turn::Verdict::Durable);
  EXPECT_EQ(jobs_of(turn.finish()), (std::vector<proto::JobNumber>{1}));
}

TEST(Turn, ABrokenStoreEndsIt) {
  Turn turn;
  turn.add(of_job(1, true));
  EXPECT_EQ(turn.on_appended(fail(ErrorCode::Unavailable, "an I/O error")), Turn::Verdict::Ends);
  EXPECT_FALSE(turn.is_durable());
}

}  // namespace
}  // namespace weft::broker
