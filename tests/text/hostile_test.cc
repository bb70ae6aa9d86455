// Files that are wrong, by accident or on purpose: each is refused with an error that names the fault, in the
// time and the memory that tokenizer.h promises.
#include <gtest/gtest.h>

#include <ctime>
#include <functional>

#include "tests/support/peak_memory.h"
#include "tests/support/sanitized.h"
#include "tests/text/samples.h"
#include "text/json_outline.h"

namespace weft::text {
namespace {

using namespace testing;

constexpr double kSlower = test::kIsSanitized ? 5 : 1;

double thread_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string with(const std::function<void(Json&)>& change, Json file = byte_level_file()) {
  change(file);
  return file.dump();
}
std::string many(size_t count, const std::function<std::string(size_t)>& each) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + each(i);
  return text;
}

struct Case {
  const char* name;
  std::function<std::string()> bytes;
  ErrorCode code;
  const char* message;  // a part of it
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"Empty", [] { return std::string(); }, ErrorCode::Corrupted, "not JSON"},
      {"NotJson", [] { return std::string("tokens"); }, ErrorCode::Corrupted, "not JSON"},
      {"AList", [] { return std::string("[]"); }, ErrorCode::Corrupted, "not JSON"},
      {"NoModel", [] { return std::string("{}"); }, ErrorCode::Corrupted, "no 'model'"},
      {"CutOff", [] { return byte_level_file().dump().substr(0, 2000); }, ErrorCode::Corrupted, "cut off"},
      {"TwoModels", [] { return std::string(R"({"model": {}, "model": {}})"); }, ErrorCode::Corrupted,
       "twice"},
      {"TooLarge", [] { return std::string(kTokenizerFileMax + 1, ' '); }, ErrorCode::OutOfRange, "at most"},
      {"TooDeep", [] { return "{\"model\":" + std::string(100'000, '['); }, ErrorCode::OutOfRange,
       "deeper than 32"},
      {"TooManyMerges",
       [] { return "{\"model\": {\"merges\": [" + many(1'000'001, [](size_t) { return "1"; }) + "]}}"; },
       ErrorCode::OutOfRange, "more than 1000000"},
      {"TooManySettings",
       [] { return "{\"model\": {}, \"decoder\": [" + many(999'999, [](size_t) { return "1"; }) + "]}"; },
       ErrorCode::OutOfRange, "too many settings"},
      {"WordPiece", [] { return with([](Json& file) { file["model"]["type"] = "WordPiece"; }); },
       ErrorCode::Unsupported, "WordPiece"},
      {"Unigram", [] { return with([](Json& file) { file["model"]["type"] = "Unigram"; }); },
       ErrorCode::Unsupported, "Unigram"},
      {"Dropout", [] { return with([](Json& file) { file["model"]["dropout"] = 0.1; }); },
       ErrorCode::Unsupported, "dropout"},
      {"BertNormalizer",
       [] { return with([](Json& file) {
              file["normalizer"] = {{"type", "BertNormalizer"}};
            }); },
       ErrorCode::Unsupported, "BertNormalizer"},
      {"PreTokenizer",
       [] { return with([](Json& file) {
              file["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
            }); },
       ErrorCode::Unsupported, "UnicodeScripts"},
      {"Decoder", [] { return with([](Json& file) {
                         file["decoder"] = {{"type", "WordPiece"}};
                       }); },
       ErrorCode::Unsupported, "decoder WordPiece"},
      {"NoDecoder", [] { return with([](Json& file) { file["decoder"] = nullptr; }); },
       ErrorCode::Unsupported, "decoder: there is none"},
      {"PostProcessor",
       [] { return with([](Json& file) {
              file["post_processor"] = {{"type", "BertProcessing"}};
            }); },
       ErrorCode::Unsupported, "BertProcessing"},
      {"IdTwice", [] { return with([](Json& file) { file["model"]["vocab"]["xyz"] = 7; }); },
       ErrorCode::Corrupted, "the id 7 belongs to"},
      {"IdNegative", [] { return with([](Json& file) { file["model"]["vocab"]["xyz"] = -7; }); },
       ErrorCode::Corrupted, "has no id"},
      {"IdFarAway", [] { return with([](Json& file) { file["model"]["vocab"]["xyz"] = 4'000'000'000u; }); },
       ErrorCode::OutOfRange, "too high"},
      {"AddedIdFarAway",
       [] { return with([](Json& file) { file["added_tokens"].push_back(added_token(3'000'000, "<x>")); }); },
       ErrorCode::OutOfRange, "too high"},
      {"AddedIdTaken",
       [] { return with([](Json& file) { file["added_tokens"].push_back(added_token(65, "<x>")); }); },
       ErrorCode::Corrupted, "belongs to another token"},
      {"AddedEmpty",
       [] { return with([](Json& file) { file["added_tokens"].push_back(added_token(305, "")); }); },
       ErrorCode::OutOfRange, "a token of 0 bytes"},
      {"TokenTooLong",
       [] { return with([](Json& file) { file["model"]["vocab"][std::string(5000, 'a')] = 290; }); },
       ErrorCode::OutOfRange, "more than 4096 bytes"},
      {"LiteralTooLong",
       [] {
         return with([](Json& file) {
           file["normalizer"] = {
               {"type", "Replace"}, {"pattern", {{"String", std::string(300, 'a')}}}, {"content", "b"}};
         });
       },
       ErrorCode::OutOfRange, "its pattern has 300 bytes"},
      {"VocabIsAList", [] { return with([](Json& file) { file["model"]["vocab"] = Json::array({1}); }); },
       ErrorCode::Corrupted, "model: vocab"},
      {"VocabHoldsTexts", [] { return with([](Json& file) { file["model"]["vocab"]["a"] = "b"; }); },
       ErrorCode::Corrupted, "'a' has no id"},
      {"MergeOfThree", [] { return with([](Json& file) { file["model"]["merges"].push_back("a b c"); }); },
       ErrorCode::Corrupted, "merges: number 10"},
      {"MergeOfOne", [] { return with([](Json& file) { file["model"]["merges"].push_back({"a"}); }); },
       ErrorCode::Corrupted, "merges: number 10"},
      {"MergeToNothing", [] { return with([](Json& file) { file["model"]["merges"].push_back("x y"); }); },
       ErrorCode::Corrupted, "the vocabulary lacks"},
      {"UnknownIsNoToken", [] { return with([](Json& file) { file["model"]["unk_token"] = "<none>"; }); },
       ErrorCode::Corrupted, "unk_token"},
      {"FrameIsNoToken",
       [] {
         return with([](Json& file) { file["post_processor"]["special_tokens"]["<s>"]["ids"] = {99'999}; },
                     sentencepiece_file());
       },
       ErrorCode::Corrupted, "'<s>' is not a token"},
      {"PatternRecurses",
       [] {
         return with([](Json& file) {
           file["pre_tokenizer"] = {
               {"type", "Split"}, {"pattern", {{"Regex", "(a(?R)?b)"}}}, {"behavior", "Isolated"}};
         });
       },
       ErrorCode::Unsupported, "(?R)"},
      {"PatternIsHuge",
       [] {
         return with([](Json& file) {
           file["pre_tokenizer"] = {{"type", "Split"},
                                    {"pattern", {{"Regex", "((((a{99}){99}){99}){99}){99}"}}},
                                    {"behavior", "Isolated"}};
         });
       },
       ErrorCode::Corrupted, "too large"},
  };
  return kCases;
}

class HostileFile : public ::testing::TestWithParam<Case> {};

TEST_P(HostileFile, IsRefusedByName) {
  const std::string bytes = GetParam().bytes();
  const test::PeakMemory memory;
  const double began = thread_seconds();
  const auto made = parse_tokenizer_json(bytes);
  const double took = thread_seconds() - began;
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, GetParam().code) << made.error().message;
  EXPECT_NE(made.error().message.find(GetParam().message), std::string::npos) << made.error().message;
  EXPECT_LE(memory.bytes(), 10 * bytes.size() + (size_t{4} << 20));
  EXPECT_LE(took, 2.0);
}

INSTANTIATE_TEST_SUITE_P(Table, HostileFile, ::testing::ValuesIn(cases()),
                         [](const auto& each) { return std::string(each.param.name); });

// A large file that is in order, which has to keep the bounds as well.
TEST(LargeFile, KeepsItsMemory) {
  std::string vocab, merges;
  for (size_t i = 0; i < 300'000; ++i) vocab += ",\"t" + std::to_string(i) + "\":" + std::to_string(i + 10);
  const std::string bytes = R"({"model": {"type": "BPE", "vocab": {"t": 0)" + vocab +
                            R"(}, "merges": []}, "decoder": {"type": "Fuse"}})";
  const test::PeakMemory memory;
  const auto made = parse_tokenizer_json(bytes);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  EXPECT_EQ(made->vocabulary_size(), 300'010u);
  EXPECT_LE(memory.bytes(), 10 * bytes.size() + (size_t{4} << 20));
}

Json split_by(const std::string& expression) {
  Json file = byte_level_file();
  file["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  return file;
}

class HostilePattern : public ::testing::TestWithParam<const char*> {};

TEST_P(HostilePattern, EndsInAnErrorSoon) {
  const auto tokenizer = parse(split_by(GetParam()));
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  for (const std::string& text : {std::string(5'000, 'a') + "!", std::string(20'000, 'a')}) {
    const double began = thread_seconds();
    const auto ids = tokenizer->encode(text);
    if (!ids) {
      EXPECT_EQ(ids.error().code, ErrorCode::ResourceExhausted) << ids.error().message;
    }
    EXPECT_LE(thread_seconds() - began, 1.0);  // 0.1 s is what is promised; a sanitizer is slower
  }
}

INSTANTIATE_TEST_SUITE_P(Table, HostilePattern,
                         ::testing::Values("(a+)+$", "(a|a)*b", "(a*)*b", "(a|aa)+$", "(?:a?){40}a{40}b",
                                           "a*a*a*a*a*a*b", "(.*)(.*)(.*)(.*)[^a]x", "(?=(a+)+x)a",
                                           "[a-z]*y|(?<=a)x"));

// Long runs of one kind: what a quadratic merge, or a quadratic order of marks, would take minutes for.
TEST(HostileText, TakesNoLongerForBeingLong) {
  const Tokenizer level = parsed(byte_level_file()), piece = parsed(sentencepiece_file());
  Json file = sentencepiece_file();
  file["normalizer"] = {{"type", "NFC"}};
  const Tokenizer normalizing = parsed(file);
  std::string marks = "a";
  for (int i = 0; i < 100'000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  for (const std::string& text :
       {std::string(500'000, 'l'), std::string(500'000, ' '), marks, std::string(500'000, '\xFF')})
    for (const Tokenizer& tokenizer : {level, piece, normalizing}) {
      const test::PeakMemory memory;
      const double began = thread_seconds();
      ASSERT_TRUE(tokenizer.encode(text).has_value());
      EXPECT_LE(thread_seconds() - began, 5.0 * kSlower);
      EXPECT_LE(memory.bytes(), 80 * text.size() + (size_t{1} << 20)) << tokenizer.kind();
    }
}

TEST(HostileText, BlanksThatTokensTakeAreLookedAtOnce) {
  Json file = byte_level_file();
  for (const char* const content : {"\t", "<l>"}) {
    Json token = added_token(304 + file["added_tokens"].size(), content);
    token["lstrip"] = true;
    file["added_tokens"].push_back(token);
  }
  std::string tabs = "x";
  for (int i = 0; i < 300'000; ++i) tabs += "\t";
  const double began = thread_seconds();
  const auto ids = parsed(file).encode(tabs, {.special = SpecialTokens::Recognized});
  ASSERT_TRUE(ids.has_value());
  EXPECT_EQ(ids->size(), 300'001u);
  EXPECT_LE(thread_seconds() - began, 2.0 * kSlower);
}

// As many merges and long tokens as a file may have, none of which any text needs.
TEST(LargeFile, IsReadInTime) {
  std::string vocab = R"("a": 0, "b": 1)", merges;
  std::vector<std::string> tokens = {"a", "b"};
  for (size_t i = 0; tokens.size() < 400'000; ++i)
    for (const char* const letter : {"a", "b"}) {
      tokens.push_back(tokens[i] + letter);
      vocab += ",\"" + tokens.back() + "\":" + std::to_string(tokens.size() - 1);
      merges += (merges.empty() ? "[\"" : ",[\"") + tokens[i] + "\",\"" + letter + "\"]";
    }
  const std::string bytes = R"({"model": {"type": "BPE", "vocab": {)" + vocab + R"(}, "merges": [)" + merges +
                            R"(]}, "decoder": {"type": "Fuse"}})";
  const double began = thread_seconds();
  const test::PeakMemory memory;
  const auto made = parse_tokenizer_json(bytes);
  ASSERT_TRUE(made.has_value()) << made.error().message;
  EXPECT_LE(thread_seconds() - began,
            4.0 * kSlower);  // half of it where nothing else uses the machine's cache
  EXPECT_LE(memory.bytes(), 10 * bytes.size() + (size_t{4} << 20));
}

TEST(JsonOutline, CountsWhatEachMemberHolds) {
  const auto members = outline_of(R"( {"a" : [1, {"x": "]}\""}, []], "b\"": null} )");
  ASSERT_TRUE(members.has_value()) << members.error().message;
  ASSERT_EQ(members->size(), 2u);
  EXPECT_EQ((*members)[0].value, R"([1, {"x": "]}\""}, []])");
  EXPECT_GE((*members)[0].value_count, 5u);
  EXPECT_EQ((*members)[1].key, "b\\\"");
  EXPECT_EQ((*members)[1].value, "null");
  const auto slashes = outline_of(R"({"a": "\\", "b": "\\\"]", "c": "\\\\"})");
  ASSERT_TRUE(slashes.has_value()) << slashes.error().message;
  EXPECT_EQ(slashes->size(), 3u);
  EXPECT_FALSE(outline_of(R"({"a": "\"})").has_value());
}

}  // namespace
}  // namespace weft::text
