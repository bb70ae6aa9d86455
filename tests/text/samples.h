// Small tokenizer files, and random texts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace weft::text::testing {

using Json = nlohmann::json;

inline Json added_token(TokenId id, std::string content, bool is_special = true) {
  return {{"id", id},
          {"content", std::move(content)},
          {"special", is_special},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false}};
}

// As GPT-2's: all bytes, and merges of some common words. Ids 0 to 255 are the bytes.
inline Json byte_level_file() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[written_byte(static_cast<uint8_t>(byte))] = byte;
  Json merges = Json::array();
  TokenId next = 256;
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{{"h", "e"},
                                                                                    {"l", "l"},
                                                                                    {"\u0120", "w"},
                                                                                    {"he", "ll"},
                                                                                    {"o", "r"},
                                                                                    {"hell", "o"},
                                                                                    {"\u0120w", "or"},
                                                                                    {"\u0120", "\u0120"},
                                                                                    {"l", "d"},
                                                                                    {"\u00C3", "\u00A9"}}) {
    vocab[left + right] = next++;
    merges.push_back(left + " " + right);
  }
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"added_tokens",
           {added_token(300, "<|endoftext|>"), added_token(301, "<|im_start|>"),
            added_token(302, "<|im_end|>"), added_token(303, "<think>", false)}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// As Llama 2's: <unk>, <s>, </s>, the bytes, then characters and what they merge to.
inline Json sentencepiece_file() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    vocab[name] = 3 + byte;
  }
  TokenId next = 259;
  for (const char* const token : {"\u2581", "h", "e", "l", "o", "w", "r", "d", "\u00E9"})
    vocab[token] = next++;
  Json merges = Json::array();
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{{"h", "e"},
                                                                                    {"l", "l"},
                                                                                    {"he", "ll"},
                                                                                    {"hell", "o"},
                                                                                    {"\u2581", "hello"},
                                                                                    {"\u2581", "w"},
                                                                                    {"o", "r"},
                                                                                    {"\u2581w", "or"},
                                                                                    {"l", "d"},
                                                                                    {"\u2581wor", "ld"},
                                                                                    {"\u2581", "\u2581"}}) {
    vocab[left + right] = next++;
    merges.push_back({left, right});
  }
  const Json to_mark = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  const Json to_blank = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
  return {{"added_tokens", {added_token(0, "<unk>"), added_token(1, "<s>"), added_token(2, "</s>")}},
          {"normalizer",
           {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}, to_mark}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
            {"special_tokens", {{"<s>", {{"ids", {1}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {to_blank,
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", merges}}}};
}

inline Result<Tokenizer> parse(const Json& file) { return parse_tokenizer_json(file.dump()); }
inline Tokenizer parsed(const Json& file) { return parse(file).value(); }

inline std::string random_bytes(Rng& rng, size_t size_max) {
  std::string bytes(rng.below(size_max + 1), '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng.next_u32());
  return bytes;
}

// Words, blanks, and characters of all lengths.
inline std::string random_text(Rng& rng, size_t count_max) {
  static constexpr char32_t kEnds[] = {0x80, 0x800, 0x10000, 0x110000};
  std::string text;
  for (uint64_t left = rng.below(count_max + 1); left > 0; --left) {
    switch (rng.below(4)) {
      case 0:
        text += " hello";
        break;
      case 1:
        text += " world";
        break;
      case 2:
        text += " \n\t"[rng.below(3)];
        break;
      default: {
        const auto code = static_cast<char32_t>(rng.below(kEnds[rng.below(4)]));
        append_character(text, code >= 0xD800 && code < 0xE000 ? U'?' : code);
      }
    }
  }
  return text;
}

}  // namespace weft::text::testing
