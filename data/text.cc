// A file's bytes as tokens. With sequence length T, sample i is the window of bytes [i T, i T + T): `tokens`
// are its bytes, `targets` the bytes one further. Windows do not overlap, so that an epoch sees every byte
// once; what is left at the end and fills no window is not used. Windows are read from the file when they are
// asked for.
#include <cmath>

#include "base/check.h"
#include "data/dataset.h"
#include "data/file.h"

namespace weft::data {
namespace {

class TextDataset final : public Dataset {
 public:
  // The part [begin, end) of the file. REQUIRES: it holds at least one window and its next byte.
  TextDataset(std::shared_ptr<const File> file, uint64_t begin, uint64_t end, int64_t length)
      : file_(std::move(file)), begin_(begin), length_(static_cast<size_t>(length)) {
    sample_count_ = static_cast<uint32_t>((end - begin - 1) / length_);
    columns_ = {{"tokens", {dag::DType::I64, {length}}}, {"targets", {dag::DType::I64, {length}}}};
  }

  std::span<const Column> columns() const override { return columns_; }
  uint32_t sample_count() const override { return sample_count_; }
  std::optional<Range> range(size_t /*column*/) const override { return Range{0, 255}; }

  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    WEFT_CHECK(column < columns_.size());
    WEFT_CHECK(out.size() == samples.size() * length_ * sizeof(int64_t));
    std::vector<std::byte> window(length_);
    auto* target = reinterpret_cast<int64_t*>(out.data());
    for (const uint32_t sample : samples) {
      if (sample >= sample_count_)
        return file_->error(ErrorCode::OutOfRange,
                            "sample " + std::to_string(sample) + " of " + std::to_string(sample_count_));
      WEFT_TRY_STATUS(file_->read_at(begin_ + uint64_t{sample} * length_ + column, window));
      for (const std::byte token : window) *target++ = static_cast<int64_t>(token);
    }
    return {};
  }

 private:
  std::shared_ptr<const File> file_;
  uint64_t begin_;
  size_t length_;
  uint32_t sample_count_;
  std::vector<Column> columns_;
};

}  // namespace

Result<std::unique_ptr<Dataset>> open_text(const TextSpec& spec) {
  WEFT_TRY(auto file, File::open(spec.path));
  if (spec.sequence_length < 1 || spec.sequence_length > kSequenceLengthMax)
    return file->error(ErrorCode::OutOfRange,
                       "sequence_length must be 1 to " + std::to_string(kSequenceLengthMax));
  if (!(spec.validation >= 0 && spec.validation < 1))
    return file->error(ErrorCode::OutOfRange, "validation must be a fraction, at least 0 and less than 1");
  const uint64_t size = file->size();
  const uint64_t border =
      size - static_cast<uint64_t>(std::floor(static_cast<double>(size) * spec.validation));
  const bool training = spec.part == TextSpec::Part::Training;
  const uint64_t begin = training ? 0 : border;
  const uint64_t end = training ? border : size;
  const auto length = static_cast<uint64_t>(spec.sequence_length);
  if (end - begin < length + 1)
    return file->error(ErrorCode::InvalidArgument,
                       std::string("its ") + (training ? "training" : "validation") + " part has " +
                           std::to_string(end - begin) + " bytes, and a sample with its next byte needs " +
                           std::to_string(length + 1) + "; take a longer file or a shorter sequence_length");
  if ((end - begin - 1) / length >= UINT32_MAX)
    return file->error(ErrorCode::OutOfRange,
                       "more than 2^32 samples; take a longer sequence_length or split the file");
  return std::make_unique<TextDataset>(std::move(file), begin, end, spec.sequence_length);
}

}  // namespace weft::data
