// JSON that a stranger sent: read within bounds, and its fields with their names in every error. Internal to
// web/, for nlohmann's header costs a second a file.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "web/service.h"

namespace weft::web {

using Json = nlohmann::json;

inline constexpr size_t kJsonDepthMax = 32;
inline constexpr size_t kJsonValuesMax = 300'000;

// An object. Errors: 400, what is no JSON (with the place), is no object, is nested or split too much.
ApiResult<Json> parse_json_object(std::string_view text);

ApiError wrong_value(const std::string& field, const std::string& what);
std::string_view type_name(const Json& value);  // "a number"

// The fields of an object, each asked for once. The first thing that is wrong is kept, and the rest reads as
// absent: so a parser is straight, and looks at error() at its end. null is absent.
class FieldReader {
 public:
  // `path` is what stands before a field's name: "messages[0].".
  FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  const Json* any(const std::string& name);  // null: absent
  std::optional<std::string> text(const std::string& name);
  std::optional<bool> flag(const std::string& name);
  std::optional<double> number(const std::string& name, double lowest, double highest);
  std::optional<int64_t> integer(const std::string& name, int64_t lowest, int64_t highest);
  const Json* list(const std::string& name);
  const Json* object(const std::string& name);

  void fail(const std::string& name, const std::string& what);
  void fail(ApiError error);
  // Fields that nobody asked for.
  void refuse_the_rest();

  std::string path_of(const std::string& name) const { return path_ + name; }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json& object_;
  const std::string path_;
  std::set<std::string, std::less<>> known_;
  std::optional<ApiError> error_;
};

}  // namespace weft::web
