#include "broker/store/schema.h"

#include <string>
#include <vector>

#include "broker/store/columns.h"
#include "broker/store/sqlite_store.h"

namespace weft::broker {
namespace {

constexpr int64_t kApplication = 0x77656674;  // "weft": tells this file from other programs' databases

// What format 1 had. Lists that are only ever read as a whole are a message of proto/codec in one column.
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
)sql";

// What format 2 adds: a run that outlives the broker. Its progress stands apart from the job, whose row is
// large, for it changes with every step. And several stages may each report outputs of one microbatch.
constexpr const char* kFormat2 = R"sql(
ALTER TABLE predictions RENAME TO predictions_1;
CREATE TABLE predictions (
  job INTEGER NOT NULL REFERENCES jobs (job),
  microbatch INTEGER NOT NULL,
  output BLOB NOT NULL,  -- the name of the first one in the report; empty: not known, from format 1
  report BLOB NOT NULL,  -- PredictionReport
  PRIMARY KEY (job, microbatch, output)) WITHOUT ROWID;
INSERT INTO predictions SELECT job, microbatch, x'', report FROM predictions_1;
DROP TABLE predictions_1;
CREATE TABLE progress (
  job INTEGER PRIMARY KEY REFERENCES jobs (job),
  committed_step INTEGER NOT NULL,
  evaluated_step INTEGER NOT NULL);
CREATE TABLE plans (
  job INTEGER PRIMARY KEY REFERENCES jobs (job),
  plan_version INTEGER NOT NULL,
  plan BLOB NOT NULL);  -- RunPlan
CREATE TABLE plan_stages (
  job INTEGER NOT NULL REFERENCES plans (job),
  stage INTEGER NOT NULL,
  assignment BLOB NOT NULL,  -- AssignStage
  PRIMARY KEY (job, stage));
CREATE TABLE script (
  job INTEGER NOT NULL REFERENCES plans (job),
  sequence INTEGER NOT NULL,
  command BLOB NOT NULL,  -- Command
  PRIMARY KEY (job, sequence)) WITHOUT ROWID;
)sql";

// What format 3 adds: the size of microbatches that the planner chose, which every run of a job keeps.
constexpr const char* kFormat3 = R"sql(
ALTER TABLE progress ADD COLUMN microbatch_size INTEGER NOT NULL DEFAULT 0;
)sql";

// What format 4 adds: what is said of a job that has ended stands by itself, so that nobody reads such jobs
// at the start and a page of them costs no more because there are many; keys that the operator banned; and
// whom a token was made for, in the words of who made it.
constexpr const char* kFormat4 = R"sql(
CREATE TABLE ended (
  job INTEGER PRIMARY KEY REFERENCES jobs (job),
  submitter BLOB NOT NULL,
  status BLOB NOT NULL);  -- JobStatus
CREATE INDEX ended_of_submitter ON ended (submitter, job);
CREATE INDEX open_jobs ON jobs (job) WHERE state < 6;
CREATE TABLE bans (
  peer BLOB PRIMARY KEY,
  name BLOB NOT NULL) WITHOUT ROWID;
ALTER TABLE tokens ADD COLUMN label BLOB NOT NULL DEFAULT x'';
)sql";

// What format 5 adds: why a job is planned (Planned in broker/records.h). Brokers of before said it by the
// reason's words.
constexpr const char* kFormat5 = R"sql(
ALTER TABLE jobs ADD COLUMN planned INTEGER NOT NULL DEFAULT 0;
)sql";
constexpr const char* kPlannedByReason = R"sql(
UPDATE jobs SET planned = 1
  WHERE CAST(reason AS TEXT) = 'planned once more, for the broker ended while it was planned';
UPDATE jobs SET planned = 2 WHERE CAST(reason AS TEXT) = 'others take its stages';
)sql";

// What format 6 adds: tokens of callers. Nothing to be done: a broker of before would take their role for
// damage.
Status from_5_to_6(Database&) { return {}; }

// What format 7 adds: the shares that the planner chose for replicas, which every run of a job keeps; numbers
// with commas between them.
constexpr const char* kFormat7 = R"sql(
ALTER TABLE progress ADD COLUMN shares BLOB NOT NULL DEFAULT x'';
)sql";
Status from_6_to_7(Database& database) { return database.execute(kFormat7); }

// What format 8 adds: the rounds and the codec that the planner chose for replicas, likewise; 0: none yet.
constexpr const char* kFormat8 = R"sql(
ALTER TABLE progress ADD COLUMN every INTEGER NOT NULL DEFAULT 0;
ALTER TABLE progress ADD COLUMN codec BLOB NOT NULL DEFAULT x'';
)sql";
Status from_7_to_8(Database& database) { return database.execute(kFormat8); }

Status set_format(Database& database, int64_t format) {
  const std::string sql = "INSERT OR REPLACE INTO meta VALUES ('format', " + std::to_string(format) + ")";
  return database.execute(sql.c_str());
}

// The steps of the job's last Step and last Evaluation event; 0 when there is none.
struct Progress {
  uint64_t committed_step = 0, evaluated_step = 0;
};
Result<Progress> progress_of(Database& database, int64_t job) {
  Progress progress;
  WEFT_TRY(Statement events,
           database.prepare("SELECT event FROM events WHERE job = ? ORDER BY sequence DESC"));
  events.bind(job);
  while (progress.committed_step == 0 || progress.evaluated_step == 0) {
    WEFT_TRY(const bool found, events.step());
    if (!found) break;
    WEFT_TRY(const auto event, decoded<proto::JobEvent>(database, events, 0));
    if (event.kind == proto::JobEventKind::Step && progress.committed_step == 0)
      progress.committed_step = event.step;
    if (event.kind == proto::JobEventKind::Evaluation && progress.evaluated_step == 0)
      progress.evaluated_step = event.step;
  }
  return progress;
}

Status from_1_to_2(Database& database) {
  WEFT_TRY_STATUS(database.execute(kFormat2));
  std::vector<int64_t> jobs;
  {
    WEFT_TRY(Statement select, database.prepare("SELECT job FROM jobs"));
    WEFT_TRY_STATUS(for_each_row(select, [&](const Statement& row) -> Status {
      jobs.push_back(row.integer(0));
      return {};
    }));
  }
  WEFT_TRY(Statement insert, database.prepare("INSERT INTO progress VALUES (?, ?, ?)"));
  for (const int64_t job : jobs) {
    WEFT_TRY(const Progress progress, progress_of(database, job));
    WEFT_TRY_STATUS(insert.bind(job).bind(progress.committed_step).bind(progress.evaluated_step).run());
  }
  return {};
}

// A broker of format 2 had no job whose size was chosen.
Status from_2_to_3(Database& database) { return database.execute(kFormat3); }

// Whatever was not said of them by then is not known any more: their loss, their plan.
Status from_3_to_4(Database& database) {
  WEFT_TRY_STATUS(database.execute(kFormat4));
  struct Ended {
    std::vector<std::byte> submitter;
    proto::JobStatus status;
  };
  std::vector<Ended> all;
  {
    WEFT_TRY(Statement select,
             database.prepare("SELECT jobs.job, submitter, submission, state, reason, plan_version, "
                              "committed_step, steps FROM jobs LEFT JOIN progress ON progress.job = jobs.job "
                              "WHERE state >= 6"));
    WEFT_TRY_STATUS(for_each_row(select, [&](const Statement& row) -> Status {
      Ended ended;
      WEFT_TRY(const Digest submitter, digest_in(database, row, 1));
      ended.submitter.assign(as_bytes(submitter).begin(), as_bytes(submitter).end());
      WEFT_TRY(const auto submission, decoded<proto::SubmitJob>(database, row, 2));
      ended.status.job = static_cast<proto::JobNumber>(row.integer(0));
      ended.status.name = submission.name;
      WEFT_TRY(ended.status.state,
               enumerator_in(database, row, 3, proto::JobState::Queued, proto::JobState::Failed));
      ended.status.reason = row.text(4);
      ended.status.plan_version = static_cast<proto::PlanVersion>(row.integer(5));
      ended.status.step = static_cast<uint64_t>(row.integer(6));
      ended.status.steps = static_cast<uint64_t>(row.integer(7));
      all.push_back(std::move(ended));
      return {};
    }));
  }
  WEFT_TRY(Statement insert, database.prepare("INSERT INTO ended VALUES (?, ?, ?)"));
  for (const Ended& ended : all) {
    WEFT_TRY(const auto status, encoded(database, ended.status));
    WEFT_TRY_STATUS(insert.bind(ended.status.job)
                        .bind(std::span<const std::byte>(ended.submitter))
                        .bind(std::span<const std::byte>(status))
                        .run());
  }
  return {};
}

Status from_4_to_5(Database& database) {
  WEFT_TRY_STATUS(database.execute(kFormat5));
  return database.execute(kPlannedByReason);
}

// From format i + 1 to i + 2.
constexpr Status (*kMigrations[])(Database&) = {from_1_to_2, from_2_to_3, from_3_to_4, from_4_to_5,
                                                from_5_to_6, from_6_to_7, from_7_to_8};
static_assert(std::size(kMigrations) + 1 == kStoreFormat);

}  // namespace

Status make_or_migrate(Database& database) {
  WEFT_TRY(Transaction transaction, Transaction::begin(database, Transaction::Kind::Write));
  WEFT_TRY(const int64_t application, database.integer("PRAGMA application_id"));
  WEFT_TRY(const int64_t tables, database.integer("SELECT COUNT(*) FROM sqlite_schema"));
  if (application == 0 && tables == 0) {
    WEFT_TRY_STATUS(database.execute(kFormat1));
    WEFT_TRY_STATUS(database.execute(kFormat2));
    WEFT_TRY_STATUS(database.execute(kFormat3));
    WEFT_TRY_STATUS(database.execute(kFormat4));
    WEFT_TRY_STATUS(database.execute(kFormat5));
    WEFT_TRY_STATUS(database.execute(kFormat7));
    WEFT_TRY_STATUS(database.execute(kFormat8));
    WEFT_TRY_STATUS(database.execute(("PRAGMA application_id = " + std::to_string(kApplication)).c_str()));
    WEFT_TRY_STATUS(set_format(database, kStoreFormat));
    return transaction.commit();
  }
  if (application != kApplication)
    return fail(ErrorCode::Corrupted,
                database.file() + ": a database of another program; name another data directory");
  WEFT_TRY(const int64_t format, database.integer("SELECT value FROM meta WHERE name = 'format'"));
  if (format > kStoreFormat)
    return fail(ErrorCode::VersionMismatch,
                database.file() + ": format " + std::to_string(format) + "; this weft reads formats up to " +
                    std::to_string(kStoreFormat) + ": install the version that wrote it, or a later one");
  if (format < 1) return damaged(database, "format " + std::to_string(format));
  if (format == kStoreFormat) return transaction.commit();
  for (int64_t from = format; from < kStoreFormat; ++from) WEFT_TRY_STATUS(kMigrations[from - 1](database));
  WEFT_TRY_STATUS(set_format(database, kStoreFormat));
  return transaction.commit();
}

// WAL is a property of the file. The change to it needs the file alone, which SQLite does not wait for by
// itself.
Status switch_to_wal(Database& database) {
  for (int attempt = 0;; ++attempt) {
    Status done = database.execute("PRAGMA journal_mode = WAL");
    if (done) break;
    if (!database.was_busy() || attempt == 400) return done;
    sqlite3_sleep(25);
  }
  WEFT_TRY(Statement mode, database.prepare("PRAGMA journal_mode"));
  WEFT_TRY(const bool found, mode.step());
  if (found && mode.text(0) == "wal") return {};
  return fail(ErrorCode::Unsupported,
              database.file() + ": the file system has no shared memory for SQLite; use a local disk");
}

namespace {

Status check(Database& database, const std::string& sql) {
  WEFT_TRY(Statement pages, database.prepare(sql.c_str()));
  WEFT_TRY(const bool found, pages.step());
  if (found && pages.text(0) == "ok") return {};
  return fail(ErrorCode::Corrupted,
              database.file() + ": " + (found ? pages.text(0) : "cannot be checked") +
                  "; the broker's database is damaged: restore it from a backup, or start anew "
                  "in another data directory");
}

}  // namespace

// Reading each page of a large file from the disk takes longer than a broker may be away (2.3 s for a million
// events, 93 MiB, where the pages are not in memory; 0.23 s for a hundred thousand). Everything that a broker
// starts from is checked always, and is read by it anyway. Past events are only shown to people: in a large
// file damage among them is found by whoever asks for them.
Status check_pages(Database& database, int64_t whole_check_size_max) {
  WEFT_TRY(const int64_t page_count, database.integer("PRAGMA page_count"));
  WEFT_TRY(const int64_t page_size, database.integer("PRAGMA page_size"));
  if (page_count * page_size <= whole_check_size_max) return check(database, "PRAGMA quick_check(1)");
  std::vector<std::string> tables = {"sqlite_schema"};
  {
    WEFT_TRY(Statement select,
             database.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'events'"));
    WEFT_TRY_STATUS(for_each_row(select, [&](const Statement& row) -> Status {
      tables.push_back(row.text(0));
      return {};
    }));
  }
  for (const std::string& table : tables) {
    if (table.find('"') != std::string::npos) return damaged(database, "a table of another name");
    WEFT_TRY_STATUS(check(database, "PRAGMA quick_check(\"" + table + "\")"));
  }
  return {};
}

}  // namespace weft::broker
