#include "data/json_lines.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "text/json.h"
#include "text/json_outline.h"

namespace weft::data {
namespace {

using Json = nlohmann::json;

constexpr size_t kBlock = size_t{1} << 20;
constexpr size_t kShownMax = 64;  // bytes of a name, in a message

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == std::string_view::npos; }

std::string shown(std::string_view text) { return "'" + printable(text.substr(0, kShownMax)) + "'"; }

// Looked at before it is parsed: what it holds decides how much memory that takes.
Result<Json> parse_object(std::string_view object) {
  WEFT_TRY(const auto members, text::outline_of(object));
  size_t values = 0;
  for (const text::JsonMember& member : members) values += member.value_count;
  if (values > text::kJsonEntriesMax)
    return fail(ErrorCode::OutOfRange, "has more than " + std::to_string(text::kJsonEntriesMax) + " values");
  return text::parse_json(object, "this line");
}

std::string names_of(const Json& object) {
  constexpr size_t kNames = 16;
  std::string names;
  size_t left = kNames;
  for (const auto& [name, value] : object.items()) {
    if (left-- == 0) return names + ", ...";
    names += (names.empty() ? "" : ", ") + shown(name);
  }
  return names.empty() ? "nothing" : names;
}

Result<const Json*> field_of(const Json& object, const std::string& field) {
  const auto found = object.find(field);
  if (found == object.end())
    return fail(ErrorCode::NotFound, "has no field " + shown(field) + "; it has " + names_of(object));
  return &*found;
}

// The content of a message: a text, or a list whose parts are texts.
Result<std::string> content_of(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string text;
  const bool is_list = value.is_array() && std::all_of(value.begin(), value.end(), [&](const Json& part) {
                         const Json& piece = text::member(part, "text");
                         if (piece.is_string()) text += piece.get<std::string>();
                         return piece.is_string();
                       });
  if (is_list && !value.empty()) return text;
  return fail(ErrorCode::InvalidArgument,
              "has a content that is no text, nor a list of {\"type\": \"text\"}");
}

std::string role_of(const std::string& name) {
  if (name == "human") return "user";
  return name == "gpt" || name == "model" ? "assistant" : name;
}

Result<text::ChatMessage> message_of(const Json& value) {
  const Json& role = text::member(value, value.contains("role") ? "role" : "from");
  const Json& content = text::member(value, value.contains("content") ? "content" : "value");
  if (!role.is_string() || content.is_null())
    return fail(ErrorCode::InvalidArgument, "is not {\"role\": ..., \"content\": ...}");
  WEFT_TRY(std::string text, content_of(content));
  return text::ChatMessage{role_of(role.get<std::string>()), std::move(text)};
}

}  // namespace

Status JsonLines::fill() {
  held_.erase(0, at_);
  at_ = 0;
  const size_t had = held_.size();
  if (!stream_) {
    WEFT_TRY(const Encoding encoding, encoding_of(*file_));
    stream_ = make_stream(file_, 0, file_->size(), encoding);
  }
  held_.resize(had + kBlock);
  WEFT_TRY(const size_t fresh, stream_->read_some(std::as_writable_bytes(std::span(held_)).subspan(had)));
  held_.resize(had + fresh);
  is_read_ = fresh == 0;
  return {};
}

Result<bool> JsonLines::next_line() {
  size_t looked = at_;
  for (;;) {
    const size_t end = held_.find('\n', looked);
    if (end == std::string::npos && !is_read_) {
      if (held_.size() - at_ > kJsonLineMax) break;
      looked = held_.size() - at_;
      WEFT_TRY_STATUS(fill());
      continue;
    }
    if (at_ == held_.size()) return false;
    const size_t length = std::min(end, held_.size()) - at_;
    if (length > kJsonLineMax) break;
    line_ = std::string_view(held_).substr(at_, length);
    at_ = std::min(at_ + length + 1, held_.size());
    ++number_;
    return true;
  }
  ++number_;
  return error(ErrorCode::OutOfRange, "is longer than " + std::to_string(kJsonLineMax >> 20) +
                                          " MiB; it is to be a JSON object for each document");
}

Result<bool> JsonLines::next() {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  for (;;) {
    WEFT_TRY(const bool is_there, next_line());
    if (!is_there) return false;
    if (number_ == 1 && line_.starts_with(kByteOrderMark)) line_.remove_prefix(kByteOrderMark.size());
    if (!is_blank(line_)) return true;
  }
}

tl::unexpected<Error> JsonLines::error(ErrorCode code, const std::string& what) const {
  return file_->error(code, "line " + std::to_string(number_) + ": " + what);
}

Result<std::vector<std::string>> texts_of_json(std::string_view object,
                                               const std::vector<std::string>& fields) {
  WEFT_TRY(const Json parsed, parse_object(object));
  std::vector<std::string> texts;
  for (const std::string& field : fields) {
    WEFT_TRY(const Json* value, field_of(parsed, field));
    if (!value->is_string())
      return fail(ErrorCode::InvalidArgument,
                  "its field " + shown(field) + " is " + value->type_name() + ", not a text");
    texts.push_back(value->get<std::string>());
  }
  return texts;
}

Result<std::vector<text::ChatMessage>> messages_of_json(std::string_view object, const std::string& field) {
  WEFT_TRY(const Json parsed, parse_object(object));
  WEFT_TRY(const Json* value, field_of(parsed, field));
  if (!value->is_array())
    return fail(ErrorCode::InvalidArgument,
                "its field " + shown(field) + " is " + value->type_name() + ", not a list of messages");
  std::vector<text::ChatMessage> messages;
  for (size_t i = 0; i < value->size(); ++i) {
    auto message = message_of((*value)[i]);
    if (!message)
      return fail(message.error().code,
                  "message " + std::to_string(i) + " of " + shown(field) + " " + message.error().message);
    messages.push_back(*std::move(message));
  }
  return messages;
}

}  // namespace weft::data
