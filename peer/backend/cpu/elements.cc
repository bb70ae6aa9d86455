// Gathering and scattering element by element: the index takes the place of one coordinate. Lines along the
// axis never meet one another, so threads share out lines, and the order within a line is the updates'.
#include <cstring>
#include <limits>

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::DType;
using dag::OpKind;
using dag::Shape;

// For each coordinate of `dims` in row-major order, where it lies in data; strides are data's.
std::vector<int64_t> offsets_of(const Shape& dims, const Shape& data, size_t begin, size_t end) {
  std::vector<int64_t> offsets{0};
  for (size_t d = begin; d < end; ++d) {
    const int64_t stride = product(data, d + 1, data.size());
    std::vector<int64_t> next;
    next.reserve(offsets.size() * static_cast<size_t>(dims[d]));
    for (const int64_t offset : offsets)
      for (int64_t i = 0; i < dims[d]; ++i) next.push_back(offset + i * stride);
    offsets = std::move(next);
  }
  return offsets;
}

// indices[outer, count, inner] of data, whose axis has `size` elements `step` apart.
struct Elements {
  std::vector<int64_t> outer, inner;  // in data, without the axis
  int64_t count, size, step;
  bool wide;

  Elements(const Shape& data, const dag::Value& indices, size_t axis)
      : outer(offsets_of(indices.spec.shape, data, 0, axis)),
        inner(offsets_of(indices.spec.shape, data, axis + 1, data.size())),
        count(indices.spec.shape[axis]),
        size(data[axis]),
        step(product(data, axis + 1, data.size())),
        wide(indices.spec.dtype == DType::I64) {}

  int64_t outers() const { return static_cast<int64_t>(outer.size()); }
  int64_t inners() const { return static_cast<int64_t>(inner.size()); }

  // Where element `at` of indices, of the line (o, i), points to in data; -1: nowhere.
  int64_t place(const std::byte* indices, int64_t at, int64_t o, int64_t i) const {
    const int64_t raw =
        wide ? reinterpret_cast<const int64_t*>(indices)[at] : reinterpret_cast<const int32_t*>(indices)[at];
    if (raw < -size || raw >= size) return -1;
    return outer[static_cast<size_t>(o)] + (raw < 0 ? raw + size : raw) * step +
           inner[static_cast<size_t>(i)];
  }

  // Calls f(place, at) for the lines [o_begin, o_end) x [i_begin, i_end), each in order.
  template <typename F>
  void lines(const std::byte* indices, int64_t o_begin, int64_t o_end, int64_t i_begin, int64_t i_end,
             const F& f) const {
    for (int64_t o = o_begin; o < o_end; ++o)
      for (int64_t k = 0; k < count; ++k)
        for (int64_t i = i_begin; i < i_end; ++i) {
          const int64_t at = (o * count + k) * inners() + i;
          if (const int64_t to = place(indices, at, o, i); to >= 0) f(to, at);
        }
  }
  template <typename F>
  void all_lines(const Team& team, const std::byte* indices, const F& f) const {
    if (outers() > 1) {
      team.ranges(outers(), rows_grain(count * inners()),
                  [&](int64_t begin, int64_t end) { lines(indices, begin, end, 0, inners(), f); });
      return;
    }
    team.ranges(inners(), rows_grain(count),
                [&](int64_t begin, int64_t end) { lines(indices, 0, 1, begin, end, f); });
  }
};

template <typename T>
KernelResult make_gather_as(const KernelRequest& request, T missing) {
  const auto axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const Elements elements(request.in_shape(0), request.in(1), axis);
  const int x = request.input_slot(0), at = request.input_slot(1), y = request.output_slot(0);
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    const T* data = call.in<T>(x);
    const auto* indices = call.in<std::byte>(at);
    T* result = call.out<T>(y);
    const int64_t inners = elements.inners();
    team.ranges(elements.outers() * elements.count, rows_grain(inners), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t i = 0; i < inners; ++i) {
          const int64_t from = elements.place(indices, r * inners + i, r / elements.count, i);
          result[r * inners + i] = from < 0 ? missing : data[from];
        }
    });
    return {};
  };
  return request.make("gather elements", run);
}

KernelResult make_gather_grad(const KernelRequest& request) {
  const auto axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const Elements elements(request.out_shape(), request.in(1), axis);
  const int dy = request.input_slot(0), at = request.input_slot(1), dx = request.output_slot(0);
  const int64_t bytes = request.out().spec.bytes().value;
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    const float* terms = call.in<float>(dy);
    float* sums = call.out<float>(dx);
    std::memset(sums, 0, static_cast<size_t>(bytes));
    elements.all_lines(team, call.in<std::byte>(at),
                       [&](int64_t to, int64_t from) { sums[to] += terms[from]; });
    return {};
  };
  return request.make("add elements in order", run);
}

// `combine(data, update)` is what stays.
template <typename T, typename Combine>
KernelResult make_scatter_as(const KernelRequest& request, Combine combine) {
  const auto axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const Elements elements(request.in_shape(0), request.in(1), axis);
  const int x = request.input_slot(0), at = request.input_slot(1), with = request.input_slot(2),
            y = request.output_slot(0);
  const int64_t bytes = request.out().spec.bytes().value;
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    const T* updates = call.in<T>(with);
    T* result = call.out<T>(y);
    std::memcpy(result, call.in<T>(x), static_cast<size_t>(bytes));
    elements.all_lines(team, call.in<std::byte>(at),
                       [&](int64_t to, int64_t from) { result[to] = combine(result[to], updates[from]); });
    return {};
  };
  return request.make("scatter elements in order", run);
}

template <typename T>
KernelResult make_overwrite(const KernelRequest& request) {
  return make_scatter_as<T>(request, [](T, T update) { return update; });
}

KernelResult make_scatter(const KernelRequest& request) {
  const std::string& reduction = request.attributes().get_string(Attr::Reduction);
  const DType dtype = request.in(0).spec.dtype;
  if (reduction == "none") {
    switch (dag::element_size(dtype)) {
      case 1:
        return make_overwrite<uint8_t>(request);
      case 2:
        return make_overwrite<uint16_t>(request);
      case 4:
        return make_overwrite<uint32_t>(request);
      default:
        return make_overwrite<uint64_t>(request);
    }
  }
  if (dtype != DType::F32) return request.decline();
  if (reduction == "add") return make_scatter_as<float>(request, [](float a, float b) { return a + b; });
  if (reduction == "mul") return make_scatter_as<float>(request, [](float a, float b) { return a * b; });
  // A NaN wins.
  if (reduction == "min")
    return make_scatter_as<float>(request, [](float a, float b) { return b < a || b != b ? b : a; });
  return make_scatter_as<float>(request, [](float a, float b) { return b > a || b != b ? b : a; });
}

}  // namespace

KernelResult make_elements(const KernelRequest& request) {
  const DType dtype = request.in(0).spec.dtype;
  if (request.op.kind == OpKind::ScatterElements) return make_scatter(request);
  if (request.op.kind == OpKind::GatherElementsGrad)
    return dtype == DType::F32 ? make_gather_grad(request) : request.decline();
  if (dtype == DType::F32) return make_gather_as<float>(request, std::numeric_limits<float>::quiet_NaN());
  if (dtype == DType::I64) return make_gather_as<int64_t>(request, 0);
  if (dtype == DType::I32) return make_gather_as<int32_t>(request, 0);
  if (dtype == DType::Bool) return make_gather_as<uint8_t>(request, 0);
  return request.decline();
}

}  // namespace weft::peer::cpu
