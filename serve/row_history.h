// The rows that a stage of a ring has sent on, of sequences that are served: what a stage that comes new
// behind it needs to be where the one before it was. Only of those that the entry says are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "serve/pass.h"

namespace weft::serve {

class RowHistory {
 public:
  // What goes to the stage behind (edges_before).
  explicit RowHistory(std::vector<dag::RowSpec> edges) : edges_(std::move(edges)) {}

  // What was sent: it stands behind the positions before it, and what was behind those is forgotten. Ends,
  // and pieces that are not to be kept, let go of what there is. REQUIRES: check_rows(sent, edges).
  void keep(const Pass& sent);
  // To so many positions of each.
  void cut_all(const std::function<int64_t(uint64_t sequence)>& length);
  // Sequences with lower numbers.
  void forget_before(uint64_t first) { kept_.erase(kept_.begin(), kept_.lower_bound(first)); }

  bool keeps(uint64_t sequence) const { return kept_.contains(sequence); }
  int64_t length(uint64_t sequence) const;
  int64_t positions() const;
  int64_t expected() const;  // positions of all that it keeps, in the end
  // All of it, in passes that are history, numbered from `first` on.
  std::vector<Pass> passes(uint64_t first, int64_t rows_max) const;

 private:
  void cut(uint64_t sequence, int64_t length);
  struct Kept {
    int64_t length = 0, expected = 0;
    std::map<std::string, std::vector<std::byte>> rows{};  // by name, one behind the other
  };
  Pass made_of(uint64_t number, std::vector<PassPiece> pieces) const;

  std::vector<dag::RowSpec> edges_;
  std::map<uint64_t, Kept> kept_;  // by sequence
};

}  // namespace weft::serve
