#include "broker/store/sqlite_store.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "broker/store/sqlite.h"
#include "proto/codec/codec.h"

namespace weft::broker {
namespace {

constexpr int64_t kApplication = 0x77656674;  // "weft": tells this file from other programs' databases

// Lists that are only ever read as a whole are a message of proto/codec in one column.
constexpr const char* kSchema = R"sql(
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

std::span<const std::byte> as_bytes(const Digest& digest) { return std::as_bytes(std::span(digest.bytes)); }

class SqliteStore : public Store {
 public:
  explicit SqliteStore(Database database) : database_(std::move(database)) {}

  Status prepare();

  Status append(std::span<const Record> records) override;
  Result<StoredState> load() override;
  Result<std::vector<proto::JobEvent>> events(proto::JobNumber job, uint64_t from, size_t count_max) override;

  Status create_token(const StoredToken& token) override;
  Result<std::optional<StoredToken>> find_token(uint64_t id) override;
  Result<std::vector<StoredToken>> tokens() override;
  Status revoke_token(uint64_t id) override;

 private:
  Status write(const PrincipalAdmitted& record);
  Status write(const JobSubmitted& record);
  Status write(const JobChanged& record);
  Status write(const CheckpointCommitted& record);
  Status write(const PredictionCommitted& record);
  Status write(const ResultCommitted& record);
  Status write(const proto::JobEvent& record);

  Status load_principals(StoredState& state);
  Status load_jobs(StoredState& state);
  Status load_checkpoints(StoredState& state);
  Status load_predictions(StoredState& state);
  Status load_results(StoredState& state);

  Result<std::vector<std::byte>> encoded(const proto::Message& message) const;
  template <typename T>
  Result<T> decoded(const Statement& row, int column) const;
  Result<Digest> digest(const Statement& row, int column) const;
  template <typename Enum>
  Result<Enum> enumerator(const Statement& row, int column, Enum first, Enum last) const;
  Result<StoredToken> token_of(const Statement& row) const;
  Result<StoredJob*> job_of(StoredState& state, const Statement& row) const;
  tl::unexpected<Error> damaged(const std::string& what) const {
    return fail(ErrorCode::Corrupted, database_.file() + ": " + what + "; the broker's database is damaged");
  }

  Database database_;
  Statement use_token_, find_principal_, rename_principal_, insert_principal_;
  Statement insert_job_, change_job_, insert_checkpoint_, trim_checkpoints_, insert_prediction_,
      insert_result_, insert_event_;
  Statement select_principals_, select_jobs_, select_checkpoints_, select_predictions_, select_results_,
      select_events_;
  Statement insert_token_, find_token_, select_tokens_, revoke_token_;
};

Status SqliteStore::prepare() {
  struct Entry {
    Statement& statement;
    const char* sql;
  };
  const Entry entries[] = {
      {use_token_,
       "UPDATE tokens SET uses = uses + 1 WHERE id = ? AND (uses_max IS NULL OR uses < uses_max)"},
      {find_principal_, "SELECT 1 FROM principals WHERE principal = ? AND role = ?"},
      {rename_principal_, "UPDATE principals SET name = ? WHERE principal = ? AND role = ?"},
      {insert_principal_, "INSERT INTO principals VALUES (?, ?, ?, ?, ?)"},
      {insert_job_, "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, x'', 0, 0, 0)"},
      {change_job_,
       "UPDATE jobs SET state = ?, reason = ?, plan_version = ?, step = ?, steps = ? WHERE job = ?"},
      {insert_checkpoint_, "INSERT INTO checkpoints (job, report) VALUES (?, ?)"},
      {trim_checkpoints_,
       "DELETE FROM checkpoints WHERE job = ?1 AND number NOT IN "
       "(SELECT number FROM checkpoints WHERE job = ?1 ORDER BY number DESC LIMIT 2)"},
      {insert_prediction_, "INSERT OR REPLACE INTO predictions VALUES (?, ?, ?)"},
      {insert_result_, "INSERT OR REPLACE INTO results VALUES (?, ?)"},
      {insert_event_, "INSERT INTO events VALUES (?, ?, ?)"},
      {select_principals_,
       "SELECT principal, role, name, token, unix_ms FROM principals ORDER BY unix_ms, principal"},
      {select_jobs_,
       "SELECT job, submitter, submission, unix_ms, state, reason, plan_version, step, steps, "
       "(SELECT MAX(sequence) FROM events WHERE events.job = jobs.job) FROM jobs"},
      {select_checkpoints_, "SELECT job, report FROM checkpoints ORDER BY job, number"},
      {select_predictions_, "SELECT job, report FROM predictions ORDER BY job, microbatch"},
      {select_results_, "SELECT job, result FROM results"},
      {select_events_, "SELECT event FROM events WHERE job = ? AND sequence >= ? ORDER BY sequence LIMIT ?"},
      {insert_token_, "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?)"},
      {find_token_, "SELECT * FROM tokens WHERE id = ?"},
      {select_tokens_, "SELECT * FROM tokens ORDER BY created_unix_ms, id"},
      {revoke_token_, "UPDATE tokens SET revoked = 1 WHERE id = ?"},
  };
  for (const Entry& entry : entries) {
    WEFT_TRY(entry.statement, database_.prepare(entry.sql));
  }
  return {};
}

// ---- columns
// ---------------------------------------------------------------------------------------------------

Result<std::vector<std::byte>> SqliteStore::encoded(const proto::Message& message) const {
  std::vector<std::byte> bytes = proto::encode(message);
  if (bytes.size() > proto::kMessageSizeMax)  // could not be read again
    return fail(ErrorCode::ResourceExhausted, database_.file() + ": a record of " +
                                                  std::to_string(bytes.size()) + " bytes; at most " +
                                                  std::to_string(proto::kMessageSizeMax) + " are kept");
  return bytes;
}

template <typename T>
Result<T> SqliteStore::decoded(const Statement& row, int column) const {
  auto message = proto::decode(row.bytes(column));
  if (!message) return damaged(message.error().message);
  if (!std::holds_alternative<T>(*message)) return damaged("a record of another kind");
  return std::get<T>(std::move(*message));
}

Result<Digest> SqliteStore::digest(const Statement& row, int column) const {
  const auto bytes = row.bytes(column);
  Digest digest;
  if (bytes.size() != digest.bytes.size())
    return damaged("a digest of " + std::to_string(bytes.size()) + " bytes");
  std::memcpy(digest.bytes.data(), bytes.data(), bytes.size());
  return digest;
}

template <typename Enum>
Result<Enum> SqliteStore::enumerator(const Statement& row, int column, Enum first, Enum last) const {
  const int64_t value = row.integer(column);
  if (value < static_cast<int64_t>(first) || value > static_cast<int64_t>(last))
    return damaged("the enumerator " + std::to_string(value));
  return static_cast<Enum>(value);
}

// ---- records
// ---------------------------------------------------------------------------------------------------

Status SqliteStore::append(std::span<const Record> records) {
  WEFT_TRY(Transaction transaction, Transaction::begin(database_, Transaction::Kind::Write));
  for (const Record& record : records)
    WEFT_TRY_STATUS(std::visit([this](const auto& alternative) { return write(alternative); }, record));
  return transaction.commit();
}

Status SqliteStore::write(const PrincipalAdmitted& record) {
  const auto principal = as_bytes(record.principal.digest);
  const auto role = static_cast<int64_t>(record.role);
  WEFT_TRY(const bool known, find_principal_.bind(principal).bind(role).step());
  find_principal_.reset();
  if (known) return rename_principal_.bind(record.name).bind(principal).bind(role).run().map([](int) {});
  WEFT_TRY(const int used, use_token_.bind(record.token).run());
  if (used != 1)
    return fail(ErrorCode::PermissionDenied, "the token has no use left; ask the broker's owner for another");
  return insert_principal_.bind(principal)
      .bind(role)
      .bind(record.name)
      .bind(record.token)
      .bind(record.unix_ms)
      .run()
      .map([](int) {});
}

Status SqliteStore::write(const JobSubmitted& record) {
  WEFT_TRY(const auto submission, encoded(record.submission));
  return insert_job_.bind(record.job)
      .bind(as_bytes(record.submitter.digest))
      .bind(submission)
      .bind(record.unix_ms)
      .bind(static_cast<int64_t>(proto::JobState::Queued))
      .run()
      .map([](int) {});
}

Status SqliteStore::write(const JobChanged& record) {
  WEFT_TRY(const int changed, change_job_.bind(static_cast<int64_t>(record.state))
                                  .bind(record.reason)
                                  .bind(record.plan_version)
                                  .bind(record.step)
                                  .bind(record.steps)
                                  .bind(record.job)
                                  .run());
  if (changed == 1) return {};
  return fail(ErrorCode::InvalidArgument,
              database_.file() + ": there is no job " + std::to_string(record.job));
}

Status SqliteStore::write(const CheckpointCommitted& record) {
  WEFT_TRY(const auto report,
           encoded(proto::CheckpointReport{
               .run = record.job, .plan_version = 0, .step = record.step, .tensors = record.tensors}));
  WEFT_TRY_STATUS(insert_checkpoint_.bind(record.job).bind(report).run());
  return trim_checkpoints_.bind(record.job).run().map([](int) {});
}

Status SqliteStore::write(const PredictionCommitted& record) {
  WEFT_TRY(const auto report, encoded(record.report));
  return insert_prediction_.bind(record.job).bind(record.report.microbatch).bind(report).run().map([](int) {
  });
}

Status SqliteStore::write(const ResultCommitted& record) {
  WEFT_TRY(const auto result, encoded(record.result));
  return insert_result_.bind(record.job).bind(result).run().map([](int) {});
}

Status SqliteStore::write(const proto::JobEvent& record) {
  WEFT_TRY(const auto event, encoded(record));
  return insert_event_.bind(record.job).bind(record.sequence).bind(event).run().map([](int) {});
}

// ---- the state to start from
// -----------------------------------------------------------------------------------

Result<StoredState> SqliteStore::load() {
  WEFT_TRY(Transaction transaction, Transaction::begin(database_, Transaction::Kind::Read));
  StoredState state;
  WEFT_TRY_STATUS(load_principals(state));
  WEFT_TRY_STATUS(load_jobs(state));
  WEFT_TRY_STATUS(load_checkpoints(state));
  WEFT_TRY_STATUS(load_predictions(state));
  WEFT_TRY_STATUS(load_results(state));
  WEFT_TRY_STATUS(transaction.commit());
  return state;
}

// Runs `body` for each row. The statement is reset also when `body` fails.
template <typename Body>
Status for_each_row(Statement& statement, const Body& body) {
  for (;;) {
    WEFT_TRY(const bool found, statement.step());
    if (!found) return {};
    if (Status status = body(statement); !status) {
      statement.reset();
      return status;
    }
  }
}

Status SqliteStore::load_principals(StoredState& state) {
  return for_each_row(select_principals_, [&](const Statement& row) -> Status {
    PrincipalAdmitted principal;
    WEFT_TRY(principal.principal.digest, digest(row, 0));
    WEFT_TRY(principal.role, enumerator(row, 1, proto::Role::Peer, proto::Role::PeerBulk));
    principal.name = row.text(2);
    principal.token = static_cast<uint64_t>(row.integer(3));
    principal.unix_ms = row.integer(4);
    state.principals.push_back(std::move(principal));
    return {};
  });
}

Status SqliteStore::load_jobs(StoredState& state) {
  return for_each_row(select_jobs_, [&](const Statement& row) -> Status {
    StoredJob job;
    job.submitted.job = job.last.job = static_cast<proto::JobNumber>(row.integer(0));
    WEFT_TRY(job.submitted.submitter.digest, digest(row, 1));
    WEFT_TRY(job.submitted.submission, decoded<proto::SubmitJob>(row, 2));
    job.submitted.unix_ms = row.integer(3);
    WEFT_TRY(job.last.state, enumerator(row, 4, proto::JobState::Queued, proto::JobState::Failed));
    job.last.reason = row.text(5);
    job.last.plan_version = static_cast<proto::PlanVersion>(row.integer(6));
    job.last.step = static_cast<uint64_t>(row.integer(7));
    job.last.steps = static_cast<uint64_t>(row.integer(8));
    job.last_event = static_cast<uint64_t>(row.integer(9));  // 0 when there is none
    state.jobs.emplace(job.last.job, std::move(job));
    return {};
  });
}

Result<StoredJob*> SqliteStore::job_of(StoredState& state, const Statement& row) const {
  const auto at = state.jobs.find(static_cast<proto::JobNumber>(row.integer(0)));
  if (at == state.jobs.end())
    return damaged("a record of job " + std::to_string(row.integer(0)) + ", which is gone");
  return &at->second;
}

Status SqliteStore::load_checkpoints(StoredState& state) {
  return for_each_row(select_checkpoints_, [&](const Statement& row) -> Status {
    WEFT_TRY(StoredJob * job, job_of(state, row));
    WEFT_TRY(proto::CheckpointReport report, decoded<proto::CheckpointReport>(row, 1));
    job->checkpoints.push_back({job->last.job, report.step, std::move(report.tensors)});
    return {};
  });
}

Status SqliteStore::load_predictions(StoredState& state) {
  return for_each_row(select_predictions_, [&](const Statement& row) -> Status {
    WEFT_TRY(StoredJob * job, job_of(state, row));
    WEFT_TRY(proto::PredictionReport report, decoded<proto::PredictionReport>(row, 1));
    job->predictions.push_back(std::move(report));
    return {};
  });
}

Status SqliteStore::load_results(StoredState& state) {
  return for_each_row(select_results_, [&](const Statement& row) -> Status {
    WEFT_TRY(StoredJob * job, job_of(state, row));
    WEFT_TRY(job->result, decoded<proto::JobResult>(row, 1));
    return {};
  });
}

Result<std::vector<proto::JobEvent>> SqliteStore::events(proto::JobNumber job, uint64_t from,
                                                         size_t count_max) {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  std::vector<proto::JobEvent> found;
  if (from > kLargest) return found;
  select_events_.bind(job).bind(from).bind(std::min<uint64_t>(count_max, kLargest));
  WEFT_TRY_STATUS(for_each_row(select_events_, [&](const Statement& row) -> Status {
    WEFT_TRY(proto::JobEvent event, decoded<proto::JobEvent>(row, 0));
    found.push_back(std::move(event));
    return {};
  }));
  return found;
}

// ---- tokens
// ----------------------------------------------------------------------------------------------------

Status SqliteStore::create_token(const StoredToken& token) {
  return insert_token_.bind(token.id)
      .bind(static_cast<int64_t>(token.role))
      .bind(as_bytes(token.secret_digest))
      .bind(token.created_unix_ms)
      .bind(token.expires_unix_ms)
      .bind(token.uses_max)
      .bind(token.uses)
      .bind(static_cast<int64_t>(token.revoked))
      .run()
      .map([](int) {});
}

Result<StoredToken> SqliteStore::token_of(const Statement& row) const {
  StoredToken token;
  token.id = static_cast<uint64_t>(row.integer(0));
  WEFT_TRY(token.role, enumerator(row, 1, proto::Role::Peer, proto::Role::PeerBulk));
  WEFT_TRY(token.secret_digest, digest(row, 2));
  token.created_unix_ms = row.integer(3);
  token.expires_unix_ms = row.optional_integer(4);
  if (const auto uses_max = row.optional_integer(5)) token.uses_max = static_cast<uint32_t>(*uses_max);
  token.uses = static_cast<uint32_t>(row.integer(6));
  token.revoked = row.integer(7) != 0;
  return token;
}

Result<std::optional<StoredToken>> SqliteStore::find_token(uint64_t id) {
  std::optional<StoredToken> found;
  find_token_.bind(id);
  WEFT_TRY_STATUS(for_each_row(find_token_, [&](const Statement& row) -> Status {
    WEFT_TRY(found, token_of(row));
    return {};
  }));
  return found;
}

Result<std::vector<StoredToken>> SqliteStore::tokens() {
  std::vector<StoredToken> found;
  WEFT_TRY_STATUS(for_each_row(select_tokens_, [&](const Statement& row) -> Status {
    WEFT_TRY(StoredToken token, token_of(row));
    found.push_back(std::move(token));
    return {};
  }));
  return found;
}

Status SqliteStore::revoke_token(uint64_t id) {
  WEFT_TRY(const int revoked, revoke_token_.bind(id).run());
  if (revoked == 1) return {};
  return fail(ErrorCode::NotFound,
              "there is no token " + std::to_string(id) + "; weft token list shows them");
}

// ---- opening
// ---------------------------------------------------------------------------------------------------

// WAL is a property of the file. The change to it needs the file alone, which SQLite does not wait for by
// itself.
Status switch_to_wal(Database& database) {
  for (int attempt = 0;; ++attempt) {
    const Status done = database.execute("PRAGMA journal_mode = WAL");
    if (done) break;
    if (done.error().code != ErrorCode::Unavailable || attempt == 400) return done;
    sqlite3_sleep(25);
  }
  WEFT_TRY(Statement mode, database.prepare("PRAGMA journal_mode"));
  WEFT_TRY(const bool found, mode.step());
  if (found && mode.text(0) == "wal") return {};
  return fail(ErrorCode::Unsupported,
              database.file() + ": the file system has no shared memory for SQLite; use a local disk");
}

Status create_or_check(Database& database) {
  WEFT_TRY(Transaction transaction, Transaction::begin(database, Transaction::Kind::Write));
  WEFT_TRY(const int64_t application, database.integer("PRAGMA application_id"));
  WEFT_TRY(const int64_t tables, database.integer("SELECT COUNT(*) FROM sqlite_schema"));
  if (application == 0 && tables == 0) {
    WEFT_TRY_STATUS(database.execute(kSchema));
    const std::string rest = "PRAGMA application_id = " + std::to_string(kApplication) +
                             "; INSERT INTO meta VALUES ('format', " + std::to_string(kStoreFormat) + ");";
    WEFT_TRY_STATUS(database.execute(rest.c_str()));
    return transaction.commit();
  }
  if (application != kApplication)
    return fail(ErrorCode::Corrupted,
                database.file() + ": a database of another program; name another data directory");
  WEFT_TRY(const int64_t format, database.integer("SELECT value FROM meta WHERE name = 'format'"));
  // Here an older format becomes this one, step by step; there has been none yet.
  if (format != kStoreFormat)
    return fail(ErrorCode::VersionMismatch, database.file() + ": format " + std::to_string(format) +
                                                "; this weft reads format " + std::to_string(kStoreFormat) +
                                                ": install the version that wrote it, or a later one");
  return transaction.commit();
}

Status check_pages(Database& database) {
  WEFT_TRY(Statement check, database.prepare("PRAGMA quick_check(1)"));
  WEFT_TRY(const bool found, check.step());
  if (found && check.text(0) == "ok") return {};
  return fail(ErrorCode::Corrupted,
              database.file() + ": " + (found ? check.text(0) : "cannot be checked") +
                  "; the broker's database is damaged: restore it from a backup, or start anew "
                  "in another data directory");
}

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const std::filesystem::path& file) {
  WEFT_TRY(Database database, Database::open(file));
  WEFT_TRY_STATUS(
      database.execute("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF"));
  WEFT_TRY_STATUS(check_pages(database));
  WEFT_TRY_STATUS(create_or_check(database));
  WEFT_TRY_STATUS(switch_to_wal(database));
  auto store = std::make_unique<SqliteStore>(std::move(database));
  WEFT_TRY_STATUS(store->prepare());
  return store;
}

}  // namespace weft::broker
