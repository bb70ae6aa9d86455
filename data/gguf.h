// Internal to data: GGUF, the files of llama.cpp. Four letters, a version, metadata that weft passes over,
// the name, dims, type and place of each tensor, and the tensors' bytes, little-endian
// (github.com/ggml-org/ggml, docs/gguf.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"
#include "data/file.h"

namespace weft::data {

// How numbers lie: one after the other, or 32 of a row in a block, of four bits each (Q4_0) or eight (Q8_0),
// behind a scale in float16. Of Q4_0 each byte has number i in its lower half and number i + 16 in the upper
// one, 8 too large.
enum class Packing : uint8_t { None, Four, Eight };
inline constexpr int64_t kBlockNumbers = 32;
uint64_t packed_size(const dag::TensorSpec& spec, Packing packing);
// The numbers of whole blocks. REQUIRES: `blocks` are some, and `numbers` has 32 for each.
void unpack(Packing packing, std::span<const std::byte> blocks, std::span<float> numbers);

struct GgufTensor {
  std::string name;
  dag::TensorSpec spec;  // with its outermost dim first; F32 of what is packed
  Packing packing = Packing::None;
  uint64_t offset = 0;  // in the file
  // Of a type that weft has not: its name or number. Then there is no spec.
  std::string unknown_type;
};

bool is_gguf(const File& file);  // by its first letters
// In the order of the file. What the head says of text is passed over, however long it is, up to 64 MiB.
// Errors, which name the file: Corrupted; Unsupported for another version or the other byte order;
// ResourceExhausted.
Result<std::vector<GgufTensor>> read_gguf(const File& file);

}  // namespace weft::data
