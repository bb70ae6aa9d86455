#include "peer/backend/cuda/order.h"

#include <bit>

namespace weft::peer::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kBlocksMax = 256;  // what one block scans quickly
constexpr uint32_t kRoundsMin = 4;

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Ordering::Ordering(int64_t entries, int64_t rows) : entries_(entries), rows_(rows) {
  const int64_t rounds = divided_up(entries, int64_t{kOrderThreads} * kBlocksMax);
  rounds_ = std::max(kRoundsMin, static_cast<uint32_t>(rounds));
  blocks_ = static_cast<uint32_t>(divided_up(entries, int64_t{kOrderThreads} * rounds_));
  passes_ = static_cast<uint32_t>((std::bit_width(static_cast<uint64_t>(rows)) + 7) / 8);
  list_bytes_ = align_up(4 * entries, kAlignment);
  counts_at_ = 4 * list_bytes_;
  starts_at_ = counts_at_ + align_up(int64_t{4} * kDigits * blocks_, kAlignment);
  bytes_ = starts_at_ + align_up(4 * (rows + 1), kAlignment);
}

Array<uint32_t> Ordering::keys_of(const Call& call, int64_t at, int which) const {
  return call.scratch<uint32_t>(at + which * list_bytes_, entries_);
}
Array<uint32_t> Ordering::entries_of(const Call& call, int64_t at, int which) const {
  return call.scratch<uint32_t>(at + (2 + which) * list_bytes_, entries_);
}
Array<uint32_t> Ordering::counts(const Call& call, int64_t at) const {
  return call.scratch<uint32_t>(at + counts_at_, int64_t{kDigits} * blocks_);
}

Status Ordering::order(const Call& call, int64_t at) const {
  const auto reading = [](Array<uint32_t> array) { return Array<const uint32_t>{array.data, array.count}; };
  const Grid grid{blocks_, kOrderThreads, 1};
  for (uint32_t i = 0; i < passes_; ++i) {
    const int from = static_cast<int>(i % 2), to = 1 - from;
    const OrderPass pass{reading(keys_of(call, at, from)), counts(call, at), rounds_, 8 * i};
    WEFT_TRY_STATUS(call.launch(k_count_digits, grid, pass));
    WEFT_TRY_STATUS(call.launch(k_scan_counts, {1, kScanThreads, 1}, ScanCounts{counts(call, at)}));
    const Array<const uint32_t> entries =
        i == 0 ? Array<const uint32_t>{} : reading(entries_of(call, at, from));
    WEFT_TRY_STATUS(call.launch(k_move_by_digit, grid,
                                MoveByDigit{pass, entries, keys_of(call, at, to), entries_of(call, at, to)}));
  }
  const uint32_t blocks = static_cast<uint32_t>(divided_up(rows_ + 1, kOrderThreads));
  return call.launch(k_find_starts, {blocks, kOrderThreads, 1},
                     FindStarts{ordered_keys(call, at), call.scratch<uint32_t>(at + starts_at_, rows_ + 1)});
}

Array<const uint32_t> Ordering::ordered_keys(const Call& call, int64_t at) const {
  return {keys_of(call, at, static_cast<int>(passes_ % 2)).data, entries_};
}
Array<const uint32_t> Ordering::ordered_entries(const Call& call, int64_t at) const {
  return {entries_of(call, at, static_cast<int>(passes_ % 2)).data, entries_};
}
Array<const uint32_t> Ordering::starts(const Call& call, int64_t at) const {
  return {call.scratch<uint32_t>(at + starts_at_, rows_ + 1).data, rows_ + 1};
}

namespace {

// How a block's threads are laid over rows and columns.
struct Layout {
  int64_t width, columns, across, down;  // columns a thread, threads a row, blocks
};
Layout layout_of(const ListSums& sums) {
  constexpr int64_t kColumnsMax = 64;
  const int64_t width = sums.inner % 4 == 0 ? 4 : 1, wanted = sums.inner / width;
  const auto columns =
      std::min(kColumnsMax, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(wanted))));
  return {width, columns, divided_up(sums.batch * sums.outer * sums.rows, int64_t{kListThreads} / columns),
          divided_up(wanted, columns)};
}

}  // namespace

bool are_counted(const ListSums& sums) {
  constexpr int64_t kDownMax = 65535;
  return sums.batch * sums.outer * sums.rows <= Ordering::kEntriesMax &&
         sums.batch * sums.sources * sums.per_source <= Ordering::kEntriesMax &&
         layout_of(sums).down <= kDownMax;
}

Status add_lists(const Call& call, const Ordering& ordering, int64_t at, const ListSums& sums,
                 Array<const float> from, Array<const float> weights, Array<float> to) {
  const Layout layout = layout_of(sums);
  const SumLists parameters{.starts = ordering.starts(call, at),
                            .entries = ordering.ordered_entries(call, at),
                            .weights = weights,
                            .from = from,
                            .to = to,
                            .count = static_cast<uint32_t>(sums.batch * sums.outer * sums.rows),
                            .columns = static_cast<uint32_t>(layout.columns),
                            .rows = divider(sums.rows),
                            .outer = divider(sums.outer),
                            .per_source = divider(sums.per_source),
                            .sources = sums.sources,
                            .inner = sums.inner};
  const Grid grid{static_cast<uint32_t>(layout.across), kListThreads, static_cast<uint32_t>(layout.down)};
  return call.launch(layout.width == 4 ? k_sum_lists_4 : k_sum_lists_1, grid, parameters);
}

}  // namespace weft::peer::cuda
