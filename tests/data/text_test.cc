#include <gtest/gtest.h>

#include "data/dataset.h"
#include "data/npy.h"
#include "tests/data/reading.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

using Part = TextSpec::Part;
using test::Scratch;

std::vector<int64_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

TEST(Text, WindowsDoNotOverlapAndTargetsAreTheNextByte) {
  const Scratch scratch;
  const auto dataset = open_text({.path = scratch.write("t", "abcdefghijk"), .sequence_length = 3});
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->describe(), "3 samples of tokens i64[3], targets i64[3]");
  EXPECT_EQ(dag::to_int64s(read_column(**dataset, "tokens", {0, 2})), bytes_of("abcghi"));
  EXPECT_EQ(dag::to_int64s(read_column(**dataset, "targets", {0, 2})), bytes_of("bcdhij"));
}

TEST(Text, LastWindowNeedsItsNextByte) {
  const Scratch scratch;
  const auto nine = open_text({.path = scratch.write("t", "abcdefghi"), .sequence_length = 3});
  EXPECT_EQ((*nine)->sample_count(), 2u);
  const auto ten = open_text({.path = scratch.write("t", "abcdefghij"), .sequence_length = 3});
  EXPECT_EQ((*ten)->sample_count(), 3u);
}

TEST(Text, ValidationIsTheTailAndTrainingNeverSeesIt) {
  const Scratch scratch;
  const auto path = scratch.write("t", "aaaaaaaaaaaaaaaabbbb");
  const auto train = open_text({path, 3, 0.2, Part::Training});
  const auto validation = open_text({path, 3, 0.2, Part::Validation});
  ASSERT_TRUE(train && validation);
  EXPECT_EQ((*train)->sample_count(), 5u);
  EXPECT_EQ(dag::to_int64s(read_column(**train, "targets", {4})), bytes_of("aaa"));
  EXPECT_EQ((*validation)->sample_count(), 1u);
  EXPECT_EQ(dag::to_int64s(read_column(**validation, "tokens", {0})), bytes_of("bbb"));
}

TEST(Text, BytesAbove127StayPositive) {
  const Scratch scratch;
  const auto dataset = open_text({.path = scratch.write("t", "\xff\xfe"), .sequence_length = 1});
  EXPECT_EQ(dag::to_int64s(read_column(**dataset, "tokens", {0})), (std::vector<int64_t>{255}));
}

TEST(Text, TooShortForASampleSaysWhatIsNeeded) {
  const Scratch scratch;
  const auto path = scratch.write("t", "abc");
  EXPECT_TRUE(
      fails_with(open_text({.path = path, .sequence_length = 3}), ErrorCode::InvalidArgument, "needs 4"));
  EXPECT_TRUE(fails_with(open_text({path, 1, 0, Part::Validation}), ErrorCode::InvalidArgument,
                         "validation part has 0 bytes"));
  EXPECT_TRUE(
      fails_with(open_text({.path = path, .sequence_length = 0}), ErrorCode::OutOfRange, "sequence_length"));
  EXPECT_TRUE(fails_with(open_text({path, 1, 1.0, Part::Training}), ErrorCode::OutOfRange, "validation"));
}

TEST(Text, FileThatShrinksIsAnError) {
  const Scratch scratch;
  const auto path = scratch.write("t", "abcdefghij");
  const auto dataset = open_text({.path = path, .sequence_length = 3});
  std::filesystem::resize_file(path, 4);
  std::vector<std::byte> out(24);
  EXPECT_TRUE(
      fails_with((*dataset)->read(0, std::vector<uint32_t>{2}, out), ErrorCode::Corrupted, "changed"));
}

// ---- tokens that somebody made of a text before

template <typename Token>
std::string file_of(const std::vector<Token>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)};
}

TEST(Tokens, AreWholeNumbersOfTheirWidth) {
  const Scratch scratch;
  const TextSpec two{.path = scratch.write("t.bin", file_of<uint16_t>({1, 50256, 3, 65535, 5, 6, 7})),
                     .sequence_length = 3,
                     .token_bytes = 2};
  const auto dataset = open_text(two);
  ASSERT_TRUE(dataset.has_value()) << dataset.error().message;
  EXPECT_EQ((*dataset)->sample_count(), 2u);
  EXPECT_EQ(dag::to_int64s(read_column(**dataset, "tokens", {0, 1})),
            (std::vector<int64_t>{1, 50256, 3, 65535, 5, 6}));
  EXPECT_EQ(dag::to_int64s(read_column(**dataset, "targets", {0, 1})),
            (std::vector<int64_t>{50256, 3, 65535, 5, 6, 7}));
  EXPECT_EQ((*dataset)->range(0)->high, 65535);
  EXPECT_EQ((*dataset)->place_of(1), "row 1 (the first is 0), which begins at byte 6 of the file");
  const TextSpec four{.path = scratch.write("t4.bin", file_of<uint32_t>({1, 128000, 4294967295u})),
                      .sequence_length = 2,
                      .token_bytes = 4};
  EXPECT_EQ(dag::to_int64s(read_column(**open_text(four), "targets", {0})),
            (std::vector<int64_t>{128000, 4294967295}));
}

TEST(Tokens, AHeaderSaysWhatFollows) {
  const Scratch scratch;
  std::vector<uint32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 5;
  const std::string tokens = file_of<uint16_t>({9, 8, 7, 6, 5});
  const auto spec = [](const std::filesystem::path& path, uint32_t bytes) {
    return TextSpec{.path = path, .sequence_length = 2, .token_bytes = bytes};
  };
  const auto llm_c = open_text(spec(scratch.write("a.bin", file_of(header) + tokens), 2));
  ASSERT_TRUE(llm_c.has_value()) << llm_c.error().message;
  EXPECT_EQ(dag::to_int64s(read_column(**llm_c, "tokens", {0, 1})), (std::vector<int64_t>{9, 8, 7, 6}));
  const auto npy = open_text(spec(scratch.write("a.npy", npy_header({dag::DType::U16, {5}}) + tokens), 2));
  ASSERT_TRUE(npy.has_value()) << npy.error().message;
  EXPECT_EQ(dag::to_int64s(read_column(**npy, "targets", {1})), (std::vector<int64_t>{6, 5}));
  EXPECT_TRUE(fails_with(open_text(spec(scratch.write("b.bin", file_of(header) + tokens), 4)),
                         ErrorCode::InvalidArgument, "say dtype: uint16"));
  EXPECT_TRUE(fails_with(open_text(spec(scratch.write("c.bin", file_of(header) + tokens + "ab"), 2)),
                         ErrorCode::Corrupted, "says that it has 5 tokens"));
  EXPECT_TRUE(fails_with(
      open_text(spec(scratch.write("d.npy", npy_header({dag::DType::I64, {5}}) + std::string(40, 'a')), 2)),
      ErrorCode::InvalidArgument, "one axis of uint16 or uint32"));
  EXPECT_TRUE(
      fails_with(open_text(spec(scratch.write("e.npy", "\x93NUMPY\x01"), 2)), ErrorCode::Corrupted, ""));
}

TEST(Tokens, HalfATokenIsRefused) {
  const Scratch scratch;
  const TextSpec spec{.path = scratch.write("t.bin", "abcdefg"), .sequence_length = 1, .token_bytes = 2};
  EXPECT_TRUE(fails_with(open_text(spec), ErrorCode::Corrupted, "no whole tokens of 2"));
  const TextSpec few{.path = scratch.write("f.bin", "abcd"), .sequence_length = 2, .token_bytes = 2};
  EXPECT_TRUE(fails_with(open_text(few), ErrorCode::InvalidArgument, "needs 3"));
}

}  // namespace
}  // namespace weft::data
