#include "broker/store/sqlite_store.h"

#include <algorithm>
#include <limits>
#include <string>

#include "broker/store/columns.h"
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

  Status create_token(const StoredToken& token) override;
  Result<std::optional<StoredToken>> find_token(uint64_t id) override;
  Result<std::vector<StoredToken>> tokens() override;
  Status revoke_token(uint64_t id) override;

 private:
  Result<StoredToken> token_of(const Statement& row) const;

  Database database_;
  RecordWriter writer_;
  Statement select_events_, insert_token_, find_token_, select_tokens_, revoke_token_;
};

Status SqliteStore::prepare() {
  WEFT_TRY_STATUS(writer_.prepare());
  WEFT_TRY(select_events_,
           database_.prepare(
               "SELECT event FROM events WHERE job = ? AND sequence >= ? ORDER BY sequence LIMIT ?"));
  WEFT_TRY(insert_token_, database_.prepare("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, ?)"));
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
  WEFT_TRY(token.role, enumerator_in(database_, row, 1, proto::Role::Peer, proto::Role::PeerBulk));
  WEFT_TRY(token.secret_digest, digest_in(database_, row, 2));
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
