// Writes npz files that numpy.load reads: entries stored, in the order given, no time and no name of a
// machine, so that equal arrays give equal bytes. zip64 records are written where a size needs them.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"

namespace weft::data {

struct NpzArray {
  std::string name;
  dag::Tensor tensor;
};

// Hands the file's bytes to `sink` piece by piece; stops at the sink's first error and returns it.
// InvalidArgument: an empty or repeated name. Unsupported: BF16, which numpy lacks; more than 65534 arrays.
using ByteSink = std::function<Status(std::span<const std::byte>)>;
Status write_npz(std::span<const NpzArray> arrays, const ByteSink& sink);

// The same file, for arrays that come to be side by side: each piece is written where it belongs, and nothing
// of it is kept. `sink` takes bytes for an offset of the file, in any order.
class NpzRows {
 public:
  struct Array {
    std::string name;
    dag::TensorSpec spec;
  };
  using PlacedSink = std::function<Status(uint64_t offset, std::span<const std::byte>)>;
  // Errors: as of write_npz.
  static Result<NpzRows> create(std::vector<Array> arrays, PlacedSink sink);

  // The array's next bytes. REQUIRES: it has room for them.
  Status append(size_t array, std::span<const std::byte> bytes);
  // Headers and directory. REQUIRES: every array has all of its bytes.
  Status finish();

 private:
  struct Growing {
    Array array;
    std::string header;  // of the .npy
    uint32_t crc = 0;
    uint64_t offset = 0;   // of its entry in the file
    uint64_t begin = 0;    // of its elements in the file
    uint64_t written = 0;  // bytes of elements
  };
  std::vector<Growing> arrays_;
  uint64_t end_ = 0;  // of the last array in the file
  PlacedSink sink_;
};

Result<std::vector<std::byte>> npz_bytes(std::span<const NpzArray> arrays);

}  // namespace weft::data
