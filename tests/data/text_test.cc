#include <gtest/gtest.h>

#include "data/dataset.h"
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

}  // namespace
}  // namespace weft::data
