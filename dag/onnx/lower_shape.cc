// Shape manipulation. Every shape is known here; operands that give shapes must be.
#include <algorithm>
#include <limits>
#include <set>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

int64_t product(const Shape& shape, size_t begin, size_t end) {
  int64_t total = 1;
  for (size_t i = begin; i < end; ++i) total *= shape[i];
  return total;
}

// Axes from operand `i` (opset 13 on) or the attribute; normalised, sorted, unique.
Result<std::optional<Ints>> read_axes(NodeContext& n, size_t i, int64_t rank) {
  Ints axes;
  if (n.has(i)) {
    WEFT_TRY(axes, n.ints(i, "axes"));
  } else if (n.has_attr("axes")) {
    axes = n.ints_attr("axes");
  } else {
    return std::nullopt;
  }
  for (int64_t& axis : axes) {
    const auto normal = dag::normalise_axis(axis, rank);
    if (!normal) return n.invalid(normal.error().message);
    axis = *normal;
  }
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) return n.invalid("an axis is given twice");
  return axes;
}

// What to set where `shape`, of `known` elements beside an open dim, has room for another batch than x has:
// a batch that the exporter wrote down.
std::string cure_of_literal_batch(const NodeContext& n, const Item& x, const Ints& shape, int64_t known,
                                  bool open) {
  const int64_t batch = n.batch().value_or(0);
  if (x.known || batch < 1 || x.rank() < 1 || shape.empty() || x.spec.element_count() % batch != 0) return {};
  const int64_t sample = x.spec.element_count() / batch;
  if (!open && sample > 0 && known % sample == 0) return n.literal_batch_cure(known / sample);
  return x.shape()[0] == batch ? n.literal_batch_cure(shape[0]) : std::string();
}

Status lower_reshape(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  WEFT_TRY(Ints shape, n.ints(1, "shape"));
  const Ints written = shape;
  const bool allow_zero = n.int_attr("allowzero", 0) != 0;
  int64_t known = 1;
  int64_t open = -1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && !allow_zero) {
      if (i >= x.shape().size())
        return n.invalid("shape " + to_string(shape) + " copies a dim that x does not have");
      shape[i] = x.shape()[i];
    }
    if (shape[i] == -1) {
      if (open >= 0) return n.invalid("shape " + to_string(shape) + " leaves two dims open");
      open = static_cast<int64_t>(i);
    } else if (shape[i] < 0 || shape[i] > dag::kElementCountMax ||
               (known != 0 && shape[i] > dag::kElementCountMax / std::max<int64_t>(known, 1))) {
      return n.invalid("shape " + to_string(shape) + " is out of range");
    } else {
      known *= shape[i];
    }
  }
  const int64_t count = x.spec.element_count();
  const std::string cure = cure_of_literal_batch(n, x, written, known, open >= 0);
  const bool fits = open >= 0 ? known != 0 && count % known == 0 : known == count;
  if (!fits)
    return n.invalid(to_string(x.spec) + " does not fit into shape " + to_string(written) +
                     (cure.empty() ? "" : "; " + cure));
  if (open >= 0) shape[static_cast<size_t>(open)] = count / known;
  n.note_literal_batch(cure);  // it fits, and what comes behind may not
  return n.give(n.reshape(x, std::move(shape)));
}

Status lower_flatten(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  int64_t axis = n.int_attr("axis", 1);
  if (axis < 0) axis += x.rank();
  if (axis < 0 || axis > x.rank()) return n.invalid("its axis is out of range");
  const auto cut = static_cast<size_t>(axis);
  return n.give(n.reshape(x, {product(x.shape(), 0, cut), product(x.shape(), cut, x.shape().size())}));
}

Status lower_squeeze(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  WEFT_TRY(const auto axes, read_axes(n, 1, x.rank()));
  Shape shape;
  for (int64_t d = 0; d < x.rank(); ++d) {
    const int64_t size = x.shape()[static_cast<size_t>(d)];
    const bool named = axes && std::binary_search(axes->begin(), axes->end(), d);
    if (named && size != 1)
      return n.invalid("dim " + std::to_string(d) + " of " + to_string(x.spec) + " is not 1");
    if (!(named || (!axes && size == 1))) shape.push_back(size);
  }
  return n.give(n.reshape(x, std::move(shape)));
}

Status lower_unsqueeze(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  size_t added = n.ints_attr("axes").size();
  if (n.has(1)) {
    WEFT_TRY(const Ints axes, n.ints(1, "axes"));
    added = axes.size();
  }
  if (added + x.shape().size() > static_cast<size_t>(n.options().limits.rank_max))
    return n.invalid("too many dims");
  WEFT_TRY(const auto axes, read_axes(n, 1, x.rank() + static_cast<int64_t>(added)));
  if (!axes) return n.invalid("its axes are missing");
  Shape shape = x.shape();
  for (const int64_t axis : *axes) shape.insert(shape.begin() + axis, 1);
  return n.give(n.reshape(x, std::move(shape)));
}

Status lower_transpose(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  Ints perm = n.ints_attr("perm");
  if (perm.empty())
    for (int64_t d = n.in(0).rank(); d-- > 0;) perm.push_back(d);
  std::set<int64_t> seen(perm.begin(), perm.end());
  if (static_cast<int64_t>(perm.size()) != n.in(0).rank() || seen.size() != perm.size() ||
      (!perm.empty() && (*seen.begin() != 0 || *seen.rbegin() != n.in(0).rank() - 1)))
    return n.invalid("perm " + to_string(perm) + " does not permute the dims of " + to_string(n.in(0).spec));
  return n.give(n.transpose(n.in(0), std::move(perm)));
}

// One dim of a slice as numpy has it: how many elements, and from where.
struct Range {
  int64_t start, size;
};
Range numpy_range(int64_t start, int64_t end, int64_t step, int64_t dim) {
  const auto place = [&](int64_t at) {
    if (at < 0) at = at < -dim ? -1 - dim : at;  // far out on the left stays out
    if (at < 0) at += dim;
    return step > 0 ? std::clamp<int64_t>(at, 0, dim) : std::clamp<int64_t>(at, -1, dim - 1);
  };
  const int64_t first = place(start);
  const int64_t last = place(end);
  const int64_t distance = step > 0 ? last - first : first - last;
  const int64_t stride =
      step > 0 ? step
               : (step == std::numeric_limits<int64_t>::min() ? std::numeric_limits<int64_t>::max() : -step);
  const int64_t size = distance <= 0 ? 0 : (distance - 1) / stride + 1;
  return {size == 0 ? 0 : first, size};
}

Status lower_slice(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  Ints starts, ends, axes, steps;
  if (n.opset() < 10) {
    starts = n.ints_attr("starts");
    ends = n.ints_attr("ends");
    axes = n.ints_attr("axes");
  } else {
    WEFT_TRY_STATUS(n.need(3));
    WEFT_TRY(starts, n.ints(1, "starts"));
    WEFT_TRY(ends, n.ints(2, "ends"));
    if (n.has(3)) {
      WEFT_TRY(axes, n.ints(3, "axes"));
    }
    if (n.has(4)) {
      WEFT_TRY(steps, n.ints(4, "steps"));
    }
  }
  if (axes.empty())
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (starts.size() != ends.size() || starts.size() != axes.size() || starts.size() != steps.size())
    return n.invalid("starts, ends, axes and steps have different lengths");
  Ints out_starts(x.shape().size(), 0);
  Ints out_sizes = x.shape();
  Ints out_steps(x.shape().size(), 1);
  std::set<int64_t> seen;
  for (size_t i = 0; i < starts.size(); ++i) {
    const auto axis = dag::normalise_axis(axes[i], x.rank());
    if (!axis) return n.invalid(axis.error().message);
    if (!seen.insert(*axis).second) return n.invalid("an axis is given twice");
    if (steps[i] == 0) return n.invalid("a step is 0");
    const auto d = static_cast<size_t>(*axis);
    const Range range = numpy_range(starts[i], ends[i], steps[i], x.shape()[d]);
    out_starts[d] = range.start;
    out_sizes[d] = range.size;
    out_steps[d] = range.size <= 1 ? 1 : steps[i];
  }
  if (out_sizes == x.shape() &&
      std::all_of(out_steps.begin(), out_steps.end(), [](int64_t s) { return s == 1; }))
    return n.give(x);
  return n.give(n.emit(OpKind::Slice, {x},
                       {{Attr::Starts, out_starts}, {Attr::Sizes, out_sizes}, {Attr::Steps, out_steps}}));
}

Status lower_split(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", 0, x.rank()));
  const int64_t size = x.shape()[static_cast<size_t>(axis)];
  const auto parts = static_cast<int64_t>(n.output_count());
  Ints sizes = n.ints_attr("split");
  if (n.has(1)) {
    WEFT_TRY(sizes, n.ints(1, "split"));
  }
  if (n.has_attr("num_outputs") && n.int_attr("num_outputs", 0) != parts)
    return n.invalid("num_outputs is " + std::to_string(n.int_attr("num_outputs", 0)) + " for " +
                     std::to_string(parts) + " outputs");
  if (sizes.empty() && !n.has(1) && parts > 0) {
    // From opset 18 on the last part takes what is left, and may be smaller.
    const int64_t part = n.opset() >= 18 ? (size + parts - 1) / parts : size / parts;
    sizes.assign(n.output_count(), part);
    if (n.opset() >= 18) sizes.back() = size - part * (parts - 1);
    if (sizes.back() < 0 || (n.opset() < 18 && size % parts != 0))
      return n.invalid("dim " + std::to_string(axis) + " of " + to_string(x.spec) + " does not split into " +
                       std::to_string(parts));
  }
  if (sizes.size() != n.output_count())
    return n.invalid("split " + to_string(sizes) + " does not fit its outputs");
  int64_t start = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > size - start)
      return n.invalid("split " + to_string(sizes) + " does not fit " + to_string(x.spec));
    WEFT_TRY(Item part, n.slice(x, axis, start, sizes[i]));
    n.out(i, std::move(part));
    start += sizes[i];
  }
  if (start != size) return n.invalid("split " + to_string(sizes) + " does not fit " + to_string(x.spec));
  return {};
}

// An operand of length 0, such as the past of a sequence that begins. `last` always stays.
bool adds_nothing(const Item& item, const Item& last, int64_t axis) {
  if (&item == &last || item.dtype() != last.dtype() || item.rank() != last.rank()) return false;
  for (int64_t d = 0; d < item.rank(); ++d) {
    const auto at = static_cast<size_t>(d);
    if (d == axis ? item.shape()[at] != 0 : item.shape()[at] != last.shape()[at]) return false;
  }
  return true;
}

Status lower_concat(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(std::max<size_t>(1, n.count())));
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", 1, n.in(0).rank()));
  Items operands;
  for (size_t i = 0; i < n.count(); ++i)
    if (!adds_nothing(n.in(i), n.in(n.count() - 1), axis)) operands.push_back(n.in(i));
  if (operands.size() == 1) return n.give(operands[0]);
  return n.give(n.emit(OpKind::Concat, std::move(operands), {{Attr::Axis, axis}}));
}

Status lower_expand(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY(const Ints wanted, n.ints(1, "shape"));
  for (const int64_t dim : wanted)
    if (dim < 0) return n.invalid("shape " + to_string(wanted) + " has a negative dim");
  const Shape& x = n.in(0).shape();
  const auto shape = dag::broadcast_shapes(x, wanted);
  if (!shape) return n.invalid(shape.error().message);
  // A token that is put before each sample's own, say.
  if (x.size() == wanted.size() && x.size() > 1 && x[0] == 1)
    n.note_literal_batch(n.literal_batch_cure(wanted[0]));
  return n.give(n.expand(n.in(0), *shape));
}

struct PadForm {
  Ints pads;  // of every dim: begins, then ends
  double value = 0;
};

// From opset 18 on the pads may be of some axes only.
Status spread_pads(NodeContext& n, Ints& pads) {
  WEFT_TRY(Ints axes, n.ints(3, "axes"));
  const auto rank = n.in(0).shape().size();
  if (pads.size() != 2 * axes.size())
    return n.invalid("pads " + to_string(pads) + " do not fit axes " + to_string(axes));
  Ints all(2 * rank, 0);
  std::set<int64_t> seen;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = dag::normalise_axis(axes[i], n.in(0).rank());
    if (!axis) return n.invalid(axis.error().message);
    if (!seen.insert(*axis).second) return n.invalid("an axis is given twice");
    all[static_cast<size_t>(*axis)] = pads[i];
    all[rank + static_cast<size_t>(*axis)] = pads[axes.size() + i];
  }
  pads = std::move(all);
  return {};
}

Result<PadForm> read_pads(NodeContext& n) {
  PadForm form;
  if (n.opset() < 11) {
    form.pads = n.ints_attr("pads");
    form.value = n.float_attr("value", 0);
    return form;
  }
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY(form.pads, n.ints(1, "pads"));
  if (n.has(2)) {
    if (!n.in(2).known || n.in(2).spec.element_count() != 1)
      return n.unsupported("its fill value is not a constant");
    form.value = to_doubles(*n.in(2).known)[0];
  }
  if (n.has(3)) WEFT_TRY_STATUS(spread_pads(n, form.pads));
  return form;
}

// The dim again and again, from `begin` elements before its start to `end` behind its end.
Result<Item> wrap(NodeContext& n, const Item& x, int64_t axis, int64_t begin, int64_t end) {
  constexpr int64_t kPiecesMax = 4096;
  const int64_t size = x.shape()[static_cast<size_t>(axis)];
  const auto too_far = [&](int64_t pad) { return size == 0 || pad < -size || pad / size > kPiecesMax; };
  if (too_far(begin) || too_far(end) || begin + size + end < 0)
    return n.invalid("pads of " + std::to_string(begin) + " and " + std::to_string(end) + " do not fit " +
                     to_string(x.spec));
  Items pieces;
  for (int64_t at = -begin; at < size + end;) {
    const int64_t from = (at % size + size) % size;
    const int64_t length = std::min(size - from, size + end - at);
    WEFT_TRY(Item piece, n.slice(x, axis, from, length));
    pieces.push_back(std::move(piece));
    at += length;
  }
  if (pieces.empty()) return n.slice(x, axis, 0, 0);
  if (pieces.size() == 1) return std::move(pieces[0]);
  return n.emit(OpKind::Concat, std::move(pieces), {{Attr::Axis, axis}});
}

Result<Item> wrap_all(NodeContext& n, const Ints& pads) {
  Item y = n.in(0);
  const auto rank = y.shape().size();
  for (size_t d = 0; d < rank; ++d) {
    if (pads[d] == 0 && pads[rank + d] == 0) continue;
    WEFT_TRY(y, wrap(n, y, static_cast<int64_t>(d), pads[d], pads[rank + d]));
  }
  return y;
}

Status lower_pad(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  WEFT_TRY(PadForm form, read_pads(n));
  const std::string mode = n.string_attr("mode", "constant");
  if (mode != "constant" && mode != "reflect" && mode != "edge" && mode != "wrap")
    return n.unsupported("mode '" + mode.substr(0, 32) + "'");
  if (form.pads.size() != 2 * x.shape().size())
    return n.invalid("pads " + to_string(form.pads) + " do not fit " + to_string(x.spec));
  if (std::all_of(form.pads.begin(), form.pads.end(), [](int64_t pad) { return pad == 0; })) return n.give(x);
  if (mode == "wrap") return n.give(wrap_all(n, form.pads));
  return n.give(
      n.emit(OpKind::Pad, {x}, {{Attr::Pads, form.pads}, {Attr::Mode, mode}, {Attr::Value, form.value}}));
}

// [a, b] tiled by [p, q]: [1, a, 1, b] stretched to [p, a, q, b], then flattened.
Status lower_tile(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  WEFT_TRY(const Ints repeats, n.ints(1, "repeats"));
  if (repeats.size() != x.shape().size())
    return n.invalid("repeats " + to_string(repeats) + " do not fit " + to_string(x.spec));
  Shape split, wide, flat;
  for (size_t d = 0; d < repeats.size(); ++d) {
    if (repeats[d] < 0 || repeats[d] > dag::kElementCountMax)
      return n.invalid("repeats " + to_string(repeats) + " are out of range");
    const int64_t size = x.shape()[d];
    if (size != 0 && repeats[d] > dag::kElementCountMax / size)
      return n.invalid("repeats " + to_string(repeats) + " are out of range");
    split.insert(split.end(), {1, size});
    wide.insert(wide.end(), {repeats[d], size});
    flat.push_back(repeats[d] * size);
  }
  if (flat == x.shape()) return n.give(x);
  WEFT_TRY(Item y, n.reshape(x, split));
  WEFT_TRY(y, n.expand(y, wide));
  return n.give(n.reshape(y, flat));
}

Status lower_depth_to_space(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  const int64_t block = n.int_attr("blocksize", 0);
  if (x.rank() != 4 || block < 1 || block > 65536 || x.shape()[1] % (block * block) != 0)
    return n.invalid("blocksize " + std::to_string(block) + " does not fit " + to_string(x.spec));
  const std::string mode = n.string_attr("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") return n.invalid("mode is '" + mode.substr(0, 32) + "'");
  const int64_t batch = x.shape()[0], channels = x.shape()[1] / (block * block), height = x.shape()[2],
                width = x.shape()[3];
  WEFT_TRY(Item y, n.reshape(x, mode == "DCR" ? Shape{batch, block, block, channels, height, width}
                                              : Shape{batch, channels, block, block, height, width}));
  WEFT_TRY(y, n.transpose(y, mode == "DCR" ? Ints{0, 3, 4, 1, 5, 2} : Ints{0, 1, 4, 2, 5, 3}));
  return n.give(n.reshape(y, {batch, channels, height * block, width * block}));
}

Status lower_space_to_depth(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  const int64_t block = n.int_attr("blocksize", 0);
  if (x.rank() != 4 || block < 1 || block > 65536 || x.shape()[2] % block != 0 || x.shape()[3] % block != 0)
    return n.invalid("blocksize " + std::to_string(block) + " does not fit " + to_string(x.spec));
  const int64_t batch = x.shape()[0], channels = x.shape()[1], height = x.shape()[2] / block,
                width = x.shape()[3] / block;
  WEFT_TRY(Item y, n.reshape(x, {batch, channels, height, block, width, block}));
  WEFT_TRY(y, n.transpose(y, {0, 3, 5, 1, 2, 4}));
  return n.give(n.reshape(y, {batch, channels * block * block, height, width}));
}

constexpr LowerRow kShapeRows[] = {
    {"Reshape", lower_reshape, operands(0), operands(1)},
    {"Flatten", lower_flatten},
    {"Squeeze", lower_squeeze, operands(0), operands(1)},
    {"Unsqueeze", lower_unsqueeze, operands(0), operands(1)},
    {"Transpose", lower_transpose},
    {"Slice", lower_slice, operands(0), operands(1, 2, 3, 4)},
    {"Split", lower_split, operands(0), operands(1)},
    {"Concat", lower_concat},
    {"Expand", lower_expand, operands(0), operands(1)},
    {"Pad", lower_pad, operands(0), operands(1, 2, 3)},
    {"Tile", lower_tile, operands(0), operands(1)},
    {"DepthToSpace", lower_depth_to_space},
    {"SpaceToDepth", lower_space_to_depth},
};

}  // namespace

std::span<const LowerRow> shape_lowerings() { return kShapeRows; }

}  // namespace weft::onnx
