// Pooling.
#include <algorithm>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

Shape spatial_of(const Item& x) { return {x.shape().begin() + 2, x.shape().end()}; }

Status check_image(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  if (n.in(0).rank() < 3) return n.invalid("x " + to_string(n.in(0).spec) + " has no spatial dims");
  if (n.in(0).rank() > 5) return n.unsupported("more than three spatial dims");
  return {};
}

// Places in a plane whose last dim is innermost, as places in one whose first dim is.
Result<Item> with_first_dim_innermost(NodeContext& n, Item index, const Shape& spatial) {
  int64_t stride = 1;
  for (const int64_t size : spatial) stride *= size;
  std::optional<Item> sum;
  for (size_t d = spatial.size(); d-- > 0;) {
    const Item size = n.scalar(DType::I64, static_cast<double>(spatial[d]));
    stride /= spatial[d];
    WEFT_TRY(Item term, n.emit(OpKind::Mod, {index, size}, {{Attr::Fmod, int64_t{0}}}));
    WEFT_TRY(index, n.emit(OpKind::Div, {index, size}));
    WEFT_TRY(term, n.emit(OpKind::Mul, {term, n.scalar(DType::I64, static_cast<double>(stride))}));
    if (sum) {
      WEFT_TRY(term, n.emit(OpKind::Add, {*sum, term}));
    }
    sum = std::move(term);
  }
  return std::move(*sum);
}

// ONNX counts indices over the whole tensor, weft over one plane.
Result<Item> onnx_indices(NodeContext& n, const Item& plane_indices, int64_t storage_order) {
  const Shape& x = n.in(0).shape();
  WEFT_TRY(Item index, n.cast(plane_indices, DType::I64));
  if (storage_order != 0) {
    WEFT_TRY(index, with_first_dim_innermost(n, std::move(index), spatial_of(n.in(0))));
  }
  int64_t plane = 1;
  for (size_t d = 2; d < x.size(); ++d) plane *= x[d];
  Shape shape(x.size(), 1);
  shape[0] = x[0];
  shape[1] = x[1];
  Tensor offsets({DType::I64, shape});
  for (int64_t i = 0; i < x[0] * x[1]; ++i) offsets.mutable_as<int64_t>()[static_cast<size_t>(i)] = i * plane;
  return n.emit(OpKind::Add, {index, n.constant(offsets)});
}

Status lower_max_pool(NodeContext& n) {
  WEFT_TRY_STATUS(check_image(n));
  WEFT_TRY(const Windows windows, read_windows(n, spatial_of(n.in(0)), n.ints_attr("kernel_shape")));
  const Attributes attributes{{Attr::Kernel, windows.kernel},
                              {Attr::Strides, windows.strides},
                              {Attr::Dilations, windows.dilations},
                              {Attr::Pads, windows.pads},
                              {Attr::CeilMode, int64_t{n.int_attr("ceil_mode", 0) != 0}}};
  // Bytes are exact in F32; nothing wider than that is pooled in practice.
  const DType dtype = n.in(0).dtype();
  Item x = n.in(0);
  if (dtype == DType::I8 || dtype == DType::U8) {
    WEFT_TRY(x, n.cast(x, DType::F32));
  }
  WEFT_TRY(const Items results, n.emit_all(OpKind::MaxPool, {x}, attributes));
  if (n.wants(1)) {
    WEFT_TRY(Item indices, onnx_indices(n, results[1], n.int_attr("storage_order", 0)));
    n.out(1, std::move(indices));
  }
  return n.give(n.cast(results[0], dtype));
}

Attributes average_attributes(const Windows& windows) {
  Attributes attributes{
      {Attr::Kernel, windows.kernel}, {Attr::Strides, windows.strides}, {Attr::Pads, windows.pads}};
  if (windows.dilations != Ints(windows.kernel.size(), 1)) attributes.set(Attr::Dilations, windows.dilations);
  return attributes;
}

Status lower_average_pool(NodeContext& n) {
  WEFT_TRY_STATUS(check_image(n));
  WEFT_TRY(const Windows windows, read_windows(n, spatial_of(n.in(0)), n.ints_attr("kernel_shape")));
  Attributes attributes = average_attributes(windows);
  attributes.set(Attr::CeilMode, int64_t{n.int_attr("ceil_mode", 0) != 0});
  attributes.set(Attr::CountIncludePad, int64_t{n.int_attr("count_include_pad", 0) != 0});
  return n.give(n.emit(OpKind::AveragePool, {n.in(0)}, std::move(attributes)));
}

// ---- the p-norm of each window: (sum of |x|^p)^(1/p) ----

Result<Item> powered(NodeContext& n, const Item& x, int64_t p) {
  if (p == 2) return n.emit(OpKind::Mul, {x, x});
  WEFT_TRY(Item size, n.emit(OpKind::Abs, {x}));
  if (p == 1) return size;
  return n.emit(OpKind::Pow, {size, n.like(x, static_cast<double>(p))});
}

// The root's slope at 0 has no bound: where the sum is 0, so is the root, and its gradient.
Result<Item> rooted(NodeContext& n, const Item& sum, int64_t p) {
  if (p == 1) return sum;
  const Item zero = n.like(sum, 0), one = n.like(sum, 1);
  WEFT_TRY(const Item is_zero, n.emit(OpKind::Equal, {sum, zero}));
  WEFT_TRY(const Item safe, n.emit(OpKind::Where, {is_zero, one, sum}));
  WEFT_TRY(const Item root, n.emit(OpKind::Pow, {safe, n.like(sum, 1 / static_cast<double>(p))}));
  return n.emit(OpKind::Where, {is_zero, zero, root});
}

Result<int64_t> read_p(NodeContext& n) {
  const int64_t p = n.int_attr("p", 2);
  if (p < 1 || p > 64) return n.unsupported("p = " + std::to_string(p));
  return p;
}

// Pads with which the last window ends where x and its padding do.
void fit_pads(Windows& windows, const Shape& spatial, bool ceil) {
  const size_t dims = spatial.size();
  for (size_t d = 0; d < dims; ++d) {
    const int64_t extent = windows.dilations[d] * (windows.kernel[d] - 1) + 1, stride = windows.strides[d];
    const int64_t begin = windows.pads[d], size = spatial[d] + begin;
    const int64_t slack = size + windows.pads[dims + d] - extent;
    if (slack < 0) continue;  // no window at all: the op refuses it
    int64_t last = (ceil ? slack + stride - 1 : slack) / stride * stride;
    if (ceil && last >= size) last -= stride;
    windows.pads[dims + d] = std::max<int64_t>(0, last + extent - size);
  }
}

Status lower_lp_pool(NodeContext& n) {
  WEFT_TRY_STATUS(check_image(n));
  WEFT_TRY(const int64_t p, read_p(n));
  WEFT_TRY(Windows windows, read_windows(n, spatial_of(n.in(0)), n.ints_attr("kernel_shape")));
  fit_pads(windows, spatial_of(n.in(0)), n.int_attr("ceil_mode", 0) != 0);
  Attributes attributes = average_attributes(windows);
  attributes.set(Attr::CeilMode, int64_t{0});
  attributes.set(Attr::CountIncludePad, int64_t{1});
  double taps = 1;
  for (const int64_t size : windows.kernel) taps *= static_cast<double>(size);
  WEFT_TRY(Item y, powered(n, n.in(0), p));
  WEFT_TRY(y, n.emit(OpKind::AveragePool, {y}, std::move(attributes)));
  WEFT_TRY(y, n.emit(OpKind::Mul, {y, n.like(y, taps)}));
  return n.give(rooted(n, y, p));
}

Status lower_global_lp_pool(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  if (n.in(0).rank() < 3) return n.invalid("x " + to_string(n.in(0).spec) + " has no spatial dims");
  WEFT_TRY(const int64_t p, read_p(n));
  WEFT_TRY(Item y, powered(n, n.in(0), p));
  Ints axes;
  for (int64_t d = 2; d < n.in(0).rank(); ++d) axes.push_back(d);
  WEFT_TRY(y, n.reduce(OpKind::ReduceSum, y, axes, true));
  return n.give(rooted(n, y, p));
}

// ---- the way back from MaxPool ----

// What MaxUnpool makes of x: [N, C, spatial...].
Result<Shape> unpooled_shape(NodeContext& n) {
  const Item& x = n.in(0);
  WEFT_TRY(const Windows windows, read_windows(n, spatial_of(x), n.ints_attr("kernel_shape")));
  Shape shape{x.shape()[0], x.shape()[1]};
  const size_t dims = windows.kernel.size();
  for (size_t d = 0; d < dims; ++d) {
    const int64_t size = (x.shape()[d + 2] - 1) * windows.strides[d] + windows.kernel[d] - windows.pads[d] -
                         windows.pads[dims + d];
    if (size < 1) return n.invalid("its output would be empty");
    shape.push_back(size);
  }
  const auto count = dag::checked_element_count(shape);
  if (!count) return n.invalid(count.error().message);
  return shape;
}

// Elements of overlapping windows may have gone to one place several times, with the same value: their mean.
Result<Item> placed(NodeContext& n, const Shape& shape) {
  const int64_t count = n.in(0).spec.element_count();
  const Ints total{dag::TensorSpec{n.in(0).dtype(), shape}.element_count()};
  WEFT_TRY(const Item indices, n.reshape(n.in(1), {count}));
  WEFT_TRY(const Item x, n.reshape(n.in(0), {count}));
  const auto scatter = [&](const Item& values) {
    return n.emit(OpKind::GatherElementsGrad, {values, indices},
                  {{Attr::Axis, int64_t{0}}, {Attr::Shape, total}});
  };
  WEFT_TRY(Item y, scatter(x));
  WEFT_TRY(const Item ones, n.expand(n.like(x, 1), {count}));
  WEFT_TRY(Item hits, scatter(ones));
  WEFT_TRY(hits, n.emit(OpKind::Max, {hits, n.like(x, 1)}));
  WEFT_TRY(y, n.emit(OpKind::Div, {y, hits}));
  return n.reshape(y, shape);
}

Status lower_max_unpool(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY_STATUS(check_image(n));
  if (n.in(1).shape() != n.in(0).shape())
    return n.invalid("x " + to_string(n.in(0).spec) + " and indices " + to_string(n.in(1).spec) +
                     " do not go together");
  WEFT_TRY(const Shape shape, unpooled_shape(n));
  WEFT_TRY(const Item y, placed(n, shape));
  if (!n.has(2)) return n.give(y);
  WEFT_TRY(const Ints wanted, n.ints(2, "output_shape"));
  if (wanted.size() != shape.size())
    return n.invalid("output_shape " + to_string(wanted) + " has not the rank of " + to_string(shape));
  Ints pads(2 * shape.size(), 0);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (wanted[d] < 1 || wanted[d] > dag::kElementCountMax)
      return n.invalid("output_shape is " + to_string(wanted));
    pads[shape.size() + d] = wanted[d] - shape[d];
  }
  if (wanted == shape) return n.give(y);
  return n.give(n.emit(OpKind::Pad, {y}, {{Attr::Pads, pads}, {Attr::Mode, "constant"}, {Attr::Value, 0.0}}));
}

Status global_pool(NodeContext& n, OpKind kind) {
  WEFT_TRY_STATUS(n.need(1));
  if (n.in(0).rank() < 3) return n.invalid("x " + to_string(n.in(0).spec) + " has no spatial dims");
  Ints axes;
  for (int64_t d = 2; d < n.in(0).rank(); ++d) axes.push_back(d);
  return n.give(n.reduce(kind, n.in(0), axes, true));
}
Status lower_global_average_pool(NodeContext& n) { return global_pool(n, OpKind::ReduceMean); }
Status lower_global_max_pool(NodeContext& n) { return global_pool(n, OpKind::ReduceMax); }

constexpr LowerRow kPoolingRows[] = {
    {"MaxPool", lower_max_pool},
    {"AveragePool", lower_average_pool},
    {"GlobalAveragePool", lower_global_average_pool},
    {"GlobalMaxPool", lower_global_max_pool},
    {"LpPool", lower_lp_pool},
    {"GlobalLpPool", lower_global_lp_pool},
    {"MaxUnpool", lower_max_unpool, operands(0), operands(2)},
};

}  // namespace

std::span<const LowerRow> pooling_lowerings() { return kPoolingRows; }

}  // namespace weft::onnx
