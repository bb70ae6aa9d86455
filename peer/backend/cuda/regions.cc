// RoiAlign and its gradient.
#include "peer/backend/cuda/kernels/regions.h"
#include "peer/backend/cuda/kernels/sampling.h"
#include "peer/backend/cuda/operands.h"
#include "peer/backend/cuda/order.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::Attributes;
using dag::OpKind;

constexpr int64_t kAlignment = 256;

Grid grid_of(int64_t count) {
  return {static_cast<uint32_t>((count + kSampleThreads - 1) / kSampleThreads), kSampleThreads, 1};
}

// x, rois and batch_indices are operands i to i + 2.
struct Regions {
  RegionRule rule{};
  int64_t regions, images, channels;
  Operand x, rois;
  IndexOperand image_of;

  Regions(const KernelRequest& request, size_t i)
      : regions(request.in_shape(i + 1)[0]),
        images(request.in_shape(i)[0]),
        channels(request.in_shape(i)[1]),
        x(operand(request, i)),
        rois(operand(request, i + 1)),
        image_of(index_operand(request, i + 2)) {
    const Attributes& a = request.attributes();
    for (size_t d = 0; d < 2; ++d) {
      rule.bins[d] = static_cast<int32_t>(a.get_ints(Attr::Sizes)[d]);
      rule.size[d] = static_cast<int32_t>(request.in_shape(i)[d + 2]);
    }
    rule.sampling_ratio = a.get_int(Attr::SamplingRatio);
    rule.scale = a.get_double(Attr::SpatialScale, 1);
    rule.align_corners = static_cast<int32_t>(a.get_int(Attr::AlignCorners));
  }
  int64_t plane() const { return int64_t{rule.size[0]} * rule.size[1]; }
  Array<const float> rois_in(const Call& call) const { return rois.in(call).as<const float>(); }
};

// One dim's table in the workspace.
struct TableLayout {
  int64_t regions, bins, size;
  int64_t begin = 0;

  int64_t weight_bytes() const { return align_up(4 * regions * bins * size, kAlignment); }
  int64_t total_bytes() const { return align_up(4 * regions, kAlignment); }
  int64_t range_bytes() const { return align_up(8 * regions * bins, kAlignment); }
  int64_t end() const {
    return begin + weight_bytes() + total_bytes() + range_bytes() + align_up(8 * regions, kAlignment);
  }
  RegionTable in(const Call& call) const {
    const int64_t totals = begin + weight_bytes(), ranges = totals + total_bytes(),
                  reach = ranges + range_bytes();
    return {call.scratch<float>(begin, regions * bins * size), call.scratch<float>(totals, regions),
            call.scratch<int32_t>(ranges, 2 * regions * bins), call.scratch<int32_t>(reach, 2 * regions)};
  }
};

KernelResult make_means(const KernelRequest& request, const Regions& r, bool grad) {
  const TableLayout rows{r.regions, r.rule.bins[0], r.rule.size[0]};
  const TableLayout columns{r.regions, r.rule.bins[1], r.rule.size[1], rows.end()};
  const int64_t count = request.out_count();
  if (count > kCountMax || rows.regions * std::max(rows.bins, columns.bins) > kCountMax)
    return request.decline();
  const Operand from = operand(request, 0), to = result(request);
  const auto run = [=](const Call& call) -> Status {
    const RegionTable tables[] = {rows.in(call), columns.in(call)};
    for (const int32_t dim : {0, 1}) {
      const RegionWeights weights{r.rule, dim, r.regions, r.rois_in(call), tables[dim]};
      WEFT_TRY_STATUS(call.launch(k_region_weights, grid_of(r.regions * r.rule.bins[dim]), weights));
      if (grad) WEFT_TRY_STATUS(call.launch(k_region_reach, grid_of(r.regions), weights));
    }
    const RegionMeans means{r.rule,
                            r.regions,
                            r.images,
                            r.channels,
                            r.image_of.in(call),
                            tables[0],
                            tables[1],
                            from.in(call).as<const float>(),
                            to.out(call).as<float>()};
    return call.launch(grad ? k_region_means_grad : k_region_means, grid_of(count), means);
  };
  return request.make("regions", run, columns.end());
}

KernelResult make_maxima(const KernelRequest& request, const Regions& r) {
  const int64_t count = request.out_count();
  if (count > kCountMax) return request.decline();
  const Operand y = result(request);
  const auto run = [=](const Call& call) {
    return call.launch(k_region_maxima, grid_of(count),
                       RegionMaxima{r.rule, r.images, r.channels, r.image_of.in(call), r.rois_in(call),
                                    r.x.in(call).as<const float>(), y.out(call).as<float>()});
  };
  return request.make("regions", run);
}

KernelResult make_maxima_grad(const KernelRequest& request, const Regions& r) {
  const int64_t entries = request.in_count(0), rows = request.out_count();
  const ListSums sums{.rows = rows, .sources = entries};
  if (!are_counted(sums)) return request.decline();
  const Ordering ordering(entries, rows);
  const int64_t weights_at = align_up(ordering.workspace_bytes(), kAlignment);
  const Operand dy = operand(request, 0), dx = result(request);
  const auto run = [=](const Call& call) -> Status {
    const RegionMaxima maxima{
        r.rule, r.images, r.channels, r.image_of.in(call), r.rois_in(call), r.x.in(call).as<const float>(),
        {}};
    const RegionKeys keys{maxima, static_cast<uint32_t>(rows), ordering.keys(call, 0),
                          call.scratch<float>(weights_at, entries)};
    WEFT_TRY_STATUS(call.launch(k_region_keys, grid_of(entries), keys));
    WEFT_TRY_STATUS(ordering.order(call, 0));
    return add_lists(call, ordering, 0, sums, dy.in(call).as<const float>(), {keys.weights.data, entries},
                     dx.out(call).as<float>());
  };
  return request.make("regions, ordered", run, weights_at + align_up(4 * entries, kAlignment));
}

}  // namespace

KernelResult make_regions(const KernelRequest& request) {
  constexpr int64_t kPlaneMax = int64_t{1} << 29;  // kernels count places with 32 bits
  const bool grad = request.op.kind == OpKind::RoiAlignGrad;
  const Regions regions(request, grad ? 1 : 0);
  if (!request.is_f32(request.in(0)) || regions.plane() > kPlaneMax) return request.decline();
  if (request.attributes().get_string(Attr::Mode) != "max") return make_means(request, regions, grad);
  return grad ? make_maxima_grad(request, regions) : make_maxima(request, regions);
}

}  // namespace weft::peer::cuda
