// Pooling over one or two spatial dims, plane by plane, in either layout.
#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::Ints;
using dag::OpKind;
using dag::Shape;

// x: the larger side; y: the pooled one. One spatial dim is a plane of height one.
PoolArgs pool_args(const KernelRequest& request, const Shape& x, const Shape& y, int lanes) {
  const size_t dims = x.size() - 2;
  const auto at = [&](const Ints& ints, size_t d, int64_t otherwise) {
    return ints.empty() ? otherwise : ints[d];
  };
  const auto& attributes = request.attributes();
  const Ints &kernel = attributes.get_ints(Attr::Kernel), &strides = attributes.get_ints(Attr::Strides);
  const Ints &dilations = attributes.get_ints(Attr::Dilations), &pads = attributes.get_ints(Attr::Pads);
  PoolArgs args{};
  args.in_h = args.out_h = args.kernel_h = args.stride_h = args.dilation_h = 1;
  const size_t w = dims - 1;
  args.in_w = x[2 + w], args.out_w = y[2 + w], args.kernel_w = at(kernel, w, 1);
  args.stride_w = at(strides, w, 1), args.dilation_w = at(dilations, w, 1);
  args.pad_left = at(pads, w, 0), args.pad_right = at(pads, dims + w, 0);
  if (dims == 2) {
    args.in_h = x[2], args.out_h = y[2], args.kernel_h = at(kernel, 0, 1);
    args.stride_h = at(strides, 0, 1), args.dilation_h = at(dilations, 0, 1);
    args.pad_top = at(pads, 0, 0), args.pad_bottom = at(pads, 2, 0);
  }
  args.count_include_pad = static_cast<int>(attributes.get_int(Attr::CountIncludePad));
  args.lanes = lanes;
  return args;
}

}  // namespace

KernelResult make_pooling(const KernelRequest& request) {
  const dag::Value &first = request.in(0), &result = request.out(0);
  const size_t dims = first.spec.shape.size() - 2;
  if (!request.is_f32(first) || dims > 2 || first.layout != result.layout) return request.decline();
  const OpKind kind = request.op.kind;
  const bool forward = kind == OpKind::MaxPool || kind == OpKind::AveragePool;
  if (kind == OpKind::MaxPool && request.out(1).layout != first.layout) return request.decline();
  if (kind == OpKind::MaxPoolGrad && request.in(1).layout != first.layout) return request.decline();
  // The loops average windows without gaps.
  const Ints& dilations = request.attributes().get_ints(Attr::Dilations);
  const bool gaps = dilations != Ints(dilations.size(), 1);
  if (gaps && kind != OpKind::MaxPool) return request.decline();
  const int lanes = lanes_of(first.layout);
  const Shape &x = forward ? first.spec.shape : result.spec.shape,
              &y = forward ? result.spec.shape : first.spec.shape;
  const PoolArgs args = pool_args(request, x, y, lanes);
  const int64_t planes = x[0] * x[1] / lanes;
  const int64_t x_size = args.in_h * args.in_w * lanes, y_size = args.out_h * args.out_w * lanes;
  const int source = request.input_slot(0), indices_in = request.input_slot(1);
  const int target = request.output_slot(0),
            indices_out = kind == OpKind::MaxPool ? request.output_slot(1) : -1;
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const float* from = call.in<float>(source);
    float* to = call.out<float>(target);
    team.ranges(planes, rows_grain(x_size), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        switch (kind) {
          case OpKind::MaxPool:
            loops.max_pool_plane(from + i * x_size, to + i * y_size,
                                 call.out<int32_t>(indices_out) + i * y_size, args);
            break;
          case OpKind::MaxPoolGrad:
            loops.max_pool_grad_plane(from + i * y_size, call.in<int32_t>(indices_in) + i * y_size,
                                      to + i * x_size, args);
            break;
          case OpKind::AveragePool:
            loops.average_pool_plane(from + i * x_size, to + i * y_size, args);
            break;
          default:
            loops.average_pool_grad_plane(from + i * y_size, to + i * x_size, args);
            break;
        }
      }
    });
    return {};
  };
  return request.make("vector planes", run);
}

}  // namespace weft::peer::cpu
