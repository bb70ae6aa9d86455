#include "compress/positions.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

namespace weft::compress {
namespace {

size_t bytes_for(uint64_t bits) { return static_cast<size_t>((bits + 7) / 8); }

// The eight bytes from `at` on; zeros beyond the end.
uint64_t word_at(std::span<const std::byte> bytes, size_t at) {
  uint64_t word = 0;
  if (at + 8 <= bytes.size()) [[likely]]
    std::memcpy(&word, bytes.data() + at, 8);
  else if (at < bytes.size())
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  return word;
}

void write_mask(std::span<const uint32_t> positions, std::span<std::byte> out) {
  for (const uint32_t p : positions) out[p / 8] |= static_cast<std::byte>(1u << (p % 8));
}

void write_list(const PositionFormat& format, std::span<const uint32_t> positions, std::span<std::byte> out) {
  uint64_t pending = 0;
  uint32_t bits = 0;
  const uint64_t mask = (uint64_t{1} << format.low) - 1;
  std::byte* low = out.data();
  const std::span<std::byte> high = out.subspan(format.low_bytes);
  for (size_t i = 0; i < positions.size(); ++i) {
    pending |= (positions[i] & mask) << bits;
    for (bits += format.low; bits >= 8; bits -= 8, pending >>= 8) *low++ = static_cast<std::byte>(pending);
    const size_t bit = (positions[i] >> format.low) + i;
    high[bit / 8] |= static_cast<std::byte>(1u << (bit % 8));
  }
  if (bits != 0) *low = static_cast<std::byte>(pending);
}

}  // namespace

PositionFormat position_format(size_t count, size_t k) {
  PositionFormat best{.count = count, .k = k};
  if (k == count || k == 0) return best;
  best.high_bytes = bytes_for(count);
  for (uint32_t low = 0; low < 32; ++low) {
    const PositionFormat list{.count = count,
                              .k = k,
                              .is_list = true,
                              .low = low,
                              .low_bytes = bytes_for(uint64_t{k} * low),
                              .high_bytes = bytes_for(k + ((count - 1) >> low))};
    if (list.bytes() < best.bytes()) best = list;
  }
  return best;
}

void write_positions(const PositionFormat& format, std::span<const uint32_t> positions,
                     std::span<std::byte> out) {
  if (format.bytes() == 0) return;
  std::fill(out.begin(), out.end(), std::byte{0});
  if (format.is_list)
    write_list(format, positions, out);
  else
    write_mask(positions, out);
}

PositionReader::PositionReader(const PositionFormat& format, std::span<const std::byte> bytes)
    : format_(format), low_(bytes.first(format.low_bytes)), high_(bytes.subspan(format.low_bytes)) {}

template <bool kIsList>
bool PositionReader::next_of(std::span<uint32_t> positions) {
  const uint64_t mask = (uint64_t{1} << format_.low) - 1;
  uint64_t word = word_, low_bit = uint64_t{found_} * format_.low;
  size_t from = before_;
  for (size_t i = 0; i < positions.size(); ++i, low_bit += format_.low) {
    for (; word == 0; next_byte_ += 8) {
      if (next_byte_ >= high_.size()) return false;
      word = word_at(high_, next_byte_);
    }
    size_t at = next_byte_ * 8 - 64 + static_cast<size_t>(std::countr_zero(word));
    word &= word - 1;
    if constexpr (kIsList)
      at = (at - found_ - i) << format_.low |
           (word_at(low_, static_cast<size_t>(low_bit / 8)) >> (low_bit % 8) & mask);
    if (at < from || at >= format_.count) return false;
    from = at + 1;
    positions[i] = static_cast<uint32_t>(at);
  }
  word_ = word;
  before_ = from;
  found_ += positions.size();
  return true;
}

bool PositionReader::next(std::span<uint32_t> positions) {
  if (format_.bytes() != 0) return format_.is_list ? next_of<true>(positions) : next_of<false>(positions);
  std::iota(positions.begin(), positions.end(), static_cast<uint32_t>(found_));
  found_ += positions.size();
  return true;
}

bool PositionReader::at_end() const {
  if (format_.bytes() == 0) return true;
  const uint64_t used = uint64_t{format_.k} * format_.low % 8;
  if (used != 0 && std::to_integer<unsigned>(low_.back()) >> used != 0) return false;
  const auto rest = high_.subspan(std::min(next_byte_, high_.size()));
  return word_ == 0 && std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace weft::compress
