// A tokenizer.json becomes a tokenizer.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "text/byte_alphabet.h"
#include "text/json.h"
#include "text/json_outline.h"
#include "text/model_file.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace weft::text {
namespace {

using Json = nlohmann::json;

constexpr size_t kUnusedIdsMax = 1 << 16;  // below the highest
constexpr size_t kFrameMax = 16;           // tokens before each text, and behind
constexpr size_t kAddedMax = 100'000;

// By which names models end a text, or a turn of a conversation.
constexpr std::string_view kEndNames[] = {
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|eos|>",
    "[EOS]",
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",  // DeepSeek's
};

class FileReader {
 public:
  explicit FileReader(std::string_view bytes) : bytes_(bytes) {}

  Result<Tokenizer> run() {
    WEFT_TRY(members_, outline_of(bytes_));
    WEFT_TRY(const auto model, outline("model"));
    WEFT_TRY_STATUS(check_memory(model));
    WEFT_TRY_STATUS(read_rules());
    WEFT_TRY_STATUS(read_model(model));
    WEFT_TRY_STATUS(read_added());
    WEFT_TRY_STATUS(read_frame());
    finish();
    return Tokenizer(std::make_shared<TokenizerParts>(std::move(parts_)));
  }

 private:
  static tl::unexpected<Error> within(const Error& error, std::string_view where) {
    return fail(error.within(where));
  }

  Result<std::vector<JsonMember>> outline(std::string_view key) const {
    const JsonMember* const found = find_member(members_, key);
    if (found == nullptr)
      return fail(ErrorCode::Corrupted, "has no '" + std::string(key) + "': is it a tokenizer.json?");
    auto members = outline_of(found->value);
    if (!members) return within(members.error(), key);
    return members;
  }

  // What becomes a tree in memory takes more than its bytes: all but the vocabulary and the merges.
  Status check_memory(const std::vector<JsonMember>& model) const {
    constexpr size_t kValueSize = 64;
    size_t size = 0;
    for (const auto* const members : {&members_, &model})
      for (const JsonMember& member : *members)
        if (member.key != "model" && member.key != "vocab" && member.key != "merges")
          size += member.value.size() + kValueSize * member.value_count;
    if (size <= 4 * bytes_.size() + (size_t{1} << 20)) return {};
    return fail(ErrorCode::OutOfRange, "has too many settings beside its vocabulary");
  }

  Result<Json> part(const std::vector<JsonMember>& members, std::string_view key) const {
    const JsonMember* const found = find_member(members, key);
    if (found == nullptr) return Json();
    return parse_json(found->value, key);
  }
  // A part of the file, read by its own parse().
  template <typename Part>
  Status read_part(std::string_view key, Part& to) const {
    WEFT_TRY(const Json json, part(members_, key));
    auto parsed = Part::parse(json);
    if (!parsed) return within(parsed.error(), key);
    to = std::move(*parsed);
    return {};
  }

  Status read_rules() {
    WEFT_TRY_STATUS(read_part("normalizer", parts_.normalizer));
    WEFT_TRY_STATUS(read_part("pre_tokenizer", parts_.pre_tokenizer));
    WEFT_TRY_STATUS(read_part("decoder", parts_.decode_rules));
    if (parts_.pre_tokenizer.is_byte_level() != parts_.decode_rules.is_byte_level)
      return fail(ErrorCode::Unsupported, "only one of pre_tokenizer and decoder is ByteLevel");
    WEFT_TRY(added_, part(members_, "added_tokens"));
    if (!added_.is_null() && (!added_.is_array() || added_.size() > kAddedMax))
      return fail(ErrorCode::Corrupted,
                  "'added_tokens' is no list of at most " + std::to_string(kAddedMax) + " tokens");
    return {};
  }

  Status read_model(const std::vector<JsonMember>& model) {
    auto read = try_read_model(model);
    if (!read) return within(read.error(), "model");
    return {};
  }
  Status try_read_model(const std::vector<JsonMember>& model) {
    WEFT_TRY(const Json settings, settings_of(model));
    const JsonMember *const vocab = find_member(model, "vocab"), *const merges = find_member(model, "merges");
    WEFT_TRY(const std::string type, string_member(settings, "type", merges == nullptr ? "" : "BPE"));
    if (type != "BPE")
      return fail(ErrorCode::Unsupported,
                  "a tokenizer of type " + printable(type.substr(0, 64)) + " is not supported; BPE is");
    if (vocab == nullptr || merges == nullptr)
      return fail(ErrorCode::Corrupted, "'vocab' or 'merges' is missing");
    BpeOptions options;
    options.is_byte_level = parts_.pre_tokenizer.is_byte_level();
    WEFT_TRY_STATUS(read_options(settings, options));
    auto vocabulary = read_vocabulary(vocab->value, options.is_byte_level,
                                      vocab->value_count + added_.size() + kUnusedIdsMax);
    if (!vocabulary) return within(vocabulary.error(), "vocab");
    WEFT_TRY_STATUS(read_unknown(settings, *vocabulary, options));
    options.never = special_in(*vocabulary, options.is_byte_level);
    auto table =
        read_merges(merges->value, std::min(merges->value_count, kJsonEntriesMax), *vocabulary, options);
    if (!table) return within(table.error(), "merges");
    parts_.bpe.emplace(std::move(*vocabulary), std::move(*table), std::move(options));
    return {};
  }
  // By id: special tokens that are in the vocabulary, too.
  std::vector<bool> special_in(const Vocabulary& vocabulary, bool is_byte_level) const {
    std::vector<bool> special(vocabulary.size());
    for (const Json& token : added_) {
      const Json &content = member(token, "content"), &is_special = member(token, "special");
      if (!content.is_string() || is_special != true) continue;
      const auto text = content.get<std::string>();
      const auto bytes = is_byte_level ? bytes_of_token(text) : text;
      if (const auto id = bytes ? vocabulary.find(*bytes) : std::nullopt) special[*id] = true;
    }
    return special;
  }
  // The members of the model that are small, as one object.
  Result<Json> settings_of(const std::vector<JsonMember>& model) const {
    Json settings = Json::object();
    for (const JsonMember& each : model) {
      if (each.key == "vocab" || each.key == "merges") continue;
      WEFT_TRY(settings[std::string(each.key)], parse_json(each.value, each.key));
    }
    return settings;
  }
  Status read_options(const Json& settings, BpeOptions& options) const {
    const Json& dropout = member(settings, "dropout");
    if (!dropout.is_null() && dropout != 0)
      return fail(ErrorCode::Unsupported, "'dropout' draws tokens at random; set it to null");
    for (const char* const affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      WEFT_TRY(const std::string text, string_member(settings, affix, ""));
      if (!text.empty()) return fail(ErrorCode::Unsupported, std::string("'") + affix + "' is not supported");
    }
    WEFT_TRY(options.fuse_unknown, bool_member(settings, "fuse_unk", false));
    WEFT_TRY(options.byte_fallback, bool_member(settings, "byte_fallback", false));
    WEFT_TRY(options.ignore_merges, bool_member(settings, "ignore_merges", false));
    if (options.byte_fallback && options.is_byte_level)
      return fail(ErrorCode::Unsupported, "'byte_fallback' together with ByteLevel");
    return {};
  }
  static Status read_unknown(const Json& settings, const Vocabulary& vocabulary, BpeOptions& options) {
    if (member(settings, "unk_token").is_null()) return {};
    WEFT_TRY(const std::string name, string_member(settings, "unk_token"));
    options.unknown = vocabulary.find(name);
    if (!options.unknown)
      return fail(ErrorCode::Corrupted, "the vocabulary lacks the unk_token '" + printable(name) + "'");
    return {};
  }

  Status read_added() {
    std::vector<AddedToken> raw, normalized;
    for (const Json& json : added_) {
      auto token = added_token(json);
      if (!token) return within(token.error(), "added_tokens");
      AddedToken found = *token;
      if (found.is_normalized) {
        WEFT_TRY(found.content, parts_.normalizer.apply(found.content));
        if (found.content.empty() || found.content.size() > kAddedTokenSizeMax) continue;
      }
      (found.is_normalized ? normalized : raw).push_back(std::move(found));
      parts_.all_added.push_back(std::move(*token));
    }
    parts_.added = AddedTokens(std::move(raw));
    parts_.added_normalized = AddedTokens(std::move(normalized));
    return by_id();
  }
  Result<AddedToken> added_token(const Json& json) const {
    AddedToken token;
    WEFT_TRY(token.content, string_member(json, "content"));
    if (token.content.empty() || token.content.size() > kAddedTokenSizeMax)
      return fail(ErrorCode::OutOfRange, "a token of " + std::to_string(token.content.size()) +
                                             " bytes; it has to have 1 to " +
                                             std::to_string(kAddedTokenSizeMax));
    WEFT_TRY(token.is_special, bool_member(json, "special", false));
    WEFT_TRY(token.is_single_word, bool_member(json, "single_word", false));
    WEFT_TRY(token.takes_left, bool_member(json, "lstrip", false));
    WEFT_TRY(token.takes_right, bool_member(json, "rstrip", false));
    WEFT_TRY(token.is_normalized, bool_member(json, "normalized", !token.is_special));
    WEFT_TRY(const uint64_t id, count_member(json, "id"));
    WEFT_TRY_STATUS(place(token, id));
    return token;
  }
  // A token of the vocabulary keeps its id; another one has an id of its own.
  Status place(AddedToken& token, uint64_t id) const {
    const Vocabulary& vocabulary = parts_.bpe->vocabulary();
    const bool is_byte_level = parts_.bpe->options().is_byte_level;
    const auto bytes = is_byte_level ? bytes_of_token(token.content) : token.content;
    token.decoded = bytes.value_or(token.content);
    if (const auto known = bytes ? vocabulary.find(*bytes) : std::nullopt) {
      token.id = *known;
    } else if (id >= vocabulary.size() + added_.size() + kUnusedIdsMax) {
      return fail(ErrorCode::OutOfRange, "the id " + std::to_string(id) + " of '" + printable(token.content) +
                                             "' is too high for the number of tokens");
    } else {
      token.id = static_cast<TokenId>(id);
      if (vocabulary.contains(token.id) && vocabulary.text(token.id) != token.content)
        return fail(ErrorCode::Corrupted, "the id " + std::to_string(id) + " of '" +
                                              printable(token.content) +
                                              "' belongs to another token of the vocabulary");
    }
    return {};
  }
  Status by_id() {
    auto& all = parts_.all_added;
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    for (size_t i = 1; i < all.size(); ++i)
      if (all[i].id == all[i - 1].id && all[i].content != all[i - 1].content)
        return fail(ErrorCode::Corrupted,
                    "added_tokens: the id " + std::to_string(all[i].id) + " belongs to two tokens");
    return {};
  }

  Status read_frame() {
    WEFT_TRY(const Json post_processor, part(members_, "post_processor"));
    if (post_processor.is_null()) return {};
    auto read = add_frame(post_processor);
    if (!read) return within(read.error(), "post_processor");
    return {};
  }
  Status add_frame(const Json& processor) {
    WEFT_TRY(const std::string type, type_of(processor));
    if (type == "ByteLevel") return {};  // about places in the text alone
    if (type == "Sequence") {
      WEFT_TRY(const Json* const parts, array_member(processor, "processors"));
      for (const Json& part : *parts) WEFT_TRY_STATUS(add_frame(part));
      return {};
    }
    if (type == "TemplateProcessing") return add_template(processor);
    return fail(ErrorCode::Unsupported,
                "the post-processor " + printable(type) +
                    " is not supported; Sequence, ByteLevel and TemplateProcessing are");
  }
  Status add_template(const Json& processor) {
    WEFT_TRY(const Json* const single, array_member(processor, "single"));
    std::vector<TokenId> before, behind;
    bool has_text = false;
    for (const Json& item : *single) {
      if (item.is_object() && item.contains("Sequence")) {
        if (std::exchange(has_text, true)) return fail(ErrorCode::Unsupported, "the text comes twice");
        continue;
      }
      WEFT_TRY(const std::string name, string_member(member(item, "SpecialToken"), "id"));
      WEFT_TRY_STATUS(
          append_ids(member(member(processor, "special_tokens"), name), name, has_text ? behind : before));
    }
    if (!has_text) return fail(ErrorCode::Unsupported, "the text does not come");
    before.insert(before.end(), parts_.before.begin(), parts_.before.end());
    parts_.before = std::move(before);
    parts_.behind.insert(parts_.behind.end(), behind.begin(), behind.end());
    if (parts_.before.size() <= kFrameMax && parts_.behind.size() <= kFrameMax) return {};
    return fail(ErrorCode::OutOfRange, "more than " + std::to_string(kFrameMax) + " tokens around a text");
  }
  Status append_ids(const Json& special, const std::string& name, std::vector<TokenId>& to) const {
    WEFT_TRY(const Json* const ids, array_member(special, "ids"));
    for (const Json& id : *ids) {
      const bool is_token = id.is_number_unsigned() && id.get<uint64_t>() < UINT32_MAX &&
                            parts_.text_of(id.get<TokenId>()).kind != TokenText::Kind::None;
      if (!is_token) return fail(ErrorCode::Corrupted, "'" + printable(name) + "' is not a token");
      to.push_back(id.get<TokenId>());
      if (to.size() > kFrameMax) break;
    }
    return {};
  }

  void finish() {
    parts_.vocabulary_size = parts_.bpe->vocabulary().size();
    for (const AddedToken& token : parts_.all_added) {
      parts_.vocabulary_size = std::max<size_t>(parts_.vocabulary_size, token.id + size_t{1});
      const bool is_end =
          std::find(std::begin(kEndNames), std::end(kEndNames), token.content) != std::end(kEndNames);
      if (is_end && token.is_special) parts_.end_tokens.push_back(token.id);
    }
    // Pieces that do not influence each other are encoded each by itself: the same tokens, much sooner.
    if (auto joined = parts_.bpe->joined_before(kBlankMark))
      parts_.pre_tokenizer.split_before_runs(kBlankMark, std::move(*joined));
  }

  std::string_view bytes_;
  std::vector<JsonMember> members_;
  Json added_;
  TokenizerParts parts_;
};

}  // namespace

Result<Tokenizer> parse_tokenizer_json(std::string_view bytes) {
  if (bytes.size() > kTokenizerFileMax)
    return fail(ErrorCode::OutOfRange, "the tokenizer file has " + std::to_string(bytes.size()) +
                                           " bytes; at most " + std::to_string(kTokenizerFileMax) +
                                           " are read");
  auto made = FileReader(bytes).run();
  if (!made) return fail(made.error().within("tokenizer.json"));
  return made;
}

}  // namespace weft::text
