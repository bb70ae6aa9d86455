// What the files of compress/ share: a row of the table that codec.cc dispatches by, and the parts that more
// than one kind is made of.
#pragma once

#include "compress/codec.h"
#include "compress/loops/table.h"

namespace weft::compress {

// One kind of codec; a new one is a file, a row of kKinds (codec.cc) and a row of the tests' table.
// Functions are as their namesakes in codec.h.
struct KindRow {
  size_t (*wire_bytes)(const Codec&, size_t count);
  size_t (*scratch_bytes)(const Codec&, size_t count);
  std::optional<size_t> (*encode)(const Codec&, std::span<const float> x, const Draw&,
                                  std::span<std::byte> out, std::span<std::byte> scratch);
  Status (*decode)(const Codec&, const Draw&, std::span<const std::byte> payload, std::span<float> out);
};
extern const KindRow kDenseRow, kFloat16Row, kBFloat16Row, kBlocksRow, kTopKRow, kRandomKRow;

// encode_at and decode_at of codec.h, within what these do for every kind (top_k.cc).
std::optional<size_t> top_k_encode_at(const Codec&, std::span<const float> x,
                                      std::span<const uint32_t> positions, const Draw&,
                                      std::span<std::byte> out, std::span<std::byte> scratch);
Status top_k_decode_at(const Codec&, std::span<const uint32_t> positions, const Draw&,
                       std::span<const std::byte> payload, std::span<float> out);

// The payload is `wanted` bytes long, or Corrupted.
Status check_length(std::span<const std::byte> payload, size_t wanted);

// What a stream of random numbers is for: streams of one Draw do not meet.
enum class Purpose : uint8_t { Blocks = 1, Values = 2, RandomK = 3 };
Stream stream_of(const Draw& draw, Purpose purpose);

// Cuts working memory into arrays, each aligned to 64 bytes.
class Arena {
 public:
  explicit Arena(std::span<std::byte> memory) : memory_(memory) {}
  template <typename T>
  std::span<T> take(size_t count) {
    T* at = reinterpret_cast<T*>(memory_.data());
    memory_ = memory_.subspan(padded<T>(count));
    return {at, count};
  }
  template <typename T>
  static size_t padded(size_t count) {
    return (count * sizeof(T) + 63) / 64 * 64;
  }
  std::span<std::byte> rest() const { return memory_; }

 private:
  std::span<std::byte> memory_;
};

inline const uint8_t* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}
inline uint8_t* octets(std::span<std::byte> bytes) { return reinterpret_cast<uint8_t*>(bytes.data()); }

}  // namespace weft::compress
