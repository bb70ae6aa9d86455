// Pooling over windows of one to three dims.
#include "peer/backend/cuda/kernels/pooling.h"
#include "peer/backend/cuda/kernel.h"
#include "peer/backend/cuda/order.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::Attributes;
using dag::Ints;
using dag::OpKind;
using dag::Shape;

// Planes up to which kernels count places with 32 bits, padding and all.
constexpr int64_t kPlaneMax = int64_t{1} << 29;
// From so many taps on, a warp shares a window.
constexpr int64_t kTapsOfAThread = 32;

int64_t plane_of(const Shape& shape) { return product(shape, 2, shape.size()); }

// x: the larger side; y: the pooled one.
Window window_of(const Attributes& attributes, const Shape& x, const Shape& y) {
  const Ints &kernel = attributes.get_ints(Attr::Kernel), &strides = attributes.get_ints(Attr::Strides),
             &pads = attributes.get_ints(Attr::Pads), &dilations = attributes.get_ints(Attr::Dilations);
  const size_t spatial = kernel.size();
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  Window window;
  window.in_plane = plane_of(x), window.out_plane = plane_of(y);
  for (size_t d = 0; d < spatial; ++d) {
    WindowDim& dim = window.dims[3 - spatial + d];
    dim.in = narrow(x[d + 2]), dim.out = narrow(y[d + 2]), dim.kernel = narrow(kernel[d]);
    dim.stride = narrow(strides[d]), dim.dilation = narrow(dilations.empty() ? 1 : dilations[d]);
    dim.pad_begin = narrow(pads[d]), dim.pad_end = narrow(pads[spatial + d]);
    dim.by_in = divider(dim.in), dim.by_out = divider(dim.out), dim.by_kernel = divider(dim.kernel);
    dim.by_stride = divider(dim.stride), dim.by_dilation = divider(dim.dilation);
    window.taps *= dim.kernel;
  }
  return window;
}

// kPlaneMax where it is more. Padding may make windows larger than any plane.
int64_t taps_of(const Attributes& attributes) {
  int64_t taps = 1;
  for (const int64_t size : attributes.get_ints(Attr::Kernel)) taps = std::min(taps * size, kPlaneMax);
  return taps;
}

// Calls launch(first plane, planes) for as many planes at a time as one launch counts.
template <typename Launch>
Status by_planes(int64_t planes, int64_t plane, const Launch& launch) {
  const int64_t each = kCountMax / plane;
  for (int64_t first = 0; first < planes; first += each)
    WEFT_TRY_STATUS(launch(first, std::min(each, planes - first)));
  return {};
}

template <typename T>
Array<T> planes_of(Array<T> all, int64_t first, int64_t planes, int64_t plane) {
  return {all.data + first * plane, planes * plane};
}

Grid grid_of(int64_t count, bool wide) {
  const int64_t each = wide ? kPoolThreads / 32 : kPoolThreads;
  return {static_cast<uint32_t>((count + each - 1) / each), kPoolThreads, 1};
}

struct Shapes {
  int64_t planes, in_plane, out_plane;
  Shapes(const Shape& x, const Shape& y)
      : planes(x[0] * x[1]), in_plane(plane_of(x)), out_plane(plane_of(y)) {}
  int64_t larger_plane() const { return std::max(in_plane, out_plane); }
  int64_t x_count() const { return planes * in_plane; }
  int64_t y_count() const { return planes * out_plane; }
};

KernelResult make_max_pool(const KernelRequest& request, const Shapes& s) {
  const int x = request.input_slot(0), y = request.output_slot(0), indices = request.output_slot(1);
  const Window window = window_of(request.attributes(), request.in_shape(0), request.out_shape());
  const bool wide = taps_of(request.attributes()) > kTapsOfAThread;
  const auto run = [=](const Call& call) {
    return by_planes(s.planes, s.larger_plane(), [&](int64_t first, int64_t planes) {
      const MaxPool parameters{
          window, planes_of(call.in<float>(x, s.x_count()), first, planes, s.in_plane),
          planes_of(call.out<float>(y, s.y_count()), first, planes, s.out_plane),
          planes_of(call.out<int32_t>(indices, s.y_count()), first, planes, s.out_plane)};
      return call.launch(wide ? k_max_pool_wide : k_max_pool, grid_of(parameters.y.count, wide), parameters);
    });
  };
  return request.make(wide ? "pooling, a warp a window" : "pooling", run);
}

KernelResult make_average_pool(const KernelRequest& request, const Shapes& s) {
  const bool grad = request.op.kind == OpKind::AveragePoolGrad;
  const Shape &from_shape = request.in_shape(0), &to_shape = request.out_shape();
  const Window window = grad ? window_of(request.attributes(), to_shape, from_shape)
                             : window_of(request.attributes(), from_shape, to_shape);
  const int from = request.input_slot(0), to = request.output_slot(0);
  const int64_t from_plane = grad ? s.out_plane : s.in_plane, to_plane = grad ? s.in_plane : s.out_plane;
  const bool wide = !grad && taps_of(request.attributes()) > kTapsOfAThread;
  const auto padding_counts = static_cast<int32_t>(request.attributes().get_int(Attr::CountIncludePad));
  const EntryOf<AveragePool>& kernel = grad   ? k_average_pool_grad
                                       : wide ? k_average_pool_wide
                                              : k_average_pool;
  const auto run = [=, &kernel](const Call& call) {
    return by_planes(s.planes, s.larger_plane(), [&](int64_t first, int64_t planes) {
      const AveragePool parameters{
          window, padding_counts,
          planes_of(call.in<float>(from, s.planes * from_plane), first, planes, from_plane),
          planes_of(call.out<float>(to, s.planes * to_plane), first, planes, to_plane)};
      return call.launch(kernel, grid_of(parameters.to.count, wide), parameters);
    });
  };
  return request.make(wide ? "pooling, a warp a window" : "pooling", run);
}

// The MaxPool that the indices come from, of a result as this op's; null: they come from elsewhere.
const dag::Op* pool_of_indices(const KernelRequest& request) {
  const dag::Value& indices = request.in(1);
  const dag::Op& op = request.graph.producer(request.op.inputs[1]);
  if (op.kind != OpKind::MaxPool || indices.output_index != 1 || taps_of(op.attributes) == kPlaneMax)
    return nullptr;
  return request.graph.spec(op.inputs[0]).shape == request.out_shape() ? &op : nullptr;
}

KernelResult make_max_pool_grad_of(const KernelRequest& request, const Shapes& s, const dag::Op& pool) {
  const Window window = window_of(pool.attributes, request.out_shape(), request.in_shape(0));
  const int dy = request.input_slot(0), indices = request.input_slot(1), dx = request.output_slot(0);
  const auto run = [=](const Call& call) {
    return by_planes(s.planes, s.larger_plane(), [&](int64_t first, int64_t planes) {
      const MaxPoolGrad parameters{
          window, planes_of(call.in<float>(dy, s.y_count()), first, planes, s.out_plane),
          planes_of(call.in<int32_t>(indices, s.y_count()), first, planes, s.out_plane),
          planes_of(call.out<float>(dx, s.x_count()), first, planes, s.in_plane)};
      return call.launch(k_max_pool_grad, grid_of(parameters.dx.count, false), parameters);
    });
  };
  return request.make("pooling", run);
}

// Of indices that may be any.
KernelResult make_max_pool_grad(const KernelRequest& request, const Shapes& s) {
  const ListSums sums{.rows = s.x_count(), .sources = s.y_count()};
  if (!are_counted(sums)) return request.decline();
  const Ordering ordering(s.y_count(), s.x_count());
  const int dy = request.input_slot(0), indices = request.input_slot(1), dx = request.output_slot(0);
  const auto run = [=](const Call& call) -> Status {
    const PoolKeys keys{call.in<int32_t>(indices, s.y_count()), ordering.keys(call, 0), s.in_plane,
                        s.out_plane, static_cast<uint32_t>(s.x_count())};
    WEFT_TRY_STATUS(call.launch(k_pool_keys, grid_of(s.y_count(), false), keys));
    WEFT_TRY_STATUS(ordering.order(call, 0));
    return add_lists(call, ordering, 0, sums, call.in<float>(dy, s.y_count()), {},
                     call.out<float>(dx, s.x_count()));
  };
  return request.make("pooling, ordered", run, ordering.workspace_bytes());
}

}  // namespace

KernelResult make_pooling(const KernelRequest& request) {
  const OpKind kind = request.op.kind;
  const bool forward = kind == OpKind::MaxPool || kind == OpKind::AveragePool;
  const Shape &x = forward ? request.in_shape(0) : request.out_shape(),
              &y = forward ? request.out_shape() : request.in_shape(0);
  const Shapes shapes(x, y);
  if (!request.is_f32(request.in(0)) || shapes.larger_plane() > kPlaneMax) return request.decline();
  if (kind != OpKind::MaxPoolGrad && taps_of(request.attributes()) == kPlaneMax) return request.decline();
  if (kind == OpKind::MaxPool) return make_max_pool(request, shapes);
  if (kind != OpKind::MaxPoolGrad) return make_average_pool(request, shapes);
  const dag::Op* pool = pool_of_indices(request);
  return pool != nullptr ? make_max_pool_grad_of(request, shapes, *pool)
                         : make_max_pool_grad(request, shapes);
}

}  // namespace weft::peer::cuda
