// A table as columns. All of it is read once, when it is opened, and kept as numbers: int64 where a column
// has nothing but whole ones, float64 otherwise.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/check.h"
#include "data/csv.h"
#include "data/dataset.h"

namespace weft::data {
namespace {

constexpr size_t kShownMax = 64;  // bytes of a field, in a message
constexpr size_t kClassTextMax = 1024;

std::string shown(std::string_view text) {
  return "'" + std::string(text.substr(0, kShownMax)) + (text.size() > kShownMax ? "...'" : "'");
}

// What people and their tools write where there is nothing.
bool is_missing(std::string_view text) {
  static constexpr std::string_view kWords[] = {"",    "NA",   "N/A",  "n/a",  "NaN",
                                                "nan", "null", "NULL", "None", "?"};
  return std::find(std::begin(kWords), std::end(kWords), text) != std::end(kWords);
}

struct Number {
  bool is_whole = false;
  int64_t whole = 0;
  double real = 0;
};

template <typename T>
bool parse(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::optional<Number> parse_number(std::string_view text, char decimal) {
  std::string with_point;
  if (decimal != '.') {
    if (text.find('.') != std::string_view::npos) return std::nullopt;
    with_point = text;
    std::replace(with_point.begin(), with_point.end(), decimal, '.');
    text = with_point;
  }
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  Number number;
  number.is_whole = parse(text, number.whole);
  if (number.is_whole) {
    number.real = static_cast<double>(number.whole);
    return number;
  }
  return parse(text, number.real) ? std::optional(number) : std::nullopt;
}

// A column while its table is read.
class Growing {
 public:
  Growing(const CsvSpec::Column& spec, std::vector<size_t> fields) : spec_(spec), fields_(std::move(fields)) {
    for (const std::string& name : spec.classes) seen_.try_emplace(name, seen_.size());
  }

  const CsvSpec::Column& spec() const { return spec_; }
  uint64_t bytes() const { return (whole_.size() + real_.size()) * 8; }

  Status add(const CsvReader& reader, const CsvSpec& table) {
    for (size_t i = 0; i < fields_.size(); ++i) {
      const std::string_view text = reader.field(fields_[i]);
      WEFT_TRY_STATUS(spec_.has_classes ? add_class(reader, spec_.fields[i], text)
                                        : add_number(reader, table, spec_.fields[i], text));
    }
    return {};
  }

  // The classes are in the order of their bytes, where the job did not say one.
  Status finish(const File& file) {
    if (!spec_.has_classes) return {};
    WEFT_TRY_STATUS(check_case(file));
    number_classes();
    return {};
  }
  bool is_whole() const { return is_whole_; }
  std::span<const std::byte> elements() const {
    return is_whole_ ? std::as_bytes(std::span(whole_)) : std::as_bytes(std::span(real_));
  }
  const std::vector<std::string>& classes() const { return classes_; }

 private:
  Status check_case(const File& file) const {
    if (!spec_.classes.empty()) return {};
    std::vector<std::string_view> names;
    names.reserve(seen_.size());
    for (const auto& [name, index] : seen_) names.push_back(name);
    const auto pair = differ_in_case(names);
    if (!pair) return {};
    return file.error(ErrorCode::InvalidArgument,
                      "the classes " + shown(pair->first) + " and " + shown(pair->second) + " of column '" +
                          spec_.name +
                          "' differ in case alone; write them alike, or list the classes: `classes: [" +
                          pair->first + ", " + pair->second + "]`");
  }

  void number_classes() {
    classes_.resize(seen_.size());
    if (!spec_.classes.empty()) {
      for (const auto& [name, index] : seen_) classes_[static_cast<size_t>(index)] = name;
      return;
    }
    std::vector<int64_t> rank(seen_.size());
    int64_t next = 0;
    for (const auto& [name, index] : seen_) {
      classes_[static_cast<size_t>(next)] = name;
      rank[static_cast<size_t>(index)] = next++;
    }
    for (int64_t& value : whole_) value = rank[static_cast<size_t>(value)];
  }

  Status add_class(const CsvReader& reader, const std::string& field, std::string_view text) {
    if (text.empty())
      return reader.error(ErrorCode::InvalidArgument,
                          "column '" + field + "' is empty, and is to be a class");
    if (text.size() > kClassTextMax)
      return reader.error(ErrorCode::InvalidArgument,
                          "column '" + field + "' holds " + shown(text) + ", which is too long for a class");
    auto at = seen_.find(text);
    if (at == seen_.end()) {
      if (!spec_.classes.empty())
        return reader.error(ErrorCode::InvalidArgument, "column '" + field + "' holds " + shown(text) +
                                                            ", which is none of its classes (" +
                                                            some_classes() + ")");
      if (seen_.size() == kClassesMax)
        return reader.error(ErrorCode::ResourceExhausted, "column '" + field + "' has more than " +
                                                              std::to_string(kClassesMax) + " classes");
      at = seen_.emplace(std::string(text), static_cast<int64_t>(seen_.size())).first;
    }
    whole_.push_back(at->second);
    return {};
  }

  std::string some_classes() const {
    std::string text;
    for (size_t i = 0; i < std::min<size_t>(spec_.classes.size(), 8); ++i)
      text += (i ? ", " : "") + spec_.classes[i].substr(0, kShownMax);
    return text + (spec_.classes.size() > 8 ? ", ..." : "");
  }

  Status add_number(const CsvReader& reader, const CsvSpec& table, const std::string& field,
                    std::string_view text) {
    if (is_missing(text)) {
      if (!spec_.missing)
        return reader.error(ErrorCode::InvalidArgument,
                            "column '" + field + "' is missing (" + shown(text) +
                                "); say what it is: `missing: NUMBER`, or leave the row out");
      const double value = *spec_.missing;
      const bool is_whole = value == std::trunc(value) && std::abs(value) < 9007199254740992.0;
      push({is_whole, is_whole ? static_cast<int64_t>(value) : 0, value});
      return {};
    }
    const auto number = parse_number(text, table.decimal);
    if (!number)
      return reader.error(ErrorCode::InvalidArgument, "column '" + field + "' holds " + shown(text) +
                                                          ", which is no number" + advice(field, text));
    push(*number);
    return {};
  }

  static std::string advice(const std::string& field, std::string_view text) {
    if (text == field) return "; is the header there twice?";
    const bool has_digits =
        std::any_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    const bool is_numeric = text.find_first_not_of("0123456789+-.,eE") == std::string_view::npos;
    if (has_digits && is_numeric && text.find(',') != std::string_view::npos)
      return "; where the comma is a decimal one, say `decimal: \",\"`";
    if (has_digits && is_numeric) return "; is it within the range of a double, with a decimal point?";
    return "; where texts are classes, say `" + field + ": {from: " + field + ", classes: auto}`";
  }

  void push(const Number& number) {
    if (is_whole_ && !number.is_whole) {
      is_whole_ = false;
      real_.assign(whole_.begin(), whole_.end());
      whole_ = {};
    }
    if (is_whole_)
      whole_.push_back(number.whole);
    else
      real_.push_back(number.real);
  }

  CsvSpec::Column spec_;
  std::vector<size_t> fields_;  // of a record
  bool is_whole_ = true;
  std::vector<int64_t> whole_;
  std::vector<double> real_;
  std::map<std::string, int64_t, std::less<>> seen_;  // in the order in which they came, or that the job says
  std::vector<std::string> classes_;
};

class CsvDataset final : public Dataset {
 public:
  // `empty_lines`: the sample before which each of them stands.
  CsvDataset(std::vector<Growing> values, std::vector<std::string> others, uint32_t count,
             std::vector<uint32_t> empty_lines)
      : values_(std::move(values)),
        others_(std::move(others)),
        count_(count),
        empty_lines_(std::move(empty_lines)) {
    for (const Growing& one : values_) {
      dag::Shape shape;
      if (one.spec().is_list) shape = {static_cast<int64_t>(one.spec().fields.size())};
      columns_.push_back({one.spec().name, {one.is_whole() ? dag::DType::I64 : dag::DType::F64, shape}});
    }
  }

  std::span<const Column> columns() const override { return columns_; }
  uint32_t sample_count() const override { return count_; }
  std::span<const std::string> others() const override { return others_; }
  std::span<const std::string> classes(size_t column) const override { return values_[column].classes(); }
  uint64_t resident_bytes() const override {
    uint64_t sum = 0;
    for (const Growing& one : values_) sum += one.bytes();
    return sum;
  }
  std::string place_of(uint64_t sample) const override {
    const auto before =
        std::upper_bound(empty_lines_.begin(), empty_lines_.end(), sample) - empty_lines_.begin();
    return "row " + std::to_string(sample + 2 + static_cast<uint64_t>(before)) + " (the header is row 1)";
  }

  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    WEFT_CHECK(column < columns_.size());
    const auto size = static_cast<size_t>(columns_[column].sample.bytes().value);
    WEFT_CHECK(out.size() == samples.size() * size);
    const auto elements = values_[column].elements();
    for (size_t i = 0; i < samples.size(); ++i) {
      if (samples[i] >= count_)
        return fail(ErrorCode::OutOfRange,
                    "sample " + std::to_string(samples[i]) + " of " + std::to_string(count_));
      std::memcpy(out.data() + i * size, elements.data() + samples[i] * size, size);
    }
    return {};
  }

 private:
  std::vector<Growing> values_;
  std::vector<std::string> others_;
  uint32_t count_;
  std::vector<uint32_t> empty_lines_;
  std::vector<Column> columns_;
};

class TableReader {
 public:
  TableReader(std::shared_ptr<const File> file, const CsvSpec& spec, uint64_t resident_max)
      : file_(std::move(file)), spec_(spec), reader_(file_, spec.separator), resident_max_(resident_max) {}

  Result<std::unique_ptr<Dataset>> run() {
    WEFT_TRY_STATUS(read_header());
    std::vector<Growing> columns;
    for (const CsvSpec::Column& column : wanted()) {
      WEFT_TRY(std::vector<size_t> fields, places_of(column));
      columns.emplace_back(column, std::move(fields));
    }
    WEFT_TRY_STATUS(read_rows(columns));
    if (count_ == 0) return file_->error(ErrorCode::InvalidArgument, "has a header and no rows: no samples");
    for (Growing& column : columns) WEFT_TRY_STATUS(column.finish(*file_));
    return std::make_unique<CsvDataset>(std::move(columns), others(), count_, std::move(empty_lines_));
  }

 private:
  Status read_header() {
    WEFT_TRY(const bool is_there, reader_.next());
    if (!is_there)
      return file_->error(ErrorCode::InvalidArgument, "is empty; its first row names the columns");
    for (size_t i = 0; i < reader_.size(); ++i) header_.emplace_back(reader_.field(i));
    next_row_ = reader_.row() + 1;
    return {};
  }

  // Every field is a column of its own where the job names none.
  std::vector<CsvSpec::Column> wanted() const {
    if (!spec_.columns.empty()) return spec_.columns;
    std::vector<CsvSpec::Column> columns;
    columns.reserve(header_.size());
    for (const std::string& name : header_) columns.push_back({.name = name, .fields = {name}});
    return columns;
  }

  Result<std::vector<size_t>> places_of(const CsvSpec::Column& column) {
    std::vector<size_t> places;
    for (const std::string& field : column.fields) {
      const auto at = std::find(header_.begin(), header_.end(), field);
      if (at == header_.end()) return no_such(field);
      if (std::find(at + 1, header_.end(), field) != header_.end())
        return reader_.error(ErrorCode::InvalidArgument,
                             "the header names '" + field + "' twice; give one of them another name");
      places.push_back(static_cast<size_t>(at - header_.begin()));
      named_.insert(places.back());
    }
    return places;
  }

  tl::unexpected<Error> no_such(const std::string& field) const {
    std::string names;
    for (size_t i = 0; i < std::min<size_t>(header_.size(), 16); ++i)
      names += (i ? ", " : "") + shown(header_[i]);
    if (header_.size() > 16) names += ", ...";
    const bool is_numeric = std::all_of(header_.begin(), header_.end(), [&](const std::string& name) {
      return parse_number(name, spec_.decimal).has_value();
    });
    std::string advice;
    if (is_numeric)
      advice = "; these are numbers: is the header missing? Write a first line of names";
    else if (header_.size() == 1)
      for (const auto& [separator, name] : {std::pair(';', ";"), {'\t', "tab"}, {',', ","}, {'|', "|"}})
        if (header_[0].find(separator) != std::string::npos && separator != spec_.separator)
          advice = "; say `separator: " +
                   std::string(name == std::string_view("tab") ? "tab" : "\"" + std::string(name) + "\"") +
                   "`";
    return reader_.error(ErrorCode::NotFound,
                         "the header has no column '" + field + "'; it has " + names + advice);
  }

  Status read_rows(std::vector<Growing>& columns) {
    for (;;) {
      WEFT_TRY(const bool is_there, reader_.next());
      if (!is_there) return {};
      if (reader_.size() != header_.size())
        return reader_.error(ErrorCode::InvalidArgument, "has " + std::to_string(reader_.size()) +
                                                             " fields, and the header " +
                                                             std::to_string(header_.size()));
      if (count_ == UINT32_MAX - 1) return reader_.error(ErrorCode::OutOfRange, "is beyond 2^32 samples");
      WEFT_TRY_STATUS(note_empty_lines());
      uint64_t bytes = 0;
      for (Growing& column : columns) {
        WEFT_TRY_STATUS(column.add(reader_, spec_));
        bytes += column.bytes();
      }
      if (bytes > resident_max_)
        return reader_.error(ErrorCode::ResourceExhausted,
                             "the table takes more than " + std::to_string(resident_max_) +
                                 " bytes as numbers; write its columns as .npy files, which stay on disk");
      ++count_;
    }
  }

  Status note_empty_lines() {
    for (; next_row_ < reader_.row(); ++next_row_) {
      if (empty_lines_.size() == kFieldsMax)
        return reader_.error(ErrorCode::ResourceExhausted, "too many empty lines stand before it");
      empty_lines_.push_back(count_);
    }
    ++next_row_;
    return {};
  }

  std::vector<std::string> others() const {
    std::vector<std::string> names;
    for (size_t i = 0; i < header_.size(); ++i)
      if (!named_.contains(i)) names.push_back(header_[i]);
    return names;
  }

  std::shared_ptr<const File> file_;
  const CsvSpec& spec_;
  CsvReader reader_;
  uint64_t resident_max_;
  std::vector<std::string> header_;
  std::set<size_t> named_;
  uint32_t count_ = 0;
  uint64_t next_row_ = 2;
  std::vector<uint32_t> empty_lines_;
};

// The columns' classes are those of another table where the spec says so.
Result<CsvSpec> with_classes(const CsvSpec& spec, const OpenOptions& options) {
  CsvSpec full = spec;
  if (!spec.classes_of) return full;
  for (CsvSpec::Column& column : full.columns) {
    if (!column.has_classes || !column.classes.empty()) continue;
    CsvSpec other = *spec.classes_of;
    std::erase_if(other.columns,
                  [&](const auto& one) { return one.name != column.name || !one.has_classes; });
    if (other.columns.empty()) continue;
    WEFT_TRY(const auto dataset, open_csv(other, options));
    const auto classes = dataset->classes(0);
    column.classes.assign(classes.begin(), classes.end());
  }
  return full;
}

}  // namespace

bool is_csv_text(std::string_view field, char decimal) {
  return !is_missing(field) && !parse_number(field, decimal);
}

Result<std::unique_ptr<Dataset>> open_csv(const CsvSpec& spec, const OpenOptions& options) {
  WEFT_TRY(const CsvSpec full, with_classes(spec, options));
  WEFT_TRY(auto file, File::open(spec.path));
  return TableReader(std::move(file), full, options.resident_max).run();
}

}  // namespace weft::data
