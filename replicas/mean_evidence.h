// What a seat keeps of an agreement until somebody may have asked for a piece of it (replicas/mean_check.h):
// of each mean that it took what it owed before, and hashes of what came and of what was read. The
// differences that it sent lie elsewhere.
//
// In memory: of the tensors whose mean is taken here their numbers once, by a codec that is not by parts
// twice; of the others 32 bytes for each piece.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "replicas/mean_check.h"

namespace weft::replicas {

// Of one agreement. Tensors are told apart by numbers.
class MeanEvidence {
 public:
  using PieceHashes = std::vector<Digest>;
  MeanEvidence() = default;  // of one that nobody looks at: nothing else may be asked of it
  explicit MeanEvidence(HashFunction hash) : hash_(std::move(hash)) {}

  // What that replica sent of it, as it was read here.
  void hear(uint32_t number, uint32_t replica, std::span<const float> difference);
  // A mean that is taken here: `owed` before, empty where nothing is; `read` of it, where a codec is not by
  // parts.
  void take(uint32_t number, std::span<const float> owed, std::span<const float> read);
  // What is owed after all of them, in the order of numbers; and the same of the agreement before.
  void owe(const std::vector<std::span<const float>>& all, std::shared_ptr<const HashTree> before);
  // The mean that the stage goes on from.
  void read(uint32_t number, std::span<const float> mean);

  const std::shared_ptr<const HashTree>& owed() const { return owed_; }  // nullptr: nothing
  // `difference`: of the whole tensor, as it was sent; empty: none was. `leaf`: of the piece, in the trees.
  // `replicas`: how many there are. REQUIRES: the mean was read.
  ShownPiece show(uint32_t number, size_t piece, std::span<const float> difference, size_t leaf,
                  uint32_t replicas) const;

 private:
  PieceHashes hashes_of(std::span<const float> values) const;

  struct Taken {
    std::vector<float> owed{}, read{};
  };
  HashFunction hash_;
  std::map<uint32_t, Taken> taken_;
  std::map<std::pair<uint32_t, uint32_t>, PieceHashes> heard_;  // by number and replica
  std::map<uint32_t, PieceHashes> read_;
  std::shared_ptr<const HashTree> owed_before_, owed_;
};

}  // namespace weft::replicas
