// k ascending positions below n, as a mask or as an Elias-Fano list, whichever is shorter for this n and k:
// both lengths are known before a position is, so that payloads of TopK have a fixed length. (Elias,
// "Efficient storage and retrieval by content and address of static files", JACM 1974; it takes about log2(n
// / k) + 2 bits a position, half a bit to 0.8 bits more than there is information. Gaps in a Rice code, the
// usual thing, take as much.)
//
//   mask: n bits, lowest first, one set for each position
//   list: the `low` lowest bits of each position, one after the other, padded to a byte; then k + (n - 1 >>
//   low)
//         bits, of which bit (p >> low) + i is set for position p number i, padded to a byte
// Nothing at all where k = n.
#pragma once

#include "compress/kinds.h"

namespace weft::compress {

struct PositionFormat {
  size_t count = 0, k = 0;
  bool is_list = false;
  uint32_t low = 0;                      // of a list
  size_t low_bytes = 0, high_bytes = 0;  // of a mask the latter
  size_t bytes() const { return low_bytes + high_bytes; }
};
// REQUIRES: k <= count <= kMaxCount.
PositionFormat position_format(size_t count, size_t k);

// REQUIRES: ascending positions below format.count, format.k of them; out has format.bytes().
void write_positions(const PositionFormat& format, std::span<const uint32_t> positions,
                     std::span<std::byte> out);

// Reads them from first to last. What it yields is ascending and below count, whatever the bytes are.
class PositionReader {
 public:
  // REQUIRES: bytes has format.bytes(), and outlives the reader.
  PositionReader(const PositionFormat& format, std::span<const std::byte> bytes);

  // The next positions, as many as fit. False, with some of them unspecified, where the bytes have none that
  // are in order and in range, after which it is not to be asked again. REQUIRES: no more than k in all.
  bool next(std::span<uint32_t> positions);
  // After all k: whether nothing follows, neither positions nor bits of the padding.
  bool at_end() const;

 private:
  template <bool kIsList>
  bool next_of(std::span<uint32_t> positions);

  PositionFormat format_;
  std::span<const std::byte> low_, high_;
  size_t found_ = 0;
  uint64_t word_ = 0;     // what is left of the high bits' word
  size_t next_byte_ = 0;  // and where the next one is
  size_t before_ = 0;     // one more than the last position
};

}  // namespace weft::compress
