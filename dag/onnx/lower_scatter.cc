// Writing to places that indices name, and reading from them: places of several coordinates become one
// number each, by integer arithmetic that stays in the graph where the indices depend on data.
#include <algorithm>
#include <limits>

#include "dag/onnx/index_arithmetic.h"
#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

Result<std::string> read_reduction(NodeContext& n) {
  std::string reduction = n.string_attr("reduction", "none");
  for (const char* known : {"none", "add", "mul", "min", "max"})
    if (reduction == known) return reduction;
  return n.invalid("reduction is '" + reduction.substr(0, 32) + "'");
}

Result<Item> scatter(NodeContext& n, const Item& data, const Item& indices, const Item& updates, int64_t axis,
                     const std::string& reduction) {
  return n.emit(OpKind::ScatterElements, {data, indices, updates},
                {{Attr::Axis, axis}, {Attr::Reduction, reduction}});
}

// Scatter is what ScatterElements was called before opset 11.
Status lower_scatter_elements(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", 0, n.in(0).rank()));
  WEFT_TRY(const std::string reduction, read_reduction(n));
  return n.give(scatter(n, n.in(0), n.in(1), n.in(2), axis, reduction));
}

// Saturates: beside an empty dim the others may claim anything, and no value of such a shape is accepted.
int64_t product_of(const Shape& shape, size_t begin, size_t end) {
  int64_t count = 1;
  for (size_t d = begin; d < end; ++d)
    if (__builtin_mul_overflow(count, shape[d], &count)) return std::numeric_limits<int64_t>::max();
  return count;
}

// indices[..,k] of data's dims [first, first + k), as the flat place among them; `lines` in all.
struct Places {
  Item flat;  // of indices' shape without the last dim
  int64_t count = 1;
};
Result<Places> flat_places(NodeContext& n, const Item& data, const Item& indices, size_t first) {
  if (indices.rank() < 1) return n.invalid("indices are a scalar");
  const int64_t k = indices.shape().back();
  if (k < 1 || k > data.rank() - static_cast<int64_t>(first))
    return n.invalid("indices " + to_string(indices.spec) + " have more coordinates than " +
                     to_string(data.spec) + " has dims, or none");
  const Shape dims(data.shape().begin() + static_cast<int64_t>(first),
                   data.shape().begin() + static_cast<int64_t>(first) + k);
  Places places{{}, product_of(dims, 0, dims.size())};
  if (places.count > dag::kElementCountMax)
    return n.invalid("data " + to_string(data.spec) + " is too large");
  WEFT_TRY(const Item wide, n.cast(indices, DType::I64));
  Shape shape = indices.shape();
  shape.pop_back();
  std::optional<Item> inside;
  for (int64_t d = 0; d < k; ++d) {
    const int64_t size = dims[static_cast<size_t>(d)];
    WEFT_TRY(Item at, n.slice(wide, indices.rank() - 1, d, 1));
    WEFT_TRY(at, n.reshape(at, shape));
    WEFT_TRY(at, counted_from_front(n, at, size));
    WEFT_TRY(const Item fits, is_within(n, at, size));
    if (!inside) {
      inside = fits;
      places.flat = at;
      continue;
    }
    WEFT_TRY(inside, n.emit(OpKind::And, {*inside, fits}));
    WEFT_TRY(const Item before, n.emit(OpKind::Mul, {places.flat, whole(n, size)}));
    WEFT_TRY(places.flat, n.emit(OpKind::Add, {before, at}));
  }
  // One coordinate outside is all outside: one past the end.
  WEFT_TRY(places.flat, n.emit(OpKind::Where, {*inside, places.flat, whole(n, places.count)}));
  return places;
}

Status lower_scatter_nd(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  const Item &data = n.in(0), &indices = n.in(1), &updates = n.in(2);
  WEFT_TRY(const std::string reduction, read_reduction(n));
  WEFT_TRY(const Places places, flat_places(n, data, indices, 0));
  const auto k = static_cast<size_t>(indices.shape().back());
  const int64_t writes = product_of(places.flat.shape(), 0, places.flat.shape().size());
  const int64_t width = product_of(data.shape(), k, data.shape().size());
  Shape want = places.flat.shape();
  want.insert(want.end(), data.shape().begin() + static_cast<int64_t>(k), data.shape().end());
  if (updates.shape() != want)
    return n.invalid("updates " + to_string(updates.spec) + " are not of shape " + to_string(want));
  WEFT_TRY(const Item lines, n.reshape(data, {places.count, width}));
  WEFT_TRY(Item at, n.reshape(places.flat, {writes, 1}));
  WEFT_TRY(at, n.expand(at, {writes, width}));
  WEFT_TRY(const Item values, n.reshape(updates, {writes, width}));
  WEFT_TRY(const Item written, scatter(n, lines, at, values, 0, reduction));
  return n.give(n.reshape(written, data.shape()));
}

Status lower_gather_nd(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item &data = n.in(0), &indices = n.in(1);
  const int64_t batch_dims = n.int_attr("batch_dims", 0);
  if (batch_dims < 0 || batch_dims >= std::min(data.rank(), indices.rank()) ||
      !std::equal(data.shape().begin(), data.shape().begin() + batch_dims, indices.shape().begin()))
    return n.invalid("batch_dims " + std::to_string(batch_dims) + " does not fit data " +
                     to_string(data.spec) + " and indices " + to_string(indices.spec));
  const auto first = static_cast<size_t>(batch_dims);
  WEFT_TRY(const Places places, flat_places(n, data, indices, first));
  const Shape& shape = places.flat.shape();
  const int64_t batches = product_of(shape, 0, first), reads = product_of(shape, first, shape.size());
  const size_t taken = first + static_cast<size_t>(indices.shape().back());
  const int64_t width = product_of(data.shape(), taken, data.shape().size());
  const int64_t line_count = product_of({batches, places.count}, 0, 2);
  if (line_count > dag::kElementCountMax) return n.invalid("data " + to_string(data.spec) + " is too large");
  WEFT_TRY(Item at, n.reshape(places.flat, {batches, reads}));
  if (batches != 1) {
    // What lies outside its own batch must not come to lie inside the next: it goes past the last.
    WEFT_TRY(const Item fits, is_within(n, at, places.count));
    WEFT_TRY(Item starts, numbers(n, batches));
    WEFT_TRY(starts, n.reshape(starts, {batches, 1}));
    WEFT_TRY(starts, n.emit(OpKind::Mul, {starts, whole(n, places.count)}));
    WEFT_TRY(at, n.emit(OpKind::Add, {at, starts}));
    WEFT_TRY(at, n.emit(OpKind::Where, {fits, at, whole(n, line_count)}));
  }
  WEFT_TRY(const Item lines, n.reshape(data, {line_count, width}));
  WEFT_TRY(at, n.reshape(at, {product_of({batches, reads}, 0, 2)}));
  WEFT_TRY(const Item read, n.emit(OpKind::Gather, {lines, at}, {{Attr::Axis, int64_t{0}}}));
  Shape result = shape;
  result.insert(result.end(), data.shape().begin() + static_cast<int64_t>(taken), data.shape().end());
  return n.give(n.reshape(read, std::move(result)));
}

// A cache of keys or values: updates go to the places from write_indices[batch] on.
Status lower_tensor_scatter(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item &cache = n.in(0), &updates = n.in(1);
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", -2, cache.rank()));
  const std::string mode = n.string_attr("mode", "linear");
  if (mode != "linear" && mode != "circular") return n.invalid("mode is '" + mode.substr(0, 32) + "'");
  if (axis < 1) return n.invalid("its axis is that of the batch");
  if (updates.rank() != cache.rank()) return n.invalid("cache and update differ in rank");
  const int64_t size = cache.shape()[static_cast<size_t>(axis)],
                steps = updates.shape()[static_cast<size_t>(axis)], batch = cache.shape()[0];
  WEFT_TRY(Item at, numbers(n, steps));
  Shape line(updates.shape().size(), 1);
  line[static_cast<size_t>(axis)] = steps;
  WEFT_TRY(at, n.reshape(at, line));
  if (n.has(2)) {
    if (n.in(2).shape() != Shape{batch}) return n.invalid("write_indices are not one number a batch");
    WEFT_TRY(Item starts, n.cast(n.in(2), DType::I64));
    Shape column(updates.shape().size(), 1);
    column[0] = batch;
    WEFT_TRY(starts, n.reshape(starts, column));
    WEFT_TRY(at, n.emit(OpKind::Add, {at, starts}));
  }
  if (mode == "circular" && size > 0) {
    WEFT_TRY(at, n.emit(OpKind::Mod, {at, whole(n, size)}, {{Attr::Fmod, int64_t{0}}}));
  }
  WEFT_TRY(at, n.expand(at, updates.shape()));
  return n.give(scatter(n, cache, at, updates, axis, "none"));
}

// The first lengths[b] steps of row b in reverse order; the rest as they are.
Status lower_reverse_sequence(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  const int64_t batch_axis = n.int_attr("batch_axis", 1), time_axis = n.int_attr("time_axis", 0);
  if (x.rank() < 2 || std::min(batch_axis, time_axis) != 0 || std::max(batch_axis, time_axis) != 1)
    return n.invalid("batch_axis and time_axis are not 0 and 1 of x " + to_string(x.spec));
  const int64_t steps = x.shape()[static_cast<size_t>(time_axis)],
                batch = x.shape()[static_cast<size_t>(batch_axis)];
  if (n.in(1).shape() != Shape{batch})
    return n.invalid("sequence_lens are not one number a row of the batch");
  const Shape along_time = time_axis == 0 ? Shape{steps, 1} : Shape{1, steps};
  const Shape along_batch = time_axis == 0 ? Shape{1, batch} : Shape{batch, 1};
  const int64_t rows_of_time = product_of({steps, batch}, 0, 2);
  WEFT_TRY(Item lengths, n.cast(n.in(1), DType::I64));
  WEFT_TRY(lengths, n.emit(OpKind::Min, {lengths, whole(n, steps)}));
  WEFT_TRY(lengths, n.reshape(lengths, along_batch));
  WEFT_TRY(Item times, numbers(n, steps));
  WEFT_TRY(times, n.reshape(times, along_time));
  WEFT_TRY(const Item turns, n.emit(OpKind::Less, {times, lengths}));
  WEFT_TRY(Item turned, n.emit(OpKind::Sub, {lengths, times}));
  WEFT_TRY(turned, n.emit(OpKind::Sub, {turned, whole(n, 1)}));
  WEFT_TRY(turned, n.emit(OpKind::Where, {turns, turned, times}));
  // The flat place of (time, row) in x's first two dims.
  WEFT_TRY(Item rows, numbers(n, batch));
  WEFT_TRY(rows, n.reshape(rows, along_batch));
  const Item& outer = time_axis == 0 ? turned : rows;
  WEFT_TRY(Item at, n.emit(OpKind::Mul, {outer, whole(n, x.shape()[1])}));
  WEFT_TRY(at, n.emit(OpKind::Add, {at, time_axis == 0 ? rows : turned}));
  WEFT_TRY(at, n.reshape(at, {rows_of_time}));
  const int64_t width = product_of(x.shape(), 2, x.shape().size());
  WEFT_TRY(const Item lines, n.reshape(x, {rows_of_time, width}));
  WEFT_TRY(const Item read, n.emit(OpKind::Gather, {lines, at}, {{Attr::Axis, int64_t{0}}}));
  return n.give(n.reshape(read, x.shape()));
}

constexpr LowerRow kScatterRows[] = {
    {"ScatterElements", lower_scatter_elements, operands(0, 2)},
    {"Scatter", lower_scatter_elements, operands(0, 2)},
    {"ScatterND", lower_scatter_nd, operands(0, 2)},
    {"GatherND", lower_gather_nd, operands(0)},
    {"TensorScatter", lower_tensor_scatter, operands(0, 1)},
    {"ReverseSequence", lower_reverse_sequence, operands(0)},
};

}  // namespace

std::span<const LowerRow> scatter_lowerings() { return kScatterRows; }

}  // namespace weft::onnx
