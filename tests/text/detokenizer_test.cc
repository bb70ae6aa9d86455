#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include "tests/text/samples.h"
#include "text/stop_strings.h"

namespace weft::text {
namespace {

using namespace testing;
using Ids = std::vector<TokenId>;

TEST(Utf8, FollowsUnicodesAdviceOnWhatIsNone) {
  EXPECT_EQ(replace_invalid("a\xE2\x96z"), "a\uFFFDz");              // one for a character that was cut off
  EXPECT_EQ(replace_invalid("\xC0\x80"), "\uFFFD\uFFFD");            // too long a form
  EXPECT_EQ(replace_invalid("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
  EXPECT_EQ(replace_invalid("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(replace_invalid("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(replace_invalid("\U0001F600"), "\U0001F600");
  EXPECT_EQ(unfinished_suffix("a\xF0\x9F\x98"), 3u);
  EXPECT_EQ(unfinished_suffix("a\xE2"), 1u);
  EXPECT_EQ(unfinished_suffix("\u00E9"), 0u);
  EXPECT_EQ(unfinished_suffix("\x80\x80"), 0u);
}

TEST(Detokenizer, GivesWholeCharactersAsSoonAsTheyAre) {
  Detokenizer detokenizer(Tokenizer::bytes());
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(0x9F), "");
  EXPECT_EQ(detokenizer.push(0x98), "");
  EXPECT_EQ(detokenizer.push(0x80), "\U0001F600");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.push('a'), "\uFFFDa");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, PartsTogetherAreTheWhole) {
  for (const Tokenizer& tokenizer :
       {Tokenizer::bytes(), parsed(byte_level_file()), parsed(sentencepiece_file())})
    for (uint64_t seed = 1; seed <= 200; ++seed) {
      Rng rng(seed, 1);
      Ids ids;
      for (uint64_t left = rng.below(60); left > 0; --left)
        ids.push_back(static_cast<TokenId>(rng.below(tokenizer.vocabulary_size() + 5)));
      Detokenizer detokenizer(tokenizer);
      std::string text;
      for (const TokenId id : ids) {
        const std::string part = detokenizer.push(id);
        ASSERT_EQ(valid_prefix(part), part.size()) << "seed " << seed;
        text += part;
      }
      text += detokenizer.finish();
      ASSERT_EQ(text, tokenizer.decode(ids)) << "seed " << seed;
    }
}

TEST(Detokenizer, SentencePiecesBlankIsTakenFromTheBeginAlone) {
  const Tokenizer tokenizer = parsed(sentencepiece_file());
  const TokenId hello = 272, world = 277;
  Detokenizer begins(tokenizer);
  EXPECT_EQ(begins.push(1), "");
  EXPECT_EQ(begins.push(hello), "hello");
  EXPECT_EQ(begins.push(world), " world");
  Detokenizer goes_on(tokenizer, {.continues_text = true});
  EXPECT_EQ(goes_on.push(world), " world");
}

// What the library does with <0xE2><0x96>: one U+FFFD for each byte.
TEST(Detokenizer, FallbackBytesThatAreNoCharacterAreReplacedEach) {
  const Tokenizer tokenizer = parsed(sentencepiece_file());
  EXPECT_EQ(tokenizer.decode(Ids{260, 3 + 0xE2, 3 + 0x96, 261}), "h\uFFFD\uFFFDe");
}

std::string passed(std::vector<std::string> stops, const std::vector<std::string>& parts,
                   bool* stopped = nullptr) {
  auto made = StopStrings::make(std::move(stops));
  EXPECT_TRUE(made.has_value());
  std::string text;
  for (const std::string& part : parts) {
    const auto [out, is_stopped] = made->push(part);
    text += out;
    if (stopped != nullptr) *stopped = is_stopped;
    if (is_stopped) return text;
  }
  return text + made->finish();
}

TEST(StopStrings, HoldBackNoMoreThanWhatMayBegin) {
  auto stops = StopStrings::make({"</end>"}).value();
  EXPECT_EQ(stops.push("a <").text, "a ");
  EXPECT_EQ(stops.push("/e").text, "");
  EXPECT_EQ(stops.push("x</").text, "</ex");
  EXPECT_EQ(stops.push("end>tail").text, "");
  EXPECT_EQ(stops.stopped_by(), 0u);
}

TEST(StopStrings, TheResultDoesNotDependOnTheParts) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    Rng rng(seed, 1);
    const auto letters = [&](uint64_t count) {
      std::string text;
      for (; count > 0; --count) text += static_cast<char>('a' + rng.below(2));
      return text;
    };
    const std::vector<std::string> stops = {letters(1 + rng.below(5)), letters(1 + rng.below(5))};
    const std::string text = letters(rng.below(30));
    std::vector<std::string> parts;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + rng.below(4);
      parts.push_back(text.substr(at, size));
      at += size;
    }
    bool whole_stopped = false, parts_stopped = false;
    ASSERT_EQ(passed(stops, parts, &parts_stopped), passed(stops, {text}, &whole_stopped)) << "seed " << seed;
    ASSERT_EQ(parts_stopped, whole_stopped) << "seed " << seed;
  }
}

TEST(StopStrings, AreBounded) {
  EXPECT_EQ(StopStrings::make({""}).error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(StopStrings::make({std::string(kStopStringSizeMax + 1, 'x')}).error().code,
            ErrorCode::OutOfRange);
  EXPECT_EQ(StopStrings::make(std::vector<std::string>(kStopStringsMax + 1, "x")).error().code,
            ErrorCode::OutOfRange);
  EXPECT_EQ(passed({}, {"all ", "of it"}), "all of it");
}

}  // namespace
}  // namespace weft::text
