// Scattering with duplicates, in one order of every sum: entries are ordered by the row that they go to, and
// each row adds its list. What the kernels need to be launched (kernels/order.h).
#pragma once

#include "peer/backend/cuda/kernel.h"
#include "peer/backend/cuda/kernels/order.h"

namespace weft::peer::cuda {

// Entries 0 .. entries-1, ordered by key and, of equal keys, by number. A key is a row, or `rows` for an
// entry that goes nowhere. Cost: three launches for each 8 bits of `rows`, of 24 bytes an entry together, and
// 16 bytes of workspace an entry.
class Ordering {
 public:
  static constexpr int64_t kEntriesMax = kCountMax - 1;  // of entries and of rows

  Ordering(int64_t entries, int64_t rows);

  int64_t workspace_bytes() const { return bytes_; }
  // All below: `at` is where in the workspace that memory begins, a multiple of 256.
  // Where keys are put before order() is submitted.
  Array<uint32_t> keys(const Call& call, int64_t at) const { return call.scratch<uint32_t>(at, entries_); }
  Status order(const Call& call, int64_t at) const;
  // After it.
  Array<const uint32_t> ordered_keys(const Call& call, int64_t at) const;
  Array<const uint32_t> ordered_entries(const Call& call, int64_t at) const;
  // starts[r] of row r's list, r <= rows.
  Array<const uint32_t> starts(const Call& call, int64_t at) const;

  int64_t rows() const { return rows_; }

 private:
  Array<uint32_t> keys_of(const Call& call, int64_t at, int which) const;
  Array<uint32_t> entries_of(const Call& call, int64_t at, int which) const;
  Array<uint32_t> counts(const Call& call, int64_t at) const;

  int64_t entries_, rows_;
  int64_t list_bytes_;  // of one of the four lists
  uint32_t rounds_, blocks_, passes_;
  int64_t counts_at_, starts_at_, bytes_;
};

// to[batch, outer, rows, inner] from from[batch, outer, sources, inner]; `per_source` entries each.
struct ListSums {
  int64_t batch = 1, outer = 1, rows = 1, sources = 1, inner = 1, per_source = 1;
};
// Whether one launch counts them.
bool are_counted(const ListSums& sums);
// REQUIRES: are_counted(), and the ordering was submitted, with batch * rows rows.
Status add_lists(const Call& call, const Ordering& ordering, int64_t at, const ListSums& sums,
                 Array<const float> from, Array<const float> weights, Array<float> to);

}  // namespace weft::peer::cuda
