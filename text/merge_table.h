// Which two tokens become which one, and which pair goes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "text/token.h"

namespace weft::text {

class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNoRank;  // the lowest of a text goes first
    TokenId token = 0;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;

  // `count` merges will follow.
  explicit MergeTable(size_t count = 0);

  // The rank is the number of those before it; of a pair that comes twice the later rank holds. Corrupted:
  // too many pairs meet in the table. REQUIRES: no more than `count`.
  Status add(TokenId left, TokenId right, TokenId token);

  // One that nothing ever merges by. It counts.
  void skip() { ++added_; }

  // Rank kNoRank: they do not merge. A bounded number of steps.
  Merge find(TokenId left, TokenId right) const;
  size_t size() const { return added_; }

 private:
  struct Slot {
    TokenId left = 0, right = 0;
    Merge merge;
  };
  size_t place_of(TokenId left, TokenId right) const;

  std::vector<Slot> slots_;  // a power of two, at least half of them free
  int shift_ = 0;
  uint32_t added_ = 0;
};

}  // namespace weft::text
