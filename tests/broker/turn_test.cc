#include "broker/turn.h"

#include <gtest/gtest.h>

namespace weft::broker {
namespace {

const Status kFull = fail(ErrorCode::ResourceExhausted, "the disk is full");
const Status kTooLarge = fail(ErrorCode::InvalidArgument, "a record is too large");
const Status kUsedUp = fail(ErrorCode::PermissionDenied, "the token has no use left");

Effects of_job(proto::JobNumber job, size_t record_count) {
  Effects effects;
  effects.records.assign(record_count, RunEnded{job});
  effects.effects.push_back(CloseFeed{job});
  return effects;
}

Event of_sender(ConnectionId connection) { return Disconnected{connection, "it went"}; }

std::vector<proto::JobNumber> jobs_of(const Turn::Done& done) {
  std::vector<proto::JobNumber> jobs;
  for (const Turn::Part& part : done.parts)
    if (!part.is_refused)
      for (const Effect& effect : part.effects) jobs.push_back(std::get<CloseFeed>(effect).job);
  return jobs;
}

using Jobs = std::vector<proto::JobNumber>;

TEST(Turn, WithoutRecordsNothingIsWaitedFor) {
  Turn turn;
  EXPECT_TRUE(turn.is_empty());
  turn.add(Tick{}, of_job(1, 0));
  turn.add(Tick{}, of_job(2, 0));
  ASSERT_TRUE(turn.to_append().empty());
  EXPECT_FALSE(turn.is_empty());
  EXPECT_EQ(jobs_of(turn.finish()), (Jobs{1, 2}));
  EXPECT_TRUE(turn.is_empty());
}

TEST(Turn, AllRecordsAreAppendedAtOnceBeforeAnythingIsCarriedOutInOrder) {
  Turn turn;
  turn.add(Tick{}, of_job(1, 0));
  turn.add(of_sender(7), of_job(2, 1));
  turn.add(Tick{}, of_job(3, 2));
  ASSERT_EQ(turn.to_append().size(), 3u);
  EXPECT_EQ(turn.on_appended({}), Turn::Verdict::Durable);
  ASSERT_TRUE(turn.to_append().empty());
  const Turn::Done done = turn.finish();
  EXPECT_EQ(done.records.size(), 3u);
  EXPECT_EQ(jobs_of(done), (Jobs{1, 2, 3}));
  EXPECT_EQ(done.parts[0].records.size(), 0u);
  EXPECT_EQ(done.parts[1].records.size(), 1u);
  EXPECT_EQ(done.parts[1].sender, 7u);
  EXPECT_EQ(std::get<RunEnded>(done.parts[2].records[0]).job, 3u);
  EXPECT_TRUE(turn.is_empty());
}

TEST(Turn, AFullDiskIsWaitedForWithTheSameRecords) {
  Turn turn;
  turn.add(Tick{}, of_job(1, 1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(turn.on_appended(kFull), Turn::Verdict::Waits);
    EXPECT_EQ(turn.to_append().size(), 1u);
  }
  EXPECT_EQ(turn.on_appended({}), Turn::Verdict::Durable);
  EXPECT_EQ(jobs_of(turn.finish()), (Jobs{1}));
}

TEST(Turn, WhatTheStoreRefusesIsLeftOutAloneAndItsSenderNamed) {
  Turn turn;
  turn.add(of_sender(1), of_job(1, 2));
  turn.add(of_sender(2), of_job(2, 0));
  turn.add(of_sender(3), of_job(3, 1));
  turn.add(of_sender(4), of_job(4, 1));
  EXPECT_EQ(turn.on_appended(kTooLarge), Turn::Verdict::Refused);
  ASSERT_EQ(turn.to_append().size(), 2u);
  EXPECT_EQ(turn.on_appended({}), Turn::Verdict::Durable);
  ASSERT_EQ(turn.to_append().size(), 1u);
  EXPECT_EQ(turn.on_appended(kFull), Turn::Verdict::Waits);
  EXPECT_EQ(turn.on_appended(kUsedUp), Turn::Verdict::Refused);
  EXPECT_EQ(turn.on_appended({}), Turn::Verdict::Durable);
  ASSERT_TRUE(turn.to_append().empty());
  const Turn::Done done = turn.finish();
  EXPECT_EQ(jobs_of(done), (Jobs{1, 2, 4}));
  EXPECT_TRUE(done.parts[2].is_refused);
  EXPECT_EQ(done.parts[2].sender, 3u);

  // The next turn begins with all at once again.
  turn.add(Tick{}, of_job(5, 1));
  turn.add(Tick{}, of_job(6, 1));
  EXPECT_EQ(turn.to_append().size(), 2u);
}

TEST(Turn, ARefusalOfRightsWithNobodyToBlameIsTheDisks) {
  Turn turn;
  turn.add(Tick{}, of_job(1, 1));
  EXPECT_EQ(turn.on_appended(kUsedUp), Turn::Verdict::Refused);
  EXPECT_EQ(turn.on_appended(kUsedUp), Turn::Verdict::Ends);
}

TEST(Turn, ABrokenStoreEndsIt) {
  Turn turn;
  turn.add(of_sender(1), of_job(1, 1));
  EXPECT_EQ(turn.on_appended(fail(ErrorCode::Unavailable, "an I/O error")), Turn::Verdict::Ends);
}

}  // namespace
}  // namespace weft::broker
