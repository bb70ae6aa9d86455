// What a file's parts say, read with errors that name the place. REQUIRES of all: the object outlives what is
// returned.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::text {

// A bounded part of a file (json_outline.h) as a value. Corrupted: it is no JSON.
Result<nlohmann::json> parse_json(std::string_view bytes, std::string_view where);

// The member, or null where it is missing or `object` is no object.
const nlohmann::json& member(const nlohmann::json& object, std::string_view key);

// Corrupted: it is something else. A missing one, and null, is `otherwise`.
Result<bool> bool_member(const nlohmann::json& object, std::string_view key, bool otherwise);
Result<std::string> string_member(const nlohmann::json& object, std::string_view key,
                                  std::optional<std::string> otherwise = std::nullopt);
Result<uint64_t> count_member(const nlohmann::json& object, std::string_view key,
                              std::optional<uint64_t> otherwise = std::nullopt);
// Corrupted: it is no array, or missing.
Result<const nlohmann::json*> array_member(const nlohmann::json& object, std::string_view key);

// The value of "type". Corrupted: there is none.
Result<std::string> type_of(const nlohmann::json& object);

}  // namespace weft::text
