// Conv, ConvTranspose, and the windows that pooling shares with them.
#include <algorithm>
#include <utility>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

constexpr int64_t kWindowMost = int64_t{1}
                                << 20;  // taps, strides and pads: beyond any model, far from overflow

Status check_each(NodeContext& n, const Ints& values, size_t count, int64_t low, const char* what) {
  if (values.size() != count)
    return n.invalid(std::string(what) + " has " + std::to_string(values.size()) + " entries for " +
                     std::to_string(count));
  for (const int64_t value : values)
    if (value < low || value > kWindowMost)
      return n.invalid(std::string(what) + " has the entry " + std::to_string(value));
  return {};
}

Ints or_ones(Ints values, size_t count) { return values.empty() ? Ints(count, 1) : std::move(values); }

int64_t extent_of(const Windows& windows, size_t d) {
  return windows.dilations[d] * (windows.kernel[d] - 1) + 1;
}

}  // namespace

Result<Windows> read_windows(NodeContext& n, const Shape& spatial, Ints kernel) {
  const size_t dims = spatial.size();
  Windows windows;
  windows.kernel = std::move(kernel);
  windows.strides = or_ones(n.ints_attr("strides"), dims);
  windows.dilations = or_ones(n.ints_attr("dilations"), dims);
  windows.pads = n.ints_attr("pads");
  WEFT_TRY_STATUS(n.attribute_status());
  WEFT_TRY_STATUS(check_each(n, windows.kernel, dims, 1, "kernel_shape"));
  WEFT_TRY_STATUS(check_each(n, windows.strides, dims, 1, "strides"));
  WEFT_TRY_STATUS(check_each(n, windows.dilations, dims, 1, "dilations"));
  const std::string mode = n.string_attr("auto_pad", "NOTSET");
  if (mode == "NOTSET" || mode.empty()) {
    if (windows.pads.empty()) windows.pads.assign(2 * dims, 0);
    WEFT_TRY_STATUS(check_each(n, windows.pads, 2 * dims, 0, "pads"));
    return windows;
  }
  windows.pads.assign(2 * dims, 0);
  if (mode == "VALID") return windows;
  if (mode != "SAME_UPPER" && mode != "SAME_LOWER")
    return n.invalid("auto_pad is '" + mode.substr(0, 32) + "'");
  for (size_t d = 0; d < dims; ++d) {
    // Output size is ceil(size / stride); what is missing is shared out, the odd one at the named end.
    const int64_t stride = windows.strides[d];
    const int64_t count = (spatial[d] + stride - 1) / stride;
    const int64_t total = std::max<int64_t>(0, (count - 1) * stride + extent_of(windows, d) - spatial[d]);
    const int64_t less = total / 2;
    windows.pads[d] = mode == "SAME_UPPER" ? less : total - less;
    windows.pads[dims + d] = total - windows.pads[d];
  }
  return windows;
}

namespace {

Status check_operands(NodeContext& n, const Item& x, const Item& w) {
  if (x.rank() < 3 || x.rank() != w.rank())
    return n.invalid("x " + to_string(x.spec) + " and w " + to_string(w.spec) + " do not go together");
  if (x.rank() > 5) return n.unsupported("more than three spatial dims");
  const Ints kernel = n.ints_attr("kernel_shape");
  if (!kernel.empty() && kernel != Ints(w.shape().begin() + 2, w.shape().end()))
    return n.invalid("kernel_shape differs from the weight's shape " + to_string(w.shape()));
  return {};
}

Attributes window_attributes(const Windows& windows, int64_t groups) {
  return {{Attr::Strides, windows.strides},
          {Attr::Dilations, windows.dilations},
          {Attr::Pads, windows.pads},
          {Attr::Groups, groups}};
}

Status lower_conv(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  const Item& w = n.in(1);
  WEFT_TRY_STATUS(check_operands(n, x, w));
  WEFT_TRY(const Windows windows, read_windows(n, {x.shape().begin() + 2, x.shape().end()},
                                               {w.shape().begin() + 2, w.shape().end()}));
  Items operands{x, w};
  if (n.has(2)) operands.push_back(n.in(2));
  return n.give(
      n.emit(OpKind::Conv, std::move(operands), window_attributes(windows, n.int_attr("group", 1))));
}

// A transposed convolution is the gradient of a convolution with respect to its input: x plays dy.
Status lower_conv_transpose(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  const Item& w = n.in(1);  // [C, M/groups, kernel...]
  WEFT_TRY_STATUS(check_operands(n, x, w));
  const Shape spatial(x.shape().begin() + 2, x.shape().end());
  const size_t dims = spatial.size();
  const std::string mode = n.string_attr("auto_pad", "NOTSET");
  const int64_t groups = n.int_attr("group", 1);
  if (groups < 1 || groups > kWindowMost) return n.invalid("group is " + std::to_string(groups));
  Ints extra = n.ints_attr("output_padding");
  if (extra.empty()) extra.assign(dims, 0);
  WEFT_TRY_STATUS(check_each(n, extra, dims, 0, "output_padding"));
  Ints wanted = n.ints_attr("output_shape");
  if (wanted.size() == dims + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);

  // auto_pad means something else here, so the windows are read as if it were not set.
  Windows windows;
  windows.kernel.assign(w.shape().begin() + 2, w.shape().end());
  windows.strides = or_ones(n.ints_attr("strides"), dims);
  windows.dilations = or_ones(n.ints_attr("dilations"), dims);
  windows.pads = n.ints_attr("pads");
  const bool same = mode == "SAME_UPPER" || mode == "SAME_LOWER";
  if (windows.pads.empty() || same || mode == "VALID") windows.pads.assign(2 * dims, 0);
  WEFT_TRY_STATUS(n.attribute_status());
  WEFT_TRY_STATUS(check_each(n, windows.kernel, dims, 1, "the kernel"));
  WEFT_TRY_STATUS(check_each(n, windows.strides, dims, 1, "strides"));
  WEFT_TRY_STATUS(check_each(n, windows.dilations, dims, 1, "dilations"));
  WEFT_TRY_STATUS(check_each(n, windows.pads, 2 * dims, 0, "pads"));
  if (!wanted.empty()) WEFT_TRY_STATUS(check_each(n, wanted, dims, 1, "output_shape"));

  Shape shape{x.shape()[0], w.shape()[1] * groups};
  for (size_t d = 0; d < dims; ++d) {
    const int64_t reach = windows.strides[d] * (spatial[d] - 1) + extra[d] + extent_of(windows, d);
    int64_t size = reach - windows.pads[d] - windows.pads[dims + d];
    if (!wanted.empty() || same) {
      size = wanted.empty() ? spatial[d] * windows.strides[d] : wanted[d];
      const int64_t total = std::max<int64_t>(0, reach - size);
      windows.pads[d] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
      windows.pads[dims + d] = total - windows.pads[d];
    }
    if (size < 1) return n.invalid("its output would be empty");
    shape.push_back(size);
  }
  Attributes attributes = window_attributes(windows, groups);
  attributes.set(Attr::Shape, shape);
  WEFT_TRY(Item y, n.emit(OpKind::ConvGradInput, {x, w}, std::move(attributes)));
  if (!n.has(2)) return n.give(y);
  Shape bias_shape(dims + 1, 1);
  bias_shape[0] = shape[1];
  if (n.in(2).spec.element_count() != shape[1])
    return n.invalid("its bias has shape " + to_string(n.in(2).shape()));
  WEFT_TRY(const Item bias, n.reshape(n.in(2), bias_shape));
  return n.give(n.emit(OpKind::Add, {y, bias}));
}

// The columns under a convolution's windows, added to where they come from: the gradient of a convolution
// that hands on each tap as a channel of its own.
Status lower_col2im(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  const Item& x = n.in(0);  // [N, C * taps, windows]
  WEFT_TRY(const Ints image, n.ints(1, "image_shape"));
  WEFT_TRY(const Ints block, n.ints(2, "block_shape"));
  const size_t dims = image.size();
  if (dims < 1 || dims > 3) return n.unsupported("an image of " + std::to_string(dims) + " dims");
  WEFT_TRY_STATUS(check_each(n, image, dims, 1, "image_shape"));
  WEFT_TRY(const Windows windows, read_windows(n, image, block));
  int64_t taps = 1;
  for (const int64_t size : windows.kernel) {
    taps *= size;
    if (taps > 1024) return n.unsupported("a block of more than 1024 elements");
  }
  if (x.rank() != 3 || x.shape()[1] % taps != 0)
    return n.invalid("x " + to_string(x.spec) + " does not go with a block of " + std::to_string(taps));
  const int64_t images = x.shape()[0] * (x.shape()[1] / taps);
  Shape columns{images, taps}, whole{images, 1}, result{x.shape()[0], x.shape()[1] / taps};
  int64_t count = 1;
  for (size_t d = 0; d < dims; ++d) {
    const int64_t slack = image[d] + windows.pads[d] + windows.pads[dims + d] - extent_of(windows, d);
    if (slack < 0) return n.invalid("a block is larger than the image");
    columns.push_back(slack / windows.strides[d] + 1);
    count *= columns.back();
    whole.push_back(image[d]);
    result.push_back(image[d]);
  }
  if (count != x.shape()[2])
    return n.invalid("x " + to_string(x.spec) + " has not the " + std::to_string(count) +
                     " windows of the image");
  Shape weight{taps, 1};
  weight.insert(weight.end(), windows.kernel.begin(), windows.kernel.end());
  std::vector<double> identity(static_cast<size_t>(taps * taps));
  for (int64_t i = 0; i < taps; ++i) identity[static_cast<size_t>(i * taps + i)] = 1;
  WEFT_TRY(Item y, n.reshape(x, columns));
  Attributes attributes = window_attributes(windows, 1);
  attributes.set(Attr::Shape, whole);
  const Item each = n.constant(dag::from_doubles({x.dtype(), weight}, identity));
  WEFT_TRY(y, n.emit(OpKind::ConvGradInput, {y, each}, std::move(attributes)));
  return n.give(n.reshape(y, result));
}

// Every tap's pixels as columns, then one product a group.
Result<Item> columns_times_weight(NodeContext& n, const Item& columns, const Item& w, int64_t groups) {
  const int64_t images = columns.shape()[0], terms = columns.shape()[1], windows = columns.shape()[2];
  WEFT_TRY(const Item x, n.reshape(columns, {images, groups, terms / groups, windows}));
  WEFT_TRY(const Item factors, n.reshape(w, {groups, w.shape()[0] / groups, terms / groups}));
  return n.emit(OpKind::MatMul, {factors, x});
}

Status lower_deform_conv(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  const Item &x = n.in(0), &w = n.in(1), &offset = n.in(2);
  WEFT_TRY_STATUS(check_operands(n, x, w));
  if (x.rank() != 4) return n.unsupported("other than two spatial dims");
  const int64_t groups = n.int_attr("group", 1);
  if (groups < 1 || groups > kWindowMost || w.shape()[0] % groups != 0 ||
      x.shape()[1] != w.shape()[1] * groups)
    return n.invalid("x " + to_string(x.spec) + " and w " + to_string(w.spec) + " do not go with " +
                     std::to_string(groups) + " groups");
  WEFT_TRY(const Windows windows,
           read_windows(n, {x.shape()[2], x.shape()[3]}, {w.shape().begin() + 2, w.shape().end()}));
  Items operands{x, offset};
  if (n.has(4)) operands.push_back(n.in(4));
  WEFT_TRY(const Item columns, n.emit(OpKind::DeformColumns, std::move(operands),
                                      {{Attr::Kernel, windows.kernel},
                                       {Attr::Strides, windows.strides},
                                       {Attr::Dilations, windows.dilations},
                                       {Attr::Pads, windows.pads},
                                       {Attr::OffsetGroups, n.int_attr("offset_group", 1)}}));
  WEFT_TRY(Item y, columns_times_weight(n, columns, w, groups));
  WEFT_TRY(y, n.reshape(y, {x.shape()[0], w.shape()[0], offset.shape()[2], offset.shape()[3]}));
  if (!n.has(3)) return n.give(y);
  if (n.in(3).shape() != Shape{w.shape()[0]})
    return n.invalid("its bias has shape " + to_string(n.in(3).shape()));
  WEFT_TRY(const Item bias, n.reshape(n.in(3), {w.shape()[0], 1, 1}));
  return n.give(n.emit(OpKind::Add, {y, bias}));
}

constexpr LowerRow kConvolutionRows[] = {
    {"Conv", lower_conv},
    {"ConvTranspose", lower_conv_transpose},
    {"Col2Im", lower_col2im, operands(0), operands(1, 2)},
    {"DeformConv", lower_deform_conv},
};

}  // namespace

std::span<const LowerRow> convolution_lowerings() { return kConvolutionRows; }

}  // namespace weft::onnx
