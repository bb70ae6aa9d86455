// Ops that read between elements. Backward, what samples read is ordered by element, and each element adds
// its list.
#include <optional>

#include "peer/backend/cuda/kernels/sampling.h"
#include "peer/backend/cuda/operands.h"
#include "peer/backend/cuda/order.h"

namespace weft::peer::cuda {

KernelResult make_regions(const KernelRequest& request);  // regions.cc

namespace {

using dag::Attr;
using dag::Attributes;
using dag::Ints;
using dag::OpKind;
using dag::Shape;

// Planes up to which kernels count places with 32 bits.
constexpr int64_t kPlaneMax = int64_t{1} << 29;

Grid grid_of(int64_t count, int64_t down = 1) {
  return {static_cast<uint32_t>((count + kSampleThreads - 1) / kSampleThreads), kSampleThreads,
          static_cast<uint32_t>(down)};
}
// So many blocks share the channels of one sample that there are enough; each works out where it lies.
int64_t blocks_down(int64_t samples, int64_t channels) {
  constexpr int64_t kThreadsWanted = 1 << 18;
  return std::clamp<int64_t>(kThreadsWanted / samples, 1, std::min<int64_t>(channels, 1024));
}

// ---- along one axis ----

struct Taps {
  int64_t outer, size, inner;  // of x, about the axis
  int64_t out, count;          // results, and taps of each
  Operand indices, weights;
  Taps(const KernelRequest& request, const Shape& x)
      : Taps(request, x, static_cast<size_t>(request.attributes().get_int(Attr::Axis))) {}

  Array<const int64_t> indices_in(const Call& call) const { return indices.in(call).as<const int64_t>(); }
  Array<const float> weights_in(const Call& call) const { return weights.in(call).as<const float>(); }

 private:
  Taps(const KernelRequest& request, const Shape& x, size_t axis)
      : outer(product(x, 0, axis)),
        size(x[axis]),
        inner(product(x, axis + 1, x.size())),
        out(request.in_shape(1)[0]),
        count(request.in_shape(1)[1]),
        indices(operand(request, 1)),
        weights(operand(request, 2)) {}
};

KernelResult make_resample(const KernelRequest& request) {
  const Taps taps(request, request.in_shape(0));
  const int64_t count = request.out_count();
  if (count > kCountMax) return request.decline();
  const Operand x = operand(request, 0), y = result(request);
  const auto run = [=](const Call& call) {
    return call.launch(
        k_resample, grid_of(count),
        Resample{taps.indices_in(call), taps.weights_in(call), x.in(call).as<const float>(),
                 y.out(call).as<float>(), divider(taps.inner), divider(taps.out), taps.size, taps.count});
  };
  return request.make("weighted sums", run);
}

KernelResult make_resample_grad(const KernelRequest& request) {
  const Taps taps(request, request.out_shape());
  const ListSums sums{.outer = taps.outer,
                      .rows = taps.size,
                      .sources = taps.out,
                      .inner = taps.inner,
                      .per_source = taps.count};
  if (!are_counted(sums)) return request.decline();
  const Ordering ordering(taps.out * taps.count, taps.size);
  const Operand dy = operand(request, 0), dx = result(request);
  const auto run = [=](const Call& call) -> Status {
    const TapKeys keys{taps.indices_in(call), taps.size, ordering.keys(call, 0)};
    WEFT_TRY_STATUS(call.launch(k_tap_keys, grid_of(keys.keys.count), keys));
    WEFT_TRY_STATUS(ordering.order(call, 0));
    return add_lists(call, ordering, 0, sums, dy.in(call).as<const float>(), taps.weights_in(call),
                     dx.out(call).as<float>());
  };
  return request.make("weighted sums, ordered", run, ordering.workspace_bytes());
}

// ---- GridSample ----

struct GridKernels {
  const EntryOf<GridSample>& sample;
  const EntryOf<GridGrad>& grad;
  const EntryOf<GridKeys>& keys;
  int64_t taps;
};
GridKernels grid_kernels(const std::string& mode, size_t dims) {
  if (mode == "cubic") return {k_grid_sample_cubic2, k_grid_grad_cubic2, k_grid_keys_cubic2, 16};
  if (mode == "linear")
    return dims == 2 ? GridKernels{k_grid_sample_linear2, k_grid_grad_linear2, k_grid_keys_linear2, 4}
                     : GridKernels{k_grid_sample_linear3, k_grid_grad_linear3, k_grid_keys_linear3, 8};
  return dims == 2 ? GridKernels{k_grid_sample_nearest2, k_grid_grad_nearest2, k_grid_keys_nearest2, 1}
                   : GridKernels{k_grid_sample_nearest3, k_grid_grad_nearest3, k_grid_keys_nearest3, 1};
}

GridGeometry grid_geometry(const Attributes& attributes, const Shape& x, const Shape& grid) {
  const std::string& padding = attributes.get_string(Attr::PaddingMode);
  GridGeometry geometry{};
  geometry.images = x[0];
  geometry.points = product(grid, 1, grid.size() - 1);
  geometry.channels = x[1];
  geometry.size[0] = 1;
  for (size_t d = 2; d < x.size(); ++d) geometry.size[d + 3 - x.size()] = static_cast<int32_t>(x[d]);
  geometry.padding = padding == "zeros"    ? GridPadding::Zeros
                     : padding == "border" ? GridPadding::Border
                                           : GridPadding::Reflection;
  geometry.align_corners = static_cast<int32_t>(attributes.get_int(Attr::AlignCorners));
  return geometry;
}

KernelResult make_grid_sample(const KernelRequest& request) {
  const Shape& x = request.in_shape(0);
  const GridGeometry geometry = grid_geometry(request.attributes(), x, request.in_shape(1));
  const int64_t samples = geometry.images * geometry.points;
  if (product(x, 2, x.size()) > kPlaneMax || samples > kCountMax) return request.decline();
  const GridKernels kernels = grid_kernels(request.attributes().get_string(Attr::Mode), x.size() - 2);
  const Operand from = operand(request, 0), grid = operand(request, 1), to = result(request);
  const auto run = [=](const Call& call) {
    GridSample p{geometry, from.in(call).as<const float>(), to.out(call).as<float>()};
    p.geometry.grid = grid.in(call).as<const float>();
    return call.launch(kernels.sample, grid_of(samples, blocks_down(samples, geometry.channels)), p);
  };
  return request.make("samples", run);
}

KernelResult make_grid_sample_grad(const KernelRequest& request) {
  const Shape& x = request.in_shape(1);
  const GridGeometry geometry = grid_geometry(request.attributes(), x, request.in_shape(2));
  const GridKernels kernels = grid_kernels(request.attributes().get_string(Attr::Mode), x.size() - 2);
  const int64_t samples = geometry.images * geometry.points, plane = product(x, 2, x.size());
  const ListSums sums{.batch = geometry.images,
                      .outer = geometry.channels,
                      .rows = plane,
                      .sources = geometry.points,
                      .per_source = kernels.taps};
  if (plane > kPlaneMax || !are_counted(sums)) return request.decline();
  const int64_t entries = samples * kernels.taps, rows = geometry.images * plane;
  const Ordering ordering(entries, rows);
  const Operand dy = operand(request, 0), image = operand(request, 1), grid = operand(request, 2);
  const Operand dx = result(request, 0), dgrid = result(request, 1);
  const int64_t weights_at = align_up(ordering.workspace_bytes(), 256);
  const auto run = [=](const Call& call) -> Status {
    GridGeometry at = geometry;
    at.grid = grid.in(call).as<const float>();
    const Array<const float> cotangent = dy.in(call).as<const float>();
    const GridKeys keys{at, static_cast<uint32_t>(rows), ordering.keys(call, 0),
                        call.scratch<float>(weights_at, entries)};
    WEFT_TRY_STATUS(call.launch(kernels.keys, grid_of(samples), keys));
    WEFT_TRY_STATUS(ordering.order(call, 0));
    WEFT_TRY_STATUS(add_lists(call, ordering, 0, sums, cotangent, {keys.weights.data, entries},
                              dx.out(call).as<float>()));
    return call.launch(
        kernels.grad, grid_of(samples),
        GridGrad{at, cotangent, image.in(call).as<const float>(), dgrid.out(call).as<float>()});
  };
  return request.make("samples, ordered", run, weights_at + align_up(4 * entries, 256));
}

// ---- DeformColumns ----

struct Deformed {
  DeformGeometry geometry;  // without memory
  Operand offset, mask;
  bool masked;

  int64_t samples() const { return geometry.parts * geometry.taps.divisor * geometry.windows.divisor; }
  int64_t plane() const { return int64_t{geometry.height} * geometry.width; }
  DeformGeometry in(const Call& call) const {
    DeformGeometry g = geometry;
    g.offset = offset.in(call).as<const float>();
    if (masked) g.mask = mask.in(call).as<const float>();
    return g;
  }
};

// x, offset and mask are operands i to i + 2.
Deformed deformed(const KernelRequest& request, size_t i) {
  const Attributes& a = request.attributes();
  const Ints &kernel = a.get_ints(Attr::Kernel), &strides = a.get_ints(Attr::Strides),
             &pads = a.get_ints(Attr::Pads), &dilations = a.get_ints(Attr::Dilations);
  const Shape &x = request.in_shape(i), &offset = request.in_shape(i + 1);
  const int64_t groups = a.get_int(Attr::OffsetGroups);
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  DeformGeometry g{};
  g.windows = divider(offset[2] * offset[3]);
  g.taps = divider(kernel[0] * kernel[1]);
  g.columns = divider(offset[3]);
  g.kernel_columns = divider(kernel[1]);
  g.parts = x[0] * groups;
  g.channels = x[1] / groups;
  g.height = narrow(x[2]), g.width = narrow(x[3]);
  g.row_stride = narrow(strides[0]), g.column_stride = narrow(strides[1]);
  g.row_dilation = narrow(dilations.empty() ? 1 : dilations[0]);
  g.column_dilation = narrow(dilations.empty() ? 1 : dilations[1]);
  g.row_pad = narrow(pads[0]), g.column_pad = narrow(pads[1]);
  const bool masked = request.has(i + 2);
  return {g, operand(request, i + 1), masked ? operand(request, i + 2) : Operand{-1, 0}, masked};
}

// What kernels count with 32 bits.
bool is_counted(const KernelRequest& request, size_t i) {
  const Shape &x = request.in_shape(i), &offset = request.in_shape(i + 1);
  return x[2] * x[3] <= kPlaneMax && offset[2] * offset[3] <= kPlaneMax &&
         request.in_count(i + 1) / 2 <= kCountMax;
}

KernelResult make_deform_columns(const KernelRequest& request) {
  if (!is_counted(request, 0)) return request.decline();
  const Deformed d = deformed(request, 0);
  const Operand x = operand(request, 0), y = result(request);
  const auto run = [=](const Call& call) {
    return call.launch(k_deform_columns, grid_of(d.samples(), blocks_down(d.samples(), d.geometry.channels)),
                       DeformColumns{d.in(call), x.in(call).as<const float>(), y.out(call).as<float>()});
  };
  return request.make("samples", run);
}

KernelResult make_deform_columns_grad(const KernelRequest& request) {
  if (!is_counted(request, 1)) return request.decline();
  const Deformed d = deformed(request, 1);
  const ListSums sums{.batch = d.geometry.parts,
                      .outer = d.geometry.channels,
                      .rows = d.plane(),
                      .sources = d.samples() / d.geometry.parts,
                      .per_source = 4};
  if (!are_counted(sums)) return request.decline();
  const int64_t entries = 4 * d.samples(), rows = d.geometry.parts * d.plane();
  const Ordering ordering(entries, rows);
  const int64_t weights_at = align_up(ordering.workspace_bytes(), 256);
  const Operand dy = operand(request, 0), x = operand(request, 1), dx = result(request, 0),
                doffset = result(request, 1);
  const std::optional<Operand> dmask = d.masked ? std::optional(result(request, 2)) : std::nullopt;
  const auto run = [=](const Call& call) -> Status {
    const DeformGeometry geometry = d.in(call);
    const Array<const float> cotangent = dy.in(call).as<const float>();
    const DeformKeys keys{geometry, static_cast<uint32_t>(rows), ordering.keys(call, 0),
                          call.scratch<float>(weights_at, entries)};
    WEFT_TRY_STATUS(call.launch(k_deform_keys, grid_of(d.samples()), keys));
    WEFT_TRY_STATUS(ordering.order(call, 0));
    WEFT_TRY_STATUS(add_lists(call, ordering, 0, sums, cotangent, {keys.weights.data, entries},
                              dx.out(call).as<float>()));
    return call.launch(
        k_deform_grad, grid_of(d.samples()),
        DeformGrad{geometry, cotangent, x.in(call).as<const float>(), doffset.out(call).as<float>(),
                   dmask ? dmask->out(call).as<float>() : Array<float>{}});
  };
  return request.make("samples, ordered", run, weights_at + align_up(4 * entries, 256));
}

}  // namespace

KernelResult make_sampling(const KernelRequest& request) {
  if (!request.is_f32(request.in(0))) return request.decline();
  switch (request.op.kind) {
    case OpKind::Resample:
      return make_resample(request);
    case OpKind::ResampleGrad:
      return make_resample_grad(request);
    case OpKind::GridSample:
      return make_grid_sample(request);
    case OpKind::GridSampleGrad:
      return make_grid_sample_grad(request);
    case OpKind::DeformColumns:
      return make_deform_columns(request);
    case OpKind::DeformColumnsGrad:
      return make_deform_columns_grad(request);
    case OpKind::RoiAlign:
    case OpKind::RoiAlignGrad:
      return make_regions(request);
    default:
      return request.decline();
  }
}

}  // namespace weft::peer::cuda
