#include "dag/onnx/selection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace weft::onnx {
namespace {

Status need_known(const NodeContext& n, size_t i, const char* what) {
  if (!n.in(i).known)
    return n.unsupported(std::string("the shape of its result depends on data: its ") + what +
                         " is only known when the model runs");
  if (n.in(i).spec.element_count() > n.options().limits.folded_value_bytes_max / 8)
    return n.unsupported(std::string("its ") + what + " is too large to be looked through at import");
  return {};
}

Item whole_numbers(const NodeContext& n, Shape shape, const Ints& values) {
  return n.constant(dag::from_int64s({DType::I64, std::move(shape)}, values));
}
Item line_of(const NodeContext& n, const Ints& values) {
  return whole_numbers(n, {static_cast<int64_t>(values.size())}, values);
}

// What Compress and Unique choose among: the slices along attribute axis, without one the elements.
struct Slices {
  Item x;
  int64_t axis = 0;
};
Result<Slices> slices_along_axis(NodeContext& n) {
  Slices slices{n.in(0)};
  if (n.has_attr("axis")) {
    WEFT_TRY(slices.axis, n.axis_attr("axis", 0, slices.x.rank()));
  } else {
    WEFT_TRY(slices.x, n.reshape(slices.x, {slices.x.spec.element_count()}));
  }
  return slices;
}

}  // namespace

Status lower_top_k(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(n.opset() < 10 ? 1 : 2));
  const Item& x = n.in(0);
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", -1, x.rank()));
  int64_t count = n.int_attr("k", 0);
  if (n.opset() >= 10) {
    WEFT_TRY(count, n.one_int(1, "k"));
  }
  if (count < 0 || count > x.shape()[static_cast<size_t>(axis)])
    return n.invalid("k is " + std::to_string(count) + ", and dim " + std::to_string(axis) + " of x " +
                     to_string(x.spec) + " has not so many elements");
  WEFT_TRY(const Items out, n.emit_all(OpKind::TopK, {x},
                                       {{Attr::Axis, axis},
                                        {Attr::Count, count},
                                        {Attr::Largest, int64_t{n.int_attr("largest", 1) != 0}},
                                        {Attr::Sorted, int64_t{n.int_attr("sorted", 1) != 0}}}));
  for (size_t i = 0; i < std::min<size_t>(2, n.output_count()); ++i) n.out(i, out[i]);
  return {};
}

Status lower_compress(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY_STATUS(need_known(n, 1, "condition"));
  WEFT_TRY(const Slices of, slices_along_axis(n));
  const auto& [x, axis] = of;
  const auto condition = to_int64s(*n.in(1).known);
  if (n.in(1).rank() != 1 || static_cast<int64_t>(condition.size()) > x.shape()[static_cast<size_t>(axis)])
    return n.invalid("its condition " + to_string(n.in(1).spec) + " does not fit x " + to_string(x.spec));
  Ints kept;
  for (size_t i = 0; i < condition.size(); ++i)
    if (condition[i] != 0) kept.push_back(static_cast<int64_t>(i));
  return n.give(n.emit(OpKind::Gather, {x, line_of(n, kept)}, {{Attr::Axis, axis}}));
}

// A column of coordinates for each element that is not zero.
Status lower_non_zero(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY_STATUS(need_known(n, 0, "operand"));
  const auto values = to_doubles(*n.in(0).known);
  const Shape& shape = n.in(0).shape();
  Ints places;
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != 0) places.push_back(static_cast<int64_t>(i));
  Ints coordinates;
  int64_t stride = n.in(0).spec.element_count();
  for (const int64_t dim : shape) {
    if (!places.empty()) stride /= dim;
    for (const int64_t place : places) coordinates.push_back(place / stride % dim);
  }
  n.out(0, whole_numbers(n, {n.in(0).rank(), static_cast<int64_t>(places.size())}, coordinates));
  return {};
}

// ---- Unique ----

namespace {

// Equal slices as one: the first of each, which one every slice is, and how often it occurs.
struct Distinct {
  Ints first, inverse, counts;
};

// -1, 0, 1; a NaN is equal to another and larger than all else.
int compared(double a, double b) {
  if (std::isnan(a) || std::isnan(b))
    return static_cast<int>(std::isnan(a)) - static_cast<int>(std::isnan(b));
  return a < b ? -1 : a > b;
}

// `slices` of `width` numbers each.
Distinct distinct_slices(const std::vector<double>& numbers, int64_t slices, int64_t width, bool sorted) {
  const auto compare = [&](int64_t a, int64_t b) {
    for (int64_t i = 0; i < width; ++i)
      if (const int order = compared(numbers[static_cast<size_t>(a * width + i)],
                                     numbers[static_cast<size_t>(b * width + i)]);
          order != 0)
        return order;
    return 0;
  };
  Ints order(static_cast<size_t>(slices));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return compare(a, b) < 0; });
  Distinct made;
  Ints group(order.size());  // by slice
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || compare(order[i - 1], order[i]) != 0) {
      made.first.push_back(order[i]);
      made.counts.push_back(0);
    }
    group[static_cast<size_t>(order[i])] = static_cast<int64_t>(made.first.size()) - 1;
    ++made.counts.back();
  }
  Ints place(made.first.size());  // in the result, by group
  std::iota(place.begin(), place.end(), 0);
  if (!sorted) {
    Ints by_appearance = place;
    std::sort(by_appearance.begin(), by_appearance.end(), [&](int64_t a, int64_t b) {
      return made.first[static_cast<size_t>(a)] < made.first[static_cast<size_t>(b)];
    });
    Distinct turned;
    for (size_t i = 0; i < by_appearance.size(); ++i) {
      const auto from = static_cast<size_t>(by_appearance[i]);
      place[from] = static_cast<int64_t>(i);
      turned.first.push_back(made.first[from]);
      turned.counts.push_back(made.counts[from]);
    }
    made = std::move(turned);
  }
  for (const int64_t g : group) made.inverse.push_back(place[static_cast<size_t>(g)]);
  return made;
}

}  // namespace

Status lower_unique(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY_STATUS(need_known(n, 0, "operand"));
  if (n.in(0).dtype() == DType::I64 || n.in(0).dtype() == DType::U64)
    for (const int64_t value : to_int64s(*n.in(0).known))
      if (value < -(int64_t{1} << 53) || value > (int64_t{1} << 53))
        return n.unsupported("integers beyond 2^53");
  WEFT_TRY(const Slices of, slices_along_axis(n));
  const auto& [x, axis] = of;
  const int64_t slices = x.shape()[static_cast<size_t>(axis)];
  Ints perm(x.shape().size());
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin(), perm.begin() + axis, perm.begin() + axis + 1);
  WEFT_TRY(const Item turned, n.transpose(x, perm));
  if (!turned.known) return n.unsupported("an operand that is too large to be sorted at import");
  const Distinct distinct =
      distinct_slices(to_doubles(*turned.known), slices, slices == 0 ? 0 : x.spec.element_count() / slices,
                      n.int_attr("sorted", 1) != 0);
  WEFT_TRY_STATUS(n.give(n.emit(OpKind::Gather, {x, line_of(n, distinct.first)}, {{Attr::Axis, axis}})));
  if (n.output_count() > 1) n.out(1, line_of(n, distinct.first));
  if (n.output_count() > 2) n.out(2, line_of(n, distinct.inverse));
  if (n.output_count() > 3) n.out(3, line_of(n, distinct.counts));
  return {};
}

// ---- NonMaxSuppression ----

namespace {

struct Box {
  double top, left, bottom, right;
  double area() const { return (bottom - top) * (right - left); }
};

// Corners in any order, or a centre and sizes.
Box box_of(const double* numbers, bool centre) {
  if (centre) {
    const double x = numbers[0], y = numbers[1], w = numbers[2] / 2, h = numbers[3] / 2;
    return {y - h, x - w, y + h, x + w};
  }
  return {std::min(numbers[0], numbers[2]), std::min(numbers[1], numbers[3]),
          std::max(numbers[0], numbers[2]), std::max(numbers[1], numbers[3])};
}

bool overlap_beyond(const Box& a, const Box& b, double threshold) {
  const double height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  const double width = std::min(a.right, b.right) - std::max(a.left, b.left);
  if (height <= 0 || width <= 0) return false;
  const double both = height * width;
  return both / (a.area() + b.area() - both) > threshold;
}

struct SuppressionForm {
  int64_t most = 0;
  double overlap = 0;
  std::optional<double> score;
};

// The best boxes of one class, each unless it overlaps a better one.
Ints suppressed(const std::vector<Box>& boxes, const double* scores, const SuppressionForm& form) {
  Ints order;
  for (size_t i = 0; i < boxes.size(); ++i)
    if (!form.score || scores[i] > *form.score) order.push_back(static_cast<int64_t>(i));
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return compared(scores[static_cast<size_t>(a)], scores[static_cast<size_t>(b)]) > 0;
  });
  Ints kept;
  for (const int64_t candidate : order) {
    if (static_cast<int64_t>(kept.size()) >= form.most) break;
    const bool hidden = std::any_of(kept.begin(), kept.end(), [&](int64_t better) {
      return overlap_beyond(boxes[static_cast<size_t>(better)], boxes[static_cast<size_t>(candidate)],
                            form.overlap);
    });
    if (!hidden) kept.push_back(candidate);
  }
  return kept;
}

Result<SuppressionForm> read_suppression(NodeContext& n) {
  SuppressionForm form;
  for (size_t i = 2; i < 5; ++i) {
    if (!n.has(i)) continue;
    WEFT_TRY_STATUS(need_known(n, i, "threshold"));
    if (n.in(i).spec.element_count() != 1) return n.invalid("a threshold is not a single number");
    const double value = to_doubles(*n.in(i).known)[0];
    if (i == 2) form.most = to_int64s(*n.in(i).known)[0];
    if (i == 3) form.overlap = value;
    if (i == 4) form.score = value;
  }
  return form;
}

}  // namespace

Status lower_non_max_suppression(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY_STATUS(need_known(n, 0, "boxes"));
  WEFT_TRY_STATUS(need_known(n, 1, "scores"));
  WEFT_TRY(const SuppressionForm form, read_suppression(n));
  const Shape &b = n.in(0).shape(), &s = n.in(1).shape();
  if (b.size() != 3 || s.size() != 3 || b[2] != 4 || b[0] != s[0] || b[1] != s[2])
    return n.invalid("boxes " + to_string(n.in(0).spec) + " and scores " + to_string(n.in(1).spec) +
                     " do not fit each other");
  const int64_t scores_count = n.in(1).spec.element_count();
  if (b[1] > 8192 || scores_count > (int64_t{1} << 28) / std::max<int64_t>(1, b[1]))
    return n.unsupported("more boxes than are compared at import");
  const bool centre = n.int_attr("center_point_box", 0) != 0;
  const auto numbers = to_doubles(*n.in(0).known), scores = to_doubles(*n.in(1).known);
  Ints rows;
  for (int64_t image = 0; scores_count > 0 && image < b[0]; ++image) {
    std::vector<Box> boxes;
    boxes.reserve(static_cast<size_t>(b[1]));
    for (int64_t i = 0; i < b[1]; ++i)
      boxes.push_back(box_of(&numbers[static_cast<size_t>((image * b[1] + i) * 4)], centre));
    for (int64_t k = 0; k < s[1]; ++k)
      for (const int64_t box :
           suppressed(boxes, &scores[static_cast<size_t>((image * s[1] + k) * s[2])], form))
        rows.insert(rows.end(), {image, k, box});
  }
  n.out(0, whole_numbers(n, {static_cast<int64_t>(rows.size() / 3), 3}, rows));
  return {};
}

}  // namespace weft::onnx
