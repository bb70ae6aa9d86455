#include "broker/store/sqlite_store.h"

#include <algorithm>
#include <limits>
#include <string>

#include "broker/jobs/blobs.h"
#include "broker/store/columns.h"
#include "broker/store/ended_rows.h"
#include "broker/store/loader.h"
#include "broker/store/record_writer.h"
#include "broker/store/schema.h"
#include "broker/store/sqlite.h"

namespace weft::broker {
namespace {

class SqliteStore : public Store {
 public:
  explicit SqliteStore(Database database) : database_(std::move(database)), writer_(database_) {}

  Status prepare();

  Status append(std::span<const Record> records) override;
  Result<StoredState> load() override;
  Result<std::vector<proto::JobEvent>> events(proto::JobNumber job, uint64_t from, size_t count_max) override;

  Result<std::optional<EndedJob>> ended_job(proto::JobNumber job) override;
  Result<std::vector<EndedJob>> ended_jobs(const std::optional<PeerId>& submitter, proto::JobNumber before,
                                           size_t count_max) override;
  Result<std::optional<StoredJob>> job(proto::JobNumber job) override;
  Result<std::set<Digest>> blobs_of_ended(int64_t resumable_since_unix_ms) override;
  Result<Forgotten> forget_ended(int64_t before_unix_ms, bool tries) override;
  Status forget_job(proto::JobNumber job) override;
  Result<std::optional<std::set<uint64_t>>> revoked_tokens_if_changed() override;

  Status create_token(const StoredToken& token) override;
  Result<std::optional<StoredToken>> find_token(uint64_t id) override;
  Result<std::vector<StoredToken>> tokens() override;
  Status revoke_token(uint64_t id) override;

 private:
  Result<StoredToken> token_of(const Statement& row) const;
  Result<EndedJob> ended_job_of(const Statement& row) const;

  Database database_;
  RecordWriter writer_;
  std::optional<int64_t> data_version_;  // that SQLite counts others' changes with
  Statement select_ended_, select_ended_jobs_, select_ended_jobs_of_, select_revoked_;
  Statement select_events_, insert_token_, find_token_, select_tokens_, revoke_token_;
};

Status SqliteStore::prepare() {
  WEFT_TRY_STATUS(writer_.prepare());
  WEFT_TRY(select_events_,
           database_.prepare(
               "SELECT event FROM events WHERE job = ? AND sequence >= ? ORDER BY sequence LIMIT ?"));
  WEFT_TRY(select_ended_, database_.prepare("SELECT submitter, status FROM ended WHERE job = ?"));
  WEFT_TRY(select_ended_jobs_,
           database_.prepare("SELECT submitter, status FROM ended WHERE job < ? ORDER BY job DESC LIMIT ?"));
  WEFT_TRY(select_ended_jobs_of_,
           database_.prepare("SELECT submitter, status FROM ended WHERE job < ? AND submitter = ? "
                             "ORDER BY job DESC LIMIT ?"));
  WEFT_TRY(select_revoked_, database_.prepare("SELECT id FROM tokens WHERE revoked"));
  WEFT_TRY(insert_token_, database_.prepare("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  WEFT_TRY(find_token_, database_.prepare("SELECT * FROM tokens WHERE id = ?"));
  WEFT_TRY(select_tokens_, database_.prepare("SELECT * FROM tokens ORDER BY created_unix_ms, id"));
  WEFT_TRY(revoke_token_, database_.prepare("UPDATE tokens SET revoked = 1 WHERE id = ?"));
  return {};
}

Status SqliteStore::append(std::span<const Record> records) {
  WEFT_TRY(Transaction transaction, Transaction::begin(database_, Transaction::Kind::Write));
  for (const Record& record : records)
    WEFT_TRY_STATUS(
        std::visit([this](const auto& alternative) { return writer_.write(alternative); }, record));
  return transaction.commit();
}

Result<StoredState> SqliteStore::load() {
  WEFT_TRY(Transaction transaction, Transaction::begin(database_, Transaction::Kind::Read));
  WEFT_TRY(StoredState state, load_state(database_));
  WEFT_TRY_STATUS(transaction.commit());
  return state;
}

Result<std::vector<proto::JobEvent>> SqliteStore::events(proto::JobNumber job, uint64_t from,
                                                         size_t count_max) {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  std::vector<proto::JobEvent> found;
  if (from > kLargest) return found;
  select_events_.bind(job).bind(from).bind(std::min<uint64_t>(count_max, kLargest));
  WEFT_TRY_STATUS(for_each_row(select_events_, [&](const Statement& row) -> Status {
    WEFT_TRY(proto::JobEvent event, decoded<proto::JobEvent>(database_, row, 0));
    found.push_back(std::move(event));
    return {};
  }));
  return found;
}

// ---- jobs that have ended

Result<Store::EndedJob> SqliteStore::ended_job_of(const Statement& row) const {
  EndedJob ended;
  WEFT_TRY(ended.submitter.digest, digest_in(database_, row, 0));
  WEFT_TRY(ended.status, decoded<proto::JobStatus>(database_, row, 1));
  return ended;
}

Result<std::optional<Store::EndedJob>> SqliteStore::ended_job(proto::JobNumber job) {
  std::optional<EndedJob> found;
  select_ended_.bind(job);
  WEFT_TRY_STATUS(for_each_row(select_ended_, [&](const Statement& row) -> Status {
    WEFT_TRY(found, ended_job_of(row));
    return {};
  }));
  return found;
}

Result<std::vector<Store::EndedJob>> SqliteStore::ended_jobs(const std::optional<PeerId>& submitter,
                                                             proto::JobNumber before, size_t count_max) {
  constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const uint64_t below = before == 0 ? kLargest : std::min<uint64_t>(before, kLargest);
  const uint64_t limit = std::min<uint64_t>(count_max, kLargest);
  std::vector<EndedJob> found;
  Statement& select = submitter ? select_ended_jobs_of_ : select_ended_jobs_;
  select.bind(below);
  if (submitter) select.bind(as_bytes(submitter->digest));
  select.bind(limit);
  WEFT_TRY_STATUS(for_each_row(select, [&](const Statement& row) -> Status {
    WEFT_TRY(EndedJob ended, ended_job_of(row));
    found.push_back(std::move(ended));
    return {};
  }));
  return found;
}

Result<std::optional<StoredJob>> SqliteStore::job(proto::JobNumber job) {
  WEFT_TRY(Transaction transaction, Transaction::begin(database_, Transaction::Kind::Read));
  WEFT_TRY(auto found, load_job(database_, job));
  WEFT_TRY_STATUS(transaction.commit());
  return found;
}

Result<std::set<Digest>> SqliteStore::blobs_of_ended(int64_t resumable_since_unix_ms) {
  std::set<Digest> blobs;
  const auto each = [&](const std::string& sql, const auto& body) -> Status {
    WEFT_TRY(Statement statement, database_.prepare(sql.c_str()));
    return for_each_row(statement, body);
  };
  const std::string of_ended = " WHERE job IN (SELECT job FROM ended)";
  // When it ended is the time of its last event.
  const auto failed = std::to_string(static_cast<int>(proto::JobState::Finished));
  WEFT_TRY_STATUS(each("SELECT submission, state > " + failed +
                           ", (SELECT event FROM events WHERE events.job = jobs.job ORDER BY sequence DESC "
                           "LIMIT 1) FROM jobs" +
                           of_ended,
                       [&](const Statement& row) -> Status {
                         WEFT_TRY(const auto submission, decoded<proto::SubmitJob>(database_, row, 0));
                         bool is_resumable = false;
                         if (row.integer(1) != 0) {
                           WEFT_TRY(const auto event, decoded<proto::JobEvent>(database_, row, 2));
                           is_resumable = event.unix_ms >= resumable_since_unix_ms;
                         }
                         add_blobs(submission, is_resumable ? BlobsOf::AllFiles : BlobsOf::Model, blobs);
                         return {};
                       }));
  WEFT_TRY_STATUS(each("SELECT report FROM checkpoints" + of_ended, [&](const Statement& row) -> Status {
    WEFT_TRY(const auto report, decoded<proto::CheckpointReport>(database_, row, 0));
    add_blobs(report.tensors, blobs);
    return {};
  }));
  WEFT_TRY_STATUS(each("SELECT report FROM predictions" + of_ended, [&](const Statement& row) -> Status {
    WEFT_TRY(const auto report, decoded<proto::PredictionReport>(database_, row, 0));
    add_blobs(report.outputs, blobs);
    return {};
  }));
  WEFT_TRY_STATUS(each("SELECT result FROM results" + of_ended, [&](const Statement& row) -> Status {
    WEFT_TRY(const auto result, decoded<proto::JobResult>(database_, row, 0));
    add_blobs(result.tensors, blobs);
    return {};
  }));
  return blobs;
}

Result<Store::Forgotten> SqliteStore::forget_ended(int64_t before_unix_ms, bool tries) {
  WEFT_TRY(Transaction transaction, Transaction::begin(database_, Transaction::Kind::Write));
  Forgotten forgotten;
  WEFT_TRY(forgotten.jobs, ended_before(database_, before_unix_ms));
  if (forgotten.jobs.empty()) return forgotten;
  WEFT_TRY(forgotten.blobs, blobs_of_ended(0));
  WEFT_TRY_STATUS(erase_jobs(database_, forgotten.jobs));
  WEFT_TRY(const std::set<Digest> left, blobs_of_ended(0));
  std::erase_if(forgotten.blobs, [&](const Digest& blob) { return left.contains(blob); });
  if (!tries) WEFT_TRY_STATUS(transaction.commit());  // else it is rolled back
  return forgotten;
}

Status SqliteStore::forget_job(proto::JobNumber job) {
  WEFT_TRY(Transaction transaction, Transaction::begin(database_, Transaction::Kind::Write));
  WEFT_TRY(const auto ended, ended_job(job));
  if (!ended) return fail(ErrorCode::NotFound, "no job " + std::to_string(job) + " has ended here");
  WEFT_TRY_STATUS(erase_jobs(database_, {job}));
  return transaction.commit();
}

Result<std::optional<std::set<uint64_t>>> SqliteStore::revoked_tokens_if_changed() {
  WEFT_TRY(const int64_t version, database_.integer("PRAGMA data_version"));
  if (std::exchange(data_version_, version) == version) return std::nullopt;
  std::set<uint64_t> revoked;
  WEFT_TRY_STATUS(for_each_row(select_revoked_, [&](const Statement& row) -> Status {
    revoked.insert(static_cast<uint64_t>(row.integer(0)));
    return {};
  }));
  return revoked;
}

// ---- tokens

Status SqliteStore::create_token(const StoredToken& token) {
  return insert_token_.bind(token.id)
      .bind(static_cast<int64_t>(token.role))
      .bind(as_bytes(token.secret_digest))
      .bind(token.created_unix_ms)
      .bind(token.expires_unix_ms)
      .bind(token.uses_max)
      .bind(token.uses)
      .bind(static_cast<int64_t>(token.revoked))
      .bind(token.label)
      .run()
      .map([](int) {});
}

Result<StoredToken> SqliteStore::token_of(const Statement& row) const {
  StoredToken token;
  token.id = static_cast<uint64_t>(row.integer(0));
  WEFT_TRY(token.role, enumerator_in(database_, row, 1, proto::Role::Peer, proto::Role::Caller));
  WEFT_TRY(token.secret_digest, digest_in(database_, row, 2));
  token.created_unix_ms = row.integer(3);
  token.expires_unix_ms = row.optional_integer(4);
  if (const auto uses_max = row.optional_integer(5)) token.uses_max = static_cast<uint32_t>(*uses_max);
  token.uses = static_cast<uint32_t>(row.integer(6));
  token.revoked = row.integer(7) != 0;
  token.label = row.text(8);
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

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const std::filesystem::path& file,
                                                 const SqliteStoreOptions& options) {
  WEFT_TRY(Database database, Database::open(file, options.vfs));
  WEFT_TRY_STATUS(
      database.execute("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF"));
  WEFT_TRY_STATUS(check_pages(database, options.whole_check_size_max));
  WEFT_TRY_STATUS(make_or_migrate(database));
  WEFT_TRY_STATUS(switch_to_wal(database));
  WEFT_TRY_STATUS(
      database.execute(("PRAGMA wal_autocheckpoint = " + std::to_string(options.log_pages_max)).c_str()));
  auto store = std::make_unique<SqliteStore>(std::move(database));
  WEFT_TRY_STATUS(store->prepare());
  return store;
}

}  // namespace weft::broker
