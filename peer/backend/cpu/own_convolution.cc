#include "peer/backend/cpu/own_convolution.h"

#include "peer/backend/cpu/matmul.h"

namespace weft::peer::cpu {

using dag::Attr;
using dag::OpKind;
using dag::Shape;

OwnGeometry::OwnGeometry(const KernelRequest& request) {
  const OpKind kind = request.op.kind;
  const Shape& x = kind == OpKind::ConvGradInput ? request.out_shape() : request.in_shape(0);
  const Shape& w = kind == OpKind::ConvGradWeight ? request.out_shape() : request.in_shape(1);
  const Shape& y = kind == OpKind::Conv || kind == OpKind::IntegerConv ? request.out_shape()
                   : kind == OpKind::ConvGradInput                     ? request.in_shape(0)
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

bool OwnGeometry::is_one_window() const {
  bool whole = groups == 1 && out_plane == 1;
  for (int d = 0; d < 3; ++d)
    whole = whole && window.kernel[d] == window.in[d] && window.pad[d] == 0 &&
            (window.kernel[d] == 1 || window.dilation[d] == 1);
  return whole;
}

KernelResult make_one_window(const KernelRequest& request, const OwnGeometry& g) {
  const int first = request.input_slot(0), second = request.input_slot(1), to = request.output_slot(0);
  const int64_t rows = g.rows();
  switch (request.op.kind) {
    case OpKind::Conv:  // y[N, M] = x[N, rows] w[M, rows]'
      return make_product(request, {g.samples, g.filters, rows, rows, 1, 1, rows},
                          {.a = first, .b = second, .bias = request.input_slot(2), .c = to});
    case OpKind::ConvGradInput:  // dx[N, rows] = dy[N, M] w[M, rows]
      return make_product(request, {g.samples, rows, g.filters, g.filters, 1, rows, 1},
                          {.a = first, .b = second, .c = to});
    default:  // dw[M, rows] = dy[N, M]' x[N, rows]
      return make_product(request, {g.filters, rows, g.samples, 1, g.filters, rows, 1},
                          {.a = second, .b = first, .c = to});
  }
}

KernelResult make_own_convolution(const KernelRequest& request) {
  const OwnGeometry geometry(request);
  if (geometry.is_depthwise()) {
    WEFT_TRY(std::unique_ptr<Kernel> kernel, make_depthwise(request, geometry));
    if (kernel != nullptr) return kernel;
  }
  if (request.op.kind == OpKind::ConvGradInput) {
    WEFT_TRY(std::unique_ptr<Kernel> kernel, make_grouped_grad_input(request, geometry));
    if (kernel != nullptr) return kernel;
  }
  return make_unfolded(request, geometry);
}

}  // namespace weft::peer::cpu
