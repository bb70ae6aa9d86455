#include "serve/row_history.h"

#include <algorithm>
#include <span>
#include <utility>

namespace weft::serve {

namespace {
size_t bytes_of(const dag::RowSpec& row, int64_t rows) {
  return static_cast<size_t>(dag::TensorSpec{row.dtype, {rows, row.width}}.bytes().value);
}
}  // namespace

void RowHistory::keep(const Pass& sent) {
  int64_t row = 0;
  for (const PassPiece& piece : sent.pieces) {
    const int64_t first_row = std::exchange(row, row + piece.count);
    if (piece.ends() || !piece.kept || piece.first > length(piece.sequence)) {
      kept_.erase(piece.sequence);
      continue;
    }
    cut(piece.sequence, piece.first);
    Kept& kept = kept_[piece.sequence];
    kept.length = piece.first + piece.count;
    kept.expected = piece.expected;
    for (const dag::RowSpec& edge : std::span(edges_).subspan(1)) {
      const auto from = sent.rows.at(edge.name).bytes().subspan(bytes_of(edge, first_row));
      const auto some = from.first(bytes_of(edge, piece.count));
      std::vector<std::byte>& rows = kept.rows[edge.name];
      rows.reserve(bytes_of(edge, std::max(kept.length, kept.expected)));  // no more than was planned for
      rows.insert(rows.end(), some.begin(), some.end());
    }
  }
}

void RowHistory::cut(uint64_t sequence, int64_t length) {
  const auto found = kept_.find(sequence);
  if (found == kept_.end() || found->second.length <= length) return;
  found->second.length = length;
  for (const dag::RowSpec& edge : std::span(edges_).subspan(1))
    found->second.rows[edge.name].resize(bytes_of(edge, length));
}

void RowHistory::cut_all(const std::function<int64_t(uint64_t)>& length) {
  for (const auto& [sequence, kept] : kept_) cut(sequence, length(sequence));
}

int64_t RowHistory::length(uint64_t sequence) const {
  const auto found = kept_.find(sequence);
  return found == kept_.end() ? 0 : found->second.length;
}

int64_t RowHistory::positions() const {
  int64_t positions = 0;
  for (const auto& [sequence, kept] : kept_) positions += kept.length;
  return positions;
}

int64_t RowHistory::expected() const {
  int64_t positions = 0;
  for (const auto& [sequence, kept] : kept_) positions += std::max(kept.length, kept.expected);
  return positions;
}

std::vector<Pass> RowHistory::passes(uint64_t first, int64_t rows_max) const {
  std::vector<Pass> passes;
  std::vector<PassPiece> pieces;
  int64_t left = rows_max;
  const auto finish = [&] {
    if (!pieces.empty()) passes.push_back(made_of(first + passes.size(), std::exchange(pieces, {})));
    left = rows_max;
  };
  for (const auto& [sequence, kept] : kept_)
    for (int64_t at = 0; at < kept.length;) {
      const int64_t count = std::min(left, kept.length - at);
      pieces.push_back({sequence, at, count, PassPiece::kHistory, kept.expected, true});
      at += count;
      left -= count;
      if (left == 0 || pieces.size() == kPassPiecesMax) finish();
    }
  finish();
  return passes;
}

Pass RowHistory::made_of(uint64_t number, std::vector<PassPiece> pieces) const {
  Pass pass{.number = number, .pieces = std::move(pieces)};
  for (const dag::RowSpec& edge : std::span(edges_).subspan(1)) {
    dag::Tensor all({edge.dtype, {row_count(pass.pieces), edge.width}});
    auto to = all.mutable_bytes().begin();
    for (const PassPiece& piece : pass.pieces) {
      const auto rows = std::span(kept_.at(piece.sequence).rows.at(edge.name))
                            .subspan(bytes_of(edge, piece.first), bytes_of(edge, piece.count));
      to = std::copy(rows.begin(), rows.end(), to);
    }
    pass.rows.emplace(edge.name, std::move(all));
  }
  return pass;
}

}  // namespace weft::serve
