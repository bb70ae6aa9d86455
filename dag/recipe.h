// How a tensor's bytes come of another tensor's: what a job has, of what somebody published and others may
// have on their disks. The other one is named by its hash, and so is what is made of it: a recipe is a hint,
// and nobody believes what has another hash.
#pragma once

#include <cstdint>
#include <optional>

#include "base/digest.h"
#include "base/result.h"
#include "dag/rounding.h"

namespace weft::dag {

struct Recipe {
  Digest source{};           // SHA-256 of the other tensor's bytes
  uint64_t source_size = 0;  // bytes
  // First some of them are taken: rows of a matrix are one piece, columns one of each row.
  struct Cut {
    uint64_t first = 0;   // bytes from the source's beginning
    uint64_t size = 0;    // bytes of a piece
    uint64_t stride = 0;  // bytes from one piece to the next
    uint64_t count = 1;   // pieces
    bool operator==(const Cut&) const = default;
  };
  std::optional<Cut> cut{};
  // Then those, as float32, become fewer bits.
  std::optional<Rounding> rounding{};
  bool operator==(const Recipe&) const = default;
};

// Sources are at most so many times what is taken of them.
inline constexpr uint64_t kCutOfMax = 256;

// How many bytes it makes. OutOfRange: none, for it takes what is not there or part of a block; or it takes
// next to nothing of its source.
Result<uint64_t> bytes_of(const Recipe& recipe);

}  // namespace weft::dag
