// Reductions in index order.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {
namespace {

template <typename T>
T multiplied(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else
    return a * b;
}
template <typename T>
bool is_nan(T x) {
  return x != x;
}
// Whether b takes the place of the best so far: NaN beats everything, the first of equals stays.
template <typename T>
bool beats(bool largest, T b, T best) {
  return !is_nan(best) && (is_nan(b) || (largest ? b > best : b < best));
}

template <typename T>
T combined(OpKind kind, T so_far, T x) {
  switch (kind) {
    case OpKind::ReduceSum:
    case OpKind::ReduceMean:
      return added(so_far, x);
    case OpKind::ReduceProd:
      return multiplied(so_far, x);
    case OpKind::ReduceMax:
      return beats(true, x, so_far) ? x : so_far;
    case OpKind::ReduceMin:
      return beats(false, x, so_far) ? x : so_far;
    default:
      WEFT_CHECK_MSG(false, "not a reduction");
      return so_far;
  }
}

template <typename T>
void reduce(const Call& c, const std::vector<T>& x, std::vector<T>& y) {
  // The result's strides over x's dims: 0 along the reduced ones.
  Shape kept = c.shape(0);
  int64_t count = 1;
  for (const int64_t axis : c.attributes.get_ints(Attr::Axes)) {
    count *= kept[at(axis)];
    kept[at(axis)] = 1;
  }
  const Shape strides = broadcast_strides(kept, c.shape(0));
  std::vector<bool> started(y.size(), false);
  if (c.kind == OpKind::ReduceProd) y.assign(y.size(), T{1});
  walk<1>(c.shape(0), {strides}, {0}, [&](size_t i, const auto& to) {
    const size_t k = at(to[0]);
    y[k] = started[k] ? combined(c.kind, y[k], x[i]) : x[i];
    started[k] = true;
  });
  if (c.kind == OpKind::ReduceMean)
    for (T& value : y) value /= static_cast<T>(count);
}

template <typename T>
void arg_extremum(const Call& c, const std::vector<T>& x, Wholes& y) {
  const AxisView view = axis_view(c.shape(0), c.attributes.get_int(Attr::Axis));
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t i = 0; i < view.inner; ++i) {
      const auto value = [&](int64_t k) { return x[at((o * view.size + k) * view.inner + i)]; };
      int64_t best = 0;
      for (int64_t k = 1; k < view.size; ++k)
        if (beats(c.kind == OpKind::ArgMax, value(k), value(best))) best = k;
      y[at(o * view.inner + i)] = best;
    }
}

template <typename T>
void cumsum(const Call& c, const std::vector<T>& x, std::vector<T>& y) {
  const AxisView view = axis_view(c.shape(0), c.attributes.get_int(Attr::Axis));
  const bool exclusive = c.attributes.get_int(Attr::Exclusive) != 0,
             reverse = c.attributes.get_int(Attr::Reverse) != 0;
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t i = 0; i < view.inner; ++i) {
      T sum{0};
      for (int64_t step = 0; step < view.size; ++step) {
        const int64_t k = reverse ? view.size - 1 - step : step;
        const size_t place = at((o * view.size + k) * view.inner + i);
        const T with = added(sum, x[place]);
        y[place] = exclusive ? sum : with;
        sum = with;
      }
    }
}

// Whether x stands before y: a NaN is larger than every number, unsigned 64-bit integers are what their bits
// say.
template <typename T>
bool stands_before(DType dtype, bool largest, T x, T y) {
  if (is_nan(x) || is_nan(y)) return largest ? is_nan(x) && !is_nan(y) : !is_nan(x) && is_nan(y);
  if constexpr (std::is_integral_v<T>)
    if (dtype == DType::U64)
      return largest ? static_cast<uint64_t>(x) > static_cast<uint64_t>(y)
                     : static_cast<uint64_t>(x) < static_cast<uint64_t>(y);
  return largest ? x > y : x < y;
}

template <typename T>
void top_k(const Call& c, const std::vector<T>& x, std::vector<T>& y) {
  const AxisView view = axis_view(c.shape(0), c.attributes.get_int(Attr::Axis));
  const bool largest = c.attributes.get_int(Attr::Largest) != 0;
  const int64_t count = c.attributes.get_int(Attr::Count);
  std::vector<int64_t> order(at(view.size));
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t i = 0; i < view.inner; ++i) {
      const auto value = [&](int64_t k) { return x[at((o * view.size + k) * view.inner + i)]; };
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return stands_before(c.out().spec.dtype, largest, value(a), value(b));
      });
      for (int64_t k = 0; k < count; ++k) {
        const size_t place = at((o * count + k) * view.inner + i);
        y[place] = value(order[at(k)]);
        c.out(1).wholes[place] = order[at(k)];
      }
    }
}

}  // namespace

void run_reduction(const Call& call) {
  if (call.kind == OpKind::ArgMax || call.kind == OpKind::ArgMin) {
    if (call.in(0).is_real())
      arg_extremum(call, call.reals(0), call.out().wholes);
    else
      arg_extremum(call, call.wholes(0), call.out().wholes);
    return;
  }
  on_storage(call, [&](const auto& x, auto& y) {
    if (call.kind == OpKind::CumSum)
      cumsum(call, x, y);
    else if (call.kind == OpKind::TopK)
      top_k(call, x, y);
    else
      reduce(call, x, y);
  });
  for (int64_t& value : call.out().wholes) value = wrapped(call.out().spec.dtype, value);
}

}  // namespace weft::peer::reference
