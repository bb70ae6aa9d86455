// Pooling.
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

// ONNX counts indices over the whole tensor, weft over one plane; storage_order 1 counts columns first.
Result<Item> onnx_indices(NodeContext& n, const Item& plane_indices, int64_t storage_order) {
  const Shape& x = n.in(0).shape();
  WEFT_TRY(Item index, n.cast(plane_indices, DType::I64));
  if (storage_order != 0) {
    if (x.size() != 4) return n.unsupported("storage_order 1 with other than two spatial dims");
    const Item width = n.scalar(DType::I64, static_cast<double>(x[3]));
    WEFT_TRY(const Item row, n.emit(OpKind::Div, {index, width}));
    WEFT_TRY(const Item column, n.emit(OpKind::Mod, {index, width}, {{Attr::Fmod, int64_t{0}}}));
    WEFT_TRY(index, n.emit(OpKind::Mul, {column, n.scalar(DType::I64, static_cast<double>(x[2]))}));
    WEFT_TRY(index, n.emit(OpKind::Add, {index, row}));
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

Status lower_average_pool(NodeContext& n) {
  WEFT_TRY_STATUS(check_image(n));
  WEFT_TRY(const Windows windows, read_windows(n, spatial_of(n.in(0)), n.ints_attr("kernel_shape")));
  if (windows.dilations != Ints(windows.kernel.size(), 1)) return n.unsupported("dilations");
  return n.give(n.emit(OpKind::AveragePool, {n.in(0)},
                       {{Attr::Kernel, windows.kernel},
                        {Attr::Strides, windows.strides},
                        {Attr::Pads, windows.pads},
                        {Attr::CeilMode, int64_t{n.int_attr("ceil_mode", 0) != 0}},
                        {Attr::CountIncludePad, int64_t{n.int_attr("count_include_pad", 0) != 0}}}));
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

constexpr LowerRow kRows[] = {
    {"MaxPool", lower_max_pool},
    {"AveragePool", lower_average_pool},
    {"GlobalAveragePool", lower_global_average_pool},
    {"GlobalMaxPool", lower_global_max_pool},
};

}  // namespace

std::span<const LowerRow> pooling_lowerings() { return kRows; }

}  // namespace weft::onnx
