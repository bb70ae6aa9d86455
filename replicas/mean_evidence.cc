#include "replicas/mean_evidence.h"

#include "base/check.h"

namespace weft::replicas {

namespace {

std::vector<float> piece_of(std::span<const float> values, size_t piece) {
  if (values.empty()) return {};
  const PieceRange range = range_of(piece, values.size());
  const auto part = values.subspan(range.begin, range.count);
  return {part.begin(), part.end()};
}

}  // namespace

MeanEvidence::PieceHashes MeanEvidence::hashes_of(std::span<const float> values) const {
  PieceHashes hashes;
  for (size_t piece = 0; piece < pieces_of(values.size()); ++piece) {
    const PieceRange range = range_of(piece, values.size());
    hashes.push_back(hash_of(hash_, values.subspan(range.begin, range.count)));
  }
  return hashes;
}

void MeanEvidence::hear(uint32_t number, uint32_t replica, std::span<const float> difference) {
  heard_[{number, replica}] = hashes_of(difference);
}

void MeanEvidence::take(uint32_t number, std::span<const float> owed, std::span<const float> read) {
  taken_[number] = {{owed.begin(), owed.end()}, {read.begin(), read.end()}};
}

void MeanEvidence::owe(const std::vector<std::span<const float>>& all,
                       std::shared_ptr<const HashTree> before) {
  owed_before_ = std::move(before);
  std::vector<Digest> leaves;
  for (const std::span<const float> owed : all)
    for (const Digest& hash : hashes_of(owed)) leaves.push_back(hash);
  if (!leaves.empty()) owed_ = std::make_shared<const HashTree>(std::move(leaves), hash_);
}

void MeanEvidence::read(uint32_t number, std::span<const float> mean) { read_[number] = hashes_of(mean); }

ShownPiece MeanEvidence::show(uint32_t number, size_t piece, std::span<const float> difference, size_t leaf,
                              uint32_t replicas) const {
  ShownPiece shown{.difference = piece_of(difference, piece), .mean = read_.at(number).at(piece)};
  const auto taken = taken_.find(number);
  if (taken == taken_.end()) return shown;
  shown.owed = piece_of(taken->second.owed, piece);
  shown.read = piece_of(taken->second.read, piece);
  if (!shown.owed.empty() && owed_before_) shown.owed_before = owed_before_->path(leaf);
  if (!shown.owed.empty()) shown.owed_after = owed_->path(leaf);
  for (uint32_t replica = 0; replica < replicas; ++replica) {
    const auto heard = heard_.find({number, replica});
    shown.heard.push_back(heard == heard_.end() ? Digest{} : heard->second.at(piece));
  }
  return shown;
}

}  // namespace weft::replicas
