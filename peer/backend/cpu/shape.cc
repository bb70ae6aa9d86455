// Ops that move elements. Nearly all are strided copies, of any dtype.
#include <cstring>

#include "peer/backend/cpu/layout.h"
#include "peer/backend/cpu/strided.h"

namespace weft::peer::cpu {

KernelResult make_elements(const KernelRequest& request);  // elements.cc
KernelResult make_gather(const KernelRequest& request);    // gather.cc
KernelResult make_cache_write(const KernelRequest& request);

namespace {

using dag::Attr;
using dag::Ints;
using dag::OpKind;
using dag::Shape;

int64_t size_of(const dag::Value& value) { return dag::element_size(value.spec.dtype); }

KernelResult make_copy(const KernelRequest& request, const Shape& shape, Strides source, Strides target,
                       int64_t source_offset = 0) {
  const int64_t size = size_of(request.in(0));
  StridedCopy copy(shape, std::move(source), std::move(target), size);
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    copy.run(team, loops, call.in<std::byte>(x) + source_offset * size, call.out<std::byte>(y));
    return {};
  };
  return request.make("strided copy", run);
}

void zero(const Team& team, std::byte* target, int64_t bytes) {
  team.ranges(bytes, kGrain * 4, [&](int64_t begin, int64_t end) {
    std::memset(target + begin, 0, static_cast<size_t>(end - begin));
  });
}

// Also Reshape, when nobody made it a view: the same bytes, or another layout.
KernelResult make_reorder(const KernelRequest& request) {
  const dag::Value &from = request.in(0), &to = request.out(0);
  const bool converts = from.layout != to.layout;
  if (converts && from.spec.shape != to.spec.shape) return request.decline();
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [x, y, spec = from.spec, source = from.layout, target = to.layout, &team = request.team,
                    &loops = request.loops](const Call& call) -> Status {
    if (call.in<std::byte>(x) != call.out<std::byte>(y))
      convert_layout(team, loops, spec, source, call.in<std::byte>(x), target, call.out<std::byte>(y));
    return {};
  };
  return request.make(converts ? "layout copy" : "copy", run, 0, {converts ? -1 : x});
}

KernelResult make_transpose(const KernelRequest& request) {
  const Ints& perm = request.attributes().get_ints(Attr::Perm);
  const Strides own = row_major(request.in_shape(0));
  Strides source;
  for (const int64_t d : perm) source.push_back(own[static_cast<size_t>(d)]);
  return make_copy(request, request.out_shape(), std::move(source), row_major(request.out_shape()));
}

KernelResult make_expand(const KernelRequest& request) {
  const dag::Value &from = request.in(0), &to = request.out(0);
  if (!request.is_plain(from)) return request.decline();
  if (request.is_plain(to))
    return make_copy(request, to.spec.shape, broadcast_strides(from.spec.shape, to.spec.shape),
                     row_major(to.spec.shape));
  // [N, C, 1, 1] over a blocked image.
  const bool a_number_a_channel = from.spec.rank() == to.spec.rank() &&
                                  from.spec.shape[0] == to.spec.shape[0] &&
                                  from.spec.element_count() == to.spec.shape[0] * to.spec.shape[1];
  if (!a_number_a_channel || !request.is_f32(to)) return request.decline();
  const int lanes = lanes_of(to.layout);
  const int64_t positions = product(to.spec.shape, 2, to.spec.shape.size());
  const int64_t planes = to.spec.shape[0] * to.spec.shape[1] / lanes;
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    team.ranges(planes, rows_grain(positions * lanes), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        loops.fill_plane(call.out<float>(y) + i * positions * lanes, positions, lanes,
                         call.in<float>(x) + i * lanes);
    });
    return {};
  };
  return request.make("vector planes", run);
}

// The places of a slice's elements in the whole.
struct Places {
  Strides strides;
  int64_t offset = 0;
  Places(const Shape& whole, const Ints& starts, const Ints& steps) : strides(row_major(whole)) {
    for (size_t d = 0; d < whole.size(); ++d) {
      offset += starts[d] * strides[d];
      if (!steps.empty()) strides[d] *= steps[d];
    }
  }
};

KernelResult make_slice(const KernelRequest& request) {
  const auto& a = request.attributes();
  Places places(request.in_shape(0), a.get_ints(Attr::Starts), a.get_ints(Attr::Steps));
  return make_copy(request, request.out_shape(), std::move(places.strides), row_major(request.out_shape()),
                   places.offset);
}

// Zeros (or a value), and the operand's part `shape` of them.
KernelResult make_placed(const KernelRequest& request, const Shape& shape, Strides source,
                         int64_t source_offset, Strides target, int64_t target_offset, float value) {
  const int64_t size = size_of(request.in(0)), bytes = request.out(0).spec.bytes().value;
  if (value != 0.0f && !request.is_f32(request.in(0))) return request.decline();
  const bool whole = product(shape, 0, shape.size()) == request.out(0).spec.element_count();
  const bool nothing = product(shape, 0, shape.size()) == 0;
  StridedCopy copy(nothing ? Shape{0} : shape, nothing ? Strides{0} : std::move(source),
                   nothing ? Strides{0} : std::move(target), size);
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    std::byte* result = call.out<std::byte>(y);
    if (!whole && value == 0.0f) zero(team, result, bytes);
    if (!whole && value != 0.0f) loops.fill(call.out<float>(y), value, bytes / size);
    if (!nothing)
      copy.run(team, loops, call.in<std::byte>(x) + source_offset * size, result + target_offset * size);
    return {};
  };
  return request.make("strided copy", run);
}

KernelResult make_slice_grad(const KernelRequest& request) {
  const auto& a = request.attributes();
  Places places(request.out_shape(), a.get_ints(Attr::Starts), a.get_ints(Attr::Steps));
  return make_placed(request, request.in_shape(0), row_major(request.in_shape(0)), 0,
                     std::move(places.strides), places.offset, 0.0f);
}

// Pad by a constant, and its cotangent: where input and output overlap, elements keep their place.
KernelResult make_pad(const KernelRequest& request) {
  const auto& a = request.attributes();
  const std::string& mode = a.get_string(Attr::Mode);
  if (!mode.empty() && mode != "constant") return request.decline();
  const bool grad = request.op.kind == OpKind::PadGrad;
  const Ints& pads = a.get_ints(Attr::Pads);
  const Shape &from = request.in_shape(0), &to = request.out_shape();
  Strides source = row_major(from), target = row_major(to);
  Shape shape(from.size());
  int64_t source_offset = 0, target_offset = 0;
  for (size_t d = 0; d < from.size(); ++d) {
    const int64_t shift = grad ? -pads[d] : pads[d];  // element i goes to i + shift
    const int64_t begin = std::max<int64_t>(0, -shift), end = std::min(from[d], to[d] - shift);
    shape[d] = std::max<int64_t>(0, end - begin);
    source_offset += begin * source[d];
    target_offset += (begin + shift) * target[d];
  }
  const float value = grad ? 0.0f : static_cast<float>(a.get_double(Attr::Value));
  return make_placed(request, shape, std::move(source), source_offset, std::move(target), target_offset,
                     value);
}

KernelResult make_concat(const KernelRequest& request) {
  const size_t axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const Strides target = row_major(request.out_shape());
  struct Part {
    StridedCopy copy;
    int slot;
    int64_t offset;
  };
  std::vector<Part> parts;
  int64_t at = 0;
  const int64_t size = size_of(request.out(0));
  for (size_t i = 0; i < request.op.inputs.size(); ++i) {
    const Shape& shape = request.in_shape(i);
    parts.push_back({StridedCopy(shape, row_major(shape), target, size), request.input_slot(i),
                     at * target[axis] * size});
    at += shape[axis];
  }
  const int y = request.output_slot(0);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    for (const Part& part : parts)
      part.copy.run(team, loops, call.in<std::byte>(part.slot), call.out<std::byte>(y) + part.offset);
    return {};
  };
  return request.make("strided copy", run);
}

// Whether the op joins or cuts channels between blocks, of values that all lie in one blocked layout: whole
// channels of a sample are then the same stretch of memory as if they lay plain.
bool moves_whole_blocks(const KernelRequest& request) {
  const dag::Layout layout = request.out(0).layout;
  const auto here = [&](dag::ValueId v) { return request.graph.value(v).layout == layout; };
  if (layout == dag::Layout::Plain || !std::all_of(request.op.inputs.begin(), request.op.inputs.end(), here))
    return false;
  const auto& a = request.attributes();
  if (request.op.kind == OpKind::Concat) return a.get_int(Attr::Axis) == 1;
  if (request.op.kind != OpKind::Slice && request.op.kind != OpKind::SliceGrad) return false;
  const Ints &starts = a.get_ints(Attr::Starts), &steps = a.get_ints(Attr::Steps);
  const Shape &from = request.in_shape(0), &to = request.out_shape();
  for (size_t d = 0; d < from.size(); ++d)
    if ((d != 1 && from[d] != to[d]) || (!steps.empty() && steps[d] != 1)) return false;
  return starts[1] % lanes_of(layout) == 0;
}

}  // namespace

KernelResult make_shape(const KernelRequest& request) {
  if (request.op.kind == OpKind::Reorder) return make_reorder(request);
  if (request.op.kind == OpKind::Expand) return make_expand(request);
  if (!request.all_plain() && !moves_whole_blocks(request)) return request.decline();
  switch (request.op.kind) {
    case OpKind::Reshape:
      return make_reorder(request);
    case OpKind::Transpose:
      return make_transpose(request);
    case OpKind::Slice:
      return make_slice(request);
    case OpKind::SliceGrad:
      return make_slice_grad(request);
    case OpKind::Concat:
      return make_concat(request);
    case OpKind::Pad:
    case OpKind::PadGrad:
      return make_pad(request);
    case OpKind::Gather:
    case OpKind::GatherGrad:
      return make_gather(request);
    case OpKind::GatherElements:
    case OpKind::GatherElementsGrad:
    case OpKind::ScatterElements:
      return make_elements(request);
    case OpKind::CacheWrite:
      return make_cache_write(request);
    default:
      return request.decline();
  }
}

}  // namespace weft::peer::cpu
