#include "text/model_file.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/printable.h"
#include "text/byte_alphabet.h"

namespace weft::text {
namespace {

using Json = nlohmann::json;

// Takes what nlohmann's parser meets; a reader says which of it has a place. The first error ends the
// parsing.
class SaxReader : public nlohmann::json_sax<Json> {
 public:
  Status run(std::string_view json) {
    if (Json::sax_parse(json, this)) return {};
    return fail(error_ ? std::move(*error_) : Error{ErrorCode::Corrupted, "is not JSON"});
  }

  bool null() override { return misplaced(); }
  bool boolean(bool) override { return misplaced(); }
  bool number_integer(number_integer_t) override { return misplaced(); }
  bool number_unsigned(number_unsigned_t) override { return misplaced(); }
  bool number_float(number_float_t, const string_t&) override { return misplaced(); }
  bool string(string_t&) override { return misplaced(); }
  bool binary(binary_t&) override { return misplaced(); }
  bool start_object(size_t) override { return misplaced(); }
  bool key(string_t&) override { return misplaced(); }
  bool end_object() override { return misplaced(); }
  bool start_array(size_t) override { return misplaced(); }
  bool end_array() override { return misplaced(); }
  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return refuse({ErrorCode::Corrupted, "is not JSON, at its byte " + std::to_string(at)});
  }

 protected:
  virtual bool misplaced() = 0;
  bool refuse(Error error) {
    if (!error_) error_ = std::move(error);
    return false;
  }
  bool take(Status status) { return status ? true : refuse(std::move(status).error()); }

 private:
  std::optional<Error> error_;
};

class VocabularyReader final : public SaxReader {
 public:
  VocabularyReader(Vocabulary& vocabulary, bool is_byte_level)
      : vocabulary_(vocabulary), is_byte_level_(is_byte_level) {}

  bool start_object(size_t) override { return !std::exchange(is_open_, true) || misplaced(); }
  bool end_object() override { return true; }
  bool key(string_t& key) override {
    key_ = std::move(key);
    return true;
  }
  bool number_unsigned(number_unsigned_t id) override {
    if (!is_open_) return misplaced();
    if (id >= UINT32_MAX)
      return refuse({ErrorCode::OutOfRange, "the id of '" + printable(key_.substr(0, 64)) + "' is too high"});
    const auto token = static_cast<TokenId>(id);
    if (!is_byte_level_) return take(vocabulary_.add(key_, token));
    const auto bytes = bytes_of_token(key_);
    return take(bytes ? vocabulary_.add(*bytes, token) : vocabulary_.add_unreachable(key_, token));
  }

 private:
  bool misplaced() override {
    return refuse(
        {ErrorCode::Corrupted, "'" + printable(key_.substr(0, 64)) +
                                   "' has no id: an object of tokens and whole numbers is expected"});
  }
  Vocabulary& vocabulary_;
  const bool is_byte_level_;
  bool is_open_ = false;
  std::string key_;
};

class MergesReader final : public SaxReader {
 public:
  MergesReader(MergeTable& merges, const Vocabulary& vocabulary, const BpeOptions& options)
      : merges_(merges), vocabulary_(vocabulary), options_(options) {}

  bool start_array(size_t) override { return ++depth_ <= 2 || misplaced(); }
  bool end_array() override {
    if (depth_-- < 2) return true;
    return std::exchange(parts_, 0) == 2 ? merge(left_, right_) : misplaced();
  }
  bool string(string_t& text) override {
    if (depth_ == 2) {
      if (parts_ == 2) return misplaced();
      (parts_++ == 0 ? left_ : right_) = std::move(text);
      return true;
    }
    const size_t blank = text.find(' ');
    if (depth_ != 1 || blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos)
      return misplaced();
    return merge(std::string_view(text).substr(0, blank), std::string_view(text).substr(blank + 1));
  }

 private:
  bool misplaced() override {
    return refuse(
        {ErrorCode::Corrupted, "number " + std::to_string(count_) + " is not \"a b\" or [\"a\", \"b\"]"});
  }
  bool merge(std::string_view left, std::string_view right) {
    ++count_;
    if (!options_.is_byte_level) return merge_bytes(left, right, left, right);
    const auto left_bytes = bytes_of_token(left), right_bytes = bytes_of_token(right);
    if (!left_bytes || !right_bytes) return merges_.skip(), true;  // no text has these characters
    return merge_bytes(*left_bytes, *right_bytes, left, right);
  }
  bool merge_bytes(std::string_view left, std::string_view right, std::string_view left_name,
                   std::string_view right_name) {
    const auto left_token = vocabulary_.find(left), right_token = vocabulary_.find(right);
    joined_.assign(left).append(right);
    const auto token = vocabulary_.find(joined_);
    if (!left_token || !right_token || !token)
      return refuse({ErrorCode::Corrupted, "number " + std::to_string(count_ - 1) + " is of '" +
                                               printable(left_name.substr(0, 64)) + "' and '" +
                                               printable(right_name.substr(0, 64)) +
                                               "': the vocabulary lacks one of them, or what they become"});
    if (options_.is_never(*token)) return merges_.skip(), true;
    return take(merges_.add(*left_token, *right_token, *token));
  }

  MergeTable& merges_;
  const Vocabulary& vocabulary_;
  const BpeOptions& options_;
  std::string left_, right_, joined_;
  size_t parts_ = 0, count_ = 0;
  int depth_ = 0;
};

}  // namespace

Result<Vocabulary> read_vocabulary(std::string_view json, bool is_byte_level, size_t id_limit) {
  Vocabulary vocabulary(id_limit);
  WEFT_TRY_STATUS(VocabularyReader(vocabulary, is_byte_level).run(json));
  return vocabulary;
}

Result<MergeTable> read_merges(std::string_view json, size_t count, const Vocabulary& vocabulary,
                               const BpeOptions& options) {
  MergeTable merges(count);
  WEFT_TRY_STATUS(MergesReader(merges, vocabulary, options).run(json));
  return merges;
}

}  // namespace weft::text
