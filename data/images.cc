// Photos as samples: each decoded, turned upright and made a square of bytes when it is first read. What fits
// OpenOptions::resident_max is kept; of a larger set each photo is decoded whenever it is read.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/mutex.h"
#include "data/dataset.h"
#include "data/file.h"
#include "data/photo.h"
#include "data/photo_list.h"
#include "data/resize.h"

namespace weft::data {
namespace {

constexpr uint32_t kLengthsMax = 1024;  // how much longer than wide a photo may be

class ImagesDataset final : public Dataset {
 public:
  ImagesDataset(PhotoList list, const ImagesSpec& spec, const OpenOptions& options)
      : list_(std::move(list)),
        resize_(std::max(spec.resize, spec.kept())),
        edge_(spec.kept()),
        is_unchecked_(options.checks_photos) {
    const int64_t edge = edge_;
    columns_.push_back({"image", {dag::DType::U8, {3, edge, edge}}});
    if (spec.has_labels) columns_.push_back({"label", {dag::DType::I64, {}}});
    keeps_ = uint64_t{sample_count()} * photo_size() <= options.resident_max;
    if (keeps_) kept_.resize(sample_count());
  }

  std::span<const Column> columns() const override { return columns_; }
  uint32_t sample_count() const override { return static_cast<uint32_t>(list_.names.size()); }
  std::span<const std::string> notes() const override { return list_.notes; }
  std::span<const std::string> classes(size_t column) const override {
    return column == 1 ? std::span<const std::string>(list_.classes) : std::span<const std::string>();
  }
  bool is_unchecked(size_t column) const override { return column == 0 && is_unchecked_; }
  std::optional<Range> range(size_t column) const override {
    if (column != 1) return std::nullopt;
    const auto [low, high] = std::minmax_element(list_.labels.begin(), list_.labels.end());
    return Range{*low, *high};
  }
  uint64_t resident_bytes() const override { return keeps_ ? uint64_t{sample_count()} * photo_size() : 0; }
  std::string place_of(uint64_t sample) const override {
    return "row " + std::to_string(sample) + " (the first is 0), " + list_.names[static_cast<size_t>(sample)];
  }

  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    WEFT_CHECK(column < columns_.size());
    WEFT_CHECK(out.size() == samples.size() * static_cast<size_t>(columns_[column].sample.bytes().value));
    for (size_t i = 0; i < samples.size(); ++i) {
      if (samples[i] >= sample_count())
        return fail(ErrorCode::OutOfRange,
                    "sample " + std::to_string(samples[i]) + " of " + std::to_string(sample_count()));
      if (column == 0)
        WEFT_TRY_STATUS(read_photo(samples[i], out.subspan(i * photo_size(), photo_size())));
      else
        std::memcpy(out.data() + i * sizeof(int64_t), &list_.labels[samples[i]], sizeof(int64_t));
    }
    return {};
  }

 private:
  size_t photo_size() const { return size_t{3} * edge_ * edge_; }

  Status read_photo(uint32_t sample, std::span<std::byte> out) const {
    if (keeps_) {
      const MutexLock lock(mutex_);
      if (const auto& kept = kept_[sample]; !kept.empty()) {
        std::memcpy(out.data(), kept.data(), kept.size());
        return {};
      }
    }
    WEFT_TRY_STATUS(decode(sample, out));
    if (keeps_) {
      const MutexLock lock(mutex_);
      kept_[sample].assign(out.begin(), out.end());
    }
    return {};
  }

  Status decode(uint32_t sample, std::span<std::byte> out) const {
    const auto path = list_.root / list_.names[sample];
    WEFT_TRY(const auto file, File::open(path));
    const std::string place = "row " + std::to_string(sample) + " (the first is 0): ";
    if (file->size() > kPhotoFileMax)
      return file->error(ErrorCode::ResourceExhausted,
                         place + "is larger than " + std::to_string(kPhotoFileMax) + " bytes");
    WEFT_TRY(auto bytes, allocate_bytes(file->size(), path.string()));
    WEFT_TRY_STATUS(file->read_at(0, bytes));
    const auto photo = decode_photo(bytes);
    if (!photo) return file->error(photo.error().code, place + photo.error().message);
    const auto [shorter, longer] = std::minmax(photo->width, photo->height);
    if (longer / shorter > kLengthsMax)
      return file->error(ErrorCode::InvalidArgument, place + "is " + std::to_string(photo->width) + " x " +
                                                         std::to_string(photo->height) +
                                                         " pixels, and so no photo");
    resize_photo(*photo, resize_, edge_, {reinterpret_cast<uint8_t*>(out.data()), out.size()});
    return {};
  }

  PhotoList list_;
  uint32_t resize_, edge_;
  std::vector<Column> columns_;
  bool is_unchecked_;
  bool keeps_ = false;
  mutable Mutex mutex_;
  mutable std::vector<std::vector<std::byte>> kept_ WEFT_GUARDED_BY(mutex_);  // empty: not read yet
};

}  // namespace

Result<std::unique_ptr<Dataset>> open_images(const ImagesSpec& spec, const OpenOptions& options) {
  if (spec.size < 1 || spec.kept() > kEdgeMax || spec.resize > kEdgeMax)
    return fail(ErrorCode::OutOfRange, spec.path.string() + ": `size` and `resize` are 1 to " +
                                           std::to_string(kEdgeMax) + " pixels");
  if (spec.resize != 0 && spec.resize < spec.size)
    return fail(ErrorCode::InvalidArgument, spec.path.string() + ": `resize` is less than `size`");
  WEFT_TRY(PhotoList list, list_photos(spec));
  if (!list.labels.empty() && list.labels.size() != list.names.size())
    return fail(ErrorCode::Corrupted, spec.path.string() + ": changed while it was read");
  return std::make_unique<ImagesDataset>(std::move(list), spec, options);
}

}  // namespace weft::data
