#include "text/json.h"

#include <nlohmann/json.hpp>

namespace weft::text {
namespace {

using Json = nlohmann::json;

tl::unexpected<Error> not_a(std::string_view what, std::string_view key) {
  return fail(ErrorCode::Corrupted, "'" + std::string(key) + "' is missing, or not " + std::string(what));
}

}  // namespace

Result<Json> parse_json(std::string_view bytes, std::string_view where) {
  try {
    return Json::parse(bytes);
  } catch (const Json::exception&) {
    return fail(ErrorCode::Corrupted, std::string(where) + ": is not JSON");
  }
}

const Json& member(const Json& object, std::string_view key) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

Result<bool> bool_member(const Json& object, std::string_view key, bool otherwise) {
  const Json& value = member(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) return not_a("true or false", key);
  return value.get<bool>();
}

Result<std::string> string_member(const Json& object, std::string_view key,
                                  std::optional<std::string> otherwise) {
  const Json& value = member(object, key);
  if (value.is_null() && otherwise) return std::move(*otherwise);
  if (!value.is_string()) return not_a("a text", key);
  return value.get<std::string>();
}

Result<uint64_t> count_member(const Json& object, std::string_view key, std::optional<uint64_t> otherwise) {
  const Json& value = member(object, key);
  if (value.is_null() && otherwise) return *otherwise;
  if (!value.is_number_unsigned()) return not_a("a whole number of 0 or more", key);
  return value.get<uint64_t>();
}

Result<const Json*> array_member(const Json& object, std::string_view key) {
  const Json& value = member(object, key);
  if (!value.is_array()) return not_a("a list", key);
  return &value;
}

Result<std::string> type_of(const Json& object) {
  if (!object.is_object()) return fail(ErrorCode::Corrupted, "is not an object");
  return string_member(object, "type");
}

}  // namespace weft::text
