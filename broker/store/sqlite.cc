#include "broker/store/sqlite.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace weft::broker {
namespace {

constexpr int kBusyMilliseconds = 10'000;

// Only a full disk itself is SQLITE_FULL; a quota, and a file that cannot grow, come as failing operations.
// One that fails to become durable is another matter: nobody knows then what the disk holds.
bool is_full(int extended, int number) {
  return (number == ENOSPC || number == EDQUOT) &&
         (extended == SQLITE_IOERR_WRITE || extended == SQLITE_IOERR_TRUNCATE ||
          extended == SQLITE_IOERR_SHMSIZE);
}

Error describe(int code, sqlite3* handle, const std::string& file) {
  const std::string what =
      file + ": " +
      (handle && sqlite3_errcode(handle) == code ? sqlite3_errmsg(handle) : sqlite3_errstr(code));
  switch (code & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
      return {ErrorCode::Corrupted,
              what +
                  "; the broker's database is damaged: restore it from a backup, or start "
                  "anew in another data directory"};
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_PROTOCOL:
      return {ErrorCode::Unavailable, what + "; another process holds it: try again when that is done"};
    case SQLITE_FULL:
    case SQLITE_NOMEM:
    case SQLITE_TOOBIG:
      return {ErrorCode::ResourceExhausted, what + "; make room on the disk"};
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_AUTH:
      return {ErrorCode::PermissionDenied, what + "; check the permissions of the file and its folder"};
    case SQLITE_IOERR:
      if (handle && is_full(sqlite3_extended_errcode(handle), sqlite3_system_errno(handle)))
        return {ErrorCode::ResourceExhausted, what + "; make room on the disk"};
      return {ErrorCode::Unavailable, what + "; is the disk all right?"};
    case SQLITE_CONSTRAINT:
      return {ErrorCode::InvalidArgument, what + "; this contradicts what is stored"};
    default:
      return {ErrorCode::Internal, what};
  }
}

}  // namespace

// ---- Statement

Statement& Statement::bind(int64_t value) {
  const int code = sqlite3_bind_int64(statement_.get(), next_++, value);
  if (code != SQLITE_OK) failed_bind_ = code;
  return *this;
}
Statement& Statement::bind(std::span<const std::byte> bytes) {
  const int code = sqlite3_bind_blob64(statement_.get(), next_++,
                                       bytes.empty() ? static_cast<const void*>("") : bytes.data(),
                                       bytes.size(), SQLITE_TRANSIENT);
  if (code != SQLITE_OK) failed_bind_ = code;
  return *this;
}
Statement& Statement::bind_nothing() {
  const int code = sqlite3_bind_null(statement_.get(), next_++);
  if (code != SQLITE_OK) failed_bind_ = code;
  return *this;
}

Result<bool> Statement::step() {
  if (failed_bind_ != SQLITE_OK) return error(failed_bind_);
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) return error(code);
  reset();
  return false;
}

Result<int> Statement::run() {
  WEFT_TRY_STATUS(step());
  return sqlite3_changes(sqlite3_db_handle(statement_.get()));
}

void Statement::reset() {
  sqlite3_reset(statement_.get());
  next_ = 1;
  failed_bind_ = SQLITE_OK;
}

int64_t Statement::integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
std::optional<int64_t> Statement::optional_integer(int column) const {
  if (sqlite3_column_type(statement_.get(), column) == SQLITE_NULL) return std::nullopt;
  return integer(column);
}
std::span<const std::byte> Statement::bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return {static_cast<const std::byte*>(data), static_cast<size_t>(size)};
}
std::string Statement::text(int column) const {
  const auto content = bytes(column);
  return {reinterpret_cast<const char*>(content.data()), content.size()};
}

tl::unexpected<Error> Statement::error(int code) {
  Error described = describe(code, sqlite3_db_handle(statement_.get()), file_);
  reset();
  return fail(std::move(described));
}

// ---- Database

namespace {

// SQLite would make it readable for everybody whom the umask lets. A file that is there is not opened:
// closing it would end every lock that this process has on it, those of another connection to it, too, and
// the next process to close it would then take away the log under that connection.
Status make_private(const std::filesystem::path& file) {
  if (::access(file.c_str(), R_OK | W_OK) == 0) return {};
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor >= 0) {
    ::close(descriptor);
    return {};
  }
  const std::string what = file.string() + ": open: " + std::strerror(errno);
  switch (errno) {
    case ENOENT:
      return fail(ErrorCode::NotFound, what + "; check the path");
    case ENOSPC:
    case EDQUOT:
      return fail(ErrorCode::ResourceExhausted, what + "; make room on the disk");
    default:
      return fail(ErrorCode::PermissionDenied, what + "; check the path and its permissions");
  }
}

}  // namespace

Result<Database> Database::open(const std::filesystem::path& file, const std::string& vfs) {
  Database database;
  database.file_ = file.string();
  int flags = SQLITE_OPEN_READWRITE;
  if (vfs.empty())
    WEFT_TRY_STATUS(make_private(file));
  else
    flags |= SQLITE_OPEN_CREATE;
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(file.c_str(), &handle, flags, vfs.empty() ? nullptr : vfs.c_str());
  database.handle_.reset(handle);
  if (code != SQLITE_OK) return database.error(code);
  sqlite3_extended_result_codes(handle, 0);
  sqlite3_busy_timeout(handle, kBusyMilliseconds);
  return database;
}

Status Database::execute(const char* sql) {
  const int code = sqlite3_exec(handle_.get(), sql, nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) return error(code);
  return {};
}

Result<Statement> Database::prepare(const char* sql) {
  Statement statement;
  statement.file_ = file_;
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v3(handle_.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &raw, nullptr);
  if (code != SQLITE_OK) return error(code);
  statement.statement_.reset(raw);
  return statement;
}

Result<int64_t> Database::integer(const char* sql) {
  WEFT_TRY(Statement statement, prepare(sql));
  WEFT_TRY(const bool found, statement.step());
  return found ? statement.integer(0) : 0;
}

tl::unexpected<Error> Database::error(int code) const { return fail(describe(code, handle_.get(), file_)); }

// ---- Transaction

Result<Transaction> Transaction::begin(Database& database, Kind kind) {
  // A writer takes its lock at once: taking it later could find what it read out of date.
  WEFT_TRY_STATUS(database.execute(kind == Kind::Write ? "BEGIN IMMEDIATE" : "BEGIN"));
  return Transaction(database);
}

Transaction::~Transaction() {
  if (database_) static_cast<void>(database_->execute("ROLLBACK"));
}

Status Transaction::commit() {
  WEFT_TRY_STATUS(database_->execute("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace weft::broker
