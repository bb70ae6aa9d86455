#include "data/csv.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tests/data/reading.h"
#include "tests/support/scratch.h"

namespace weft::data {
namespace {

using test::Scratch;
using TableColumn = CsvSpec::Column;

TableColumn list(std::string name, std::vector<std::string> fields) {
  return {.name = std::move(name), .fields = std::move(fields), .is_list = true};
}
TableColumn one(const std::string& name) { return {.name = name, .fields = {name}}; }
TableColumn classes(const std::string& name, std::vector<std::string> order = {}) {
  return {.name = name, .fields = {name}, .has_classes = true, .classes = std::move(order)};
}

class Csv : public ::testing::Test {
 protected:
  CsvSpec spec(std::string_view text, std::vector<TableColumn> columns) {
    CsvSpec made;
    made.path = scratch_.write("t.csv", text);
    made.columns = std::move(columns);
    return made;
  }
  Scratch scratch_;
};

TEST_F(Csv, FieldsBecomeColumns) {
  const auto table = open_csv(
      spec("a,b,kind,n\n1,2.5,dog,3\n-4,1e3,cat,4\n", {list("x", {"b", "a"}), classes("kind"), one("n")}));
  ASSERT_TRUE(table.has_value()) << table.error().message;
  EXPECT_EQ((*table)->describe(), "2 samples of x f64[2], kind i64[], n i64[]");
  const auto x = read_column(**table, "x", {1, 0});
  EXPECT_EQ(std::vector<double>(x.as<double>().begin(), x.as<double>().end()),
            (std::vector<double>{1000, -4, 2.5, 1}));
  EXPECT_EQ(dag::to_int64s(read_column(**table, "kind", {0, 1})), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ((*table)->classes(1)[0], "cat");
  EXPECT_EQ(dag::to_int64s(read_column(**table, "n", {0, 1})), (std::vector<int64_t>{3, 4}));
}

TEST_F(Csv, ClassesHaveTheOrderThatTheJobSaysOrThatOfTheTrainingSet) {
  const auto said = open_csv(spec("kind\nb\na\nb\n", {classes("kind", {"c", "b", "a"})}));
  ASSERT_TRUE(said.has_value()) << said.error().message;
  EXPECT_EQ(dag::to_int64s(read_column(**said, "kind", {0, 1, 2})), (std::vector<int64_t>{1, 2, 1}));

  CsvSpec train;
  train.path = scratch_.write("train.csv", "kind\nowl\ncat\ndog\n");
  train.columns = {classes("kind")};
  CsvSpec test = spec("kind\nowl\nowl\n", {classes("kind")});
  test.classes_of = std::make_shared<const CsvSpec>(train);
  const auto other = open_csv(test);
  ASSERT_TRUE(other.has_value()) << other.error().message;
  EXPECT_EQ(dag::to_int64s(read_column(**other, "kind", {0, 1})), (std::vector<int64_t>{2, 2}));
  scratch_.write("t.csv", "kind\nowl\nfox\n");
  EXPECT_TRUE(fails_with(open_csv(test), ErrorCode::InvalidArgument,
                         "row 3: column 'kind' holds 'fox', which is none of its classes (cat, dog, owl)"));
}

TEST_F(Csv, ARowIsCountedWithTheHeaderAndEmptyLines) {
  const auto table = open_csv(spec("a\n1\n\n\n2\n3\n", {one("a")}));
  ASSERT_TRUE(table.has_value()) << table.error().message;
  EXPECT_EQ((*table)->place_of(0), "row 2 (the header is row 1)");
  EXPECT_EQ((*table)->place_of(1), "row 5 (the header is row 1)");
  EXPECT_EQ((*table)->place_of(2), "row 6 (the header is row 1)");
}

TEST_F(Csv, ATableThatIsTooLargeIsRefusedBeforeItIsHeld) {
  std::string text = "a\n";
  for (int i = 0; i < 1000; ++i) text += "1\n";
  OpenOptions options;
  options.resident_max = 4000;
  EXPECT_TRUE(fails_with(open_csv(spec(text, {one("a")}), options), ErrorCode::ResourceExhausted,
                         "row 502: the table takes more than 4000 bytes"));
  EXPECT_TRUE(fails_with(open_csv(spec("a\n\"" + std::string(kCsvRecordMax + 1, 'x'), {one("a")})),
                         ErrorCode::ResourceExhausted, "row 2: is longer than 1048576 bytes"));
  EXPECT_TRUE(fails_with(open_csv(spec("a" + std::string(kFieldsMax, ','), {one("a")})),
                         ErrorCode::ResourceExhausted, "row 1: has more than 16384 fields"));
}

// Any fields, written by RFC 4180, come back as they were; whatever the buffer's borders fall on.
TEST_F(Csv, FieldsComeBackAsTheyWereWritten) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    const size_t width = 1 + rng.below(5);
    std::vector<std::vector<std::string>> rows(1 + rng.below(30));
    std::string text = rng.below(2) == 0 ? "\xEF\xBB\xBF" : "";
    const std::string_view ends[] = {"\n", "\r\n", "\r"};
    const std::string_view end = ends[rng.below(3)];
    for (auto& row : rows) {
      for (size_t i = 0; i < width; ++i) {
        std::string& field = row.emplace_back();
        const uint64_t length = rng.below(50) == 0 ? 300'000 : rng.below(6);
        for (uint64_t c = 0; c < length; ++c) field += "ab,\"\n\r; \xC3\xA4"[rng.below(10)];
        std::string quoted = "\"";
        for (const char c : field) quoted += c == '"' ? "\"\"" : std::string(1, c);
        text += (i ? "," : "") + quoted + "\"";
      }
      text += end;
    }
    if (rng.below(2) == 0) text.resize(text.size() - end.size());
    const auto file = File::open(scratch_.write("t.csv", text));
    ASSERT_TRUE(file.has_value());
    CsvReader reader(*file, ',');
    for (const auto& row : rows) {
      if (width == 1 && row[0].empty()) continue;  // an empty line
      const auto more = reader.next();
      ASSERT_TRUE(more.has_value() && *more) << (more ? "ends" : more.error().message);
      ASSERT_EQ(reader.size(), width);
      for (size_t i = 0; i < width; ++i) ASSERT_EQ(reader.field(i), row[i]);
    }
    EXPECT_EQ(reader.next().value_or(true), false);
  }
}

}  // namespace
}  // namespace weft::data
