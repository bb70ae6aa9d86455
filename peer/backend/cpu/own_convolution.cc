#include "peer/backend/cpu/own_convolution.h"

namespace weft::peer::cpu {

using dag::Attr;
using dag::OpKind;
using dag::Shape;

OwnGeometry::OwnGeometry(const KernelRequest& request) {
  const OpKind kind = request.op.kind;
  const Shape& x = kind == OpKind::ConvGradInput ? request.out_shape() : request.in_shape(0);
  const Shape& w = kind == OpKind::ConvGradWeight ? request.out_shape() : request.in_shape(1);
  const Shape& y = kind == OpKind::Conv            ? request.out_shape()
                   : kind == OpKind::ConvGradInput ? request.in_shape(0)
                                                   : request.in_shape(1);
  const dag::Attributes& a = request.attributes();
  groups = a.get_int(Attr::Groups, 1);
  samples = x[0], channels = w[1], filters = w[0] / groups;
  taps = product(w, 2, w.size()), in_plane = product(x, 2, x.size()), out_plane = product(y, 2, y.size());
  for (int d = 0; d < 3; ++d) {
    window.in[d] = window.out[d] = window.kernel[d] = window.stride[d] = window.dilation[d] = 1;
    window.pad[d] = 0;
  }
  const size_t spatial = x.size() - 2;
  const dag::Ints& dilations = a.get_ints(Attr::Dilations);
  for (size_t d = 0; d < spatial; ++d) {
    const size_t to = 3 - spatial + d;
    window.in[to] = x[d + 2], window.out[to] = y[d + 2], window.kernel[to] = w[d + 2];
    window.stride[to] = a.get_ints(Attr::Strides)[d], window.pad[to] = a.get_ints(Attr::Pads)[d];
    window.dilation[to] = dilations.empty() ? 1 : dilations[d];
  }
}

bool OwnGeometry::is_product() const {
  bool same = taps == 1;
  for (int d = 0; d < 3; ++d)
    same = same && window.stride[d] == 1 && window.pad[d] == 0 && window.in[d] == window.out[d];
  return same;
}

KernelResult make_own_convolution(const KernelRequest& request) {
  const OwnGeometry geometry(request);
  if (geometry.is_depthwise()) {
    WEFT_TRY(std::unique_ptr<Kernel> kernel, make_depthwise(request, geometry));
    if (kernel != nullptr) return kernel;
  }
  return make_unfolded(request, geometry);
}

}  // namespace weft::peer::cpu
