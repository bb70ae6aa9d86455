// Columns changed between the file and the model: numbers scaled and shifted, pictures mirrored and cut. What
// chance decides is drawn by Philox from the run's seed, the epoch and the sample alone, so that the same
// sample of the same epoch is the same picture wherever and whenever it is read.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/rng.h"
#include "data/convert.h"
#include "data/dataset.h"

namespace weft::data {
namespace {

constexpr uint32_t kDrawStream = 0x61756721;  // of the draws for pictures, beside those of other purposes

// A square out of a picture, mirrored or not.
struct View {
  int64_t top = 0, left = 0;
  bool mirrored = false;
};

View drawn_view(const Transform& transform, const dag::Shape& stored, uint64_t seed, uint64_t epoch,
                uint32_t sample) {
  const PhiloxBlock draw =
      philox({sample, static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32), kDrawStream},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const auto below = [](uint32_t word, int64_t bound) {
    return static_cast<int64_t>(uint64_t{word} * static_cast<uint64_t>(bound) >> 32);
  };
  View view;
  if (transform.crop > 0) {
    view.top = below(draw[0], stored[1] - transform.crop + 1);
    view.left = below(draw[1], stored[2] - transform.crop + 1);
  }
  view.mirrored = transform.flip && (draw[2] >> 31) != 0;
  return view;
}

View middle_view(const Transform& transform, const dag::Shape& stored) {
  if (transform.crop == 0) return {};
  return {(stored[1] - transform.crop) / 2, (stored[2] - transform.crop) / 2, false};
}

// One column and what becomes of it.
class Changed {
 public:
  Changed(const Column& stored, const Transform& transform)
      : stored_(stored), transform_(transform), column_(stored) {
    if (transform.changes_numbers()) column_.sample.dtype = dag::DType::F32;
    if (transform.crop > 0) column_.sample.shape = {stored.sample.shape[0], transform.crop, transform.crop};
    if (stored.sample.dtype == dag::DType::U8 && transform.changes_numbers()) make_table();
  }

  const Column& column() const { return column_; }
  bool has_draws() const { return transform_.flip || transform_.crop > 0; }
  bool gives_finite() const { return !table_.empty(); }

  View middle() const { return middle_view(transform_, stored_.sample.shape); }
  View drawn(uint64_t seed, uint64_t epoch, uint32_t sample) const {
    return drawn_view(transform_, stored_.sample.shape, seed, epoch, sample);
  }

  // One sample. `in`: as it is stored.
  void apply(std::span<const std::byte> in, const View& view, std::span<std::byte> out) const {
    std::vector<std::byte> seen;
    if (has_draws()) {
      seen.resize(static_cast<size_t>(column_.sample.element_count()) * element());
      look(in, view, seen);
      in = seen;
    }
    if (transform_.changes_numbers())
      shift(in, out);
    else
      std::memcpy(out.data(), in.data(), out.size());
  }

 private:
  size_t element() const { return static_cast<size_t>(element_size(stored_.sample.dtype)); }
  double mean(size_t entry) const { return of(transform_.mean, entry, 0); }
  double deviation(size_t entry) const { return of(transform_.deviation, entry, 1); }
  static double of(const std::vector<double>& list, size_t entry, double otherwise) {
    return list.empty() ? otherwise : list.size() == 1 ? list.front() : list[entry];
  }
  // Entries of the first axis that have numbers of their own.
  size_t entries() const {
    return std::max({transform_.mean.size(), transform_.deviation.size(), size_t{1}});
  }

  float changed(double value, size_t entry) const {
    return static_cast<float>((value * transform_.scale - mean(entry)) / deviation(entry));
  }

  void make_table() {
    table_.resize(entries() * 256);
    for (size_t entry = 0; entry < entries(); ++entry)
      for (size_t v = 0; v < 256; ++v) table_[entry * 256 + v] = changed(static_cast<double>(v), entry);
  }

  void look(std::span<const std::byte> in, const View& view, std::span<std::byte> out) const {
    const dag::Shape& from = stored_.sample.shape;
    const dag::Shape& to = column_.sample.shape;
    std::byte* target = out.data();
    for (int64_t channel = 0; channel < to[0]; ++channel)
      for (int64_t y = 0; y < to[1]; ++y) {
        const int64_t row = ((channel * from[1] + view.top + y) * from[2] + view.left);
        const std::byte* source = in.data() + static_cast<size_t>(row) * element();
        const size_t width = static_cast<size_t>(to[2]);
        if (!view.mirrored) std::memcpy(target, source, width * element());
        for (size_t x = 0; view.mirrored && x < width; ++x)
          std::memcpy(target + x * element(), source + (width - 1 - x) * element(), element());
        target += width * element();
      }
  }

  void shift(std::span<const std::byte> in, std::span<std::byte> out) const {
    auto* target = reinterpret_cast<float*>(out.data());
    const auto count = static_cast<size_t>(column_.sample.element_count());
    const size_t each = count / entries();
    if (!table_.empty()) {
      for (size_t i = 0; i < count; ++i) target[i] = table_[i / each * 256 + static_cast<size_t>(in[i])];
      return;
    }
    for (size_t i = 0; i < count; ++i)
      target[i] = changed(element_number(stored_.sample.dtype, in, i), i / each);
  }

  Column stored_;
  Transform transform_;
  Column column_;
  std::vector<float> table_;  // of bytes, by entry and value
};

class TransformedDataset final : public Dataset {
 public:
  TransformedDataset(std::unique_ptr<Dataset> stored, const Transforms& transforms)
      : stored_(std::move(stored)) {
    for (const Column& column : stored_->columns()) {
      const auto at = transforms.find(column.name);
      changed_.push_back(at == transforms.end() || at->second.is_nothing()
                             ? std::nullopt
                             : std::optional<Changed>(std::in_place, column, at->second));
      columns_.push_back(changed_.back() ? changed_.back()->column() : column);
    }
  }

  std::span<const Column> columns() const override { return columns_; }
  uint32_t sample_count() const override { return stored_->sample_count(); }
  std::span<const std::string> others() const override { return stored_->others(); }
  std::span<const std::string> notes() const override { return stored_->notes(); }
  std::span<const std::string> classes(size_t column) const override { return stored_->classes(column); }
  std::string place_of(uint64_t sample) const override { return stored_->place_of(sample); }
  uint64_t resident_bytes() const override { return stored_->resident_bytes(); }
  bool is_finite(size_t column) const override {
    return changed_[column] ? changed_[column]->gives_finite() : stored_->is_finite(column);
  }
  bool is_unchecked(size_t column) const override { return stored_->is_unchecked(column); }
  std::optional<Range> range(size_t column) const override {
    return changed_[column] ? std::nullopt : stored_->range(column);
  }

  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    return read_with(column, samples, nullptr, out);
  }
  Status read_drawn(size_t column, std::span<const uint32_t> samples, const Draws& draws,
                    std::span<std::byte> out) const override {
    return read_with(column, samples, &draws, out);
  }

 private:
  Status read_with(size_t column, std::span<const uint32_t> samples, const Draws* draws,
                   std::span<std::byte> out) const {
    WEFT_CHECK(column < columns_.size());
    if (!changed_[column]) return stored_->read(column, samples, out);
    const Changed& changed = *changed_[column];
    const auto size = static_cast<size_t>(columns_[column].sample.bytes().value);
    WEFT_CHECK(out.size() == samples.size() * size);
    std::vector<std::byte> one(static_cast<size_t>(stored_->columns()[column].sample.bytes().value));
    for (size_t i = 0; i < samples.size(); ++i) {
      WEFT_TRY_STATUS(stored_->read(column, samples.subspan(i, 1), one));
      const View view = draws == nullptr
                            ? changed.middle()
                            : changed.drawn(draws->seed, (draws->first + i) / sample_count(), samples[i]);
      changed.apply(one, view, out.subspan(i * size, size));
    }
    return {};
  }

  std::unique_ptr<Dataset> stored_;
  std::vector<std::optional<Changed>> changed_;
  std::vector<Column> columns_;
};

Status check_list(const Column& column, const char* key, const std::vector<double>& list) {
  const dag::Shape& shape = column.sample.shape;
  const int64_t entries = shape.empty() ? 1 : shape[0];
  if (list.size() <= 1 || static_cast<int64_t>(list.size()) == entries) return {};
  return fail(ErrorCode::InvalidArgument, "`" + std::string(key) + "` has " + std::to_string(list.size()) +
                                              " numbers for column '" + column.name +
                                              "', whose samples are " + to_string(column.sample) +
                                              "; write " + std::to_string(entries) + ", or one for all");
}

Status check(const Column& column, const Transform& transform) {
  WEFT_TRY_STATUS(check_list(column, "mean", transform.mean));
  WEFT_TRY_STATUS(check_list(column, "deviation", transform.deviation));
  if (!transform.flip && transform.crop == 0) return {};
  const dag::Shape& shape = column.sample.shape;
  if (shape.size() != 3)
    return fail(ErrorCode::InvalidArgument,
                "`augment` needs pictures [channels, rows, columns]; a sample of column '" + column.name +
                    "' is " + to_string(column.sample));
  if (int64_t{transform.crop} > std::min(shape[1], shape[2]))
    return fail(ErrorCode::InvalidArgument, "a crop of " + std::to_string(transform.crop) +
                                                " pixels is larger than a sample of column '" + column.name +
                                                "', " + to_string(column.sample));
  return {};
}

}  // namespace

Result<std::unique_ptr<Dataset>> with_transforms(std::unique_ptr<Dataset> stored,
                                                 const Transforms& transforms) {
  bool changes = false;
  for (const auto& [name, transform] : transforms) {
    const auto column = stored->find_column(name);
    if (!column) {
      const auto others = stored->others();
      if (std::find(others.begin(), others.end(), name) != others.end()) continue;
      return fail(ErrorCode::NotFound,
                  "`columns` names '" + name + "', and the data has " + stored->describe());
    }
    WEFT_TRY_STATUS(check(stored->columns()[*column], transform));
    changes = changes || !transform.is_nothing();
  }
  if (!changes) return stored;
  return std::make_unique<TransformedDataset>(std::move(stored), transforms);
}

}  // namespace weft::data
