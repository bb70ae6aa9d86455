#include "data/summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "data/convert.h"
#include "data/csv.h"
#include "data/photo_list.h"

namespace weft::data {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;
constexpr uint64_t kSamplesShown = 3;
constexpr int64_t kElementsShown = 6;
constexpr uint32_t kPhotoSize = 224;
constexpr size_t kTextColumnsMax = 1024;  // of a table that is guessed at

class ColumnReader {
 public:
  ColumnReader(const Dataset& dataset, size_t column, Summary& summary)
      : dataset_(dataset), column_(column), stored_(dataset.columns()[column]), summary_(summary) {
    into_.name = stored_.name;
    into_.sample = stored_.sample;
    counts_classes_ = stored_.sample.element_count() == 1 && dag::is_integer(stored_.sample.dtype);
  }

  Result<ColumnSummary> run() {
    const auto size = static_cast<size_t>(stored_.sample.bytes().value);
    const uint64_t at_once = std::max<uint64_t>(1, kChunkBytes / size);
    std::vector<std::byte> bytes;
    for (uint64_t first = 0; first < dataset_.sample_count(); first += at_once) {
      std::vector<uint32_t> rows(static_cast<size_t>(std::min(at_once, dataset_.sample_count() - first)));
      std::iota(rows.begin(), rows.end(), static_cast<uint32_t>(first));
      bytes.resize(rows.size() * size);
      if (dataset_.read(column_, rows, bytes)) {
        add(first, bytes);
      } else {
        WEFT_TRY_STATUS(add_one_by_one(rows, std::span(bytes).first(size)));
      }
    }
    finish();
    return std::move(into_);
  }

 private:
  Status add_one_by_one(const std::vector<uint32_t>& rows, std::span<std::byte> bytes) {
    for (const uint32_t& row : rows) {
      const Status read = dataset_.read(column_, {&row, 1}, bytes);
      if (read) {
        add(row, bytes);
        continue;
      }
      if (!dataset_.is_unchecked(column_)) return read;
      if (++summary_.unreadable_count <= kUnreadableShown)
        summary_.unreadable.push_back(read.error().message);
    }
    return {};
  }

  void add(uint64_t first, std::span<const std::byte> bytes) {
    const auto per_sample = static_cast<size_t>(stored_.sample.element_count());
    const size_t count = bytes.size() / static_cast<size_t>(element_size(stored_.sample.dtype));
    for (size_t i = 0; i < count; ++i) {
      const double value = element_number(stored_.sample.dtype, bytes, i);
      if (!std::isfinite(value)) {
        ++(std::isnan(value) ? into_.nan : into_.infinite);
        if (into_.first_not_finite.empty())
          into_.first_not_finite = dataset_.place_of(first + i / per_sample);
        continue;
      }
      if (!is_any_ || value < low_) into_.low = element_text(stored_.sample.dtype, bytes, i), low_ = value;
      if (!is_any_ || value > high_) into_.high = element_text(stored_.sample.dtype, bytes, i), high_ = value;
      is_any_ = true;
      if (counts_classes_) count_class(value);
    }
    for (size_t row = 0; row * per_sample < count && into_.first.size() < kSamplesShown; ++row)
      into_.first.push_back(shown(bytes, row * per_sample));
  }

  void count_class(double value) {
    ++counts_[value];
    if (counts_.size() <= kClassesShown) return;
    counts_classes_ = false;
    counts_.clear();
  }

  std::string shown(std::span<const std::byte> bytes, size_t from) const {
    std::string text;
    const int64_t count = stored_.sample.element_count();
    for (int64_t i = 0; i < std::min(count, kElementsShown); ++i)
      text += (i ? " " : "") + element_text(stored_.sample.dtype, bytes, from + static_cast<size_t>(i));
    return text + (count > kElementsShown ? " ..." : "");
  }

  void finish() {
    const auto names = dataset_.classes(column_);
    for (size_t i = 0; i < std::min(names.size(), kClassesShown); ++i) {
      const auto at = counts_.find(static_cast<double>(i));
      into_.classes.emplace_back(names[i], at == counts_.end() ? 0 : at->second);
    }
    if (!names.empty()) return;
    for (const auto& [value, count] : counts_)
      into_.classes.emplace_back(std::to_string(static_cast<int64_t>(value)), count);
  }

  const Dataset& dataset_;
  size_t column_;
  const Column& stored_;
  Summary& summary_;
  ColumnSummary into_;
  bool is_any_ = false, counts_classes_ = false;
  double low_ = 0, high_ = 0;
  std::map<double, uint64_t> counts_;
};

// ---- what nobody said

char separator_of(std::string_view line) {
  char best = ',';
  for (const char c : {';', '\t', '|'})
    if (std::count(line.begin(), line.end(), c) > std::count(line.begin(), line.end(), best)) best = c;
  return best;
}

Result<CsvSpec> guess_table(const std::filesystem::path& path) {
  CsvSpec spec;
  spec.path = path;
  WEFT_TRY(const auto file, File::open(path));
  std::string head(static_cast<size_t>(std::min<uint64_t>(file->size(), 64 << 10)), '\0');
  WEFT_TRY_STATUS(file->read_at(0, std::as_writable_bytes(std::span(head))));
  spec.separator = separator_of(std::string_view(head).substr(0, head.find('\n')));
  CsvReader reader(file, spec.separator);
  WEFT_TRY(const bool has_header, reader.next());
  for (size_t i = 0; has_header && i < reader.size(); ++i) {
    std::string name(reader.field(i));
    spec.columns.push_back({.name = name, .fields = {name}});
  }
  // A field that is no number makes its column one of classes.
  WEFT_TRY(bool is_more, reader.next());
  for (size_t row = 0; is_more && row < kTextColumnsMax; ++row) {
    for (size_t i = 0; i < std::min(reader.size(), spec.columns.size()); ++i)
      spec.columns[i].has_classes = spec.columns[i].has_classes || is_csv_text(reader.field(i));
    WEFT_TRY(is_more, reader.next());
  }
  for (CsvSpec::Column& column : spec.columns)
    if (!column.has_classes) column.missing = std::nan("");
  return spec;
}

Result<ImagesSpec> guess_photos(const std::filesystem::path& path) {
  ImagesSpec spec;
  spec.path = path;
  spec.size = kPhotoSize;
  const auto list = list_photos(spec);
  if (list) return spec;
  spec.has_labels = false;  // photos without classes, maybe
  const auto bare = list_photos(spec);
  if (!bare) return fail(list.error());
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(path, code))
    if (entry.is_directory(code)) return fail(list.error());
  return spec;
}

}  // namespace

Result<Summary> summarise(const Dataset& dataset) {
  Summary summary;
  summary.samples = dataset.sample_count();
  for (size_t column = 0; column < dataset.columns().size(); ++column) {
    WEFT_TRY(ColumnSummary one, ColumnReader(dataset, column, summary).run());
    summary.columns.push_back(std::move(one));
  }
  summary.notes.assign(dataset.notes().begin(), dataset.notes().end());
  summary.others.assign(dataset.others().begin(), dataset.others().end());
  return summary;
}

Result<DataSpec> guess_spec(const std::filesystem::path& path) {
  const FileKind kind = kind_of(path);
  switch (kind) {
    case FileKind::Npz:
      return NpzSpec{path};
    case FileKind::Npy:
      return NpySpec{{{path.stem().string(), path}}};
    case FileKind::Csv:
      return guess_table(path);
    case FileKind::Folder:
      return guess_photos(path);
    default:
      break;
  }
  const std::string use = as_data(kind, path);
  return fail(ErrorCode::Unsupported,
              path.string() + ": is " + std::string(name_of(kind)) + (use.empty() ? "" : "; " + use));
}

std::string yaml_of(const DataSpec& spec) {
  if (const auto* npz = std::get_if<NpzSpec>(&spec)) return "{type: npz, path: " + npz->path.string() + "}";
  if (const auto* images = std::get_if<ImagesSpec>(&spec))
    return "{type: images, path: " + images->path.string() + ", size: " + std::to_string(images->size) + "}";
  if (const auto* npy = std::get_if<NpySpec>(&spec)) {
    std::string text;
    for (const auto& [column, path] : npy->arrays)
      text += (text.empty() ? "" : ", ") + column + ": " + path.string();
    return "{type: npy, arrays: {" + text + "}}";
  }
  const auto* csv = std::get_if<CsvSpec>(&spec);
  if (csv == nullptr) return {};
  std::string text = "{type: csv, path: " + csv->path.string();
  if (csv->separator != ',')
    text += std::string(", separator: ") +
            (csv->separator == '\t' ? "tab" : "\"" + std::string(1, csv->separator) + "\"");
  std::string numbers, classes;
  for (const CsvSpec::Column& column : csv->columns)
    if (column.has_classes)
      classes += ", " + column.name + ": {classes: auto}";
    else
      numbers += (numbers.empty() ? "" : ", ") + column.name;
  return text + ", columns: {x: [" + numbers + "]" + classes + "}}";
}

}  // namespace weft::data
