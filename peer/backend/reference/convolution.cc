// Convolution and its adjoints: one set of loops over every product x * w that goes into y.
#include "peer/backend/reference/windows.h"

namespace weft::peer::reference {
namespace {

// Calls visit(element of x, element of w, element of y) for each product of the convolution.
template <typename Visit>
void for_each_product(const Call& c, const Shape& x, const Shape& w, const Shape& y, Visit visit) {
  const Windows windows = windows_of(c.attributes, x, y, std::span(w).subspan(2));
  const int64_t groups = c.attributes.get_int(Attr::Groups, 1);
  const int64_t channels = w[1], filters = w[0] / groups;  // of one group
  const int64_t in_plane = windows.in_plane(), out_plane = windows.out_plane(), taps = windows.taps();
  for (int64_t n = 0; n < x[0]; ++n)
    for (int64_t m = 0; m < w[0]; ++m) {
      const int64_t first_channel = m / filters * channels;
      for (int64_t o = 0; o < out_plane; ++o)
        for (int64_t k = 0; k < channels; ++k)
          windows.for_each_tap(o, [&](int64_t place, int64_t tap) {
            visit(at((n * x[1] + first_channel + k) * in_plane + place), at((m * channels + k) * taps + tap),
                  at((n * w[0] + m) * out_plane + o));
          });
    }
}

void conv(const Call& c) {
  const Reals &x = c.reals(0), &w = c.reals(1);
  Reals& y = c.out().reals;
  for_each_product(c, c.shape(0), c.shape(1), c.out().spec.shape,
                   [&](size_t ix, size_t iw, size_t iy) { y[iy] += x[ix] * w[iw]; });
  if (!c.has(2)) return;
  const AxisView channels = axis_view(c.out().spec.shape, 1);
  for (int64_t i = 0; i < c.out().count(); ++i)
    y[at(i)] += c.reals(2)[at(i / channels.inner % channels.size)];
}

// Values less their zero point: one for all, or one a slice along the leading dim.
Wholes centred(const Call& c, size_t operand, size_t zero) {
  Wholes values = c.wholes(operand);
  if (!c.has(zero)) return values;
  const Wholes& points = c.wholes(zero);
  const size_t slice = values.size() / std::max<size_t>(1, points.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] -= points[i / slice];
  return values;
}

void integer_conv(const Call& c) {
  const Wholes x = centred(c, 0, 2), w = centred(c, 1, 3);
  Wholes& y = c.out().wholes;
  for_each_product(c, c.shape(0), c.shape(1), c.out().spec.shape,
                   [&](size_t ix, size_t iw, size_t iy) { y[iy] += x[ix] * w[iw]; });
  for (int64_t& sum : y) sum = wrapped(DType::I32, sum);
}

void conv_grad_input(const Call& c) {
  const Reals &dy = c.reals(0), &w = c.reals(1);
  Reals& dx = c.out().reals;
  for_each_product(c, c.out().spec.shape, c.shape(1), c.shape(0),
                   [&](size_t ix, size_t iw, size_t iy) { dx[ix] += dy[iy] * w[iw]; });
}

void conv_grad_weight(const Call& c) {
  const Reals &x = c.reals(0), &dy = c.reals(1);
  Reals& dw = c.out().reals;
  for_each_product(c, c.shape(0), c.out().spec.shape, c.shape(1),
                   [&](size_t ix, size_t iw, size_t iy) { dw[iw] += x[ix] * dy[iy]; });
}

}  // namespace

void run_convolution(const Call& call) {
  switch (call.kind) {
    case OpKind::Conv:
      return conv(call);
    case OpKind::IntegerConv:
      return integer_conv(call);
    case OpKind::ConvGradInput:
      return conv_grad_input(call);
    case OpKind::ConvGradWeight:
      return conv_grad_weight(call);
    default:
      WEFT_CHECK_MSG(false, "not a convolution");
  }
}

}  // namespace weft::peer::reference
