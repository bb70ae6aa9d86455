#include "web/json_reader.h"

#include <cmath>

#include "base/printable.h"

namespace weft::web {

namespace {

constexpr size_t kFieldShown = 64;

// What a stranger called a field, fit for a message.
std::string field_shown(std::string_view name) {
  return printable(name.substr(0, kFieldShown)) + (name.size() > kFieldShown ? "..." : "");
}

ApiError bad_json(std::string message) { return {.message = std::move(message)}; }

// Nesting and values are counted before memory is taken for them.
std::optional<ApiError> check_bounds(std::string_view text) {
  size_t depth = 0, values = 0;
  bool is_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_text) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        is_text = false;
      continue;
    }
    if (c == '"') is_text = true;
    if (c == '[' || c == '{') ++depth, ++values;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (c == ',') ++values;
    if (depth > kJsonDepthMax)
      return bad_json("the body nests deeper than " + std::to_string(kJsonDepthMax) + " levels");
    if (values > kJsonValuesMax)
      return bad_json("the body has more than " + std::to_string(kJsonValuesMax) + " values");
  }
  return {};
}

std::string bounds_text(double lowest, double highest) {
  const auto text = [](double bound) {
    std::string out = std::to_string(bound);
    out.erase(out.find_last_not_of('0') + 1);
    if (out.ends_with('.')) out.pop_back();
    return out;
  };
  return "it lies between " + text(lowest) + " and " + text(highest);
}

}  // namespace

ApiResult<Json> parse_json_object(std::string_view text) {
  if (auto error = check_bounds(text)) return tl::unexpected(std::move(*error));
  try {
    Json json = Json::parse(text);
    if (json.is_object()) return json;
    return tl::unexpected(bad_json("the body is a JSON object; this is " + std::string(type_name(json))));
  } catch (const Json::parse_error& error) {
    return tl::unexpected(
        bad_json("the body is no JSON: the fault is at byte " + std::to_string(error.byte)));
  } catch (const Json::exception& error) {
    return tl::unexpected(bad_json("the body is no JSON: " + printable(error.what())));
  }
}

ApiError wrong_value(const std::string& field, const std::string& what) {
  return {.param = field, .code = "invalid_value", .message = field + ": " + what};
}

std::string_view type_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "text";
    case Json::value_t::boolean:
      return "true or false";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a number";
    case Json::value_t::binary:
    case Json::value_t::discarded:
      break;
  }
  return "nothing";
}

const Json* FieldReader::any(const std::string& name) {
  known_.insert(name);
  const auto at = object_.find(name);
  return error_ || at == object_.end() || at->is_null() ? nullptr : &*at;
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}
void FieldReader::fail(const std::string& name, const std::string& what) {
  fail(wrong_value(path_of(name), what));
}

std::optional<std::string> FieldReader::text(const std::string& name) {
  const Json* value = any(name);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  fail(name, "it is text, and not " + std::string(type_name(*value)));
  return {};
}

std::optional<bool> FieldReader::flag(const std::string& name) {
  const Json* value = any(name);
  if (value == nullptr) return {};
  if (value->is_boolean()) return value->get<bool>();
  fail(name, "it is true or false, and not " + std::string(type_name(*value)));
  return {};
}

std::optional<double> FieldReader::number(const std::string& name, double lowest, double highest) {
  const Json* value = any(name);
  if (value == nullptr) return {};
  if (!value->is_number()) {
    fail(name, "it is a number, and not " + std::string(type_name(*value)));
    return {};
  }
  const auto found = value->get<double>();
  if (found >= lowest && found <= highest) return found;
  fail(name, bounds_text(lowest, highest) + ", and is " + value->dump());
  return {};
}

std::optional<int64_t> FieldReader::integer(const std::string& name, int64_t lowest, int64_t highest) {
  const Json* value = any(name);
  if (value == nullptr) return {};
  if (!value->is_number_integer()) {
    fail(name, "it is an integer, and not " + std::string(type_name(*value)));
    return {};
  }
  const bool is_beyond = value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX};
  const auto found = is_beyond ? INT64_MAX : value->get<int64_t>();
  if (!is_beyond && found >= lowest && found <= highest) return found;
  fail(name, "it lies between " + std::to_string(lowest) + " and " + std::to_string(highest) + ", and is " +
                 value->dump());
  return {};
}

const Json* FieldReader::list(const std::string& name) {
  const Json* value = any(name);
  if (value == nullptr || value->is_array()) return value;
  fail(name, "it is a list, and not " + std::string(type_name(*value)));
  return nullptr;
}

const Json* FieldReader::object(const std::string& name) {
  const Json* value = any(name);
  if (value == nullptr || value->is_object()) return value;
  fail(name, "it is an object, and not " + std::string(type_name(*value)));
  return nullptr;
}

void FieldReader::refuse_the_rest() {
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    const std::string field = path_of(field_shown(name));
    return fail({.param = field, .code = "unknown_parameter", .message = field + ": there is no such field"});
  }
}

}  // namespace weft::web
