// Gather of slices along an axis (an embedding, mostly) and its cotangent, which adds in index order.
#include <cmath>
#include <cstring>
#include <limits>

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::OpKind;
using dag::Shape;

// data[outer, size, inner], indices[count], slices[outer, count, inner].
struct Slices {
  int64_t outer, size, inner, count;
  bool wide;  // indices are I64

  Slices(const Shape& data, int64_t axis, const dag::Value& indices)
      : outer(product(data, 0, static_cast<size_t>(axis))),
        size(data[static_cast<size_t>(axis)]),
        inner(product(data, static_cast<size_t>(axis) + 1, data.size())),
        count(indices.spec.element_count()),
        wide(indices.spec.dtype == dag::DType::I64) {}

  int64_t position(const std::byte* indices, int64_t i) const {
    return wide ? reinterpret_cast<const int64_t*>(indices)[i] : reinterpret_cast<const int32_t*>(indices)[i];
  }
  // In [0, size), or -1 for an index that is nowhere.
  int64_t index(const std::byte* indices, int64_t i) const {
    const int64_t raw = position(indices, i);
    const int64_t at = raw < 0 ? raw + size : raw;
    return at >= 0 && at < size ? at : -1;
  }
};

// What a slice without a source holds: NaN for floats, zero for the rest.
void fill_missing(dag::DType dtype, std::byte* target, int64_t count) {
  if (dtype == dag::DType::F32) {
    float* values = reinterpret_cast<float*>(target);
    for (int64_t i = 0; i < count; ++i) values[i] = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  std::memset(target, 0, static_cast<size_t>(count * dag::element_size(dtype)));
}

}  // namespace

KernelResult make_gather(const KernelRequest& request) {
  const bool grad = request.op.kind == OpKind::GatherGrad;
  const dag::DType dtype = request.in(0).spec.dtype;
  if (dag::is_float(dtype) && dtype != dag::DType::F32) return request.decline();
  if (grad && dtype != dag::DType::F32) return request.decline();
  const Slices s(grad ? request.out_shape() : request.in_shape(0), request.attributes().get_int(Attr::Axis),
                 request.in(1));
  const int x = request.input_slot(0), at = request.input_slot(1), y = request.output_slot(0);
  const int64_t bytes = s.inner * dag::element_size(dtype);
  if (!grad) {
    const auto run = [=, &team = request.team](const Call& call) -> Status {
      const auto *data = call.in<std::byte>(x), *indices = call.in<std::byte>(at);
      team.ranges(s.outer * s.count, rows_grain(s.inner), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          std::byte* target = call.out<std::byte>(y) + i * bytes;
          const int64_t from = s.index(indices, i % s.count);
          if (from < 0) {
            fill_missing(dtype, target, s.inner);
          } else {
            std::memcpy(target, data + (i / s.count * s.size + from) * bytes, static_cast<size_t>(bytes));
          }
        }
      });
      return {};
    };
    return request.make("gather", run);
  }
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const float* dy = call.in<float>(x);
    const auto* indices = call.in<std::byte>(at);
    float* result = call.out<float>(y);
    // Each thread owns a range of the data's slices and takes the cotangents that fall there.
    team.ranges(s.size, rows_grain(s.outer * s.inner), [&](int64_t begin, int64_t end) {
      for (int64_t o = 0; o < s.outer; ++o) {
        float* data = result + o * s.size * s.inner;
        std::memset(data + begin * s.inner, 0, static_cast<size_t>((end - begin) * bytes));
        for (int64_t i = 0; i < s.count; ++i) {
          const int64_t to = s.index(indices, i);
          if (to >= begin && to < end)
            loops.reduce_into[kReduceSum](data + to * s.inner, dy + (o * s.count + i) * s.inner, s.inner);
        }
      }
    });
    return {};
  };
  return request.make("gather in order", run);
}

// In the cache's own bytes, unless somebody reads those as they were.
KernelResult make_cache_write(const KernelRequest& request) {
  const dag::DType dtype = request.in(0).spec.dtype;
  const Slices s(request.in_shape(0), request.attributes().get_int(Attr::Axis), request.in(2));
  const int cache = request.input_slot(0), update = request.input_slot(1), at = request.input_slot(2),
            result = request.output_slot(0);
  const int64_t bytes = s.inner * dag::element_size(dtype);
  const auto run = [=](const Call& call) -> Status {
    const auto *before = call.in<std::byte>(cache), *slices = call.in<std::byte>(update),
               *positions = call.in<std::byte>(at);
    auto* after = call.out<std::byte>(result);
    if (after != before) std::memcpy(after, before, static_cast<size_t>(s.outer * s.size * bytes));
    for (int64_t i = 0; i < s.count; ++i) {
      const int64_t to = s.position(positions, i);
      if (to < 0 || to >= s.size) continue;
      for (int64_t o = 0; o < s.outer; ++o)
        std::memcpy(after + (o * s.size + to) * bytes, slices + (o * s.count + i) * bytes,
                    static_cast<size_t>(bytes));
    }
    return {};
  };
  return request.make("cache write", run, 0, {cache});
}

}  // namespace weft::peer::cpu
