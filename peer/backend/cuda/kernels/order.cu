#include "peer/backend/cuda/kernels/block.cuh"
#include "peer/backend/cuda/kernels/order.h"

namespace weft::peer::cuda {
namespace {

constexpr int32_t kWarps = kOrderThreads / 32;

__device__ __forceinline__ int32_t digit_of(const OrderPass& p, uint32_t key) {
  return static_cast<int32_t>((key >> p.shift) % kDigits);
}

// The lanes of the warp that are there and have this lane's digit.
__device__ __forceinline__ uint32_t peers_of(int32_t digit, bool there) {
  uint32_t peers = __ballot_sync(kAllLanes, there);
  WEFT_UNROLL
  for (int bit = 0; bit < 8; ++bit) {
    const bool set = ((digit >> bit) & 1) != 0;
    const uint32_t with = __ballot_sync(kAllLanes, set);
    peers &= set ? with : ~with;
  }
  return peers;
}

// Calls visit(i, key, digit, peers) for the warp's entries, 32 at a time in order; all lanes call.
template <typename Visit>
__device__ __forceinline__ void for_each_round(const OrderPass& p, const Visit& visit) {
  const int64_t begin =
      (int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * (32 * static_cast<int64_t>(p.rounds)) +
      threadIdx.x % 32;
  for (uint32_t round = 0; round < p.rounds; ++round) {
    const int64_t i = begin + 32 * static_cast<int64_t>(round);
    const bool there = i < p.keys.count;
    uint32_t key = 0;
    if (there) key = p.keys[i];
    const int32_t digit = digit_of(p, key);
    const uint32_t peers = peers_of(digit, there);
    visit(i, key, digit, there ? peers : 0u);
  }
}

__device__ __forceinline__ bool is_first_of(uint32_t lanes) {
  return lanes != 0 && __ffs(static_cast<int>(lanes)) - 1 == static_cast<int>(threadIdx.x % 32);
}

// How many of each digit each warp has: counts[warp * kDigits + digit]. Ends with a barrier.
template <typename Counts>
__device__ __forceinline__ void count_by_warp(const OrderPass& p, Counts& counts) {
  const auto t = static_cast<int32_t>(threadIdx.x), warp = t / 32;
  for (int32_t w = 0; w < kWarps; ++w) counts[w * kDigits + t] = 0u;
  __syncthreads();
  for_each_round(p, [&](int64_t, uint32_t, int32_t digit, uint32_t peers) {
    if (is_first_of(peers)) {
      const uint32_t before = counts[warp * kDigits + digit];
      counts[warp * kDigits + digit] = before + static_cast<uint32_t>(__popc(peers));
    }
    __syncwarp();
  });
  __syncthreads();
}

struct SumOf4 {
  __device__ __forceinline__ Float4 operator()(Float4 a, Float4 b) const {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }
};

// One column or four at once.
struct Single {
  using Value = float;
  static constexpr int64_t kWidth = 1;
  using Sum = SumOf;
  static __device__ __forceinline__ float load(const Array<const float>& from, int64_t i) { return from[i]; }
  static __device__ __forceinline__ void store(const Array<float>& to, int64_t i, float x) { to[i] = x; }
  static __device__ __forceinline__ float scaled(float x, float by) { return x * by; }
};
struct Four {
  using Value = Float4;
  static constexpr int64_t kWidth = 4;
  using Sum = SumOf4;
  static __device__ __forceinline__ Float4 load(const Array<const float>& from, int64_t i) {
    return load4(from, i);
  }
  static __device__ __forceinline__ void store(const Array<float>& to, int64_t i, Float4 x) {
    store4(to, i, x);
  }
  static __device__ __forceinline__ Float4 scaled(Float4 x, float by) {
    return {x.x * by, x.y * by, x.z * by, x.w * by};
  }
};

// What row `row` of the result adds.
struct List {
  int64_t begin, end;
  int64_t source;  // the first of its part of `from`, less that of its entries
};
__device__ __forceinline__ List list_of(const SumLists& p, uint32_t row) {
  uint32_t part = row;
  const uint32_t r = take_remainder(part, p.rows);
  const uint32_t batch = divided(part, p.outer);
  const int64_t list = static_cast<int64_t>(batch) * p.rows.divisor + r;
  return {int64_t{p.starts[list]}, int64_t{p.starts[list + 1]}, (int64_t{part} - batch) * p.sources};
}

// Entries first, first + step, ...
template <typename Width>
__device__ __forceinline__ typename Width::Value sum_of(const SumLists& p, const List& list, int64_t first,
                                                        int64_t step, int64_t column) {
  using Value = typename Width::Value;
  return thread_fold<Value>(list.begin + first, list.end, step, Value{}, typename Width::Sum(),
                            [&](int64_t i) {
                              const uint32_t entry = p.entries[i];
                              const int64_t source = list.source + int64_t{divided(entry, p.per_source)};
                              const Value value = Width::load(p.from, source * p.inner + column);
                              return p.weights.present() ? Width::scaled(value, p.weights[entry]) : value;
                            });
}

// Where a thread's list is longer, the block shares it.
constexpr int64_t kShort = 32;

template <typename Width>
__device__ __forceinline__ void sum_lists(const SumLists& p) {
  WEFT_SHARED(uint32_t, long_rows, kListThreads / 32);
  WEFT_SHARED(typename Width::Value, partial, kListThreads);
  const auto t = static_cast<int32_t>(threadIdx.x), columns = static_cast<int32_t>(p.columns);
  const int32_t lanes = static_cast<int32_t>(kListThreads) / columns, lane = t / columns;
  const int64_t column = (int64_t{blockIdx.y} * columns + t % columns) * Width::kWidth;
  const bool inside = column < p.inner;
  const uint32_t row0 = blockIdx.x * static_cast<uint32_t>(lanes), row = row0 + static_cast<uint32_t>(lane);
  bool is_long = false;
  if (row < p.count) {
    const List list = list_of(p, row);
    is_long = list.end - list.begin > kShort;
    if (!is_long && inside)
      Width::store(p.to, int64_t{row} * p.inner + column, sum_of<Width>(p, list, 0, 1, column));
  }
  const uint32_t found = __ballot_sync(kAllLanes, is_long && t % columns == 0);
  if (t % 32 == 0) long_rows[t / 32] = found;
  __syncthreads();
  for (int32_t warp = 0; warp < static_cast<int32_t>(kListThreads) / 32; ++warp) {
    for (uint32_t rest = long_rows[warp]; rest != 0; rest &= rest - 1) {
      const int32_t thread = 32 * warp + __ffs(static_cast<int>(rest)) - 1;
      const uint32_t shared_row = row0 + static_cast<uint32_t>(thread / columns);
      typename Width::Value sum{};
      if (inside) sum = sum_of<Width>(p, list_of(p, shared_row), lane, lanes, column);
      partial[t] = sum;
      __syncthreads();
      for (int32_t half = lanes / 2; half > 0; half /= 2) {
        if (lane < half) {
          const typename Width::Value mine = partial[t], other = partial[t + half * columns];
          partial[t] = typename Width::Sum()(mine, other);
        }
        __syncthreads();
      }
      if (lane == 0 && inside) Width::store(p.to, int64_t{shared_row} * p.inner + column, partial[t]);
      __syncthreads();  // the next one writes there
    }
  }
}

}  // namespace

__global__ void __launch_bounds__(kOrderThreads) count_digits(OrderPass p) {
  WEFT_SHARED(uint32_t, counts, kWarps * kDigits);
  count_by_warp(p, counts);
  const auto digit = static_cast<int32_t>(threadIdx.x);
  uint32_t sum = 0;
  for (int32_t w = 0; w < kWarps; ++w) sum += counts[w * kDigits + digit];
  p.counts[int64_t{digit} * gridDim.x + blockIdx.x] = sum;
}
WEFT_KERNEL_ENTRY(count_digits, OrderPass)

__global__ void __launch_bounds__(kScanThreads) scan_counts(ScanCounts p) {
  WEFT_SHARED(uint32_t, of_warp, kScanThreads / 32);
  constexpr int64_t kEach = 4;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint32_t before = 0;  // of all earlier chunks
  for (int64_t chunk = 0; chunk < p.counts.count; chunk += kEach * kScanThreads) {
    const int64_t first = chunk + kEach * threadIdx.x;
    uint32_t mine[kEach] = {}, sum = 0;
    WEFT_UNROLL
    for (int64_t k = 0; k < kEach; ++k) {
      if (first + k < p.counts.count) mine[k] = p.counts[first + k];
      sum += mine[k];
    }
    uint32_t upto = sum;  // of the warp's lanes up to this one
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(kAllLanes, upto, step);
      if (static_cast<int>(lane) >= step) upto += other;
    }
    if (lane == 31) of_warp[warp] = upto;
    __syncthreads();
    uint32_t at = before + upto - sum;
    for (uint32_t w = 0; w < kScanThreads / 32; ++w) {
      const uint32_t other = of_warp[w];
      if (w < warp) at += other;
      before += other;
    }
    WEFT_UNROLL
    for (int64_t k = 0; k < kEach; ++k) {
      if (first + k < p.counts.count) p.counts[first + k] = at;
      at += mine[k];
    }
    __syncthreads();  // the next chunk writes there
  }
}
WEFT_KERNEL_ENTRY(scan_counts, ScanCounts)

__global__ void __launch_bounds__(kOrderThreads) move_by_digit(MoveByDigit p) {
  WEFT_SHARED(uint32_t, places, kWarps * kDigits);  // first counts, then where the warp's next one goes
  count_by_warp(p.pass, places);
  const auto t = static_cast<int32_t>(threadIdx.x), warp = t / 32;
  uint32_t place = p.pass.counts[int64_t{t} * gridDim.x + blockIdx.x];
  for (int32_t w = 0; w < kWarps; ++w) {
    const uint32_t count = places[w * kDigits + t];
    places[w * kDigits + t] = place;
    place += count;
  }
  __syncthreads();
  for_each_round(p.pass, [&](int64_t i, uint32_t key, int32_t digit, uint32_t peers) {
    uint32_t to = 0;
    if (peers != 0) to = places[warp * kDigits + digit];
    __syncwarp();
    if (is_first_of(peers)) places[warp * kDigits + digit] = to + static_cast<uint32_t>(__popc(peers));
    __syncwarp();
    if (peers == 0) return;
    to += static_cast<uint32_t>(__popc(peers & ((1u << (threadIdx.x % 32)) - 1)));
    p.keys_to[to] = key;
    p.entries_to[to] = p.entries.present() ? p.entries[i] : static_cast<uint32_t>(i);
  });
}
WEFT_KERNEL_ENTRY(move_by_digit, MoveByDigit)

__global__ void __launch_bounds__(kOrderThreads) find_starts(FindStarts p) {
  const int64_t row = int64_t{blockIdx.x} * kOrderThreads + threadIdx.x;
  if (row >= p.starts.count) return;
  int64_t low = 0, high = p.keys.count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (int64_t{p.keys[middle]} < row)
      low = middle + 1;
    else
      high = middle;
  }
  p.starts[row] = static_cast<uint32_t>(low);
}
WEFT_KERNEL_ENTRY(find_starts, FindStarts)

// At least one block: without that word the assembler holds registers back for more, and spills.
__global__ void __launch_bounds__(kListThreads, 1) sum_lists_1(SumLists p) { sum_lists<Single>(p); }
WEFT_KERNEL_ENTRY(sum_lists_1, SumLists)
__global__ void __launch_bounds__(kListThreads, 1) sum_lists_4(SumLists p) { sum_lists<Four>(p); }
WEFT_KERNEL_ENTRY(sum_lists_4, SumLists)

}  // namespace weft::peer::cuda
