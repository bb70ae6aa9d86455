// Which template a Jinja text writes out, where it is one of the simple ones. It is not run: its words and
// its quoted texts are compared with those that such a template may have.
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>

#include "text/chat.h"
#include "text/json.h"
#include "text/json_outline.h"

namespace weft::text {
namespace {

using Json = nlohmann::json;

constexpr size_t kConfigMax = size_t{16} << 20;    // bytes
constexpr size_t kTemplateMax = size_t{64} << 10;  // bytes

// Of a Jinja text: the words of its code, and what it writes or compares.
struct JinjaTexts {
  std::vector<std::string> words, texts;
};

bool begins_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// A quoted text at the front, its quotes taken off; nothing if it does not end.
std::optional<std::string> take_quoted(std::string_view& code) {
  const char quote = code[0];
  std::string text;
  for (size_t at = 1; at < code.size(); ++at) {
    if (code[at] == quote) {
      code.remove_prefix(at + 1);
      return text;
    }
    const bool escapes = code[at] == '\\' && at + 1 < code.size();
    if (escapes) ++at;
    text += escapes && code[at] == 'n' ? '\n' : code[at];
  }
  return std::nullopt;
}

// Code up to its end, "}}" or "%}".
bool take_code(std::string_view& left, std::string_view end, JinjaTexts& found) {
  while (!left.empty()) {
    if (left.starts_with(end)) {
      left.remove_prefix(end.size());
      return true;
    }
    if (left[0] == '\'' || left[0] == '"') {
      auto text = take_quoted(left);
      if (!text) return false;
      found.texts.push_back(std::move(*text));
    } else if (begins_word(left[0])) {
      const auto word_end = std::find_if_not(left.begin(), left.end(), is_in_word);
      found.words.emplace_back(left.begin(), word_end);
      left.remove_prefix(static_cast<size_t>(word_end - left.begin()));
    } else {
      left.remove_prefix(1);
    }
  }
  return false;
}

std::optional<JinjaTexts> texts_of(std::string_view left) {
  JinjaTexts found;
  while (!left.empty()) {
    const size_t at = left.find('{');
    found.texts.emplace_back(left.substr(0, at));
    if (at == std::string_view::npos) break;
    left.remove_prefix(at);
    const bool writes = left.starts_with("{{");
    if (!writes && !left.starts_with("{%")) return std::nullopt;
    left.remove_prefix(2);
    if (!take_code(left, writes ? "}}" : "%}", found)) return std::nullopt;
  }
  return found;
}

bool consists_of(std::string_view text, std::span<const std::string_view> parts) {
  while (!text.empty()) {
    const auto found = std::find_if(parts.begin(), parts.end(),
                                    [&](std::string_view part) { return text.starts_with(part); });
    if (found == parts.end()) return false;
    text.remove_prefix(found->size());
  }
  return true;
}

constexpr std::string_view kWords[] = {"set",     "for",           "in",
                                       "if",      "elif",          "else",
                                       "endif",   "endfor",        "messages",
                                       "message", "role",          "content",
                                       "loop",    "index0",        "first",
                                       "last",    "loop_messages", "and",
                                       "or",      "not",           "is",
                                       "defined", "true",          "false",
                                       "trim",    "bos_token",     "add_generation_prompt"};
constexpr std::string_view kCommon[] = {"\n", " ", "system", "user", "assistant", "role", "content"};

struct Signature {
  ChatTemplate chat_template;
  std::vector<std::string_view> control;
  bool trims;  // and begins with the token at the begin of a text
};
const std::vector<Signature>& signatures() {
  static const std::vector<Signature> kSignatures = {
      {ChatTemplate::ChatML, {"<|im_start|>", "<|im_end|>"}, false},
      {ChatTemplate::Llama3, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}, true}};
  return kSignatures;
}

bool is_written_by(const JinjaTexts& found, const Signature& signature) {
  std::vector<std::string_view> parts(signature.control);
  parts.insert(parts.end(), std::begin(kCommon), std::end(kCommon));
  for (const std::string_view control : signature.control)
    if (std::none_of(found.texts.begin(), found.texts.end(),
                     [&](const std::string& text) { return text.find(control) != std::string::npos; }))
      return false;
  const auto has_word = [&](std::string_view word) {
    return std::find(found.words.begin(), found.words.end(), word) != found.words.end();
  };
  return has_word("trim") == signature.trims && has_word("bos_token") == signature.trims &&
         std::all_of(found.texts.begin(), found.texts.end(),
                     [&](const std::string& text) { return consists_of(text, parts); }) &&
         std::all_of(found.words.begin(), found.words.end(), [](const std::string& word) {
           return std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
         });
}

// A text, or a list of {name, template} of which the default one counts.
std::optional<std::string> template_of(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (!json.is_array()) return std::nullopt;
  for (const Json& each : json) {
    const Json &name = member(each, "name"), &text = member(each, "template");
    if (name == "default" && text.is_string()) return text.get<std::string>();
  }
  return std::nullopt;
}

}  // namespace

Result<ChatTemplate> recognize_chat_template(std::string_view tokenizer_config) {
  if (tokenizer_config.size() > kConfigMax)
    return fail(ErrorCode::OutOfRange, "tokenizer_config.json has more than 16 MiB");
  auto members = outline_of(tokenizer_config);
  if (!members) return fail(members.error().within("tokenizer_config.json"));
  const JsonMember* const found = find_member(*members, "chat_template");
  if (found == nullptr)
    return fail(ErrorCode::NotFound, "tokenizer_config.json has no chat_template; name one of weft's");
  const auto not_simple = [] {
    return fail(ErrorCode::Unsupported,
                "the chat_template of tokenizer_config.json is none that weft knows; name "
                "the one that the model was trained with: chatml, llama3 or plain");
  };
  if (found->value.size() > kTemplateMax) return not_simple();
  WEFT_TRY(const Json json, parse_json(found->value, "chat_template"));
  const auto text = template_of(json);
  const auto texts = text ? texts_of(*text) : std::nullopt;
  if (!texts) return not_simple();
  for (const Signature& signature : signatures())
    if (is_written_by(*texts, signature)) return signature.chat_template;
  return not_simple();
}

}  // namespace weft::text
