// A second look at means on which replicas have agreed (replicas/agreement.h). Who takes a mean could send
// another one, a little wrong each time, and nobody who was sent it would know. So after an agreement
// somebody whom all trust draws a piece of a tensor, which nobody could know before. Each replica shows what
// it sent of it and what it took; who took the mean shows what it owed of it before. Then the mean is taken
// once more, to the bit.
//
// What is owed of a mean is known to its owner alone. So that it cannot say afterwards what fits, it says
// after each agreement, before anything is drawn, the root of a tree of hashes (Merkle, 1987) over the pieces
// of all that it owes. Of a codec that picks what it sends over the whole tensor (compress::is_by_parts) a
// piece cannot be encoded by itself: there it is checked that what was sent and what is owed then add up, so
// that what is said wrong in one round is taken back in later ones; and that no sign is another, where the
// codec keeps signs.
//
// Pure; hashes are computed by the caller's function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "compress/codec.h"

namespace weft::replicas {

// Elements of a piece; a tensor's last one has what is left. A multiple of what codecs encode by itself.
inline constexpr size_t kMeanPiece = 4096;
inline size_t pieces_of(size_t elements) { return (elements + kMeanPiece - 1) / kMeanPiece; }
struct PieceRange {
  size_t begin = 0, count = 0;
};
// REQUIRES: piece < pieces_of(elements).
inline PieceRange range_of(size_t piece, size_t elements) {
  const size_t begin = piece * kMeanPiece;
  return {begin, elements - begin < kMeanPiece ? elements - begin : kMeanPiece};
}

// Of bytes: cryptographic.
using HashFunction = std::function<Digest(std::span<const std::byte>)>;
Digest hash_of(const HashFunction& hash, std::span<const float> values);

// ---- trees of hashes

inline constexpr size_t kPathMax = 64;  // digests
// Leaves side by side; a node is the hash of a byte, 1, and of the two below it. The last of an odd number is
// taken up as it is. A leaf is the hash of a multiple of four bytes, so that no node is one.
class HashTree {
 public:
  HashTree() = default;
  HashTree(std::vector<Digest> leaves, const HashFunction& hash);
  bool empty() const { return levels_.empty(); }
  const Digest& root() const { return levels_.back().front(); }  // REQUIRES: !empty()
  // What is_in_tree asks for, from below. REQUIRES: leaf < how many there are.
  std::vector<Digest> path(size_t leaf) const;

 private:
  std::vector<std::vector<Digest>> levels_;  // leaves first; none where there are none
};
// Whether a tree of so many leaves with that root has that one there.
bool is_in_tree(const Digest& root, const Digest& leaf, size_t index, size_t leaves,
                std::span<const Digest> path, const HashFunction& hash);

// ---- a piece

// What a seat shows. Numbers as they are added up, of the piece alone.
struct ShownPiece {
  std::vector<float> difference{};  // as others read it; empty: its replica made no step in the round
  Digest mean{};                    // the hash of the mean as it was read
  // Of who took it, and of no other. What was owed before, empty with Dense; where in the trees after the
  // agreement before and after this one that and what is owed now are; the hash of each replica's difference
  // as it came, zero for those that sent none.
  std::vector<float> owed{};
  std::vector<Digest> owed_before{}, owed_after{}, heard{};
  std::vector<float> read{};  // the mean as it was read, where the codec is not by parts
  bool operator==(const ShownPiece&) const = default;
};
struct CheckedPiece {
  compress::Codec codec{};
  uint64_t seed = 0, steps_before = 0;  // of the round
  uint32_t tensor = 0;                  // its number (replicas/parts.h)
  PieceRange range{};                   // of it, or of its part
  uint32_t owner = 0;
  std::vector<uint64_t> samples{};  // of each replica in the round; 0: it made no step
  // Roots, as the owner had said them; nothing: it is not known.
  std::optional<Digest> owed_before{}, owed_after{};
  size_t leaf = 0, leaves = 0;  // in them

  bool owes() const { return codec.kind != compress::Kind::Dense; }
};
struct TakenPiece {
  std::vector<float> mean{}, owed{};  // as it is read; and what is owed then
};
// Takes the mean once more. `differences`: of each replica, those that made no step empty. Nothing: it cannot
// be as the owner shows it.
using TakePiece = std::function<std::optional<TakenPiece>(
    const CheckedPiece& piece, std::span<const std::span<const float>> differences, const ShownPiece& owner)>;
// As replicas/agreement.h does.
std::optional<TakenPiece> take_piece(const CheckedPiece& piece,
                                     std::span<const std::span<const float>> differences,
                                     const ShownPiece& owner);

// What does not fit. Of a replica that is wrong that much is certain; of one that says something else than
// the owner one of the two is wrong.
struct MeanFinding {
  std::vector<uint32_t> wrong{}, other{};  // replicas, ascending
  bool is_right() const { return wrong.empty() && other.empty(); }
};
// `shown`: by replica; nullptr: it shows nothing, and had no part. REQUIRES: the owner's is there.
MeanFinding check_mean(const CheckedPiece& piece, std::span<const ShownPiece* const> shown,
                       const TakePiece& take, const HashFunction& hash);

}  // namespace weft::replicas
