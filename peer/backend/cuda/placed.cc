// Ops whose results have places without a source: a Pad, the gradients of Pad and Slice. Of any dtype: only
// its size counts.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "peer/backend/cuda/operands.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::Ints;
using dag::Shape;

const auto& placed_of(uint8_t) { return k_placed_1; }
const auto& placed_of(uint16_t) { return k_placed_2; }
const auto& placed_of(uint32_t) { return k_placed_4; }
const auto& placed_of(uint64_t) { return k_placed_8; }
const auto& placed_of(Unit16) { return k_placed_16; }

// One dim of the result, and of the source within it: element k lies at begin + k * step.
struct SourceDim {
  int64_t size, source_size, begin, step, stride;
  bool is_full() const { return size == source_size && begin == 0 && step == 1; }
};
struct SourceMap {
  std::vector<SourceDim> dims;  // outermost first
  int64_t from_offset = 0, bytes = 1;
  Beyond beyond = Beyond::Fill;
  std::array<std::byte, sizeof(Unit16)> fill{};

  int64_t count() const {
    int64_t count = 1;
    for (const SourceDim& dim : dims) count *= dim.size;
    return count;
  }
};

bool merges(Beyond beyond, const SourceDim& outer, const SourceDim& inner) {
  return inner.is_full() && outer.step == 1 && outer.stride == inner.stride * inner.size &&
         (beyond == Beyond::Fill || outer.is_full());
}

SourceMap simplified(SourceMap map) {
  std::vector<SourceDim> dims;
  for (const SourceDim& dim : map.dims) {
    if (dim.size == 1 && dim.is_full()) continue;
    if (!dims.empty() && merges(map.beyond, dims.back(), dim)) {
      SourceDim& outer = dims.back();
      outer = {outer.size * dim.size, outer.source_size * dim.size, outer.begin * dim.size, 1, dim.stride};
      continue;
    }
    dims.push_back(dim);
  }
  if (dims.empty()) dims.push_back({1, 1, 0, 1, 1});
  map.dims = std::move(dims);
  return map;
}

SourceMap widened(SourceMap map) {
  SourceDim& inner = map.dims.back();
  if (inner.stride != 1 || inner.step != 1 || (map.beyond != Beyond::Fill && !inner.is_full())) return map;
  std::vector<int64_t> numbers{inner.size, inner.source_size, inner.begin, map.from_offset};
  for (size_t d = 0; d + 1 < map.dims.size(); ++d) numbers.push_back(map.dims[d].stride);
  const int64_t unit = widest_unit(map.bytes, numbers);
  map.bytes *= unit;
  map.from_offset /= unit;
  inner.size /= unit, inner.source_size /= unit, inner.begin /= unit;
  for (size_t d = 0; d + 1 < map.dims.size(); ++d) map.dims[d].stride /= unit;
  return simplified(map);
}

PlacedDim placed_dim(const SourceDim& dim) {
  return {divider(dim.size), divider(dim.step), static_cast<int32_t>(dim.begin),
          static_cast<uint32_t>((dim.source_size - 1) * dim.step + 1), dim.stride};
}
// Numbers that a launch counts with 32 bits.
bool is_counted(const SourceMap& map) {
  // A reflection has twice a place.
  const int64_t most = map.beyond == Beyond::Fill ? kCountMax : kCountMax / 4;
  const auto fits = [&](const SourceDim& dim) {
    return dim.size + std::abs(dim.begin) <= most && (dim.source_size - 1) * dim.step + 1 <= most;
  };
  return map.dims.size() <= kWalkDims && map.count() <= kCountMax &&
         std::all_of(map.dims.begin(), map.dims.end(), fits);
}

Status run_placed(const Call& call, const SourceMap& map, Region from, Region to) {
  return by_unit(map.bytes, [&](auto unit) {
    using T = decltype(unit);
    const int64_t count = map.count();
    Placed<T> parameters{from.as<const T>(),
                         to.as<T>(),
                         map.from_offset,
                         unit,
                         static_cast<uint32_t>(count),
                         map.beyond,
                         0,
                         {}};
    std::memcpy(&parameters.fill, map.fill.data(), sizeof(T));
    for (size_t d = map.dims.size(); d-- > 0;) parameters.dims[parameters.rank++] = placed_dim(map.dims[d]);
    return call.launch(placed_of(T{}), grid_of_moves(count), parameters);
  });
}

KernelResult make_placed(const KernelRequest& request, const SourceMap& whole) {
  const SourceMap map = widened(simplified(whole));
  if (!is_counted(map)) return request.decline();
  const Operand x = operand(request, 0), y = result(request);
  const auto run = [=](const Call& call) { return run_placed(call, map, x.in(call), y.out(call)); };
  return request.make("placed copy", run);
}

Beyond beyond_of(const dag::Attributes& attributes) {
  const std::string& mode = attributes.get_string(Attr::Mode);
  return mode == "edge" ? Beyond::Edge : mode == "reflect" ? Beyond::Reflect : Beyond::Fill;
}

// Of a padding that repeats elements.
KernelResult make_folded(const KernelRequest& request, Beyond beyond) {
  // What a thread adds up one by one, at most.
  constexpr int64_t kTermsMax = 1 << 12;
  const Ints& pads = request.attributes().get_ints(Attr::Pads);
  const Shape &dy = request.in_shape(0), &dx = request.out_shape();
  const Strides own = row_major(dy);
  Folded parameters{};
  parameters.beyond = beyond;
  parameters.count = static_cast<uint32_t>(request.out_count());
  if (!request.is_f32(request.in(0)) || std::max(request.out_count(), request.in_count(0)) > kCountMax / 4)
    return request.decline();
  int64_t terms = 1;
  for (size_t d = dx.size(); d-- > 0;) {
    const bool repeats = dx[d] != dy[d] || pads[d] != 0;
    if (dx[d] == 1 && !repeats) continue;
    if (parameters.rank == kWalkDims) return request.decline();
    if (repeats)
      terms *= beyond == Beyond::Reflect
                   ? 3
                   : std::max<int64_t>({1, pads[d], pads[dx.size() + d], dy[d] - dx[d]}) + 1;
    if (terms > kTermsMax) return request.decline();
    parameters.dims[parameters.rank++] = {divider(dx[d]), static_cast<int32_t>(dy[d]),
                                          static_cast<int32_t>(pads[d]), own[d]};
  }
  const Operand x = operand(request, 0), y = result(request);
  const auto run = [=](const Call& call) {
    Folded p = parameters;
    p.dy = x.in(call).as<const float>();
    p.dx = y.out(call).as<float>();
    return call.launch(k_folded, {(p.count + kMoveThreads - 1) / kMoveThreads, kMoveThreads, 1}, p);
  };
  return request.make("folded padding", run);
}

}  // namespace

KernelResult make_slice_grad(const KernelRequest& request) {
  const Ints &starts = request.attributes().get_ints(Attr::Starts),
             &steps = request.attributes().get_ints(Attr::Steps);
  const Shape &dy = request.in_shape(0), &dx = request.out_shape();
  const Strides own = row_major(dy);
  SourceMap map;
  map.bytes = size_of(request.in(0));
  for (size_t d = 0; d < dy.size(); ++d) {
    const int64_t step = dy[d] == 1 ? 1 : steps[d], reach = (dy[d] - 1) * step;
    // Backwards: the last one lies first.
    if (step < 0) map.from_offset += (dy[d] - 1) * own[d];
    map.dims.push_back(
        {dx[d], dy[d], starts[d] + std::min<int64_t>(reach, 0), std::abs(step), step < 0 ? -own[d] : own[d]});
  }
  return make_placed(request, map);
}

KernelResult make_pad(const KernelRequest& request) {
  const Ints& pads = request.attributes().get_ints(Attr::Pads);
  const Shape &x = request.in_shape(0), &y = request.out_shape();
  const Strides own = row_major(x);
  SourceMap map;
  map.bytes = size_of(request.in(0));
  map.beyond = beyond_of(request.attributes());
  for (size_t d = 0; d < x.size(); ++d) map.dims.push_back({y[d], x[d], pads[d], 1, own[d]});
  const dag::Tensor value =
      dag::make_scalar(request.in(0).spec.dtype, request.attributes().get_double(Attr::Value));
  for (size_t i = 0; i < map.fill.size(); ++i) map.fill[i] = value.bytes()[i % value.bytes().size()];
  return make_placed(request, map);
}

KernelResult make_pad_grad(const KernelRequest& request) {
  const Beyond beyond = beyond_of(request.attributes());
  if (beyond != Beyond::Fill) return make_folded(request, beyond);
  const Ints& pads = request.attributes().get_ints(Attr::Pads);
  const Shape &dy = request.in_shape(0), &dx = request.out_shape();
  const Strides own = row_major(dy);
  SourceMap map;
  map.bytes = size_of(request.in(0));
  for (size_t d = 0; d < dx.size(); ++d) map.dims.push_back({dx[d], dy[d], -pads[d], 1, own[d]});
  return make_placed(request, map);
}

}  // namespace weft::peer::cuda
