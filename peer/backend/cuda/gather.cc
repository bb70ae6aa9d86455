// Gathering and scattering by indices. Where several cotangents or updates meet in one element, they are
// added in one order: thread by thread along lines that never meet, or ordered first.
#include <cstring>
#include <optional>

#include "peer/backend/cuda/kernels/gather.h"
#include "peer/backend/cuda/operands.h"
#include "peer/backend/cuda/order.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::OpKind;
using dag::Shape;

// ---- kernels by the size of what they move ----

template <typename T>
struct KernelsOf;
#define WEFT_KERNELS_OF(T, name)                                              \
  template <>                                                                 \
  struct KernelsOf<T> {                                                       \
    static const auto& gather_elements() { return k_gather_elements_##name; } \
    static const auto& scatter_lines() { return k_scatter_lines_##name; }     \
    static const auto& scatter_ordered() { return k_scatter_ordered_##name; } \
  };
WEFT_KERNELS_OF(uint8_t, 1)
WEFT_KERNELS_OF(uint16_t, 2)
WEFT_KERNELS_OF(uint32_t, 4)
WEFT_KERNELS_OF(uint64_t, 8)
#undef WEFT_KERNELS_OF
template <>
struct KernelsOf<float> {
  static const auto& scatter_lines() { return k_scatter_lines_f32; }
  static const auto& scatter_ordered() { return k_scatter_ordered_f32; }
};

const EntryOf<Gather<uint8_t>>& gather_of(uint8_t) { return k_gather_1; }
const EntryOf<Gather<uint16_t>>& gather_of(uint16_t) { return k_gather_2; }
const EntryOf<Gather<uint32_t>>& gather_of(uint32_t) { return k_gather_4; }
const EntryOf<Gather<uint64_t>>& gather_of(uint64_t) { return k_gather_8; }
const EntryOf<Gather<Unit16>>& gather_of(Unit16) { return k_gather_16; }

// What an element without a source holds, over and over: NaN for floats, zero for the rest.
std::array<std::byte, sizeof(Unit16)> missing_of(dag::DType dtype) {
  std::array<std::byte, sizeof(Unit16)> bytes{};
  if (!dag::is_float(dtype)) return bytes;
  const dag::Tensor nan = dag::make_scalar(dtype, std::numeric_limits<double>::quiet_NaN());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = nan.bytes()[i % nan.bytes().size()];
  return bytes;
}

// ---- slices ----

// data[outer, size, inner], indices[count], slices[outer, count, inner].
struct Slices {
  int64_t outer, size, inner, count;
  Slices(const Shape& data, int64_t axis, int64_t indices)
      : outer(product(data, 0, static_cast<size_t>(axis))),
        size(data[static_cast<size_t>(axis)]),
        inner(product(data, static_cast<size_t>(axis) + 1, data.size())),
        count(indices) {}
};

KernelResult make_slices(const KernelRequest& request) {
  const Slices s(request.in_shape(0), request.attributes().get_int(Attr::Axis), request.in_count(1));
  const dag::DType dtype = request.in(0).spec.dtype;
  const int64_t element = dag::element_size(dtype), unit = widest_unit(element, {s.inner});
  const int64_t count = request.out_count() / unit;
  if (count > kCountMax) return request.decline();
  const auto missing = missing_of(dtype);
  const Operand x = operand(request, 0), y = result(request);
  const IndexOperand indices = index_operand(request, 1);
  const auto run = [=](const Call& call) {
    return by_unit(element * unit, [&](auto value) {
      using T = decltype(value);
      std::memcpy(&value, missing.data(), sizeof(T));
      return call.launch(
          gather_of(T{}), grid_of_moves(count),
          Gather<T>{indices.in(call), x.in(call).as<const T>(), y.out(call).template as<T>(), value,
                    static_cast<uint32_t>(count), divider(s.inner / unit), divider(s.count), s.size});
    });
  };
  return request.make("gather", run);
}

KernelResult make_slices_grad(const KernelRequest& request) {
  const Slices s(request.out_shape(), request.attributes().get_int(Attr::Axis), request.in_count(1));
  const ListSums sums{.outer = s.outer, .rows = s.size, .sources = s.count, .inner = s.inner};
  if (!request.is_f32(request.in(0)) || !are_counted(sums)) return request.decline();
  const Ordering ordering(s.count, s.size);
  const Operand dy = operand(request, 0), dx = result(request);
  const IndexOperand indices = index_operand(request, 1);
  const auto run = [=](const Call& call) -> Status {
    const Grid grid{static_cast<uint32_t>((s.count + kMoveThreads - 1) / kMoveThreads), kMoveThreads, 1};
    WEFT_TRY_STATUS(call.launch(k_row_keys, grid, RowKeys{indices.in(call), s.size, ordering.keys(call, 0)}));
    WEFT_TRY_STATUS(ordering.order(call, 0));
    return add_lists(call, ordering, 0, sums, dy.in(call).as<const float>(), {}, dx.out(call).as<float>());
  };
  return request.make("ordered rows", run, ordering.workspace_bytes());
}

// ---- element by element ----

// A box of elements with its strides in two tensors, walked with the fewest dims.
std::optional<Walk> walk_of(const Shape& shape, const std::vector<int64_t>& from,
                            const std::vector<int64_t>& to) {
  Walk walk;
  std::vector<int64_t> sizes;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 1) continue;
    const auto last = static_cast<size_t>(walk.rank) - 1;
    const bool merges =
        walk.rank > 0 && from[d] == walk.from[last] * sizes[last] && to[d] == walk.to[last] * sizes[last];
    if (merges) {
      sizes[last] *= shape[d];
      continue;
    }
    if (walk.rank == kWalkDims) return std::nullopt;
    sizes.push_back(shape[d]);
    walk.from[walk.rank] = from[d];
    walk.to[walk.rank] = to[d];
    ++walk.rank;
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > kCountMax) return std::nullopt;
    walk.sizes[d] = divider(sizes[d]);
  }
  return walk;
}

// indices, and data in whose axis they point.
struct Elements {
  Shape data, indices;
  size_t axis;
  Elements(const KernelRequest& request, Shape data_shape)
      : data(std::move(data_shape)),
        indices(request.in_shape(1)),
        axis(static_cast<size_t>(request.attributes().get_int(Attr::Axis))) {}

  static std::vector<int64_t> strides(const Shape& shape) {
    std::vector<int64_t> strides(shape.size());
    for (size_t d = 0; d < shape.size(); ++d) strides[d] = product(shape, d + 1, shape.size());
    return strides;
  }
  int64_t size() const { return data[axis]; }
  int64_t step() const { return product(data, axis + 1, data.size()); }
  int64_t data_count() const { return product(data, 0, data.size()); }
  int64_t index_count() const { return product(indices, 0, indices.size()); }
  int64_t lines() const { return index_count() / indices[axis]; }

  // Over the indices: `from` in data, without the axis.
  std::optional<Walk> elements_walk() const {
    std::vector<int64_t> from = strides(data);
    from[axis] = 0;
    return walk_of(indices, from, strides(indices));
  }
  // Over lines along the axis: `from` in indices, `to` in data.
  std::optional<Walk> lines_walk() const {
    Shape lines = indices;
    lines[axis] = 1;
    return walk_of(lines, strides(indices), strides(data));
  }
};

KernelResult make_gather_elements(const KernelRequest& request) {
  const Elements e(request, request.in_shape(0));
  const std::optional<Walk> walk = e.elements_walk();
  const int64_t count = request.out_count();
  if (!walk || count > kCountMax) return request.decline();
  const dag::DType dtype = request.in(0).spec.dtype;
  const auto missing = missing_of(dtype);
  const Operand x = operand(request, 0), y = result(request);
  const IndexOperand indices = index_operand(request, 1);
  const auto run = [=, walk = *walk, size = e.size(), step = e.step(),
                    bytes = dag::element_size(dtype)](const Call& call) {
    return by_element(bytes, [&](auto value) {
      using T = decltype(value);
      std::memcpy(&value, missing.data(), sizeof(T));
      return call.launch(
          KernelsOf<T>::gather_elements(), grid_of_moves(count),
          GatherElements<T>{indices.in(call), x.in(call).as<const T>(), y.out(call).template as<T>(), value,
                            static_cast<uint32_t>(count), size, step, walk});
    });
  };
  return request.make("gather elements", run);
}

// Whether a thread a line is enough to keep a device busy, or there is little to do anyway.
bool goes_by_lines(const Elements& e) {
  constexpr int64_t kShortLine = 256, kManyLines = 4096;
  return e.indices[e.axis] <= kShortLine || e.lines() >= kManyLines;
}

// Updates into `to`, which holds what they are applied to.
template <typename T>
struct Scatter {
  IndexOperand indices;
  Operand updates, to;
  Reduction reduction;

  Status by_lines(const Call& call, const Elements& e, const Walk& walk) const {
    const int64_t lines = e.lines();
    const Grid grid{static_cast<uint32_t>((lines + kMoveThreads - 1) / kMoveThreads), kMoveThreads, 1};
    return call.launch(
        KernelsOf<T>::scatter_lines(), grid,
        ScatterLines<T>{indices.in(call), updates.in(call).as<const T>(), to.out(call).template as<T>(),
                        reduction, static_cast<uint32_t>(lines), e.indices[e.axis],
                        product(e.indices, e.axis + 1, e.indices.size()), e.size(), e.step(), walk});
  }
  Status ordered(const Call& call, const Ordering& ordering) const {
    const Array<const uint32_t> keys = ordering.ordered_keys(call, 0);
    const Grid grid{static_cast<uint32_t>((keys.count + kMoveThreads - 1) / kMoveThreads), kMoveThreads, 1};
    return call.launch(
        KernelsOf<T>::scatter_ordered(), grid,
        ScatterOrdered<T>{keys, ordering.ordered_entries(call, 0), updates.in(call).as<const T>(),
                          to.out(call).template as<T>(), reduction});
  }
};

Status order_elements(const Call& call, const Elements& e, const Walk& walk, const IndexOperand& indices,
                      const Ordering& ordering) {
  const Array<uint32_t> keys = ordering.keys(call, 0);
  const Grid grid{static_cast<uint32_t>((keys.count + kMoveThreads - 1) / kMoveThreads), kMoveThreads, 1};
  WEFT_TRY_STATUS(call.launch(
      k_element_keys, grid,
      ElementKeys{indices.in(call), e.size(), e.step(), static_cast<uint32_t>(e.data_count()), walk, keys}));
  return ordering.order(call, 0);
}

KernelResult make_gather_elements_grad(const KernelRequest& request) {
  const Elements e(request, request.out_shape());
  if (!request.is_f32(request.in(0))) return request.decline();
  const Operand dy = operand(request, 0), dx = result(request);
  const IndexOperand indices = index_operand(request, 1);
  const std::optional<Walk> lines = e.lines_walk(), elements = e.elements_walk();
  if (goes_by_lines(e) && lines && e.lines() <= kCountMax) {
    const auto run = [=, walk = *lines](const Call& call) -> Status {
      const Region sums = dx.out(call);
      WEFT_TRY_STATUS(call.device.fill_zero(Stream::Compute, sums.data, {sums.bytes}));
      return Scatter<float>{indices, dy, dx, Reduction::Add}.by_lines(call, e, walk);
    };
    return request.make("add elements, line by line", run);
  }
  const ListSums sums{.rows = e.data_count(), .sources = e.index_count()};
  if (!elements || !are_counted(sums)) return request.decline();
  const Ordering ordering(e.index_count(), e.data_count());
  const auto run = [=, walk = *elements](const Call& call) -> Status {
    WEFT_TRY_STATUS(order_elements(call, e, walk, indices, ordering));
    return add_lists(call, ordering, 0, sums, dy.in(call).as<const float>(), {}, dx.out(call).as<float>());
  };
  return request.make("add elements, ordered", run, ordering.workspace_bytes());
}

Reduction reduction_of(const std::string& name) {
  return name == "add"   ? Reduction::Add
         : name == "mul" ? Reduction::Mul
         : name == "min" ? Reduction::Min
         : name == "max" ? Reduction::Max
                         : Reduction::None;
}

KernelResult make_scatter(const KernelRequest& request) {
  const Elements e(request, request.in_shape(0));
  const Reduction reduction = reduction_of(request.attributes().get_string(Attr::Reduction));
  if (reduction != Reduction::None && !request.is_f32(request.in(0))) return request.decline();
  const Operand x = operand(request, 0), updates = operand(request, 2), y = result(request);
  const IndexOperand indices = index_operand(request, 1);
  const std::optional<Walk> lines = e.lines_walk(), elements = e.elements_walk();
  const bool by_lines = goes_by_lines(e) && lines && e.lines() <= kCountMax;
  if (!by_lines && (!elements || std::max(e.index_count(), e.data_count()) > Ordering::kEntriesMax))
    return request.decline();
  const std::optional<Ordering> ordering =
      by_lines ? std::nullopt : std::optional<Ordering>(Ordering(e.index_count(), e.data_count()));
  const int64_t bytes = dag::element_size(request.in(0).spec.dtype);
  const auto run = [=](const Call& call) -> Status {
    const Region from = x.in(call), to = y.out(call);
    WEFT_TRY_STATUS(call.device.copy_within(Stream::Compute, from.data, to.data, {to.bytes}));
    if (ordering) WEFT_TRY_STATUS(order_elements(call, e, *elements, indices, *ordering));
    const auto scatter = [&](auto value) {
      const Scatter<decltype(value)> scattering{indices, updates, y, reduction};
      return ordering ? scattering.ordered(call, *ordering) : scattering.by_lines(call, e, *lines);
    };
    return reduction == Reduction::None ? by_element(bytes, scatter) : scatter(0.0f);
  };
  return request.make(by_lines ? "scatter elements, line by line" : "scatter elements, ordered", run,
                      ordering ? ordering->workspace_bytes() : 0);
}

}  // namespace

KernelResult make_gather(const KernelRequest& request) {
  return request.op.kind == OpKind::GatherGrad ? make_slices_grad(request) : make_slices(request);
}

KernelResult make_elements(const KernelRequest& request) {
  if (request.op.kind == OpKind::ScatterElements) return make_scatter(request);
  if (request.op.kind == OpKind::GatherElementsGrad) return make_gather_elements_grad(request);
  return make_gather_elements(request);
}

}  // namespace weft::peer::cuda
