#include "text/merge_table.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "text/hash.h"

namespace weft::text {

MergeTable::MergeTable(size_t count) : slots_(std::bit_ceil(std::max<size_t>(2 * count, 2))) {
  shift_ = 64 - std::countr_zero(slots_.size());
}

size_t MergeTable::place_of(TokenId left, TokenId right) const {
  return static_cast<size_t>(mixed(left, right) >> shift_);
}

Status MergeTable::add(TokenId left, TokenId right, TokenId token) {
  WEFT_CHECK(2 * (size_t{added_} + 1) <= slots_.size());
  const size_t first = place_of(left, right), mask = slots_.size() - 1;
  for (size_t probe = 0; probe < kProbesMax; ++probe) {
    Slot& slot = slots_[(first + probe) & mask];
    if (slot.merge.rank != kNoRank && (slot.left != left || slot.right != right)) continue;
    slot = {left, right, {added_++, token}};
    return {};
  }
  return fail(ErrorCode::Corrupted, "too many of its pairs have one hash");
}

MergeTable::Merge MergeTable::find(TokenId left, TokenId right) const {
  const size_t first = place_of(left, right), mask = slots_.size() - 1;
  for (size_t probe = 0; probe < kProbesMax; ++probe) {
    const Slot& slot = slots_[(first + probe) & mask];
    if (slot.merge.rank == kNoRank) return {};
    if (slot.left == left && slot.right == right) return slot.merge;
  }
  return {};
}

}  // namespace weft::text
