// Internal to broker/store: what stands in the columns of the tables, and rows one after the other.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "broker/store/sqlite.h"
#include "proto/codec/codec.h"
#include "proto/messages.h"

namespace weft::broker {

inline std::span<const std::byte> as_bytes(const Digest& digest) {
  return std::as_bytes(std::span(digest.bytes));
}

inline tl::unexpected<Error> damaged(const Database& database, const std::string& what) {
  return fail(ErrorCode::Corrupted, database.file() + ": " + what + "; the broker's database is damaged");
}
// A record that contradicts what is stored.
inline tl::unexpected<Error> contradiction(const Database& database, const std::string& what) {
  return fail(ErrorCode::InvalidArgument, database.file() + ": " + what);
}

// InvalidArgument when it is too long to be read again: a full disk may be tried again, this may not.
Result<std::vector<std::byte>> encoded(const Database& database, const proto::Message& message);
Status check_length(const Database& database, size_t size);
// As it was encoded before, where it was.
template <typename T>
Result<proto::EncodedBytes> encoded(const Database& database, const proto::Encoded<T>& message) {
  proto::EncodedBytes bytes = proto::bytes_of(message);
  WEFT_TRY_STATUS(check_length(database, bytes.bytes.size()));
  return bytes;
}
Result<proto::Message> decoded_message(const Database& database, const Statement& row, int column);
template <typename T>
Result<T> decoded(const Database& database, const Statement& row, int column) {
  WEFT_TRY(proto::Message message, decoded_message(database, row, column));
  if (!std::holds_alternative<T>(message)) return damaged(database, "a record of another kind");
  return std::get<T>(std::move(message));
}
// With its bytes: what is loaded may be stored again, or sent.
template <typename T>
Result<proto::Encoded<T>> decoded_with_bytes(const Database& database, const Statement& row, int column) {
  WEFT_TRY(T message, decoded<T>(database, row, column));
  const std::span<const std::byte> bytes = row.bytes(column);
  return proto::Encoded<T>(std::make_shared<const T>(std::move(message)),
                           proto::share({bytes.begin(), bytes.end()}));
}
Result<Digest> digest_in(const Database& database, const Statement& row, int column);
template <typename Enum>
Result<Enum> enumerator_in(const Database& database, const Statement& row, int column, Enum first,
                           Enum last) {
  const int64_t value = row.integer(column);
  if (value < static_cast<int64_t>(first) || value > static_cast<int64_t>(last))
    return damaged(database, "the enumerator " + std::to_string(value));
  return static_cast<Enum>(value);
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

}  // namespace weft::broker
