// Internal to broker/store: SQLite's C interface with typed errors and owned handles.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::broker {

// A prepared statement. Bind all parameters (from 1), step through the rows, reset.
class Statement {
 public:
  Statement() = default;

  Statement& bind(int64_t value);
  Statement& bind(uint64_t value) { return bind(static_cast<int64_t>(value)); }  // the same 64 bits
  Statement& bind(uint32_t value) { return bind(static_cast<int64_t>(value)); }
  Statement& bind(std::span<const std::byte> bytes);
  Statement& bind(std::string_view bytes) { return bind(std::as_bytes(std::span(bytes))); }
  template <typename T>
  Statement& bind(const std::optional<T>& value) {
    return value ? bind(*value) : bind_nothing();
  }

  // Whether there is a row. When there is none, or after an error, the statement is reset.
  Result<bool> step();
  // For statements without rows: steps once. How many rows they changed.
  Result<int> run();
  void reset();

  int64_t integer(int column) const;
  std::optional<int64_t> optional_integer(int column) const;
  std::span<const std::byte> bytes(int column) const;  // until the next step or reset
  std::string text(int column) const;

 private:
  friend class Database;
  struct Close {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  Statement& bind_nothing();
  tl::unexpected<Error> error(int code);

  std::unique_ptr<sqlite3_stmt, Close> statement_;
  std::string file_;
  int next_ = 1;
  int failed_bind_ = SQLITE_OK;
};

class Database {
 public:
  // Makes the file, empty, with mode 0600, when there is none. `vfs` is the name of the door to the disk that
  // SQLite takes; empty: its own one.
  static Result<Database> open(const std::filesystem::path& file, const std::string& vfs = {});

  Status execute(const char* sql);  // one statement or several, without parameters
  Result<Statement> prepare(const char* sql);
  Result<int64_t> integer(const char* sql);  // of the first row and column; 0 when there is none

  bool was_busy() const { return (sqlite3_errcode(handle_.get()) & 0xFF) == SQLITE_BUSY; }  // the last call

  const std::string& file() const { return file_; }
  // An error of our own, in SQLite's words where `code` is one of its codes.
  tl::unexpected<Error> error(int code) const;

 private:
  struct Close {
    void operator()(sqlite3* handle) const { sqlite3_close_v2(handle); }
  };
  std::unique_ptr<sqlite3, Close> handle_;
  std::string file_;
};

// All or nothing: rolled back unless committed.
class Transaction {
 public:
  enum class Kind { Read, Write };
  static Result<Transaction> begin(Database& database, Kind kind);
  Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  Status commit();

 private:
  explicit Transaction(Database& database) : database_(&database) {}
  Database* database_;
};

}  // namespace weft::broker
