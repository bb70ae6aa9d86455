// A database of an older format becomes one of this format, whatever happens on the way.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <iostream>

#include "proto/codec/codec.h"
#include "tests/store/history.h"
#include "tests/store/memory_disk.h"

namespace weft::broker {
namespace {

using proto::JobEvent;
using proto::JobEventKind;
using test::Fault;
using test::MemoryDisk;

// As the program wrote it that first had a database. Never to be changed.
constexpr const char* kFormat1 = R"sql(
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE tokens (
  id INTEGER PRIMARY KEY,
  role INTEGER NOT NULL,
  secret_digest BLOB NOT NULL,
  created_unix_ms INTEGER NOT NULL,
  expires_unix_ms INTEGER,
  uses_max INTEGER,
  uses INTEGER NOT NULL,
  revoked INTEGER NOT NULL);
CREATE TABLE principals (
  principal BLOB NOT NULL,
  role INTEGER NOT NULL,
  name BLOB NOT NULL,
  token INTEGER NOT NULL REFERENCES tokens (id),
  unix_ms INTEGER NOT NULL,
  PRIMARY KEY (principal, role));
CREATE TABLE jobs (
  job INTEGER PRIMARY KEY,
  submitter BLOB NOT NULL,
  submission BLOB NOT NULL,  -- SubmitJob
  unix_ms INTEGER NOT NULL,
  state INTEGER NOT NULL,
  reason BLOB NOT NULL,
  plan_version INTEGER NOT NULL,
  step INTEGER NOT NULL,
  steps INTEGER NOT NULL);
CREATE TABLE checkpoints (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  job INTEGER NOT NULL REFERENCES jobs (job),
  report BLOB NOT NULL);  -- CheckpointReport
CREATE INDEX checkpoints_of_job ON checkpoints (job, number);
CREATE TABLE predictions (
  job INTEGER NOT NULL REFERENCES jobs (job),
  microbatch INTEGER NOT NULL,
  report BLOB NOT NULL,  -- PredictionReport
  PRIMARY KEY (job, microbatch)) WITHOUT ROWID;
CREATE TABLE results (
  job INTEGER PRIMARY KEY REFERENCES jobs (job),
  result BLOB NOT NULL);  -- JobResult
CREATE TABLE events (
  job INTEGER NOT NULL REFERENCES jobs (job),
  sequence INTEGER NOT NULL,
  event BLOB NOT NULL,  -- JobEvent
  PRIMARY KEY (job, sequence)) WITHOUT ROWID;
PRAGMA application_id = 2003134068;
INSERT INTO meta VALUES ('format', 1);
)sql";

std::string hex(const proto::Message& message) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  std::string text = "x'";
  for (const std::byte byte : proto::encode(message)) {
    text += kDigits[static_cast<uint8_t>(byte) >> 4];
    text += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return text + "'";
}
std::string event(proto::JobNumber job, uint64_t sequence, JobEventKind kind, uint64_t step) {
  return "INSERT INTO events VALUES (" + std::to_string(job) + ", " + std::to_string(sequence) + ", " +
         hex(JobEvent{.job = job, .sequence = sequence, .kind = kind, .step = step}) + ");";
}

// Job 1 trained to step 21 and was evaluated after 20; job 2 waits; job 3 went back from step 9 to 7.
std::string old_content() {
  const std::string key = "x'" + std::string(64, 'A') + "'";
  std::string sql = kFormat1;
  sql += "INSERT INTO tokens VALUES (1, 1, " + key + ", 100, NULL, 5, 1, 0);";
  sql += "INSERT INTO principals VALUES (" + key + ", 1, x'70', 1, 7);";
  for (const char* job : {"1", "2", "3"})
    sql += "INSERT INTO jobs VALUES (" + std::string(job) + ", " + key + ", " +
           hex(proto::SubmitJob{.name = "job", .job = "model: a.onnx"}) + ", 5, 1, x'', 2, 21, 40);";
  sql += "INSERT INTO checkpoints (job, report) VALUES (1, " +
         hex(proto::CheckpointReport{.run = 1, .step = 10}) + "), (1, " +
         hex(proto::CheckpointReport{.run = 1, .step = 20}) + ");";
  uint64_t sequence = 0;
  for (uint64_t step = 1; step <= 21; ++step) {
    sql += event(1, ++sequence, JobEventKind::Step, step);
    if (step % 10 == 0) sql += event(1, ++sequence, JobEventKind::Evaluation, step);
  }
  sql += event(1, ++sequence, JobEventKind::Notice, 99);
  sql += event(3, 1, JobEventKind::Step, 9) + event(3, 2, JobEventKind::Step, 7);
  sql += "INSERT INTO predictions VALUES (2, 0, " + hex(proto::PredictionReport{.run = 2}) + ");";
  sql += "INSERT INTO results VALUES (2, " + hex(proto::JobResult{.job = 2, .sample_count = 8}) + ");";
  return sql;
}

constexpr const char* kFile = "broker.sqlite";

void execute(const MemoryDisk& disk, const std::string& sql) {
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open_v2(kFile, &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, disk.name().c_str()),
            SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
      << sqlite3_errmsg(handle);
  sqlite3_close(handle);
}

class MigrationTest : public testing::Test {
 protected:
  MigrationTest() { execute(disk_, "PRAGMA journal_mode = WAL; BEGIN;" + old_content() + "COMMIT;"); }
  Result<std::unique_ptr<Store>> open() { return open_sqlite_store(kFile, {.vfs = disk_.name()}); }
  std::string found() {
    const auto store = open();
    if (!store) return "cannot be opened: " + store.error().message;
    const auto all = test::everything_in(**store);
    return all ? *all : "cannot be loaded: " + all.error().message;
  }
  MemoryDisk disk_{"old"};
};

TEST_F(MigrationTest, ADatabaseOfTheFirstFormatIsGoneOnWith) {
  {
    const auto opened = open();
    ASSERT_TRUE(opened) << opened.error().message;
    Store& store = **opened;
    const StoredState state = store.load().value();
    EXPECT_EQ(state.principals.size(), 1u);
    ASSERT_EQ(state.jobs.size(), 3u);
    const StoredJob& job = state.jobs.at(1);
    EXPECT_EQ(job.committed_step, 21u);
    EXPECT_EQ(job.evaluated_step, 20u);
    EXPECT_EQ(job.last_event, 24u);
    EXPECT_EQ(job.checkpoints.size(), 2u);
    EXPECT_EQ(job.checkpoints.back().step, 20u);
    EXPECT_FALSE(job.run.has_value());
    EXPECT_EQ(state.jobs.at(2).committed_step, 0u);
    EXPECT_EQ(state.jobs.at(2).result->sample_count, 8u);
    EXPECT_EQ(state.jobs.at(2).predictions.size(), 1u);
    EXPECT_EQ(state.jobs.at(3).committed_step, 7u) << "the last one, not the largest";
    EXPECT_EQ(store.events(1, 1, 1000).value().size(), 24u);
    EXPECT_EQ(store.tokens().value().front().uses_max, 5u);
    EXPECT_EQ(store.tokens().value().front().label, "") << "format 4 has labels";
    EXPECT_TRUE(store.create_token(
        {.id = 2, .secret_digest = {}, .expires_unix_ms = {}, .uses_max = {}, .label = "new"}));
    EXPECT_EQ(store.find_token(2).value()->label, "new");

    std::vector<Record> records;
    records.emplace_back(RunStarted{1, 3, test::small_plan(1, 3, 2, 20)});
    records.emplace_back(JobEvent{.job = 1, .sequence = 25, .kind = JobEventKind::Step, .step = 21});
    EXPECT_TRUE(store.append(records));
  }
  const StoredState state = open().value()->load().value();
  EXPECT_EQ(state.jobs.at(1).run->plan_version, 3u);
  EXPECT_EQ(state.jobs.at(1).committed_step, 21u);
}

// Brokers of before said why a job was planned by its reason alone.
TEST_F(MigrationTest, WhyAJobWasPlannedIsReadFromTheReasonsOfBefore) {
  execute(
      disk_,
      "UPDATE jobs SET reason = CAST('planned once more, for the broker ended while it was planned' AS "
      "BLOB) WHERE job = 1; UPDATE jobs SET reason = CAST('others take its stages' AS BLOB) WHERE job = 2");
  const auto opened = open();
  ASSERT_TRUE(opened) << opened.error().message;
  const StoredState state = (*opened)->load().value();
  EXPECT_EQ(state.jobs.at(1).last.planned, Planned::OnceMore);
  EXPECT_EQ(state.jobs.at(2).last.planned, Planned::PlacedAgain);
  EXPECT_EQ(state.jobs.at(3).last.planned, Planned::Anew);
}

TEST_F(MigrationTest, ItIsAllOrNothingAtEveryOperation) {
  const auto before = disk_.image();
  const std::string expected = found();
  ASSERT_EQ(expected.find("cannot"), std::string::npos) << expected;
  const uint64_t seed = 77;
  uint64_t points = 0;
  for (const Fault fault : {Fault::Error, Fault::Full, Fault::Kill, Fault::Torn, Fault::PowerLoss})
    for (uint64_t at = 1;; ++at) {
      SCOPED_TRACE(std::string(to_string(fault)) + " at operation " + std::to_string(at) + ", seed " +
                   std::to_string(seed));
      Rng rng(seed, at);
      disk_.restore(before);
      disk_.arm(at, fault);
      {
        const auto store = open();
        if (!store && fault == Fault::Full) {
          EXPECT_EQ(store.error().code, ErrorCode::ResourceExhausted) << store.error().message;
        }
        if (store && !disk_.is_dead()) {
          EXPECT_EQ(test::everything_in(**store).value_or("cannot be loaded"), expected);
        }
      }
      if (!disk_.struck()) break;
      ++points;
      disk_.restart(rng);
      EXPECT_EQ(found(), expected);
      if (HasFailure()) return;
    }
  std::cout << points << " crash points\n";
  EXPECT_GT(points, 50u);
}

TEST_F(MigrationTest, ADamagedEventEndsItAndLeavesTheOldFormat) {
  execute(disk_, "UPDATE events SET event = x'FFFF' WHERE job = 1 AND sequence = 10");
  EXPECT_TRUE(open()) << "of the older events it needs none";
  MemoryDisk other("older");
  execute(other, "PRAGMA journal_mode = WAL;" + old_content());
  execute(other, "UPDATE events SET event = x'FFFF' WHERE job = 3 AND sequence = 2");
  const auto opened = open_sqlite_store(kFile, {.vfs = other.name()});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::Corrupted);
  execute(other, "DELETE FROM events WHERE job = 3; INSERT INTO meta VALUES ('still', 1)");
  EXPECT_TRUE(open_sqlite_store(kFile, {.vfs = other.name()}));
}

TEST_F(MigrationTest, AFormatThatNeverWasIsDamage) {
  execute(disk_, "UPDATE meta SET value = 0");
  const auto opened = open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::Corrupted);
}

}  // namespace
}  // namespace weft::broker
