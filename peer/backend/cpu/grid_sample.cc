// GridSample and its gradient: where a block of points lies is worked out once, in double as the reference
// does, and then read or added to in every channel.
#include <cstring>

#include "peer/backend/cpu/sampling.h"
#include "peer/backend/reference/places.h"

namespace weft::peer::cpu {
namespace {

using dag::OpKind;
using dag::Shape;
using reference::GridRule;
using reference::PlaneDims;
using reference::Samples;

constexpr int64_t kBlock = 256;  // points

struct Geometry {
  GridRule rule;
  PlaneDims dims;
  int64_t images, channels, plane, points, blocks;

  Geometry(const KernelRequest& request, const Shape& x, const Shape& grid)
      : rule(reference::grid_rule(request.attributes(), {dag::DType::F32, x})),
        dims(reference::plane_dims(x)),
        images(x[0]),
        channels(x[1]),
        plane(dims.count()),
        points(product(grid, 1, grid.size() - 1)),
        blocks((points + kBlock - 1) / kBlock) {}

  int64_t begin(int64_t block) const { return block * kBlock; }
  int64_t count(int64_t block) const { return std::min(kBlock, points - begin(block)); }
};

// The samples of one block of points, in double and as the loops like them. One a thread.
class Block {
 public:
  void set(const Geometry& g, const float* grid, int64_t image, int64_t block) {
    const auto dims = static_cast<int64_t>(g.rule.dims);
    const float* first = grid + (image * g.points + g.begin(block)) * dims;
    coordinates_.assign(first, first + g.count(block) * dims);
    samples_.clear();
    reference::add_grid_samples(g.rule, g.dims, coordinates_, samples_);
    starts_.assign(samples_.starts.begin(), samples_.starts.end());
    from_.assign(samples_.from.begin(), samples_.from.end());
    weights_.assign(samples_.weights.begin(), samples_.weights.end());
  }
  SparseRows rows() const {
    const int64_t count = samples_.count();
    return {count, terms_of(starts_.data(), count), starts_.data(), from_.data(), weights_.data()};
  }
  const Samples& samples() const { return samples_; }

 private:
  std::vector<double> coordinates_;
  Samples samples_;
  std::vector<int32_t> starts_, from_;
  std::vector<float> weights_;
};

KernelResult make_forward(const KernelRequest& request, const Geometry& g) {
  const int x = request.input_slot(0), grid = request.input_slot(1), y = request.output_slot(0);
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    team.ranges(g.images * g.blocks, 1, [&](int64_t begin, int64_t end) {
      Block block;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t image = i / g.blocks, b = i % g.blocks;
        block.set(g, call.in<float>(grid), image, b);
        const SparseRows rows = block.rows();
        for (int64_t p = image * g.channels; p < (image + 1) * g.channels; ++p)
          sum_rows(rows, 0, rows.count, call.in<float>(x) + p * g.plane,
                   call.out<float>(y) + p * g.points + g.begin(b));
      }
    });
    return {};
  };
  return request.make("sparse sums", run);
}

// dx of planes [begin, end), each added to in the order of the points.
void add_to_planes(const Geometry& g, const float* dy, const float* grid, int64_t begin, int64_t end,
                   float* dx) {
  Block block;
  std::memset(dx + begin * g.plane, 0, static_cast<size_t>((end - begin) * g.plane) * sizeof(float));
  while (begin < end) {
    const int64_t image = begin / g.channels, last = std::min(end, (image + 1) * g.channels);
    for (int64_t b = 0; b < g.blocks; ++b) {
      block.set(g, grid, image, b);
      const SparseRows rows = block.rows();
      for (int64_t p = begin; p < last; ++p) {
        const float* from = dy + p * g.points + g.begin(b);
        float* to = dx + p * g.plane;
        for (int64_t i = 0; i < rows.count; ++i)
          for (int32_t k = rows.starts[i]; k < rows.starts[i + 1]; ++k)
            to[rows.from[k]] += rows.weights[k] * from[i];
      }
    }
    begin = last;
  }
}

// dgrid of one block: how the sum over all channels grows with each coordinate.
void grid_slopes(const Geometry& g, const Block& block, const float* dy, const float* x, float* dgrid) {
  const Samples& samples = block.samples();
  const size_t dims = g.rule.dims;
  for (size_t i = 0; i + 1 < samples.starts.size(); ++i) {
    std::array<double, 3> sums{};
    for (auto k = static_cast<size_t>(samples.starts[i]); k < static_cast<size_t>(samples.starts[i + 1]);
         ++k) {
      double weight = 0;  // of this element in the cotangent, over the channels
      for (int64_t c = 0; c < g.channels; ++c)
        weight += static_cast<double>(dy[c * g.points + static_cast<int64_t>(i)]) *
                  static_cast<double>(x[c * g.plane + samples.from[k]]);
      for (size_t d = 0; d < dims; ++d) sums[d] += samples.slopes[d][k] * weight;
    }
    for (size_t d = 0; d < dims; ++d) dgrid[i * dims + d] = static_cast<float>(sums[d]);
  }
}

KernelResult make_backward(const KernelRequest& request, const Geometry& g) {
  const int dy = request.input_slot(0), x = request.input_slot(1), grid = request.input_slot(2);
  const int dx = request.output_slot(0), dgrid = request.output_slot(1);
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    team.ranges(g.images * g.channels, 1, [&](int64_t begin, int64_t end) {
      add_to_planes(g, call.in<float>(dy), call.in<float>(grid), begin, end, call.out<float>(dx));
    });
    team.ranges(g.images * g.blocks, 1, [&](int64_t begin, int64_t end) {
      Block block;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t image = i / g.blocks, first = g.begin(i % g.blocks);
        block.set(g, call.in<float>(grid), image, i % g.blocks);
        grid_slopes(g, block, call.in<float>(dy) + image * g.channels * g.points + first,
                    call.in<float>(x) + image * g.channels * g.plane,
                    call.out<float>(dgrid) + (image * g.points + first) * static_cast<int64_t>(g.rule.dims));
      }
    });
    return {};
  };
  return request.make("sparse sums", run);
}

}  // namespace

KernelResult make_grid_sample(const KernelRequest& request) {
  const bool grad = request.op.kind == OpKind::GridSampleGrad;
  const size_t x = grad ? 1 : 0;
  const Geometry geometry(request, request.in_shape(x), request.in_shape(x + 1));
  if (!request.is_f32(request.in(0)) || geometry.plane > std::numeric_limits<int32_t>::max())
    return request.decline();
  return grad ? make_backward(request, geometry) : make_forward(request, geometry);
}

}  // namespace weft::peer::cpu
