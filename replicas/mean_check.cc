#include "replicas/mean_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "replicas/agreement.h"

namespace weft::replicas {

Digest hash_of(const HashFunction& hash, std::span<const float> values) {
  return hash(std::as_bytes(values));
}

// ---- trees of hashes

namespace {

Digest node_of(const HashFunction& hash, const Digest& left, const Digest& right) {
  std::array<uint8_t, 1 + 2 * sizeof(left.bytes)> bytes{1};
  std::memcpy(bytes.data() + 1, left.bytes.data(), left.bytes.size());
  std::memcpy(bytes.data() + 1 + left.bytes.size(), right.bytes.data(), right.bytes.size());
  return hash(std::as_bytes(std::span(bytes)));
}

// Whether the place has a neighbour in its level.
bool has_neighbour(size_t index, size_t width) { return (index ^ 1) < width; }

}  // namespace

HashTree::HashTree(std::vector<Digest> leaves, const HashFunction& hash) {
  if (leaves.empty()) return;
  levels_.push_back(std::move(leaves));
  while (levels_.back().size() > 1) {
    const std::vector<Digest>& below = levels_.back();
    std::vector<Digest> level;
    for (size_t i = 0; i < below.size(); i += 2)
      level.push_back(has_neighbour(i, below.size()) ? node_of(hash, below[i], below[i + 1]) : below[i]);
    levels_.push_back(std::move(level));
  }
}

std::vector<Digest> HashTree::path(size_t leaf) const {
  WEFT_CHECK(!empty() && leaf < levels_.front().size());
  std::vector<Digest> path;
  for (const std::vector<Digest>& level : levels_) {
    if (has_neighbour(leaf, level.size())) path.push_back(level[leaf ^ 1]);
    leaf /= 2;
  }
  return path;
}

bool is_in_tree(const Digest& root, const Digest& leaf, size_t index, size_t leaves,
                std::span<const Digest> path, const HashFunction& hash) {
  if (index >= leaves) return false;
  Digest node = leaf;
  for (; leaves > 1; index /= 2, leaves = (leaves + 1) / 2) {
    if (!has_neighbour(index, leaves)) continue;
    if (path.empty()) return false;
    node = index % 2 == 0 ? node_of(hash, node, path.front()) : node_of(hash, path.front(), node);
    path = path.subspan(1);
  }
  return path.empty() && node == root;
}

// ---- a piece

namespace {

// Encoded by itself.
bool read_back(const CheckedPiece& piece, std::span<const float> owed, std::span<float> read) {
  compress::Draw draw = draw_of(piece.seed, piece.steps_before, piece.tensor, kOwner);
  draw.first += static_cast<uint32_t>(piece.range.begin / compress::kDrawBlock);
  std::vector<std::byte> payload(compress::wire_bytes(piece.codec, owed.size()));
  compress::Scratch scratch;
  const auto size = compress::encode(piece.codec, owed, draw, payload, scratch);
  return size && compress::decode(piece.codec, draw, std::span(payload).first(*size), read);
}

// Blocks and the floor of a top-k round what is small to either side of zero.
bool keeps_signs(const compress::Codec& codec) {
  return codec.kind != compress::Kind::Blocks && codec.floor_bits == 0;
}

bool may_be_read(const compress::Codec& codec, std::span<const float> owed, std::span<const float> read) {
  for (size_t i = 0; i < owed.size(); ++i)
    if (!std::isfinite(read[i]) ||
        (keeps_signs(codec) && read[i] != 0 && std::signbit(read[i]) != std::signbit(owed[i])))
      return false;
  return true;
}

bool are_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace

std::optional<TakenPiece> take_piece(const CheckedPiece& piece,
                                     std::span<const std::span<const float>> differences,
                                     const ShownPiece& owner) {
  const size_t count = piece.range.count;
  Mean mean(count);
  for (size_t replica = 0; replica < differences.size(); ++replica)
    if (!differences[replica].empty()) mean.add(differences[replica], piece.samples[replica]);
  TakenPiece taken{.mean = std::vector<float>(count)};
  mean.take(taken.mean);
  if (!are_finite(taken.mean)) return std::nullopt;
  if (!piece.owes()) return taken;
  if (owner.owed.size() != count) return std::nullopt;
  taken.owed = owner.owed;
  for (size_t i = 0; i < count; ++i) taken.owed[i] += taken.mean[i];
  if (!are_finite(taken.owed)) return std::nullopt;
  if (compress::is_by_parts(piece.codec)) {
    if (!read_back(piece, taken.owed, taken.mean)) return std::nullopt;
  } else {
    if (owner.read.size() != count || !may_be_read(piece.codec, taken.owed, owner.read)) return std::nullopt;
    taken.mean = owner.read;
  }
  for (size_t i = 0; i < count; ++i) taken.owed[i] -= taken.mean[i];
  return taken;
}

namespace {

// What replicas show of their differences, beside each other and beside what the owner says to have heard.
MeanFinding check_differences(const CheckedPiece& piece, std::span<const ShownPiece* const> shown,
                              const HashFunction& hash) {
  MeanFinding finding;
  const std::vector<Digest>& heard = shown[piece.owner]->heard;
  for (uint32_t replica = 0; replica < shown.size(); ++replica) {
    const bool is_added = piece.samples[replica] > 0, is_owner = replica == piece.owner;
    const bool is_there = shown[replica] != nullptr && shown[replica]->difference.size() == piece.range.count;
    if ((is_added && !is_there) || (is_owner && heard.size() != shown.size()))
      finding.wrong.push_back(replica);
    else if (is_added && !is_owner && heard.size() == shown.size() &&
             hash_of(hash, shown[replica]->difference) != heard[replica])
      finding.other.push_back(replica);
  }
  return finding;
}

bool is_owed(const CheckedPiece& piece, const ShownPiece& owner, const TakenPiece& taken,
             const HashFunction& hash) {
  if (!piece.owes()) return true;
  const auto is_there = [&](const std::optional<Digest>& root, std::span<const float> values,
                            std::span<const Digest> path) {
    return !root || is_in_tree(*root, hash_of(hash, values), piece.leaf, piece.leaves, path, hash);
  };
  return is_there(piece.owed_before, owner.owed, owner.owed_before) &&
         is_there(piece.owed_after, taken.owed, owner.owed_after);
}

}  // namespace

MeanFinding check_mean(const CheckedPiece& piece, std::span<const ShownPiece* const> shown,
                       const TakePiece& take, const HashFunction& hash) {
  WEFT_CHECK(piece.owner < shown.size() && shown[piece.owner] != nullptr);
  WEFT_CHECK(piece.samples.size() == shown.size());
  MeanFinding finding = check_differences(piece, shown, hash);
  if (!finding.is_right()) return finding;
  std::vector<std::span<const float>> differences;
  for (uint32_t replica = 0; replica < shown.size(); ++replica)
    differences.push_back(piece.samples[replica] > 0 ? std::span<const float>(shown[replica]->difference)
                                                     : std::span<const float>());
  const ShownPiece& owner = *shown[piece.owner];
  const auto taken = take(piece, differences, owner);
  const Digest mean = taken ? hash_of(hash, taken->mean) : Digest{};
  if (!taken || owner.mean != mean || !is_owed(piece, owner, *taken, hash)) {
    finding.wrong.push_back(piece.owner);
    return finding;
  }
  for (uint32_t replica = 0; replica < shown.size(); ++replica)
    if (shown[replica] != nullptr && shown[replica]->mean != mean) finding.other.push_back(replica);
  return finding;
}

}  // namespace weft::replicas
