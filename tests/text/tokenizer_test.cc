#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "tests/text/samples.h"

namespace weft::text {
namespace {

using namespace testing;
using Ids = std::vector<TokenId>;

constexpr EncodeOptions kPlain{.special = SpecialTokens::AsText, .adds_frame = false};
constexpr EncodeOptions kSpecial{.special = SpecialTokens::Recognized, .adds_frame = true};

Ids ids_of(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options = {}) {
  const auto ids = tokenizer.encode(text, options);
  EXPECT_TRUE(ids.has_value()) << ids.error().message;
  return ids.value_or(Ids{});
}

TEST(Tokenizer, OfBytesHasATokenForEach) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(ids_of(tokenizer, std::string_view("a\0\xFF", 3)), (Ids{97, 0, 255}));
  EXPECT_EQ(tokenizer.vocabulary_size(), 256u);
  EXPECT_EQ(tokenizer.decode(Ids{0xC3, 0xA9, 0xC3}), "\u00E9\uFFFD");
  EXPECT_EQ(tokenizer.decode(Ids{1000}), "");
  EXPECT_TRUE(tokenizer.end_tokens().empty());
}

TEST(Tokenizer, ByteLevelMergesInTheOrderOfRanks) {
  const Tokenizer tokenizer = parsed(byte_level_file());
  EXPECT_EQ(tokenizer.kind(), "byte-level BPE");
  EXPECT_EQ(ids_of(tokenizer, "hello world"), (Ids{261, 262, 264}));
  EXPECT_EQ(ids_of(tokenizer, "hellow"), (Ids{261, 'w'}));
  EXPECT_EQ(ids_of(tokenizer, "\u00E9"), (Ids{265}));
  EXPECT_EQ(ids_of(tokenizer, "   x"), (Ids{263, ' ', 'x'}));  // "  ", then " x"
  EXPECT_EQ(ids_of(tokenizer, ""), Ids{});
  EXPECT_EQ(tokenizer.vocabulary_size(), 304u);
}

TEST(Tokenizer, SpecialTokensAreFoundWhereTheyMayBe) {
  const Tokenizer tokenizer = parsed(byte_level_file());
  EXPECT_EQ(ids_of(tokenizer, "hello<|im_end|>", kSpecial), (Ids{261, 302}));
  const Ids as_text = ids_of(tokenizer, "hello<|im_end|>");
  EXPECT_EQ(std::count(as_text.begin(), as_text.end(), TokenId{302}), 0);
  EXPECT_EQ(tokenizer.decode(as_text), "hello<|im_end|>");
  EXPECT_EQ(ids_of(tokenizer, "<think>"), Ids{303});  // added, and not special
  EXPECT_EQ(tokenizer.decode(Ids{261, 302}), "hello");
  EXPECT_EQ(tokenizer.decode(Ids{261, 302}, /*skips_special=*/false), "hello<|im_end|>");
  EXPECT_EQ(tokenizer.added_token("<|im_end|>"), TokenId{302});
  EXPECT_TRUE(tokenizer.is_special(302));
  EXPECT_FALSE(tokenizer.is_special(303));
  EXPECT_EQ(std::vector(tokenizer.end_tokens().begin(), tokenizer.end_tokens().end()), (Ids{300, 302}));
}

TEST(Tokenizer, SentencePieceMarksBlanksAndFallsBackToBytes) {
  const Tokenizer tokenizer = parsed(sentencepiece_file());
  const TokenId hello = 272, world = 277, mark = 259;
  EXPECT_EQ(ids_of(tokenizer, "hello world"), (Ids{1, hello, world}));
  EXPECT_EQ(tokenizer.decode(Ids{1, hello, world}), "hello world");
  EXPECT_EQ(ids_of(tokenizer, "\u00E8", kPlain), (Ids{mark, 3 + 0xC3, 3 + 0xA8}));
  EXPECT_EQ(tokenizer.decode(Ids{mark, 3 + 0xC3, 3 + 0xA8}), "\u00E8");
  EXPECT_EQ(ids_of(tokenizer, ""), Ids{1});
}

TEST(Tokenizer, UnknownCharactersWithoutByteFallback) {
  Json file = sentencepiece_file();
  file["model"]["byte_fallback"] = false;
  EXPECT_EQ(ids_of(parsed(file), "h??e", kPlain), (Ids{259, 260, 0, 261}));
  file["model"]["fuse_unk"] = false;
  EXPECT_EQ(ids_of(parsed(file), "h??e", kPlain), (Ids{259, 260, 0, 0, 261}));
  file["model"]["unk_token"] = nullptr;
  EXPECT_EQ(ids_of(parsed(file), "h??e", kPlain), (Ids{259, 268}));  // "he": nothing is left between them
}

TEST(Tokenizer, IgnoresMergesOfWholeTokensWhereTheFileSaysSo) {
  Json file = byte_level_file();
  file["model"]["vocab"]["xyz"] = 290;  // no merge leads there
  EXPECT_EQ(ids_of(parsed(file), "xyz"), (Ids{'x', 'y', 'z'}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(ids_of(parsed(file), "xyz"), Ids{290});
}

// Neither a merge nor a whole piece leads plain text to a control token of the vocabulary's own.
TEST(Tokenizer, PlainTextNeverBecomesASpecialToken) {
  Json file = byte_level_file();
  file["added_tokens"].push_back(added_token(261, "hello"));  // special, and what a merge makes
  for (const bool ignores : {false, true}) {
    file["model"]["ignore_merges"] = ignores;
    const Tokenizer tokenizer = parsed(file);
    EXPECT_EQ(ids_of(tokenizer, "hello"), (Ids{259, 'o'}));
    EXPECT_EQ(ids_of(tokenizer, "hello", kSpecial), Ids{261});
  }
}

// A cut before SentencePiece's marks changes nothing: here it is taken away by a token that reaches over one.
TEST(Tokenizer, CutsBeforeMarksChangeNoToken) {
  const Json file = sentencepiece_file();
  Json uncut = file;
  uncut["model"]["vocab"]["<0x41>\u2581"] = 290;
  const Tokenizer quick = parsed(file), slow = parsed(uncut);
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed, 1);
    const std::string text = random_text(rng, 80);
    ASSERT_EQ(ids_of(quick, text), ids_of(slow, text)) << "seed " << seed;
  }
}

TEST(Tokenizer, DecodedIsWhatWasEncoded) {
  Json fallback = sentencepiece_file();
  fallback["normalizer"] = fallback["normalizer"]["normalizers"][1];  // no mark before the text
  fallback["decoder"]["decoders"].erase(3);
  for (const Tokenizer& tokenizer : {Tokenizer::bytes(), parsed(byte_level_file()), parsed(fallback)})
    for (uint64_t seed = 1; seed <= 300; ++seed) {
      Rng rng(seed, 2);
      const std::string text = random_text(rng, 60), bytes = random_bytes(rng, 60);
      ASSERT_EQ(tokenizer.decode(ids_of(tokenizer, text, kPlain)), text)
          << tokenizer.kind() << ", seed " << seed;
      ASSERT_EQ(tokenizer.decode_bytes(ids_of(tokenizer, bytes, kPlain)), bytes)
          << tokenizer.kind() << ", seed " << seed;
    }
}

TEST(Tokenizer, RefusesTextBeyondItsBound) {
  const auto ids = Tokenizer::bytes().encode(std::string(kTextMax + 1, 'x'));
  ASSERT_FALSE(ids.has_value());
  EXPECT_EQ(ids.error().code, ErrorCode::OutOfRange);
}

TEST(Tokenizer, PartsKeepSpecialTokensOutOfContents) {
  const Tokenizer tokenizer = parsed(byte_level_file());
  const TextPart parts[] = {{"<|im_start|>", SpecialTokens::Recognized},
                            {"<|im_end|>", SpecialTokens::AsText}};
  const auto ids = tokenizer.encode(parts, false);
  ASSERT_TRUE(ids.has_value());
  EXPECT_EQ(ids->front(), 301u);
  EXPECT_EQ(std::count(ids->begin(), ids->end(), TokenId{302}), 0);
}

}  // namespace
}  // namespace weft::text
