// Ops that move elements about, and their adjoints.
#include <algorithm>
#include <limits>

#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {
namespace {

void run_copy(const Call& c) {
  on_storage(c, [](const auto& x, auto& y) { y = x; });
}

void run_transpose(const Call& c) {
  const Ints& perm = c.attributes.get_ints(Attr::Perm);
  const Shape own = strides_of(c.shape(0));
  Shape strides;
  strides.reserve(perm.size());
  for (const int64_t from : perm) strides.push_back(own[at(from)]);
  on_storage(c, [&](const auto& x, auto& y) {
    walk<1>(c.out().spec.shape, {strides}, {0}, [&](size_t i, const auto& from) { y[i] = x[at(from[0])]; });
  });
}

void run_expand(const Call& c) {
  const Shape& shape = c.out().spec.shape;
  on_storage(c, [&](const auto& x, auto& y) {
    walk<1>(shape, {broadcast_strides(c.shape(0), shape)}, {0},
            [&](size_t i, const auto& from) { y[i] = x[at(from[0])]; });
  });
}

// Where the elements of a slice lie in the tensor that it was cut from.
struct SliceWalk {
  Shape strides;
  int64_t start = 0;
};
SliceWalk slice_walk(const Call& c, const Shape& whole) {
  SliceWalk walk;
  const Shape own = strides_of(whole);
  for (size_t d = 0; d < whole.size(); ++d) {
    walk.strides.push_back(own[d] * c.attributes.get_ints(Attr::Steps)[d]);
    walk.start += own[d] * c.attributes.get_ints(Attr::Starts)[d];
  }
  return walk;
}

void run_slice(const Call& c) {
  const SliceWalk slice = slice_walk(c, c.shape(0));
  on_storage(c, [&](const auto& x, auto& y) {
    walk<1>(c.out().spec.shape, {slice.strides}, {slice.start},
            [&](size_t i, const auto& from) { y[i] = x[at(from[0])]; });
  });
}

void run_slice_grad(const Call& c) {
  const SliceWalk slice = slice_walk(c, c.out().spec.shape);
  on_storage(c, [&](const auto& dy, auto& dx) {
    walk<1>(c.shape(0), {slice.strides}, {slice.start},
            [&](size_t i, const auto& to) { dx[at(to[0])] = dy[i]; });
  });
}

void run_concat(const Call& c) {
  const int64_t axis = c.attributes.get_int(Attr::Axis);
  const AxisView whole = axis_view(c.out().spec.shape, axis);
  int64_t before = 0;
  for (const RefValue* part : c.inputs) {
    const AxisView view = axis_view(part->spec.shape, axis);
    const int64_t run = view.size * view.inner;
    for (int64_t o = 0; o < view.outer; ++o)
      for (int64_t i = 0; i < run; ++i) {
        const size_t to = at(o * whole.size * whole.inner + before * whole.inner + i), from = at(o * run + i);
        if (part->is_real())
          c.out().reals[to] = part->reals[from];
        else
          c.out().wholes[to] = part->wholes[from];
      }
    before += view.size;
  }
}

// ---- padding ----

// For each element of the padded tensor, in order: the flat index of the element of x that it repeats, or -1.
std::vector<int64_t> padding_sources(const Call& c, const Shape& x, const Shape& padded) {
  const Ints& pads = c.attributes.get_ints(Attr::Pads);
  const std::string& mode = c.attributes.get_string(Attr::Mode);
  std::vector<int64_t> sources{0};
  for (size_t d = 0; d < x.size(); ++d) {  // dims from the outside in: each source so far grows into a row
    std::vector<int64_t> next;
    next.reserve(sources.size() * at(padded[d]));
    for (const int64_t outer : sources)
      for (int64_t i = 0; i < padded[d]; ++i) {
        int64_t k = i - pads[d];
        if (mode == "edge") k = std::clamp<int64_t>(k, 0, x[d] - 1);
        if (mode == "reflect" && k < 0) k = -k;
        if (mode == "reflect" && k >= x[d]) k = 2 * (x[d] - 1) - k;
        next.push_back(outer < 0 || k < 0 || k >= x[d] ? -1 : outer * x[d] + k);
      }
    sources = std::move(next);
  }
  return sources;
}

void run_pad(const Call& c) {
  const auto sources = padding_sources(c, c.shape(0), c.out().spec.shape);
  const double fill = c.attributes.get_double(Attr::Value);
  on_storage(c, [&](const auto& x, auto& y) {
    using T = std::decay_t<decltype(y[0])>;
    const T value = dag::is_float(c.out().spec.dtype)
                        ? static_cast<T>(fill)
                        : static_cast<T>(dag::to_int64s(dag::make_scalar(c.out().spec.dtype, fill))[0]);
    for (size_t i = 0; i < y.size(); ++i) y[i] = sources[i] < 0 ? value : x[at(sources[i])];
  });
}

void run_pad_grad(const Call& c) {
  const auto sources = padding_sources(c, c.out().spec.shape, c.shape(0));
  on_storage(c, [&](const auto& dy, auto& dx) {
    for (size_t i = 0; i < dy.size(); ++i)
      if (sources[i] >= 0) dx[at(sources[i])] = added(dx[at(sources[i])], dy[i]);
  });
}

// ---- gathering and scattering ----

// The index counted from the front, or -1 when it is out of range.
int64_t resolved(int64_t index, int64_t size) {
  if (index < -size || index >= size) return -1;
  return index < 0 ? index + size : index;
}

// Calls visit(place in data or -1, place in the gathered tensor).
template <typename Visit>
void for_each_gathered(const Shape& data, int64_t axis, const Wholes& indices, Visit visit) {
  const AxisView view = axis_view(data, axis);
  const auto count = static_cast<int64_t>(indices.size());
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t k = 0; k < count; ++k) {
      const int64_t row = resolved(indices[at(k)], view.size);
      for (int64_t i = 0; i < view.inner; ++i)
        visit(row < 0 ? -1 : (o * view.size + row) * view.inner + i, at((o * count + k) * view.inner + i));
    }
}

// The same for GatherElements: the index takes the place of one coordinate.
template <typename Visit>
void for_each_gathered_element(const Shape& data, int64_t axis, const RefValue& indices, Visit visit) {
  Shape strides = strides_of(data);
  const int64_t step = strides[at(axis)];
  strides[at(axis)] = 0;
  walk<1>(indices.spec.shape, {strides}, {0}, [&](size_t i, const auto& from) {
    const int64_t row = resolved(indices.wholes[i], data[at(axis)]);
    visit(row < 0 ? -1 : from[0] + row * step, i);
  });
}

template <typename Visit>
void for_each_index(const Call& c, const Shape& data, Visit visit) {
  const int64_t axis = c.attributes.get_int(Attr::Axis);
  if (c.kind == OpKind::Gather || c.kind == OpKind::GatherGrad)
    for_each_gathered(data, axis, c.wholes(1), visit);
  else
    for_each_gathered_element(data, axis, c.in(1), visit);
}

void run_gather(const Call& c) {
  on_storage(c, [&](const auto& data, auto& y) {
    using T = std::decay_t<decltype(y[0])>;
    const T nowhere = std::numeric_limits<T>::has_quiet_NaN ? std::numeric_limits<T>::quiet_NaN() : T{0};
    for_each_index(c, c.shape(0),
                   [&](int64_t from, size_t to) { y[to] = from < 0 ? nowhere : data[at(from)]; });
  });
}

void run_gather_grad(const Call& c) {
  on_storage(c, [&](const auto& dy, auto& dx) {
    for_each_index(c, c.out().spec.shape, [&](int64_t to, size_t from) {
      if (to >= 0) dx[at(to)] = added(dx[at(to)], dy[from]);
    });
  });
}

// x into y, in the order of the updates.
template <typename T>
void apply_update(const std::string& reduction, DType dtype, T x, T& y) {
  constexpr bool kWhole = std::is_integral_v<T>;
  if (reduction == "none") y = x;
  if (reduction == "add") y = added(y, x);
  if (reduction == "mul") {
    if constexpr (kWhole)
      y = static_cast<T>(static_cast<uint64_t>(y) * static_cast<uint64_t>(x));
    else
      y *= x;
  }
  // A NaN wins, whichever of the two it is.
  if (reduction == "min") y = x < y || x != x ? x : y;
  if (reduction == "max") y = x > y || x != x ? x : y;
  if constexpr (kWhole) y = wrapped(dtype, y);
}

void run_scatter(const Call& c) {
  const std::string& reduction = c.attributes.get_string(Attr::Reduction);
  const auto scatter = [&](const auto& updates, auto& y) {
    for_each_gathered_element(c.shape(0), c.attributes.get_int(Attr::Axis), c.in(1),
                              [&](int64_t to, size_t from) {
                                if (to >= 0)
                                  apply_update(reduction, c.out().spec.dtype, updates[from], y[at(to)]);
                              });
  };
  run_copy(c);
  if (c.out().is_real())
    scatter(c.reals(2), c.out().reals);
  else
    scatter(c.wholes(2), c.out().wholes);
}

// Unlike an index, a position does not count from the end.
void run_cache_write(const Call& c) {
  const AxisView view = axis_view(c.shape(0), c.attributes.get_int(Attr::Axis));
  const Wholes& positions = c.wholes(2);
  const auto count = static_cast<int64_t>(positions.size());
  const auto write = [&](const auto& update, auto& cache) {
    for (int64_t o = 0; o < view.outer; ++o)
      for (int64_t k = 0; k < count; ++k) {
        const int64_t to = positions[at(k)];
        if (to < 0 || to >= view.size) continue;
        for (int64_t i = 0; i < view.inner; ++i)
          cache[at((o * view.size + to) * view.inner + i)] = update[at((o * count + k) * view.inner + i)];
      }
  };
  run_copy(c);
  if (c.out().is_real())
    write(c.reals(1), c.out().reals);
  else
    write(c.wholes(1), c.out().wholes);
}

}  // namespace

void run_shape(const Call& call) {
  switch (call.kind) {
    case OpKind::Reshape:
    case OpKind::Reorder:
      return run_copy(call);
    case OpKind::Transpose:
      return run_transpose(call);
    case OpKind::Expand:
      return run_expand(call);
    case OpKind::Slice:
      return run_slice(call);
    case OpKind::SliceGrad:
      return run_slice_grad(call);
    case OpKind::Concat:
      return run_concat(call);
    case OpKind::Pad:
      return run_pad(call);
    case OpKind::PadGrad:
      return run_pad_grad(call);
    case OpKind::Gather:
    case OpKind::GatherElements:
      return run_gather(call);
    case OpKind::GatherGrad:
    case OpKind::GatherElementsGrad:
      return run_gather_grad(call);
    case OpKind::ScatterElements:
      return run_scatter(call);
    case OpKind::CacheWrite:
      return run_cache_write(call);
    default:
      WEFT_CHECK_MSG(false, "not a shape op");
  }
}

}  // namespace weft::peer::reference
