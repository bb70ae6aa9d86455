#include "serve/spoilt_rows.h"

#include <algorithm>

#include "dag/finite.h"

namespace weft::serve {

std::vector<uint64_t> spoilt_sequences(const Pass& pass) {
  std::vector<uint64_t> spoilt;
  int64_t row = 0;
  for (const PassPiece& piece : pass.pieces) {
    const auto is_spoilt = [&](const auto& named) {
      const int64_t width = named.second.shape()[1];
      return !dag::is_below_infinity(named.second.elements(row * width, piece.count * width));
    };
    if (!piece.ends() && std::any_of(pass.rows.begin(), pass.rows.end(), is_spoilt))
      spoilt.push_back(piece.sequence);
    row += piece.count;
  }
  return spoilt;
}

Status SpoiltRows::look_at(const Pass& pass) {
  ++passes_;
  std::erase_if(spoilt_, [this](const auto& known) { return known.second + kPasses < passes_; });
  for (const uint64_t sequence : spoilt_sequences(pass)) spoilt_[sequence] = passes_;
  if (spoilt_.size() < 2) return {};
  return fail(ErrorCode::Corrupted,
              "rows of " + std::to_string(spoilt_.size()) + " requests in " + std::to_string(kPasses) +
                  " passes are not finite, the last of them in pass " + std::to_string(pass.number));
}

}  // namespace weft::serve
