// The idx files of MNIST and its relatives, plain or gzipped:
//   magic: 0, 0, type (8 = unsigned byte), rank;  rank dims, 32 bits each, big-endian;  the elements, last
//   axis fastest.
// Images are kept as bytes and converted when they are read: a quarter of the memory of floats.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "data/dataset.h"
#include "data/file.h"

namespace weft::data {
namespace {

constexpr int kUnsignedByte = 8;

struct IdxArray {
  dag::Shape shape;
  std::vector<std::byte> bytes;
};

Result<dag::Shape> read_shape(const File& file, ByteStream& stream) {
  std::array<std::byte, 4> head{};
  WEFT_TRY_STATUS(stream.read(head));
  if (head[0] != std::byte{0} || head[1] != std::byte{0})
    return file.error(ErrorCode::Corrupted, "not an idx file (it does not begin with two zero bytes)");
  if (static_cast<int>(head[2]) != kUnsignedByte)
    return file.error(ErrorCode::Unsupported, "idx element type " +
                                                  std::to_string(static_cast<int>(head[2])) +
                                                  "; only unsigned bytes (8) are read, convert it to npz");
  const int rank = static_cast<int>(head[3]);
  if (rank < 1 || rank > 4)
    return file.error(ErrorCode::Unsupported, "idx rank " + std::to_string(rank) + "; 1 to 4 are read");
  dag::Shape shape;
  for (int i = 0; i < rank; ++i) {
    std::array<std::byte, 4> dim{};
    WEFT_TRY_STATUS(stream.read(dim));
    int64_t value = 0;
    for (const std::byte b : dim) value = value << 8 | static_cast<int64_t>(b);
    shape.push_back(value);
  }
  return shape;
}

Result<IdxArray> read_idx(const std::filesystem::path& path, uint64_t resident_max) {
  WEFT_TRY(const auto file, File::open(path));
  WEFT_TRY(const Encoding encoding, encoding_of(*file));
  const auto stream = make_stream(file, 0, file->size(), encoding);

  IdxArray array;
  WEFT_TRY(array.shape, read_shape(*file, *stream));
  const auto count = dag::checked_element_count(array.shape);
  if (!count) return file->error(ErrorCode::Corrupted, count.error().message);
  const auto declared = static_cast<uint64_t>(*count);
  const std::string says =
      "declares " + dag::to_string(array.shape) + " = " + std::to_string(declared) + " bytes";
  const uint64_t header = 4 + 4 * array.shape.size();
  if (encoding == Encoding::Gzip ? !inflates_to_at_most(file->size(), declared)
                                 : header + declared != file->size())
    return file->error(ErrorCode::Corrupted, says + ", which a file of " + std::to_string(file->size()) +
                                                 " bytes cannot hold; fetch it again");
  if (declared > resident_max)
    return file->error(
        ErrorCode::ResourceExhausted,
        says + ", more than the limit of " + std::to_string(resident_max) + "; use an uncompressed npz");
  WEFT_TRY(array.bytes, allocate_bytes(declared, path.string()));
  WEFT_TRY_STATUS(stream->read(array.bytes));
  WEFT_TRY(const bool at_end, stream->at_end());
  if (!at_end) return file->error(ErrorCode::Corrupted, says + ", but holds more; fetch it again");
  return array;
}

class IdxDataset final : public Dataset {
 public:
  IdxDataset(IdxArray images, IdxArray labels, const IdxSpec& spec)
      : images_(std::move(images)), labels_(std::move(labels)) {
    for (size_t v = 0; v < pixel_.size(); ++v)
      pixel_[v] = static_cast<float>((static_cast<double>(v) * spec.scale - spec.mean) / spec.deviation);
    dag::Shape sample(images_.shape.begin() + 1, images_.shape.end());
    if (sample.size() == 2) sample.insert(sample.begin(), 1);
    columns_ = {{"image", {dag::DType::F32, std::move(sample)}}, {"label", {dag::DType::I64, {}}}};
  }

  std::span<const Column> columns() const override { return columns_; }
  uint32_t sample_count() const override { return static_cast<uint32_t>(images_.shape[0]); }
  uint64_t resident_bytes() const override { return images_.bytes.size() + labels_.bytes.size(); }
  bool is_finite(size_t /*column*/) const override {
    return std::all_of(pixel_.begin(), pixel_.end(), [](float value) { return std::isfinite(value); });
  }

  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    WEFT_CHECK(column < columns_.size());
    WEFT_CHECK(out.size() == samples.size() * static_cast<size_t>(columns_[column].sample.bytes().value));
    for (const uint32_t sample : samples)
      if (sample >= sample_count())
        return fail(ErrorCode::OutOfRange,
                    "sample " + std::to_string(sample) + " of " + std::to_string(sample_count()));
    if (column == 0)
      read_images(samples, out);
    else
      read_labels(samples, out);
    return {};
  }

 private:
  void read_images(std::span<const uint32_t> samples, std::span<std::byte> out) const {
    const auto pixels = static_cast<size_t>(columns_[0].sample.element_count());
    auto* target = reinterpret_cast<float*>(out.data());
    for (const uint32_t sample : samples) {
      const std::byte* source = images_.bytes.data() + sample * pixels;
      for (size_t i = 0; i < pixels; ++i) target[i] = pixel_[static_cast<size_t>(source[i])];
      target += pixels;
    }
  }
  void read_labels(std::span<const uint32_t> samples, std::span<std::byte> out) const {
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto label = static_cast<int64_t>(labels_.bytes[samples[i]]);
      std::memcpy(out.data() + i * sizeof label, &label, sizeof label);
    }
  }

  IdxArray images_;                 // u8[N,H,W] or u8[N,C,H,W]
  IdxArray labels_;                 // u8[N]
  std::array<float, 256> pixel_{};  // what each byte becomes, rounded once
  std::vector<Column> columns_;
};

}  // namespace

Result<std::unique_ptr<Dataset>> open_idx(const IdxSpec& spec, const OpenOptions& options) {
  WEFT_TRY(auto images, read_idx(spec.images, options.resident_max));
  WEFT_TRY(auto labels, read_idx(spec.labels, options.resident_max - images.bytes.size()));
  const auto refuse = [](const std::filesystem::path& path, const std::string& what) {
    return fail(ErrorCode::InvalidArgument, path.string() + ": " + what);
  };
  if (images.shape.size() < 3)
    return refuse(spec.images, "has shape " + dag::to_string(images.shape) +
                                   "; images need [N,H,W] or [N,C,H,W]: are images and labels swapped?");
  if (labels.shape.size() != 1)
    return refuse(spec.labels, "has shape " + dag::to_string(labels.shape) +
                                   "; labels need [N]: are images and labels swapped?");
  if (images.shape[0] != labels.shape[0])
    return refuse(spec.labels, "has " + std::to_string(labels.shape[0]) + " labels for the " +
                                   std::to_string(images.shape[0]) + " images of " + spec.images.string());
  if (images.bytes.empty())
    return refuse(spec.images, "has shape " + dag::to_string(images.shape) + ": no samples");
  return std::make_unique<IdxDataset>(std::move(images), std::move(labels), spec);
}

}  // namespace weft::data
