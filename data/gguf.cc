#include "data/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <optional>

#include "base/check.h"
#include "data/safetensors.h"
#include "data/safetensors_types.h"
#include "text/utf8.h"

namespace weft::data {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kHeadMax = uint64_t{64} << 20;
constexpr uint64_t kEntriesMax = 1 << 16, kDepthMax = 4, kNameMax = 1024;
constexpr uint32_t kRankMax = 4;
constexpr std::string_view kAlignmentKey = "general.alignment";

struct TypeRow {
  uint32_t number;
  std::string_view name;
  std::optional<dag::DType> dtype{};
  Packing packing = Packing::None;
};
constexpr TypeRow kTypes[] = {
    {0, "F32", dag::DType::F32},
    {1, "F16", dag::DType::F16},
    {2, "Q4_0", dag::DType::F32, Packing::Four},
    {3, "Q4_1"},
    {6, "Q5_0"},
    {7, "Q5_1"},
    {8, "Q8_0", dag::DType::F32, Packing::Eight},
    {10, "Q2_K"},
    {11, "Q3_K"},
    {12, "Q4_K"},
    {13, "Q5_K"},
    {14, "Q6_K"},
    {24, "I8", dag::DType::I8},
    {25, "I16", dag::DType::I16},
    {26, "I32", dag::DType::I32},
    {27, "I64", dag::DType::I64},
    {28, "F64", dag::DType::F64},
    {30, "BF16", dag::DType::BF16},
};

// The types of metadata: bytes of a number by type; 0 of texts and arrays.
constexpr std::array<uint64_t, 13> kValueSizes{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint32_t kUnsigned32 = 4, kText = 8, kArray = 9;

// The head, read from its begin on. What is wrong is remembered, and nothing more is read.
class Head {
 public:
  explicit Head(const File& file) : file_(file) {}

  template <typename T>
  T number() {
    std::array<std::byte, sizeof(T)> bytes{};
    take(bytes);
    T value{};
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string text(uint64_t longest) {
    const auto size = number<uint64_t>();
    if (size > longest) stop(ErrorCode::Corrupted, "has a name of " + std::to_string(size) + " bytes");
    std::string text(static_cast<size_t>(is_good() ? size : 0), '\0');
    take(std::as_writable_bytes(std::span(text)));
    return text;
  }
  void skip(uint64_t size) {
    if (!is_good()) return;
    if (size > file_.size() - at_ || at_ + size > kHeadMax)
      stop(ErrorCode::Corrupted,
           "says of its head that it is longer than the file, or than 64 MiB: it was cut "
           "off, or is no GGUF file");
    else
      at_ += size;
  }
  void stop(ErrorCode code, const std::string& what) {
    if (is_good()) problem_ = Error{code, file_.path().string() + ": " + what};
  }
  bool is_good() const { return !problem_; }
  const std::optional<Error>& problem() const { return problem_; }
  uint64_t at() const { return at_; }

 private:
  void take(std::span<std::byte> out) {
    const uint64_t from = at_;
    skip(out.size());
    if (!is_good()) return;
    if (from < begin_ || from + out.size() > begin_ + window_.size()) fill(from, out.size());
    if (is_good())
      std::copy_n(window_.begin() + static_cast<std::ptrdiff_t>(from - begin_), out.size(), out.begin());
  }
  void fill(uint64_t from, uint64_t least) {
    constexpr uint64_t kWindow = 64 << 10;
    window_.resize(static_cast<size_t>(std::min(file_.size() - from, std::max(kWindow, least))));
    begin_ = from;
    if (Status read = file_.read_at(from, window_); !read) problem_ = std::move(read).error();
  }

  const File& file_;
  uint64_t at_ = 0, begin_ = 0;
  std::vector<std::byte> window_;
  std::optional<Error> problem_;
};

// A value of the metadata is passed over; the number of one that is wanted.
std::optional<uint64_t> read_value(Head& head, uint32_t type, uint64_t depth) {
  if (type >= kValueSizes.size() || depth > kDepthMax)
    head.stop(ErrorCode::Corrupted, "has metadata of a type that there is not");
  if (!head.is_good()) return {};
  if (type == kUnsigned32) return head.number<uint32_t>();
  if (type == kText) {
    head.skip(head.number<uint64_t>());
  } else if (type == kArray) {
    const auto of = head.number<uint32_t>();
    const auto count = head.number<uint64_t>();
    const uint64_t each = of < kValueSizes.size() ? kValueSizes[of] : 0;
    if (each > 0) {
      head.skip(count > kHeadMax ? kHeadMax + 1 : count * each);
    } else {
      for (uint64_t i = 0; i < count && head.is_good(); ++i) read_value(head, of, depth + 1);
    }
  } else {
    head.skip(kValueSizes[type]);
  }
  return {};
}

GgufTensor read_tensor(Head& head) {
  GgufTensor tensor;
  tensor.name = head.text(kNameMax);
  if (tensor.name.empty() || tensor.name == "__metadata__" ||
      text::valid_prefix(tensor.name) != tensor.name.size())
    head.stop(ErrorCode::Corrupted, "has a tensor without a proper name");
  const auto rank = head.number<uint32_t>();
  if (rank > kRankMax) head.stop(ErrorCode::Corrupted, in_quotes(tensor.name) + " has too many dims");
  for (uint32_t i = 0; i < rank && head.is_good(); ++i) {
    const auto dim = head.number<uint64_t>();
    if (dim > static_cast<uint64_t>(dag::kElementCountMax))
      head.stop(ErrorCode::Corrupted, in_quotes(tensor.name) + " has a dim of " + std::to_string(dim));
    tensor.spec.shape.insert(tensor.spec.shape.begin(), static_cast<int64_t>(dim));
  }
  const auto type = head.number<uint32_t>();
  tensor.offset = head.number<uint64_t>();
  const auto* row =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& r) { return r.number == type; });
  if (row == std::end(kTypes) || !row->dtype) {
    tensor.unknown_type = row == std::end(kTypes) ? "type " + std::to_string(type) : std::string(row->name);
    return tensor;
  }
  tensor.spec.dtype = *row->dtype;
  tensor.packing = row->packing;
  if (!dag::checked_element_count(tensor.spec.shape))
    head.stop(ErrorCode::Corrupted, in_quotes(tensor.name) + " is too large");
  else if (tensor.packing != Packing::None &&
           (tensor.spec.shape.empty() || tensor.spec.shape.back() % kBlockNumbers != 0))
    head.stop(ErrorCode::Corrupted, in_quotes(tensor.name) + " has rows that are no whole blocks");
  return tensor;
}

// Each within the file, and none over another.
Status check_places(const File& file, uint64_t begin, std::vector<GgufTensor>& tensors) {
  std::map<uint64_t, uint64_t> ends;  // by begin
  for (GgufTensor& tensor : tensors) {
    if (!tensor.unknown_type.empty()) continue;
    const uint64_t size = packed_size(tensor.spec, tensor.packing);
    if (tensor.offset > file.size() - begin || size > file.size() - begin - tensor.offset)
      return file.error(ErrorCode::Corrupted, "ends before its tensor " + in_quotes(tensor.name) +
                                                  ": it was cut off; fetch it again");
    tensor.offset += begin;
    if (size == 0) continue;
    const auto [at, is_new] = ends.emplace(tensor.offset, tensor.offset + size);
    const auto next = std::next(at);
    if (!is_new || (at != ends.begin() && std::prev(at)->second > tensor.offset) ||
        (next != ends.end() && next->first < tensor.offset + size))
      return file.error(ErrorCode::Corrupted, "has tensors that overlap, as " + in_quotes(tensor.name));
  }
  return {};
}

}  // namespace

uint64_t packed_size(const dag::TensorSpec& spec, Packing packing) {
  const auto count = static_cast<uint64_t>(spec.element_count());
  if (packing == Packing::None) return static_cast<uint64_t>(spec.bytes().value);
  return count / kBlockNumbers * (packing == Packing::Four ? 18 : 34);
}

void unpack(Packing packing, std::span<const std::byte> blocks, std::span<float> numbers) {
  WEFT_CHECK(packing != Packing::None);
  const size_t size = packing == Packing::Four ? 18 : 34;
  for (size_t block = 0; block * size < blocks.size(); ++block) {
    const std::byte* from = blocks.data() + block * size;
    float* to = numbers.data() + block * kBlockNumbers;
    uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof bits);
    const float scale = dag::float_from_f16(bits);
    from += sizeof bits;
    for (int i = 0; i < kBlockNumbers; ++i) {
      const auto byte = std::to_integer<int>(from[packing == Packing::Four ? i % 16 : i]);
      const int number =
          packing == Packing::Eight ? static_cast<int8_t>(byte) : (i < 16 ? byte & 15 : byte >> 4) - 8;
      to[i] = scale * static_cast<float>(number);
    }
  }
}

bool is_gguf(const File& file) {
  std::array<std::byte, kMagic.size()> bytes{};
  return file.size() >= bytes.size() && file.read_at(0, bytes) &&
         std::memcmp(bytes.data(), kMagic.data(), bytes.size()) == 0;
}

Result<std::vector<GgufTensor>> read_gguf(const File& file) {
  static_assert(std::endian::native == std::endian::little);
  Head head(file);
  head.skip(kMagic.size());
  const auto version = head.number<uint32_t>();
  if (version != 2 && version != 3)
    head.stop(ErrorCode::Unsupported, "is GGUF of version " + std::to_string(version) +
                                          ", or of the other byte order; weft reads 2 and 3");
  const auto count = head.number<uint64_t>(), entries = head.number<uint64_t>();
  if (count > kNamedTensorsMax || entries > kEntriesMax)
    head.stop(ErrorCode::ResourceExhausted, "says that it has " + std::to_string(count) + " tensors and " +
                                                std::to_string(entries) + " entries of metadata");
  uint64_t alignment = 32;
  for (uint64_t i = 0; i < entries && head.is_good(); ++i) {
    const std::string key = head.text(uint64_t{1} << 16);
    const auto value = read_value(head, head.number<uint32_t>(), 0);
    if (key == kAlignmentKey && value) alignment = *value;
  }
  if (!std::has_single_bit(alignment) || alignment > uint64_t{1} << 20)
    head.stop(ErrorCode::Corrupted, "says that its tensors lie at multiples of " + std::to_string(alignment));
  std::vector<GgufTensor> tensors;
  for (uint64_t i = 0; i < count && head.is_good(); ++i) tensors.push_back(read_tensor(head));
  if (head.problem()) return fail(*head.problem());
  const uint64_t begin = (head.at() + alignment - 1) / alignment * alignment;
  if (begin > file.size() && !tensors.empty())
    return file.error(ErrorCode::Corrupted, "ends before its tensors: it was cut off; fetch it again");
  if (!tensors.empty()) WEFT_TRY_STATUS(check_places(file, begin, tensors));
  return tensors;
}

}  // namespace weft::data
