#include "broker/store/columns.h"

#include <cstring>

namespace weft::broker {

Result<std::vector<std::byte>> encoded(const Database& database, const proto::Message& message) {
  std::vector<std::byte> bytes = proto::encode(message);
  WEFT_TRY_STATUS(check_length(database, bytes.size()));
  return bytes;
}

Status check_length(const Database& database, size_t size) {
  if (size <= proto::kMessageSizeMax) return {};
  return fail(ErrorCode::InvalidArgument, database.file() + ": a record of " + std::to_string(size) +
                                              " bytes; at most " + std::to_string(proto::kMessageSizeMax) +
                                              " can be read again");
}

Result<proto::Message> decoded_message(const Database& database, const Statement& row, int column) {
  auto message = proto::decode(row.bytes(column));
  if (!message) return damaged(database, message.error().message);
  return message;
}

Result<Digest> digest_in(const Database& database, const Statement& row, int column) {
  const auto bytes = row.bytes(column);
  Digest digest;
  if (bytes.size() != digest.bytes.size())
    return damaged(database, "a digest of " + std::to_string(bytes.size()) + " bytes");
  std::memcpy(digest.bytes.data(), bytes.data(), bytes.size());
  return digest;
}

}  // namespace weft::broker
