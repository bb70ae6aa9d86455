// Pooling over up to three spatial dims, plane by plane. The channels of a plain value are brought side by
// side, as many as a vector holds, and taken apart again.
#include <algorithm>

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::Ints;
using dag::OpKind;
using dag::Shape;

// x: the larger side; y: the pooled one.
PoolArgs pool_args(const KernelRequest& request, const Shape& x, const Shape& y, int lanes) {
  const size_t dims = x.size() - 2;
  const auto& attributes = request.attributes();
  const auto at = [&](Attr attr, size_t d, int64_t otherwise) {
    const Ints& ints = attributes.get_ints(attr);
    return ints.empty() ? otherwise : ints[d];
  };
  PoolArgs args{};
  WindowArgs& window = args.window;
  for (size_t to = 0; to < 3; ++to)
    window.in[to] = window.out[to] = window.kernel[to] = window.stride[to] = window.dilation[to] = 1;
  for (size_t d = 0; d < dims; ++d) {
    const size_t to = 3 - dims + d;
    window.in[to] = x[2 + d], window.out[to] = y[2 + d], window.kernel[to] = at(Attr::Kernel, d, 1);
    window.stride[to] = at(Attr::Strides, d, 1), window.dilation[to] = at(Attr::Dilations, d, 1);
    window.pad[to] = at(Attr::Pads, d, 0), args.pad_end[to] = at(Attr::Pads, dims + d, 0);
  }
  args.count_include_pad = static_cast<int>(attributes.get_int(Attr::CountIncludePad));
  args.lanes = lanes;
  return args;
}

class Pooling {
 public:
  Pooling(OpKind kind, const PoolArgs& args, const LoopTable& loops)
      : kind_(kind), args_(args), loops_(loops) {}

  // Of one plane: `from` and `to` are x and y, or backward dy and dx. Indices belong to y.
  void run(const float* from, float* to, const int32_t* indices_in, int32_t* indices_out) const {
    switch (kind_) {
      case OpKind::MaxPool:
        return loops_.max_pool_plane(from, to, indices_out, args_);
      case OpKind::MaxPoolGrad:
        return loops_.max_pool_grad_plane(from, indices_in, to, args_);
      case OpKind::AveragePool:
        return loops_.average_pool_plane(from, to, args_);
      default:
        return loops_.average_pool_grad_plane(from, to, args_);
    }
  }

  // The same for `channels` planes that lie one after the other; at most args.lanes.
  void run_apart(const float* from, int64_t from_plane, float* to, int64_t to_plane, int64_t channels,
                 const float* indices_in, float* indices_out) const {
    const int64_t lanes = args_.lanes, y_plane = kind_ == OpKind::MaxPool ? to_plane : from_plane;
    float* const from_lanes = thread_scratch((from_plane + to_plane + y_plane) * lanes);
    float* const to_lanes = from_lanes + from_plane * lanes;
    float* const index_lanes = to_lanes + to_plane * lanes;  // the bits of integers
    auto* const indices = reinterpret_cast<int32_t*>(index_lanes);
    loops_.transpose(from, from_plane, from_lanes, lanes, channels, from_plane);
    if (indices_in != nullptr) loops_.transpose(indices_in, y_plane, index_lanes, lanes, channels, y_plane);
    run(from_lanes, to_lanes, indices, indices_out != nullptr ? indices : nullptr);
    loops_.transpose(to_lanes, lanes, to, to_plane, to_plane, channels);
    if (indices_out != nullptr) loops_.transpose(index_lanes, lanes, indices_out, y_plane, y_plane, channels);
  }

 private:
  OpKind kind_;
  PoolArgs args_;
  const LoopTable& loops_;
};

int64_t positions(const int64_t (&extent)[3]) { return extent[0] * extent[1] * extent[2]; }

}  // namespace

KernelResult make_pooling(const KernelRequest& request) {
  const dag::Value &first = request.in(0), &result = request.out(0);
  const size_t dims = first.spec.shape.size() - 2;
  if (!request.is_f32(first) || dims > 3 || first.layout != result.layout) return request.decline();
  const OpKind kind = request.op.kind;
  const bool forward = kind == OpKind::MaxPool || kind == OpKind::AveragePool;
  if (kind == OpKind::MaxPool && request.out(1).layout != first.layout) return request.decline();
  if (kind == OpKind::MaxPoolGrad && request.in(1).layout != first.layout) return request.decline();
  // The loops average windows without gaps.
  const Ints& dilations = request.attributes().get_ints(Attr::Dilations);
  const bool gaps = std::any_of(dilations.begin(), dilations.end(), [](int64_t step) { return step != 1; });
  if (gaps && kind != OpKind::MaxPool) return request.decline();
  const Shape &x = forward ? first.spec.shape : result.spec.shape,
              &y = forward ? result.spec.shape : first.spec.shape;
  const int block = lanes_of(first.layout);
  const bool apart = block == 1 && x[1] >= request.loops.lanes / 2;
  const int lanes = apart ? request.loops.lanes : block;
  const PoolArgs args = pool_args(request, x, y, lanes);
  const auto pooling = std::make_shared<const Pooling>(kind, args, request.loops);
  const int64_t x_plane = positions(args.window.in), y_plane = positions(args.window.out);
  const int64_t from_plane = forward ? x_plane : y_plane, to_plane = forward ? y_plane : x_plane;
  const int source = request.input_slot(0), target = request.output_slot(0);
  const int indices_in = kind == OpKind::MaxPoolGrad ? request.input_slot(1) : -1;
  const int indices_out = kind == OpKind::MaxPool ? request.output_slot(1) : -1;
  if (!apart) {
    const auto run = [=, count = x[0] * x[1] / lanes, &team = request.team](const Call& call) -> Status {
      team.ranges(count, rows_grain(x_plane * lanes), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int32_t* in = call.in<int32_t>(indices_in);
          int32_t* out = call.out<int32_t>(indices_out);
          pooling->run(call.in<float>(source) + i * from_plane * lanes,
                       call.out<float>(target) + i * to_plane * lanes,
                       in != nullptr ? in + i * y_plane * lanes : nullptr,
                       out != nullptr ? out + i * y_plane * lanes : nullptr);
        }
      });
      return {};
    };
    return request.make("vector planes", run);
  }
  const int64_t channels = x[1], planes = (channels + lanes - 1) / lanes;
  const auto run = [=, count = x[0] * planes, &team = request.team](const Call& call) -> Status {
    team.pieces(count, [&](int64_t piece) {
      const int64_t channel = piece % planes * lanes, at = piece / planes * channels + channel;
      const float* in = call.in<float>(indices_in);
      float* out = call.out<float>(indices_out);
      pooling->run_apart(
          call.in<float>(source) + at * from_plane, from_plane, call.out<float>(target) + at * to_plane,
          to_plane, std::min<int64_t>(lanes, channels - channel), in != nullptr ? in + at * y_plane : nullptr,
          out != nullptr ? out + at * y_plane : nullptr);
    });
    return {};
  };
  return request.make("vector planes, channels side by side", run);
}

}  // namespace weft::peer::cpu
