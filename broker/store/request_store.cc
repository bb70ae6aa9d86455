#include "broker/store/request_store.h"

#include <utility>

#include "broker/store/columns.h"
#include "broker/store/schema.h"
#include "broker/store/sqlite.h"

namespace weft::broker {
namespace {

constexpr int64_t kApplicationOfRequests = 0x77667271;  // "wfrq"
constexpr int64_t kFormat = 2;
constexpr size_t kDigest = 64;  // of hex
constexpr size_t kStopsMax = 64, kStopBytesMax = size_t{1} << 20;
constexpr int64_t kChat = 1, kUsage = 2;

constexpr const char* kTables = R"sql(
CREATE TABLE requests (
  number INTEGER PRIMARY KEY,
  id BLOB NOT NULL UNIQUE,
  request BLOB NOT NULL,  -- ServeRequest
  created INTEGER NOT NULL,
  flags INTEGER NOT NULL,
  stops BLOB NOT NULL,    -- each with its length before it
  once TEXT NOT NULL,     -- both digests, or empty
  ended_unix_ms INTEGER);
)sql";

std::string packed(const std::vector<std::string>& stops) {
  std::string bytes;
  for (const std::string& stop : stops) {
    for (size_t i = 0; i < 4; ++i) bytes += static_cast<char>(stop.size() >> (8 * i));
    bytes += stop;
  }
  return bytes;
}

std::optional<std::vector<std::string>> unpacked(std::string_view bytes) {
  std::vector<std::string> stops;
  while (!bytes.empty()) {
    if (bytes.size() < 4 || stops.size() == kStopsMax) return {};
    size_t size = 0;
    for (size_t i = 0; i < 4; ++i) size |= size_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    bytes.remove_prefix(4);
    if (size == 0 || size > bytes.size() || size > kStopBytesMax) return {};
    stops.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return stops;
}

Status done(const Result<int>& changed) {
  if (!changed) return fail(changed.error());
  return {};
}

class SqliteRequestStore final : public RequestStore {
 public:
  explicit SqliteRequestStore(Database database) : database_(std::move(database)) {}
  Status prepare();
  Status write(std::span<const RequestChange> changes) override;
  Result<Loaded> load() override;
  Status fold() override { return database_.execute("PRAGMA wal_checkpoint(TRUNCATE)"); }

 private:
  Status apply(const StoredRequest& request);
  Status apply(const RequestEnded& ended);
  Status apply(const RequestForgotten& forgotten);
  std::optional<StoredRequest> request_of(const Statement& row) const;

  Database database_;
  Statement insert_, end_, remove_, select_;
};

Status SqliteRequestStore::prepare() {
  WEFT_TRY(insert_, database_.prepare("INSERT INTO requests (id, request, created, flags, stops, "
                                      "once, ended_unix_ms) VALUES (?, ?, ?, ?, ?, ?, ?)"));
  WEFT_TRY(end_, database_.prepare("UPDATE requests SET ended_unix_ms = ? WHERE id = ?"));
  WEFT_TRY(remove_, database_.prepare("DELETE FROM requests WHERE id = ?"));
  WEFT_TRY(select_, database_.prepare("SELECT id, request, created, flags, stops, once, "
                                      "ended_unix_ms "
                                      "FROM requests ORDER BY number"));
  return {};
}

Status SqliteRequestStore::apply(const StoredRequest& request) {
  WEFT_TRY(const auto message, encoded(database_, request.request));
  const int64_t flags = (request.is_chat ? kChat : 0) | (request.includes_usage ? kUsage : 0);
  return done(insert_.bind(request.id)
                  .bind(std::span<const std::byte>(message))
                  .bind(request.created)
                  .bind(flags)
                  .bind(packed(request.stops))
                  .bind(request.once_name + request.once_asked)
                  .bind(request.ended_unix_ms)
                  .run());
}
Status SqliteRequestStore::apply(const RequestEnded& ended) {
  return done(end_.bind(ended.unix_ms).bind(ended.id).run());
}
Status SqliteRequestStore::apply(const RequestForgotten& forgotten) {
  return done(remove_.bind(forgotten.id).run());
}

Status SqliteRequestStore::write(std::span<const RequestChange> changes) {
  WEFT_TRY(Transaction transaction, Transaction::begin(database_, Transaction::Kind::Write));
  for (const RequestChange& change : changes)
    WEFT_TRY_STATUS(std::visit([this](const auto& one) { return apply(one); }, change));
  return transaction.commit();
}

std::optional<StoredRequest> SqliteRequestStore::request_of(const Statement& row) const {
  auto request = decoded<proto::ServeRequest>(database_, row, 1);
  auto stops = unpacked(row.text(4));
  const std::string once = row.text(5);
  if (!request || !stops || (!once.empty() && once.size() != 2 * kDigest)) return {};
  const int64_t flags = row.integer(3);
  return StoredRequest{.id = row.text(0),
                       .request = std::move(*request),
                       .created = row.integer(2),
                       .is_chat = (flags & kChat) != 0,
                       .includes_usage = (flags & kUsage) != 0,
                       .stops = std::move(*stops),
                       .once_name = once.substr(0, kDigest),
                       .once_asked = once.substr(std::min(kDigest, once.size())),
                       .ended_unix_ms = row.optional_integer(6)};
}

Result<RequestStore::Loaded> SqliteRequestStore::load() {
  Loaded loaded;
  std::vector<RequestChange> damaged;
  WEFT_TRY_STATUS(for_each_row(select_, [&](const Statement& row) -> Status {
    if (auto request = request_of(row))
      loaded.requests.push_back(std::move(*request));
    else
      damaged.emplace_back(RequestForgotten{row.text(0)});
    return {};
  }));
  loaded.damaged = damaged.size();
  if (!damaged.empty()) WEFT_TRY_STATUS(write(damaged));
  return loaded;
}

Status make_tables(Database& database) {
  WEFT_TRY(Transaction transaction, Transaction::begin(database, Transaction::Kind::Write));
  WEFT_TRY(const int64_t application, database.integer("PRAGMA application_id"));
  WEFT_TRY(const int64_t tables, database.integer("SELECT COUNT(*) FROM sqlite_schema"));
  if (application == 0 && tables == 0) {
    WEFT_TRY_STATUS(database.execute(kTables));
    WEFT_TRY_STATUS(
        database.execute(("PRAGMA application_id = " + std::to_string(kApplicationOfRequests)).c_str()));
    WEFT_TRY_STATUS(database.execute(("PRAGMA user_version = " + std::to_string(kFormat)).c_str()));
    return transaction.commit();
  }
  if (application != kApplicationOfRequests) return damaged(database, "a database of another program");
  WEFT_TRY(int64_t format, database.integer("PRAGMA user_version"));
  if (format == 1) {  // without keys
    WEFT_TRY_STATUS(database.execute("ALTER TABLE requests ADD COLUMN once TEXT NOT NULL DEFAULT ''"));
    WEFT_TRY_STATUS(database.execute(("PRAGMA user_version = " + std::to_string(kFormat)).c_str()));
    format = kFormat;
  }
  if (format != kFormat)
    return fail(ErrorCode::VersionMismatch, database.file() + ": format " + std::to_string(format) +
                                                "; this weft reads format " + std::to_string(kFormat));
  return transaction.commit();
}

}  // namespace

Result<std::unique_ptr<RequestStore>> open_request_store(const std::filesystem::path& file,
                                                         const RequestStoreOptions& options) {
  WEFT_TRY(Database database, Database::open(file));
  WEFT_TRY_STATUS(
      database.execute("PRAGMA synchronous = FULL; PRAGMA secure_delete = ON; PRAGMA trusted_schema = OFF"));
  WEFT_TRY_STATUS(check_pages(database, int64_t{16} << 20));
  WEFT_TRY_STATUS(make_tables(database));
  WEFT_TRY_STATUS(switch_to_wal(database));
  WEFT_TRY_STATUS(database.execute(("PRAGMA max_page_count = " + std::to_string(options.pages_max)).c_str()));
  auto store = std::make_unique<SqliteRequestStore>(std::move(database));
  WEFT_TRY_STATUS(store->prepare());
  return store;
}

}  // namespace weft::broker
