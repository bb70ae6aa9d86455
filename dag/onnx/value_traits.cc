#include "dag/onnx/value_traits.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace weft::onnx {
namespace {

using dag::DType;

constexpr size_t kPieceElements = 2048;
constexpr double kLow = -1e4;

// Floats of one sign are ordered as their bits are: negative ones the other way round. NaN is never low.
template <typename Bits>
struct Range {
  Bits low, infinity, one, sign;
};
template <typename Bits>
bool is_nan(Bits value, const Range<Bits>& range) {
  return static_cast<Bits>(value | range.sign) > range.infinity;
}
template <typename Bits>
Range<Bits> range_of(DType dtype);
template <>
Range<uint16_t> range_of(DType dtype) {
  if (dtype == DType::F16) return {0xF0E2, 0xFC00, 0x3C00, 0x8000};  // -10000 exactly
  return {0xC61C, 0xFF80, 0x3F80, 0x8000};                           // what it makes of -10000: -9984
}
template <>
Range<uint32_t> range_of(DType) {
  return {std::bit_cast<uint32_t>(static_cast<float>(kLow)), 0xFF800000u, std::bit_cast<uint32_t>(1.0f),
          0x80000000u};
}
template <>
Range<uint64_t> range_of(DType) {
  return {std::bit_cast<uint64_t>(kLow), 0xFFF0000000000000u, std::bit_cast<uint64_t>(1.0),
          0x8000000000000000u};
}

}  // namespace

ValueReader::ValueReader(const dag::TensorSpec& spec) : spec_(spec) {
  WEFT_CHECK(is_float(spec.dtype));
  int64_t block = 1;
  for (size_t d = spec.shape.size(); d-- > 0;) {
    const int64_t places = spec.shape[d];
    if (places > 1)
      axes_.push_back({.number = static_cast<int>(d), .block = block, .places = places, .left = block});
    block *= places;
  }
  std::reverse(axes_.begin(), axes_.end());
  row_size_ = spec.shape.empty() ? 1 : std::max<int64_t>(1, spec.shape.back());
  row_count_ = spec.rank() == 2 ? spec.shape[0] : 0;
}

void ValueReader::add(std::span<const std::byte> bytes) {
  switch (element_size(spec_.dtype)) {
    case 2:
      return add_bits<uint16_t>(bytes);
    case 4:
      return add_bits<uint32_t>(bytes);
    default:
      return add_bits<uint64_t>(bytes);
  }
}

// By way of a small buffer: what comes may lie at any address.
template <typename Bits>
void ValueReader::add_bits(std::span<const std::byte> bytes) {
  WEFT_CHECK(bytes.size() % sizeof(Bits) == 0);
  WEFT_CHECK(position_ + static_cast<int64_t>(bytes.size() / sizeof(Bits)) <= spec_.element_count());
  std::array<Bits, kPieceElements> piece;
  while (!bytes.empty()) {
    const size_t count = std::min(kPieceElements, bytes.size() / sizeof(Bits));
    std::memcpy(piece.data(), bytes.data(), count * sizeof(Bits));
    add_piece(std::span<const Bits>(piece.data(), count));
    bytes = bytes.subspan(count * sizeof(Bits));
  }
}

template <typename Bits>
void ValueReader::add_piece(std::span<const Bits> bits) {
  const Range<Bits> range = range_of<Bits>(spec_.dtype);
  if (position_ == 0) first_ = bits[0];
  uint64_t sum = 0, squares = 0;
  bool low = false, other = false, unequal = false,
       nan = false;  // without a branch: of a weight all of it is read
  const Bits first = static_cast<Bits>(first_);
  for (const Bits value : bits) {
    low |= value >= range.low && value <= range.infinity;
    other |= value != 0 && value != range.one && value != range.sign;
    unequal |= value != first;
    nan |= is_nan(value, range);
    sum += value;
    squares += uint64_t{value} * value;
  }
  traits_.low |= low;
  if (nan && !traits_.nan)
    traits_.nan = position_ +
                  (std::find_if(bits.begin(), bits.end(), [&](Bits value) { return is_nan(value, range); }) -
                   bits.begin());
  only_zeros_and_ones_ &= !other;
  all_equal_ &= !unequal;
  traits_.content[0] += sum;
  traits_.content[1] += squares;

  const auto count = static_cast<int64_t>(bits.size());
  const auto corner = static_cast<int64_t>(traits_.row.size());
  for (int64_t c = position_; c < std::min({position_ + count, corner, row_size_}); ++c)
    traits_.row[static_cast<size_t>(c)] = bits[static_cast<size_t>(c - position_)];
  for (int64_t r = (position_ + row_size_ - 1) / row_size_;
       r < std::min(row_count_, corner) && r * row_size_ < position_ + count; ++r)
    traits_.column[static_cast<size_t>(r)] = bits[static_cast<size_t>(r * row_size_ - position_)];
  std::erase_if(axes_, [&](Axis& axis) { return !add_to_axis(axis, bits); });
  position_ += count;
}

// Whether the values may still be constant along the axis.
template <typename Bits>
bool ValueReader::add_to_axis(Axis& axis, std::span<const Bits> bits) {
  while (!bits.empty()) {
    const auto count = std::min<int64_t>(axis.left, static_cast<int64_t>(bits.size()));
    for (const Bits value : bits.first(static_cast<size_t>(count)))
      axis.hash = (axis.hash ^ value) * 0x9E3779B97F4A7C15u + 1;
    bits = bits.subspan(static_cast<size_t>(count));
    axis.left -= count;
    if (axis.left > 0) break;
    if (axis.place > 0 && axis.hash != axis.before) return false;
    axis.before = axis.hash;
    axis.hash = 0;
    axis.left = axis.block;
    axis.place = (axis.place + 1) % axis.places;
  }
  return true;
}

ValueTraits ValueReader::traits() const {
  WEFT_CHECK(position_ == spec_.element_count());
  ValueTraits traits = traits_;
  traits.all_equal = all_equal_ && position_ > 0;
  traits.zeros_and_ones = only_zeros_and_ones_ && position_ > 0;
  if (!axes_.empty() && position_ > 0) traits.constant_axis = axes_.front().number;
  return traits;
}

ValueTraits traits_of(const dag::Tensor& tensor) {
  ValueReader reader(tensor.spec());
  reader.add(tensor.bytes());
  return reader.traits();
}

Likeness likeness(const dag::Shape& a, const ValueTraits& of_a, const dag::Shape& b,
                  const ValueTraits& of_b) {
  if (of_a.content != of_b.content || of_a.all_equal) return Likeness::None;
  if (a == b && of_a.row == of_b.row && of_a.column == of_b.column) return Likeness::Copy;
  const bool turned = a.size() == 2 && b.size() == 2 && a[0] == b[1] && a[1] == b[0];
  if (turned && of_a.row == of_b.column && of_a.column == of_b.row) return Likeness::Transposed;
  return Likeness::None;
}

}  // namespace weft::onnx
