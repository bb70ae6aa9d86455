#include "compress/positions.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace weft::compress {
namespace {

size_t bytes_for(uint64_t bits) { return static_cast<size_t>((bits + 7) / 8); }

// The eight bytes from `at` on; zeros beyond the end.
uint64_t word_at(std::span<const std::byte> bytes, size_t at) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, std::min<size_t>(8, bytes.size() - at));
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

uint32_t PositionReader::low_bits(size_t i) const {
  const uint64_t bit = uint64_t{i} * format_.low;
  const uint64_t word = word_at(low_, static_cast<size_t>(bit / 8)) >> (bit % 8);
  return static_cast<uint32_t>(word & ((uint64_t{1} << format_.low) - 1));
}

bool PositionReader::next_bit(size_t& bit) {
  while (word_ == 0) {
    if (next_byte_ >= high_.size()) return false;
    word_ = word_at(high_, next_byte_);
    next_byte_ += 8;
  }
  bit = (next_byte_ - 8) * 8 + static_cast<size_t>(std::countr_zero(word_));
  word_ &= word_ - 1;
  return true;
}

bool PositionReader::next(std::span<uint32_t> positions) {
  for (uint32_t& position : positions) {
    size_t at = found_, bit = 0;
    if (format_.bytes() != 0) {
      if (!next_bit(bit)) return false;
      at = format_.is_list ? (bit - found_) << format_.low | low_bits(found_) : bit;
    }
    if (at < before_ || at >= format_.count) return false;
    before_ = at + 1;
    position = static_cast<uint32_t>(at);
    ++found_;
  }
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
