// Documents of JSON lines as samples. A token is a byte, but where a tokenizer's file is the matter.
#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "data/dataset.h"
#include "data/json_lines.h"
#include "tests/data/reading.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

using Form = JsonlSpec::Form;
using Packing = JsonlSpec::Packing;
using Part = TextSpec::Part;
using test::Scratch;
using Row = std::vector<int64_t>;

constexpr int64_t kNo = -100;  // not learnt

JsonlSpec texts(const std::filesystem::path& path, int64_t length) {
  return {.path = path, .form = Form::Text, .fields = {"text"}, .sequence_length = length};
}
JsonlSpec completions(const std::filesystem::path& path, int64_t length) {
  return {.path = path, .form = Form::Completion, .fields = {"q", "a"}, .sequence_length = length};
}
JsonlSpec talks(const std::filesystem::path& path, int64_t length) {
  return {.path = path,
          .form = Form::Messages,
          .fields = {"messages"},
          .chat_template = "plain",
          .sequence_length = length};
}

Row row_of(const Dataset& dataset, std::string_view column, uint32_t sample) {
  return dag::to_int64s(read_column(dataset, std::string(column), {sample}));
}

// The letters of a row; '.' where nothing is learnt, '_' for the byte that fills up.
std::string letters(const Row& row) {
  std::string text;
  for (const int64_t value : row) text += value == kNo ? '.' : value == 0 ? '_' : static_cast<char>(value);
  return text;
}
std::string tokens_of(const Dataset& dataset, uint32_t sample) {
  return letters(row_of(dataset, "tokens", sample));
}
std::string targets_of(const Dataset& dataset, uint32_t sample) {
  return letters(row_of(dataset, "targets", sample));
}

// ---- samples

TEST(Jsonl, ALongTextGoesOnInTheNextSampleAndAShortOneIsFilledUp) {
  const Scratch scratch;
  const auto path = scratch.write("d.jsonl", R"({"text": "abcdefg"})"
                                             "\n"
                                             R"({"id": 3, "text": "xyz"})"
                                             "\n");
  const auto dataset = open_jsonl(texts(path, 4));
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(),
            "3 samples of tokens i64[4], targets i64[4], attention_mask i64[4], positions i64[4]");
  EXPECT_EQ(tokens_of(**dataset, 0), "abcd");
  EXPECT_EQ(targets_of(**dataset, 0), "bcde");
  EXPECT_EQ(tokens_of(**dataset, 1), "ef__");
  EXPECT_EQ(targets_of(**dataset, 1), "fg..");
  EXPECT_EQ(tokens_of(**dataset, 2), "xy__");
  EXPECT_EQ(targets_of(**dataset, 2), "yz..");
  EXPECT_EQ(row_of(**dataset, "attention_mask", 2), (Row{1, 1, 0, 0}));
  EXPECT_EQ(row_of(**dataset, "positions", 1), (Row{0, 1, 0, 0}));
  EXPECT_EQ((*dataset)->place_of(2), "line 2");
  EXPECT_TRUE((*dataset)->notes().empty());
}

// As corpora are handed round: several members behind each other, as concatenated files and `pigz -i` have
// them.
TEST(Jsonl, AFileThatGzipCompressedIsReadAsItIs) {
  const Scratch scratch;
  const auto plain = scratch.folder() / "d.jsonl", packed = scratch.folder() / "d.jsonl.gz";
  Rng rng(11, 1);
  for (int member = 0; member < 3; ++member) {
    std::string lines;
    for (int line = 0; line < 4000; ++line) {
      std::string text;
      for (uint64_t length = 2 + rng.below(200); length > 0; --length)
        text += static_cast<char>('a' + rng.below(26));
      lines += R"({"text": ")" + text + "\"}\n";
    }
    std::ofstream(plain, std::ios::app) << lines;
    const gzFile file = gzopen(packed.c_str(), "ab");
    ASSERT_EQ(gzwrite(file, lines.data(), static_cast<unsigned>(lines.size())),
              static_cast<int>(lines.size()));
    gzclose(file);
  }
  const auto one = open_jsonl(texts(plain, 64)), other = open_jsonl(texts(packed, 64));
  ASSERT_TRUE(one.has_value()) << one.error().message;
  ASSERT_TRUE(other.has_value()) << other.error().message;
  ASSERT_EQ((*one)->sample_count(), (*other)->sample_count());
  EXPECT_GT((*one)->sample_count(), 12'000u);
  for (uint32_t sample = 0; sample < (*one)->sample_count(); sample += 97) {
    EXPECT_EQ(tokens_of(**one, sample), tokens_of(**other, sample));
    EXPECT_EQ((*one)->place_of(sample), (*other)->place_of(sample));
  }
  std::filesystem::resize_file(packed, std::filesystem::file_size(packed) - 100);
  const auto cut = open_jsonl(texts(packed, 64));
  ASSERT_FALSE(cut.has_value());
  EXPECT_EQ(cut.error().code, ErrorCode::Corrupted);
  EXPECT_NE(cut.error().message.find("d.jsonl.gz: its compressed data is damaged or cut off"),
            std::string::npos)
      << cut.error().message;
}

TEST(Jsonl, OfACompletionThePromptIsReadAndNotLearnt) {
  const Scratch scratch;
  const auto dataset = open_jsonl(completions(scratch.write("d", R"({"q": "ask:", "a": "yes"})"), 8));
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ(tokens_of(**dataset, 0), "ask:ye__");
  EXPECT_EQ(targets_of(**dataset, 0), "...yes..");
}

TEST(Jsonl, APromptMayHaveSeveralFields) {
  const Scratch scratch;
  JsonlSpec spec = completions(scratch.write("d", R"({"q": "add", "more": "12", "a": "3"})"
                                                  "\n"
                                                  R"({"q": "add", "more": "", "a": "3"})"),
                               8);
  spec.fields = {"q", "more", "a"};
  const auto dataset = open_jsonl(spec);
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ(tokens_of(**dataset, 0), "add\n12__");
  EXPECT_EQ(targets_of(**dataset, 0), ".....3..");
  EXPECT_EQ(targets_of(**dataset, 1), "..3.....");
}

TEST(Jsonl, OfAConversationTheAnswersAreLearnt) {
  const Scratch scratch;
  const auto path = scratch.write("d", R"({"messages": [{"role": "user", "content": "a"},
 {"role": "assistant", "content": "b"}]})");
  EXPECT_TRUE(fails_with(open_jsonl(talks(path, 32)), ErrorCode::Corrupted, "line 1: "));  // it is two lines
  const auto good = scratch.write(
      "e",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
      "\n"
      R"({"messages": [{"from": "human", "value": "c"}, {"from": "gpt", "value": [{"type": "text", "text": "d"}]}]})");
  const auto dataset = open_jsonl(talks(good, 24));
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ(tokens_of(**dataset, 0), "User: a\nAssistant: b____");
  EXPECT_EQ(targets_of(**dataset, 0), "................. b\n....");
  EXPECT_EQ(tokens_of(**dataset, 1), "User: c\nAssistant: d____");
}

TEST(Jsonl, PackedDocumentsStandSideBySideAndNoneIsCut) {
  const Scratch scratch;
  JsonlSpec spec = texts(scratch.write("d", R"({"text": "abc"})"
                                            "\n\n"
                                            R"({"text": "de"})"
                                            "\n"
                                            R"({"text": "fghi"})"),
                         4);
  spec.packing = Packing::Across;
  const auto dataset = open_jsonl(spec);
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  ASSERT_EQ((*dataset)->sample_count(), 2u);
  EXPECT_EQ(tokens_of(**dataset, 0), "abd_");
  EXPECT_EQ(targets_of(**dataset, 0), "bce.");
  EXPECT_EQ(row_of(**dataset, "positions", 0), (Row{0, 1, 0, 0}));
  EXPECT_EQ(row_of(**dataset, "attention_mask", 0), (Row{1, 1, 1, 0}));
  EXPECT_EQ(tokens_of(**dataset, 1), "fgh_");
  EXPECT_EQ((*dataset)->place_of(0), "lines 1 to 3");
  EXPECT_EQ((*dataset)->place_of(1), "line 4");
}

TEST(Jsonl, DocumentsThatArePackedApartDoNotSeeEachOther) {
  const Scratch scratch;
  JsonlSpec spec = texts(scratch.write("d", R"({"text": "abc"})"
                                            "\n"
                                            R"({"text": "de"})"),
                         4);
  spec.packing = Packing::Apart;
  EXPECT_TRUE(fails_with(open_jsonl(spec), ErrorCode::InvalidArgument, "takes the column causal_mask"));
  spec.columns = {"tokens", "causal_mask"};
  const auto dataset = open_jsonl(spec);
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(), "1 samples of tokens i64[4], causal_mask f32[1,4,4]");
  EXPECT_EQ(tokens_of(**dataset, 0), "abd_");
  const dag::Tensor mask = read_column(**dataset, "causal_mask", {0});
  std::string seen;
  for (const float value : mask.as<float>()) seen += value == 0 ? 'x' : value < -1e38F ? '-' : '?';
  EXPECT_EQ(seen,
            "x---"
            "xx--"
            "--x-"
            "---x");
  spec.sequence_length = 1 << 15;
  EXPECT_TRUE(fails_with(open_jsonl(spec), ErrorCode::OutOfRange, "causal_mask"));
}

TEST(Jsonl, WhatLiesBehindTheSequenceIsLeftOutAndSaid) {
  const Scratch scratch;
  const auto path = scratch.write("d", R"({"q": "ab", "a": "cdefgh"})"
                                       "\n"
                                       R"({"q": "a prompt that fills all", "a": "x"})"
                                       "\n"
                                       R"({"q": "a", "a": "b"})");
  const auto dataset = open_jsonl(completions(path, 4));
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  ASSERT_EQ((*dataset)->sample_count(), 2u);
  EXPECT_EQ(targets_of(**dataset, 0), ".cde");
  EXPECT_EQ(targets_of(**dataset, 1), "b...");
  ASSERT_EQ((*dataset)->notes().size(), 2u);
  EXPECT_EQ((*dataset)->notes()[0],
            "2 documents are longer than 4 tokens; what is behind them is not learnt");
  EXPECT_NE((*dataset)->notes()[1].find("1 document is left out"), std::string::npos);
  EXPECT_TRUE(fails_with(open_jsonl(completions(scratch.write("e", R"({"q": "long", "a": "x"})"), 2)),
                         ErrorCode::InvalidArgument, "take a longer one"));
}

// Whatever the documents, the lengths and the packing: every pair of neighbours of a document is there once,
// in order, and a target never is another document's.
TEST(Jsonl, RandomDocumentsComeOutWhole) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    const Scratch scratch;
    std::string lines, expected;
    const auto count = 1 + rng.below(20);
    for (uint64_t i = 0; i < count; ++i) {
      std::string text(2 + static_cast<size_t>(rng.below(30)), ' ');
      for (char& c : text) c = static_cast<char>('a' + rng.below(26));
      lines += R"({"text": ")" + text + "\"}\n";
      for (size_t at = 0; at + 1 < text.size(); ++at) expected += text.substr(at, 2) + " ";
    }
    JsonlSpec spec = texts(scratch.write("d", lines), static_cast<int64_t>(1 + rng.below(24)));
    if (rng.below(2) == 1) spec.packing = Packing::Across;
    const auto dataset = open_jsonl(spec);
    ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
    std::string found;
    for (uint32_t sample = 0; sample < (*dataset)->sample_count(); ++sample) {
      const std::string tokens = tokens_of(**dataset, sample), targets = targets_of(**dataset, sample);
      for (size_t at = 0; at < tokens.size(); ++at) {
        ASSERT_EQ(tokens[at] == '_', targets[at] == '.');
        if (targets[at] != '.') found += std::string{tokens[at], targets[at], ' '};
      }
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(Jsonl, TheLastDocumentsAreKeptFromTraining) {
  const Scratch scratch;
  std::string lines;
  for (char c = 'a'; c < 'k'; ++c) lines += R"({"text": ")" + std::string(3, c) + "\"}\n";
  JsonlSpec spec = texts(scratch.write("d", lines), 2);
  spec.validation = 0.3;
  const auto train = open_jsonl(spec);
  const DataSpec kept = kept_for_validation(spec);
  const auto validation = open_dataset(kept);
  ASSERT_TRUE(train && validation);
  EXPECT_EQ((*train)->sample_count(), 7u);
  EXPECT_EQ((*validation)->sample_count(), 3u);
  EXPECT_EQ(tokens_of(**validation, 0), "hh");
  EXPECT_EQ((*validation)->place_of(0), "line 8");
  spec.validation = 0.01;
  spec.part = Part::Validation;
  EXPECT_TRUE(fails_with(open_jsonl(spec), ErrorCode::InvalidArgument, "validation part has no document"));
}

TEST(Jsonl, ColumnsThatNobodyAskedForAreNotMade) {
  const Scratch scratch;
  DataSpec spec = texts(scratch.write("d", R"({"text": "abc"})"), 2);
  keep_columns(spec, {"tokens", "targets"});
  const auto dataset = open_dataset(spec);
  ASSERT_TRUE(dataset.has_value());
  EXPECT_EQ((*dataset)->columns().size(), 2u);
  EXPECT_EQ((*dataset)->others().size(), 3u);
  EXPECT_FALSE(travels_as_it_is(spec));
}

// ---- faults

TEST(Jsonl, WhatIsWrongIsToldWithItsLine) {
  const Scratch scratch;
  const auto open = [&](const std::string& second, const JsonlSpec& of) {
    JsonlSpec spec = of;
    spec.path = scratch.write(
        "d", R"({"text": "fine", "q": "a", "a": "b", "messages": [{"role": "user", "content": "a"},)"
             R"( {"role": "assistant", "content": "b"}]})"
             "\n\n" +
                 second + "\n");
    return open_jsonl(spec);
  };
  const struct {
    std::string line;
    JsonlSpec spec;
    ErrorCode code;
    std::string says;
  } kCases[] = {
      {R"({"text": "a" "b"})", texts({}, 8), ErrorCode::Corrupted, "line 3: "},
      {R"({"text": "cut)", texts({}, 8), ErrorCode::Corrupted, "line 3: "},
      {"plain words", texts({}, 8), ErrorCode::Corrupted, "line 3: "},
      {R"({"text": ")"
       "\xff"
       R"("})",
       texts({}, 8), ErrorCode::Corrupted, "line 3: "},
      {R"({"Text": "a", "id": 1})", texts({}, 8), ErrorCode::NotFound,
       "no field 'text'; it has 'Text', 'id'"},
      {R"({"text": 5})", texts({}, 8), ErrorCode::InvalidArgument, "'text' is number, not a text"},
      {R"({"text": null})", texts({}, 8), ErrorCode::InvalidArgument, "'text' is null"},
      {R"({"text": ""})", texts({}, 8), ErrorCode::InvalidArgument, "text is empty"},
      {R"({"text": "x"})", texts({}, 8), ErrorCode::InvalidArgument, "one token alone"},
      {R"({"q": "x", "a": ""})", completions({}, 8), ErrorCode::InvalidArgument, "completion is empty"},
      {R"({"q": "x"})", completions({}, 8), ErrorCode::NotFound, "no field 'a'"},
      {R"({"messages": []})", talks({}, 8), ErrorCode::InvalidArgument, "no message"},
      {R"({"messages": {}})", talks({}, 8), ErrorCode::InvalidArgument, "not a list"},
      {R"({"messages": ["hi"]})", talks({}, 8), ErrorCode::InvalidArgument, "message 0 of 'messages' is not"},
      {R"({"messages": [{"role": "user", "content": 5}]})", talks({}, 8), ErrorCode::InvalidArgument,
       "content"},
      {R"({"messages": [{"role": "tool", "content": "5"}]})", talks({}, 8), ErrorCode::InvalidArgument,
       "tool"},
      {R"({"messages": [{"role": "user", "content": "5"}]})", talks({}, 8), ErrorCode::InvalidArgument,
       "assistant"},
      {R"({"text": "a", "deep": )" + std::string(100, '[') + std::string(100, ']') + "}", texts({}, 8),
       ErrorCode::OutOfRange, "nested"},
  };
  for (const auto& one : kCases)
    EXPECT_TRUE(fails_with(open(one.line, one.spec), one.code, one.says)) << one.line;
}

TEST(Jsonl, AListAnEmptyFileAndAnEndlessLineAreRefused) {
  const Scratch scratch;
  EXPECT_TRUE(fails_with(open_jsonl(texts(scratch.write("a", " [{\"text\": \"a\"}]"), 8)),
                         ErrorCode::InvalidArgument, "jq -c"));
  EXPECT_TRUE(fails_with(open_jsonl(texts(scratch.write("b", " \n\n"), 8)), ErrorCode::InvalidArgument,
                         "no document, of 0"));
  const std::string lines = "{\"text\": \"" + std::string(kJsonLineMax, 'x') + "\"}\n{\"text\": \"ab\"}\n";
  EXPECT_TRUE(fails_with(open_jsonl(texts(scratch.write("c", lines), 8)), ErrorCode::OutOfRange, "line 1: "));
  EXPECT_TRUE(fails_with(open_jsonl(texts(scratch.write("d", R"({"text": "ab"})"), 0)), ErrorCode::OutOfRange,
                         "sequence_length"));
}

TEST(Jsonl, WhatItMayTakeOfMemoryIsABound) {
  const Scratch scratch;
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += R"({"text": ")" + std::string(1000, 'x') + "\"}\n";
  const JsonlSpec spec = texts(scratch.write("d", lines), 64);
  EXPECT_TRUE(
      fails_with(open_jsonl(spec, {.resident_max = 300'000}), ErrorCode::ResourceExhausted, "type: tokens"));
  EXPECT_TRUE(open_jsonl(spec, {.resident_max = 2'000'000}).has_value());
}

// A line may end as on other systems, the last one need not; and a mark of the order of bytes is none of it.
TEST(Jsonl, LinesOfOtherSystemsAreRead) {
  const Scratch scratch;
  const auto dataset = open_jsonl(
      texts(scratch.write("d", "\xEF\xBB\xBF{\"text\": \"ab\"}\r\n  \r\n{\"text\": \"\\u00e9\\n\"}"), 4));
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  ASSERT_EQ((*dataset)->sample_count(), 2u);
  EXPECT_EQ(row_of(**dataset, "tokens", 1), (Row{0xC3, 0xA9, 0, 0}));
  EXPECT_EQ(row_of(**dataset, "targets", 1), (Row{0xA9, '\n', kNo, kNo}));
}

// Bytes that changed, went or came: it is read or refused, with the file's name.
TEST(Jsonl, DamagedFilesAreReadOrRefused) {
  const std::string whole =
      R"({"text": "a \u00e9 text", "q": "ask", "a": "tell", "messages": [{"role": "user", "content": "a"},)"
      R"( {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]})"
      "\n";
  const JsonlSpec specs[] = {texts({}, 8), completions({}, 8), talks({}, 32)};
  uint32_t read = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    std::string bytes = whole + whole;
    for (uint32_t changes = 1 + rng.below(3); changes > 0; --changes) {
      const size_t at = static_cast<size_t>(rng.below(bytes.size()));
      constexpr std::string_view kLikely = "{}[]\",:\\\n 0u";
      switch (rng.below(4)) {
        case 0:
          bytes.erase(at, 1 + rng.below(8));
          break;
        case 1:
          bytes.insert(at, bytes.substr(static_cast<size_t>(rng.below(bytes.size())), 9));
          break;
        case 2:
          bytes[at] = kLikely[rng.below(kLikely.size())];
          break;
        default:
          bytes[at] = static_cast<char>(rng.next_u32());
      }
    }
    const Scratch scratch;
    JsonlSpec spec = specs[seed % 3];
    spec.path = scratch.write("d", bytes);
    const auto dataset = open_jsonl(spec);
    if (!dataset) {
      EXPECT_NE(dataset.error().message.find(spec.path.string()), std::string::npos)
          << dataset.error().message;
      continue;
    }
    ++read;
    for (uint32_t sample = 0; sample < (*dataset)->sample_count(); ++sample)
      EXPECT_EQ(row_of(**dataset, "tokens", sample).size(), static_cast<size_t>(spec.sequence_length));
  }
  EXPECT_GT(read, 20u);
}

// ---- tokenizers

// Bytes, and two tokens that end a text.
std::string tokenizer_json(bool has_two_ends) {
  std::string vocabulary, ends;
  for (int byte = 33; byte < 127; ++byte)
    vocabulary += std::string(vocabulary.empty() ? "" : ", ") + "\"" +
                  (byte == '"' || byte == '\\' ? "\\" : "") + static_cast<char>(byte) +
                  "\": " + std::to_string(byte - 33);
  ends = R"({"id": 100, "content": "<|endoftext|>", "special": true})";
  if (has_two_ends) ends += R"(, {"id": 101, "content": "<|im_end|>", "special": true})";
  return R"({"added_tokens": [)" + ends +
         R"(], "pre_tokenizer": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"},
 "model": {"type": "BPE", "vocab": {)" +
         vocabulary + R"(}, "merges": []}})";
}

TEST(Jsonl, ADocumentEndsWithTheTokenThatEndsATextOrThatIsSaid) {
  const Scratch scratch;
  JsonlSpec spec = texts(scratch.write("d", R"({"text": "ab"})"), 4);
  spec.tokenizer = scratch.write("tokenizer.json", tokenizer_json(false));
  const auto one = open_jsonl(spec);
  ASSERT_TRUE(one.has_value()) << one.error().message;
  EXPECT_EQ(row_of(**one, "tokens", 0), (Row{'a' - 33, 'b' - 33, 100, 100}));
  EXPECT_EQ(row_of(**one, "targets", 0), (Row{'b' - 33, 100, kNo, kNo}));

  scratch.write("tokenizer.json", tokenizer_json(true));
  EXPECT_TRUE(fails_with(open_jsonl(spec), ErrorCode::NotFound, "'<|endoftext|>', '<|im_end|>'; say which"));
  spec.end = "<|im_end|>";
  EXPECT_EQ(row_of(*open_jsonl(spec).value(), "targets", 0), (Row{'b' - 33, 101, kNo, kNo}));
  spec.end = "</s>";
  EXPECT_TRUE(fails_with(open_jsonl(spec), ErrorCode::NotFound, "no token '</s>', which `end` names"));
  spec.end.clear();
  scratch.write("tokenizer_config.json", R"({"eos_token": {"content": "<|im_end|>"}})");
  EXPECT_EQ(row_of(*open_jsonl(spec).value(), "targets", 0), (Row{'b' - 33, 101, kNo, kNo}));
  EXPECT_EQ(files_of(spec).value().size(), 3u);
}

TEST(Jsonl, AControlTokensNameInADocumentIsThatToken) {
  const Scratch scratch;
  JsonlSpec spec = texts(scratch.write("d", R"({"text": "ab<|endoftext|>"})"), 4);
  spec.tokenizer = scratch.write("tokenizer.json", tokenizer_json(false));
  EXPECT_EQ(row_of(*open_jsonl(spec).value(), "targets", 0), (Row{'b' - 33, 100, kNo, kNo}));
}

TEST(Jsonl, HowTurnsAreWrittenHasToBeKnown) {
  const Scratch scratch;
  JsonlSpec spec = talks(
      scratch.write(
          "d", R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"),
      32);
  spec.tokenizer = scratch.write("tokenizer.json", tokenizer_json(true));
  spec.chat_template.clear();
  EXPECT_TRUE(fails_with(open_jsonl(spec), ErrorCode::NotFound, "chat_template: chatml"));
  scratch.write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_TRUE(fails_with(open_jsonl(spec), ErrorCode::NotFound, "chat_template: chatml"));
  spec.chat_template = "llama3";
  EXPECT_TRUE(fails_with(open_jsonl(spec), ErrorCode::NotFound, "<|begin_of_text|>"));
  spec.tokenizer = scratch.write("tokenizer.json", "{}");
  EXPECT_TRUE(fails_with(open_jsonl(spec), ErrorCode::Corrupted, "tokenizer.json: "));
}

}  // namespace
}  // namespace weft::data
