// Patterns, normalizers, pre-tokenizers and added tokens, each by itself.
#include <gtest/gtest.h>

#include "tests/text/samples.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pattern_syntax.h"
#include "text/pre_tokenizer.h"

namespace weft::text {
namespace {

using namespace testing;
using Texts = std::vector<std::string>;

Texts matches_of(std::string_view expression, std::string_view text) {
  const auto pattern = Pattern::compile(expression);
  EXPECT_TRUE(pattern.has_value()) << pattern.error().message;
  if (!pattern) return {};
  std::vector<Match> matches;
  EXPECT_TRUE(pattern->find_all(text, matches).has_value());
  Texts texts;
  for (const Match& match : matches) texts.emplace_back(text.substr(match.begin, match.end - match.begin));
  return texts;
}

TEST(Pattern, ClassesAreThoseOfOniguruma) {
  EXPECT_EQ(matches_of(R"(\s)", "a\u00A0b\u3000c\u180Ed\x0B"), (Texts{"\u00A0", "\u3000", "\x0B"}));
  EXPECT_EQ(matches_of(R"([^\s\p{L}]+)", "a\u180E1"), Texts{"\u180E1"});
  EXPECT_EQ(matches_of(R"(\p{L}+)", "\u0915\u0916 \U00031350 \U0001D400"),
            (Texts{"\u0915\u0916", "\U00031350", "\U0001D400"}));  // the second is of Unicode 15
  EXPECT_EQ(matches_of(R"(\p{Han}+)", "\u4E2D\u3001\u6587"), (Texts{"\u4E2D", "\u6587"}));
  EXPECT_EQ(matches_of(R"(\h+)", "xyz 09AFaf"), Texts{"09AFaf"});
  EXPECT_EQ(matches_of(R"((?i:'s|'t))", "'S '\u017F 'x"), (Texts{"'S", "'\u017F"}));
  EXPECT_EQ(matches_of(R"(\bword\b)", "words word"), Texts{"word"});
  EXPECT_EQ(matches_of("a{,2}", "aaa"), (Texts{"aa", "a"}));
  EXPECT_EQ(matches_of("^b$", "a\nb\nc"), Texts{"b"});
}

TEST(Pattern, LooksNeverOverBytesThatAreNoText) {
  EXPECT_EQ(matches_of("a+",
                       "aa\xFF"
                       "a\xE2\x96"),
            (Texts{"aa", "a"}));
  EXPECT_EQ(matches_of(R"(a(?!b))",
                       "a\xFF"
                       "b"),
            Texts{"a"});
}

TEST(Pattern, EmptyMatchesGoOn) {
  EXPECT_EQ(matches_of("x*", "ax"), (Texts{"", "x"}));
  EXPECT_EQ(matches_of("(?=b)", "abab"), (Texts{"", ""}));
}

TEST(Pattern, RefusesByNameWhatItDoesNotRead) {
  for (const char* const expression :
       {R"((a)\1)", "(?R)", "(?(1)a)", "(*FAIL)", "(?C1)a", "[a&&b]", "[a[b]]", "[]a]", R"(\R)", R"(\X)",
        R"(\K)", "a{1,2}+", "a{2}?", R"(\p{^L})", "(?<n>a)", "[\\D]"}) {
    const auto translated = to_pcre2(expression);
    ASSERT_FALSE(translated.has_value()) << expression << " became " << *translated;
    EXPECT_EQ(translated.error().code, ErrorCode::Unsupported);
    EXPECT_NE(translated.error().message.find("' in a pattern is not supported"), std::string::npos);
  }
  EXPECT_EQ(to_pcre2(std::string(kExpressionMax + 1, 'a')).error().code, ErrorCode::OutOfRange);
  for (const char* const expression : {"(a", "a)", "*a", R"(\p{Nonsense})", "[b-a]", "(?<=a*)b"})
    EXPECT_EQ(Pattern::compile(expression).error().code, ErrorCode::Corrupted) << expression;
}

Texts pieces_of(const Json& json, std::string_view text, bool is_first = true) {
  const auto pre_tokenizer = PreTokenizer::parse(json);
  EXPECT_TRUE(pre_tokenizer.has_value()) << pre_tokenizer.error().message;
  if (!pre_tokenizer) return {};
  Pieces pieces;
  EXPECT_TRUE(pre_tokenizer->apply(text, is_first, pieces).has_value());
  Texts texts;
  for (const Match& place : pieces.places)
    texts.emplace_back(pieces.text.substr(place.begin, place.end - place.begin));
  return texts;
}

TEST(PreTokenizer, SplitsInEachWay) {
  const auto split = [](const char* behaviour, bool invert = false) {
    return Json{
        {"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behaviour}, {"invert", invert}};
  };
  const std::string text = "the-final--countdown";  // the example of the library's documentation
  EXPECT_EQ(pieces_of(split("Removed"), text), (Texts{"the", "final", "countdown"}));
  EXPECT_EQ(pieces_of(split("Isolated"), text), (Texts{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(pieces_of(split("MergedWithPrevious"), text), (Texts{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(pieces_of(split("MergedWithNext"), text), (Texts{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(pieces_of(split("Contiguous"), text), (Texts{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(pieces_of(split("Removed", true), text), (Texts{"-", "-", "-"}));
}

TEST(PreTokenizer, OfByteLevel) {
  const Json level = {{"type", "ByteLevel"}};
  EXPECT_EQ(pieces_of(level, "it's  12 x"), (Texts{" it", "'s", " ", " 12", " x"}));
  EXPECT_EQ(pieces_of({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}, "a b"),
            (Texts{"a b"}));
}

TEST(PreTokenizer, OfMetaspace) {
  const auto metaspace = [](const char* scheme) {
    return Json{{"type", "Metaspace"}, {"prepend_scheme", scheme}};
  };
  EXPECT_EQ(pieces_of(metaspace("always"), "a b"), (Texts{"\u2581a", "\u2581b"}));
  EXPECT_EQ(pieces_of(metaspace("first"), "a  b", false), (Texts{"a", "\u2581", "\u2581b"}));
  EXPECT_EQ(pieces_of(metaspace("first"), "a", true), (Texts{"\u2581a"}));
  EXPECT_EQ(pieces_of(metaspace("never"), " a"), (Texts{"\u2581a"}));
}

TEST(PreTokenizer, OfDigitsAndPunctuation) {
  EXPECT_EQ(pieces_of({{"type", "Digits"}, {"individual_digits", true}}, "a12"), (Texts{"a", "1", "2"}));
  EXPECT_EQ(pieces_of({{"type", "Digits"}}, "a12b"), (Texts{"a", "12", "b"}));
  EXPECT_EQ(pieces_of({{"type", "Punctuation"}}, "a.$b"), (Texts{"a", ".", "$", "b"}));
  EXPECT_EQ(pieces_of({{"type", "WhitespaceSplit"}}, " a\tb "), (Texts{"a", "b"}));
}

std::string normalized(const Json& json, std::string_view text) {
  const auto normalizer = Normalizer::parse(json);
  EXPECT_TRUE(normalizer.has_value()) << normalizer.error().message;
  if (!normalizer) return {};
  return normalizer->apply(text).value();
}

TEST(Normalizer, FormsAndLowerCase) {
  EXPECT_EQ(normalized({{"type", "NFC"}}, "e\u0301a\u0323\u0302 x"), "\u00E9\u1EAD x");
  EXPECT_EQ(normalized({{"type", "NFD"}}, "\u1EAD\uAC00"), "a\u0323\u0302\u1100\u1161");
  EXPECT_EQ(normalized({{"type", "NFC"}}, "a\u0302\u0323"), "\u1EAD");
  EXPECT_EQ(normalized({{"type", "NFKC"}}, "\uFB01\u2460"), "fi1");
  EXPECT_EQ(normalized({{"type", "NFC"}}, "e\xFF\u0301"), "e\xFF\u0301");
  EXPECT_EQ(normalized({{"type", "Lowercase"}}, "\u00C9\u0130\u03A3"), "\u00E9i\u0307\u03C3");
  EXPECT_EQ(normalized({{"type", "Strip"}}, "\u00A0 a \n"), "a");
  EXPECT_EQ(normalized({{"type", "Prepend"}, {"prepend", "_"}}, ""), "");
}

TEST(Normalizer, DoesNotGrowATextWithoutBound) {
  const auto grows = Normalizer::parse(
      {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100'000, 'b')}});
  ASSERT_TRUE(grows.has_value());
  EXPECT_EQ(grows->apply(std::string(100'000, 'a')).error().code, ErrorCode::ResourceExhausted);
}

Texts parts_of(const AddedTokens& tokens, std::string_view text, bool with_special = true) {
  Texts texts;
  for (const AddedPart& part : tokens.split(text, with_special))
    texts.push_back(std::string(part.text) + (part.token ? "=" + std::to_string(*part.token) : ""));
  return texts;
}

TEST(AddedTokens, TheLongestCountsAndSpecialOnesMayBeText) {
  const AddedTokens tokens({{.content = "<a>", .id = 1, .is_special = true},
                            {.content = "<a>b", .id = 2},
                            {.content = "<", .id = 3}});
  EXPECT_EQ(parts_of(tokens, "x<a>b<a>c<"), (Texts{"x", "<a>b=2", "<a>=1", "c", "<=3"}));
  EXPECT_EQ(parts_of(tokens, "x<a>c", false), (Texts{"x<a>c"}));
}

TEST(AddedTokens, TakeBlanksAndAskForWholeWords) {
  const AddedTokens tokens({{.content = "<l>", .id = 1, .takes_left = true},
                            {.content = "<r>", .id = 2, .takes_right = true},
                            {.content = "word", .id = 3, .is_single_word = true}});
  EXPECT_EQ(parts_of(tokens, "a \u00A0<l> b"), (Texts{"a", " \u00A0<l>=1", " b"}));
  EXPECT_EQ(parts_of(tokens, "a <r> \u3000b"), (Texts{"a ", "<r> \u3000=2", "b"}));
  EXPECT_EQ(parts_of(tokens, "<r>  <l>"), (Texts{"<r>  =2", "<l>=1"}));
  EXPECT_EQ(parts_of(tokens, "word words \u00E9word"), (Texts{"word=3", " words \u00E9word"}));
  EXPECT_EQ(parts_of(tokens, "word\U00013F8F"), (Texts{"word\U00013F8F"}));  // a letter since Unicode 16
}

}  // namespace
}  // namespace weft::text
