// A file's bytes as tokens, or the whole numbers of a file that a tokenizer wrote. With sequence length T,
// sample i is the window of tokens [i T, i T + T): `tokens` has them, `targets` those one further. Windows do
// not overlap, so that an epoch sees every token once; what is left at the end and fills no window is not
// used. Windows are read from the file when they are asked for.
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "data/dataset.h"
#include "data/file.h"
#include "data/npy.h"

namespace weft::data {
namespace {

// Where the tokens lie in the file.
struct Extent {
  uint64_t begin = 0;  // bytes before the first
  uint64_t count = 0;
};

class TextDataset final : public Dataset {
 public:
  // Tokens from that byte on. REQUIRES: there is at least one window and its next token.
  TextDataset(std::shared_ptr<const File> file, const TextSpec& spec, uint64_t begin, uint64_t count)
      : file_(std::move(file)),
        begin_(begin),
        length_(static_cast<size_t>(spec.sequence_length)),
        token_bytes_(spec.token_bytes) {
    sample_count_ = static_cast<uint32_t>((count - 1) / length_);
    const dag::TensorSpec window{dag::DType::I64, {spec.sequence_length}};
    columns_ = {{"tokens", window}, {"targets", window}};
  }

  std::span<const Column> columns() const override { return columns_; }
  uint32_t sample_count() const override { return sample_count_; }
  std::optional<Range> range(size_t /*column*/) const override {
    return Range{0, (int64_t{1} << (8 * token_bytes_)) - 1};
  }
  std::string place_of(uint64_t sample) const override {
    if (token_bytes_ == 1) return Dataset::place_of(sample);
    return Dataset::place_of(sample) + ", which begins at byte " +
           std::to_string(begin_ + sample * length_ * token_bytes_) + " of the file";
  }

  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    WEFT_CHECK(column < columns_.size());
    WEFT_CHECK(out.size() == samples.size() * length_ * sizeof(int64_t));
    std::vector<std::byte> window(length_ * token_bytes_);
    auto* target = reinterpret_cast<int64_t*>(out.data());
    for (const uint32_t sample : samples) {
      if (sample >= sample_count_)
        return file_->error(ErrorCode::OutOfRange,
                            "sample " + std::to_string(sample) + " of " + std::to_string(sample_count_));
      const uint64_t token = uint64_t{sample} * length_ + column;
      WEFT_TRY_STATUS(file_->read_at(begin_ + token * token_bytes_, window));
      widen(window, target);
      target += length_;
    }
    return {};
  }

 private:
  void widen(std::span<const std::byte> window, int64_t* target) const {
    for (size_t i = 0; i < length_; ++i) {
      uint32_t token = 0;
      for (size_t byte = 0; byte < token_bytes_; ++byte)
        token |= std::to_integer<uint32_t>(window[i * token_bytes_ + byte]) << (8 * byte);
      target[i] = token;
    }
  }

  std::shared_ptr<const File> file_;
  uint64_t begin_;
  size_t length_;
  size_t token_bytes_;
  uint32_t sample_count_;
  std::vector<Column> columns_;
};

// A file may say by itself what its tokens are.
struct Declared {
  uint32_t token_bytes = 0;
  uint64_t begin = 0;
  std::optional<uint64_t> count{};
};

// llm.c: 256 numbers of 32 bits, of which the first three are a magic one, the version and how many tokens
// follow (llmc/dataloader.h).
Result<std::optional<Declared>> read_llm_c_header(const File& file) {
  constexpr uint64_t kSize = 1024;
  if (file.size() < kSize) return std::optional<Declared>();
  std::array<std::byte, 12> bytes{};
  WEFT_TRY_STATUS(file.read_at(0, bytes));
  std::array<uint32_t, 3> numbers{};
  for (size_t i = 0; i < bytes.size(); ++i)
    numbers[i / 4] |= std::to_integer<uint32_t>(bytes[i]) << (8 * (i % 4));
  if (numbers[0] == 20240520 && numbers[1] == 1) return std::optional(Declared{2, kSize, numbers[2]});
  if (numbers[0] == 20240801 && numbers[1] == 7) return std::optional(Declared{4, kSize, numbers[2]});
  return std::optional<Declared>();
}

Result<std::optional<Declared>> read_npy_header(const std::shared_ptr<const File>& file) {
  constexpr std::array<char, 6> kMagic = {'\x93', 'N', 'U', 'M', 'P', 'Y'};
  std::array<std::byte, kMagic.size()> bytes{};
  if (file->size() < bytes.size()) return std::optional<Declared>();
  WEFT_TRY_STATUS(file->read_at(0, bytes));
  if (std::memcmp(bytes.data(), kMagic.data(), bytes.size()) != 0) return std::optional<Declared>();
  const auto stream = make_stream(file, 0, file->size(), Encoding::Plain);
  const auto header = data::read_npy_header(*stream);
  if (!header) return file->error(header.error().code, header.error().message);
  const dag::DType dtype = header->spec.dtype;
  if (header->spec.rank() != 1 || (dtype != dag::DType::U16 && dtype != dag::DType::U32))
    return file->error(
        ErrorCode::InvalidArgument,
        "is an array " + to_string(header->spec) +
            "; tokens are one axis of uint16 or uint32: np.save(file, tokens.astype(np.uint16))");
  return std::optional(Declared{static_cast<uint32_t>(element_size(dtype)), header->size,
                                static_cast<uint64_t>(header->spec.element_count())});
}

Result<Extent> extent_of(const std::shared_ptr<const File>& file, const TextSpec& spec) {
  if (spec.token_bytes == 1) return Extent{0, file->size()};
  WEFT_TRY(auto declared, read_npy_header(file));
  if (!declared) {
    WEFT_TRY(declared, read_llm_c_header(*file));
  }
  const uint64_t begin = declared ? declared->begin : 0, bytes = file->size() - std::min(file->size(), begin);
  if (declared && declared->token_bytes != spec.token_bytes)
    return file->error(ErrorCode::InvalidArgument,
                       "says that its tokens are uint" + std::to_string(8 * declared->token_bytes) +
                           "; say dtype: uint" + std::to_string(8 * declared->token_bytes));
  if (declared && declared->count.value() * spec.token_bytes != bytes)
    return file->error(ErrorCode::Corrupted, "says that it has " + std::to_string(*declared->count) +
                                                 " tokens, and " + std::to_string(bytes) +
                                                 " bytes follow: it was cut off, or something was added");
  if (bytes % spec.token_bytes != 0)
    return file->error(ErrorCode::Corrupted,
                       "has " + std::to_string(bytes) + " bytes, which are no whole tokens of " +
                           std::to_string(spec.token_bytes) + ": it was cut off, or its dtype is another");
  return Extent{begin, bytes / spec.token_bytes};
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_text(const TextSpec& spec) {
  WEFT_TRY(auto file, File::open(spec.path));
  if (spec.sequence_length < 1 || spec.sequence_length > kSequenceLengthMax)
    return file->error(ErrorCode::OutOfRange,
                       "sequence_length must be 1 to " + std::to_string(kSequenceLengthMax));
  if (!(spec.validation >= 0 && spec.validation < 1))
    return file->error(ErrorCode::OutOfRange, "validation must be a fraction, at least 0 and less than 1");
  WEFT_TRY(const Extent all, extent_of(file, spec));
  const uint64_t border =
      all.count - static_cast<uint64_t>(std::floor(static_cast<double>(all.count) * spec.validation));
  const bool training = spec.part == TextSpec::Part::Training;
  const uint64_t begin = training ? 0 : border;
  const uint64_t count = training ? border : all.count - border;
  const auto length = static_cast<uint64_t>(spec.sequence_length);
  const std::string unit = spec.token_bytes == 1 ? "byte" : "token";
  if (count < length + 1)
    return file->error(ErrorCode::InvalidArgument,
                       std::string("its ") + (training ? "training" : "validation") + " part has " +
                           std::to_string(count) + " " + unit + "s, and a sample with its next " + unit +
                           " needs " + std::to_string(length + 1) +
                           "; take a longer file or a shorter sequence_length");
  if ((count - 1) / length >= UINT32_MAX)
    return file->error(ErrorCode::OutOfRange,
                       "more than 2^32 samples; take a longer sequence_length or split the file");
  return std::make_unique<TextDataset>(std::move(file), spec, all.begin + begin * spec.token_bytes, count);
}

}  // namespace weft::data
