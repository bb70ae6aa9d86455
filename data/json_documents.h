// What a line of a JSON lines file is to a model: tokens, and which of them it is to learn to write.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/data_spec.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace weft::data {

struct Document {
  std::vector<text::TokenId> tokens{};  // two at least, the first of which is not learnt
  std::vector<bool> is_learnt{};        // of equal length; one at least
};

// Never changes; used by any threads.
class DocumentEncoder {
 public:
  // Reads the tokenizer, and the tokenizer_config.json beside it where something is to be found there. Errors
  // name the file: what is wrong with it; NotFound: which chat template, or which token at the end, is not
  // known.
  static Result<DocumentEncoder> open(const JsonlSpec& spec);

  // Of a line's object. Errors: as texts_of_json, messages_of_json and the tokenizer say; InvalidArgument:
  // there is nothing in it to learn.
  Result<Document> encode(std::string_view object) const;

  // What stands where a sample has no token. A model that looks at nothing but what is before never sees it.
  text::TokenId padding() const { return end_.value_or(0); }

 private:
  DocumentEncoder(text::Tokenizer tokenizer, const JsonlSpec& spec)
      : tokenizer_(std::move(tokenizer)), form_(spec.form), fields_(spec.fields) {}
  Result<Document> encode_text(std::string_view object) const;
  Result<Document> encode_completion(std::string_view object) const;
  Result<Document> encode_messages(std::string_view object) const;
  void add_end(Document& document) const;

  text::Tokenizer tokenizer_;
  JsonlSpec::Form form_;
  std::vector<std::string> fields_;
  std::optional<text::TokenId> end_{};
  text::ChatTemplate chat_template_ = text::ChatTemplate::Plain;
};

// The file, and what is read of the tokenizer.
std::vector<std::filesystem::path> files_of_jsonl(const JsonlSpec& spec);

}  // namespace weft::data
