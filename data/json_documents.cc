#include "data/json_documents.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/printable.h"
#include "data/file.h"
#include "data/json_lines.h"
#include "text/json.h"
#include "text/json_outline.h"

namespace weft::data {
namespace {
namespace fs = std::filesystem;
using text::TokenId;

constexpr size_t kConfigMax = size_t{16} << 20;  // bytes of a tokenizer_config.json

Result<std::string> read_small(const fs::path& path, size_t max) {
  WEFT_TRY(const auto file, File::open(path));
  if (file->size() > max)
    return file->error(ErrorCode::OutOfRange, "is larger than " + std::to_string(max >> 20) + " MiB");
  std::string bytes(static_cast<size_t>(file->size()), '\0');
  WEFT_TRY_STATUS(file->read_at(0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

Result<text::Tokenizer> read_tokenizer(const fs::path& path) {
  if (path.empty()) return text::Tokenizer::bytes();
  WEFT_TRY(const std::string bytes, read_small(path, text::kTokenizerFileMax));
  auto tokenizer = text::parse_tokenizer_json(bytes);
  if (!tokenizer) return fail(tokenizer.error().code, path.string() + ": " + tokenizer.error().message);
  return tokenizer;
}

// What lies beside the tokenizer; empty where nothing does.
fs::path config_beside(const fs::path& tokenizer) {
  const fs::path path = tokenizer.parent_path() / "tokenizer_config.json";
  std::error_code code;
  return !tokenizer.empty() && fs::is_regular_file(path, code) ? path : fs::path();
}
Result<std::string> read_config(const fs::path& tokenizer) {
  const fs::path path = config_beside(tokenizer);
  return path.empty() ? std::string() : read_small(path, kConfigMax);
}

// Its eos_token: a text, or an object with a content.
std::string end_in(const std::string& config) {
  const auto members = text::outline_of(config);
  const auto* named = members ? text::find_member(*members, "eos_token") : nullptr;
  if (named == nullptr) return {};
  const auto value = text::parse_json(named->value, "eos_token");
  if (!value) return {};
  const nlohmann::json& content = value->is_object() ? text::member(*value, "content") : *value;
  return content.is_string() ? content.get<std::string>() : std::string();
}

std::string names_of(const text::Tokenizer& tokenizer) {
  std::string names;
  for (const TokenId token : tokenizer.end_tokens())
    names += (names.empty() ? "'" : ", '") + tokenizer.decode(std::span(&token, 1), false) + "'";
  return names;
}

// The token behind each document, if any.
Result<std::optional<TokenId>> find_end(const text::Tokenizer& tokenizer, const JsonlSpec& spec,
                                        const std::string& config) {
  const std::string name = spec.end.empty() ? end_in(config) : spec.end;
  if (!name.empty()) {
    if (const auto token = tokenizer.added_token(name)) return token;
    return fail(ErrorCode::NotFound,
                spec.tokenizer.string() + ": has no token '" + printable(name.substr(0, 64)) +
                    (spec.end.empty() ? "', which tokenizer_config.json names as eos_token; say `end: TOKEN`"
                                      : "', which `end` names"));
  }
  const auto ends = tokenizer.end_tokens();
  if (ends.size() > 1)
    return fail(ErrorCode::NotFound, spec.tokenizer.string() + ": has several tokens that end a text, " +
                                         names_of(tokenizer) +
                                         "; say which stands behind a document: `end: TOKEN`");
  return ends.empty() ? std::nullopt : std::optional(ends.front());
}

Result<text::ChatTemplate> find_template(const JsonlSpec& spec, const std::string& config) {
  if (!spec.chat_template.empty()) return text::chat_template_from(spec.chat_template);
  constexpr std::string_view kAdvice = "say how turns are written: `chat_template: chatml`, llama3 or plain";
  if (config.empty())
    return fail(ErrorCode::NotFound,
                "no tokenizer_config.json lies beside the tokenizer; " + std::string(kAdvice));
  const auto known = text::recognize_chat_template(config);
  if (known) return *known;
  return fail(known.error().code, "tokenizer_config.json beside " + spec.tokenizer.string() + ": " +
                                      known.error().message + "; " + std::string(kAdvice));
}

}  // namespace

std::vector<fs::path> files_of_jsonl(const JsonlSpec& spec) {
  std::vector files = {spec.path};
  for (const fs::path& path : {spec.tokenizer, config_beside(spec.tokenizer)})
    if (!path.empty()) files.push_back(path);
  return files;
}

Result<DocumentEncoder> DocumentEncoder::open(const JsonlSpec& spec) {
  WEFT_TRY(auto tokenizer, read_tokenizer(spec.tokenizer));
  DocumentEncoder encoder(std::move(tokenizer), spec);
  WEFT_TRY(const std::string config, read_config(spec.tokenizer));
  if (spec.form == JsonlSpec::Form::Messages) {
    WEFT_TRY(encoder.chat_template_, find_template(spec, config));
    const auto ends = encoder.tokenizer_.end_tokens();
    if (!ends.empty()) encoder.end_ = ends.front();
  } else {
    WEFT_TRY(encoder.end_, find_end(encoder.tokenizer_, spec, config));
  }
  return encoder;
}

Result<Document> DocumentEncoder::encode(std::string_view object) const {
  Result<Document> document = form_ == JsonlSpec::Form::Text         ? encode_text(object)
                              : form_ == JsonlSpec::Form::Completion ? encode_completion(object)
                                                                     : encode_messages(object);
  if (!document) return document;
  // Nothing stands before it.
  if (!document->tokens.empty()) document->is_learnt[0] = false;
  if (std::find(document->is_learnt.begin(), document->is_learnt.end(), true) == document->is_learnt.end())
    return fail(ErrorCode::InvalidArgument, "has one token alone: there is nothing to predict");
  return document;
}

void DocumentEncoder::add_end(Document& document) const {
  if (!end_ || document.tokens.empty() || document.tokens.back() == *end_) return;
  document.tokens.push_back(*end_);
  document.is_learnt.push_back(true);
}

Result<Document> DocumentEncoder::encode_text(std::string_view object) const {
  WEFT_TRY(const auto texts, texts_of_json(object, fields_));
  if (texts[0].empty()) return fail(ErrorCode::InvalidArgument, "its text is empty");
  Document document;
  WEFT_TRY(document.tokens, tokenizer_.encode(texts[0], {.special = text::SpecialTokens::Recognized}));
  document.is_learnt.assign(document.tokens.size(), true);
  add_end(document);
  return document;
}

Result<Document> DocumentEncoder::encode_completion(std::string_view object) const {
  WEFT_TRY(const auto texts, texts_of_json(object, fields_));
  if (texts.back().empty()) return fail(ErrorCode::InvalidArgument, "its completion is empty");
  std::string prompt;
  for (const std::string& part : std::span(texts).first(texts.size() - 1))
    if (!part.empty()) prompt += (prompt.empty() ? "" : "\n") + part;
  const std::array<std::string_view, 2> segments = {prompt, texts.back()};
  WEFT_TRY(const auto tokens,
           text::encode_segments(tokenizer_, std::nullopt, segments, text::SpecialTokens::Recognized));
  const auto frame = tokenizer_.before();
  Document document{{frame.begin(), frame.end()}, {}};
  document.tokens.insert(document.tokens.end(), tokens[0].begin(), tokens[0].end());
  document.is_learnt.assign(document.tokens.size(), false);
  document.tokens.insert(document.tokens.end(), tokens[1].begin(), tokens[1].end());
  document.is_learnt.resize(document.tokens.size(), true);
  add_end(document);
  return document;
}

Result<Document> DocumentEncoder::encode_messages(std::string_view object) const {
  WEFT_TRY(const auto messages, messages_of_json(object, fields_[0]));
  WEFT_TRY(auto chat, text::encode_answers(tokenizer_, chat_template_, messages));
  return Document{std::move(chat.tokens), std::move(chat.is_answer)};
}

}  // namespace weft::data
