// Fourier transforms, windows and filter banks. A transform is one product with a table of cosines and sines
// made at import: a matrix, so that it has gradients, and the table is bounded as folded constants are.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "dag/onnx/lowering.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

// ---- transforms ----

struct Transform {
  int64_t points = 0;       // of the whole transform
  int64_t taken = 0;        // places of the operand that count; the rest of `points` is zero
  int64_t bins = 0;         // places of the result
  bool complex_in = false;  // pairs of numbers, else single ones
  bool inverse = false;
  bool half = false;  // the operand is half a spectrum, and the result real
};

struct Unit {
  double cosine, sine;
};
// Of place / points of a turn, worked out in its first eighth: what is 0, 1 or a half of symmetry is so to
// the last bit, and leaves nothing where terms cancel.
Unit unit_at(int64_t place, int64_t points) {
  const bool below = place > points - place;
  int64_t quarters = 4 * (below ? points - place : place);  // over points: 0 to 2
  const bool left = quarters > points;
  if (left) quarters = 2 * points - quarters;
  const bool steep = quarters > points - quarters;
  const double angle = std::numbers::pi / 2 * static_cast<double>(steep ? points - quarters : quarters) /
                       static_cast<double>(points);
  Unit unit{std::cos(angle), std::sin(angle)};
  if (steep) std::swap(unit.cosine, unit.sine);
  if (left) unit.cosine = -unit.cosine;
  if (below) unit.sine = -unit.sine;
  return unit;
}

// (value by [place, part], result by [place, part]) -> the factor between them.
double factor(const Transform& t, int64_t from, bool from_imaginary, int64_t to, bool to_imaginary) {
  const auto [cosine, upwards] = unit_at(from * to % t.points, t.points);
  const double sine = t.inverse ? upwards : -upwards;
  double value = from_imaginary == to_imaginary ? cosine : from_imaginary ? -sine : sine;
  if (t.inverse) value /= static_cast<double>(t.points);
  // What is not there is the conjugate of what is; it adds the same real part again.
  if (t.half && from != 0 && 2 * from != t.points) value *= 2;
  return value;
}

Result<Item> table_of(NodeContext& n, const Transform& t, DType dtype) {
  const int64_t rows_apart = t.complex_in ? 2 : 1, columns_apart = t.half ? 1 : 2;
  const int64_t most = n.options().limits.folded_value_bytes_max / dag::element_size(dtype);
  const bool fits = t.taken <= most && t.bins <= most &&
                    t.taken * rows_apart <= most / std::max<int64_t>(1, t.bins * columns_apart);
  if (!fits)
    return n.unsupported("a transform of " + std::to_string(t.points) +
                         " points: its table of cosines would take more than " +
                         std::to_string(n.options().limits.folded_value_bytes_max) + " bytes");
  std::vector<double> values;
  for (int64_t from = 0; from < t.taken * rows_apart; ++from)
    for (int64_t to = 0; to < t.bins * columns_apart; ++to)
      values.push_back(
          factor(t, from / rows_apart, from % rows_apart != 0, to / columns_apart, to % columns_apart != 0));
  return n.constant(dag::from_doubles({dtype, {t.taken * rows_apart, t.bins * columns_apart}}, values));
}

// x [.., places, parts] along the last dim but one.
Result<Item> transformed(NodeContext& n, const Item& x, const Transform& t) {
  WEFT_TRY(const Item table, table_of(n, t, x.dtype()));
  WEFT_TRY(Item y, n.slice(x, x.rank() - 2, 0, t.taken));
  Shape shape(y.shape().begin(), y.shape().end() - 2);
  int64_t rows = 1;
  for (const int64_t dim : shape) rows *= dim;
  WEFT_TRY(y, n.reshape(y, {rows, table.shape()[0]}));
  WEFT_TRY(y, n.emit(OpKind::MatMul, {y, table}));
  shape.push_back(t.bins);
  shape.push_back(t.half ? 1 : 2);
  return n.reshape(y, shape);
}

Status check_parts(NodeContext& n, const Item& x) {
  if (!is_float(x.dtype())) return n.invalid("x is " + to_string(x.spec));
  if (x.rank() < 2 || (x.shape().back() != 1 && x.shape().back() != 2))
    return n.invalid("the last dim of x " + to_string(x.spec) + " holds neither real nor complex numbers");
  return {};
}

Result<int64_t> dft_axis(NodeContext& n) {
  const int64_t rank = n.in(0).rank();
  int64_t axis = n.opset() < 20 ? n.int_attr("axis", 1) : -2;
  if (n.opset() >= 20 && n.has(2)) {
    WEFT_TRY(axis, n.one_int(2, "axis"));
  }
  const auto normal = dag::normalise_axis(axis, rank);
  if (!normal) return n.invalid(normal.error().message);
  if (*normal == rank - 1) return n.invalid("its axis is the one of real and imaginary parts");
  return *normal;
}

Result<Transform> read_dft(NodeContext& n, int64_t size) {
  Transform t;
  const bool onesided = n.int_attr("onesided", 0) != 0;
  t.inverse = n.int_attr("inverse", 0) != 0;
  t.complex_in = n.in(0).shape().back() == 2;
  t.half = onesided && t.inverse;
  if (onesided && t.complex_in != t.inverse)
    return n.invalid(t.inverse ? "half a spectrum is of complex numbers"
                               : "half a spectrum says all of real numbers only");
  t.points = t.half ? 2 * (size - 1) : size;
  if (n.has(1)) {
    WEFT_TRY(t.points, n.one_int(1, "dft_length"));
  }
  if (t.points < 1 || t.points > dag::kElementCountMax)
    return n.invalid("it would transform " + std::to_string(t.points) + " points");
  t.taken = std::min(size, t.half ? t.points / 2 + 1 : t.points);
  t.bins = onesided && !t.inverse ? t.points / 2 + 1 : t.points;
  return t;
}

Status lower_dft(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  WEFT_TRY_STATUS(check_parts(n, x));
  WEFT_TRY(const int64_t axis, dft_axis(n));
  WEFT_TRY(const Transform t, read_dft(n, x.shape()[static_cast<size_t>(axis)]));
  Ints swap;
  for (int64_t d = 0; d < x.rank(); ++d) swap.push_back(d);
  std::swap(swap[static_cast<size_t>(axis)], swap[static_cast<size_t>(x.rank() - 2)]);
  WEFT_TRY(Item y, n.transpose(x, swap));
  WEFT_TRY(y, transformed(n, y, t));
  return n.give(n.transpose(y, swap));
}

// The places of every frame of a signal: [frames, length].
Result<Item> frame_places(NodeContext& n, int64_t frames, int64_t length, int64_t step) {
  if (frames > n.options().limits.folded_value_bytes_max / 8 / std::max<int64_t>(1, length))
    return n.unsupported(std::to_string(frames) + " frames of " + std::to_string(length) +
                         " places: the table of places would be too large");
  std::vector<int64_t> places;
  for (int64_t f = 0; f < frames; ++f)
    for (int64_t i = 0; i < length; ++i) places.push_back(f * step + i);
  return n.constant(dag::make_tensor(Shape{frames, length}, std::span<const int64_t>(places)));
}

Status lower_stft(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  Item x = n.in(0);
  if (x.rank() == 2) {
    WEFT_TRY(x, n.reshape(x, {x.shape()[0], x.shape()[1], 1}));
  }
  WEFT_TRY_STATUS(check_parts(n, x));
  if (x.rank() != 3) return n.invalid("its signal is " + to_string(x.spec));
  WEFT_TRY(const int64_t step, n.one_int(1, "frame_step"));
  const int64_t size = x.shape()[1];
  Transform t;
  t.points = n.has(2) && n.in(2).rank() == 1 ? n.in(2).shape()[0] : size;
  if (n.has(3)) {
    WEFT_TRY(t.points, n.one_int(3, "frame_length"));
  }
  if (step < 1 || t.points < 1 || t.points > size)
    return n.invalid("frames of " + std::to_string(t.points) + " every " + std::to_string(step) +
                     " do not go with a signal of " + std::to_string(size));
  const bool onesided = n.int_attr("onesided", 1) != 0;
  t.complex_in = x.shape()[2] == 2;
  if (onesided && t.complex_in) return n.invalid("half a spectrum says all of real numbers only");
  t.taken = t.points;
  t.bins = onesided ? t.points / 2 + 1 : t.points;
  WEFT_TRY(const Item places, frame_places(n, (size - t.points) / step + 1, t.points, step));
  WEFT_TRY(Item frames, n.emit(OpKind::Gather, {x, places}, {{Attr::Axis, int64_t{1}}}));
  if (n.has(2)) {
    if (n.in(2).shape() != Shape{t.points}) return n.invalid("its window is " + to_string(n.in(2).spec));
    WEFT_TRY(const Item window, n.reshape(n.in(2), {t.points, 1}));
    WEFT_TRY(frames, n.emit(OpKind::Mul, {frames, window}));
  }
  return n.give(transformed(n, frames, t));
}

// ---- windows: a0 - a1 cos(2 pi i / N) + a2 cos(4 pi i / N) ----

Result<DType> dtype_attr(NodeContext& n) {
  const auto dtype =
      dtype_from_onnx(static_cast<int32_t>(std::clamp<int64_t>(n.int_attr("output_datatype", 1), -1, 1000)));
  if (!dtype) return n.refuse(dtype.error().code, dtype.error().message);
  return *dtype;
}

Status give_window(NodeContext& n, double a0, double a1, double a2) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY(const int64_t size, n.one_int(0, "size"));
  WEFT_TRY(const DType dtype, dtype_attr(n));
  if (size < 0 || size > n.options().limits.folded_value_bytes_max / 8)
    return n.invalid("its size is " + std::to_string(size));
  const int64_t period = n.int_attr("periodic", 1) != 0 ? size : size - 1;
  std::vector<double> values;
  for (int64_t i = 0; i < size; ++i) {
    const double angle = period == 0
                             ? std::numbers::pi
                             : 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(period);
    values.push_back(a0 - a1 * std::cos(angle) + a2 * std::cos(2 * angle));
  }
  return n.give(n.constant(dag::from_doubles({dtype, {size}}, values)));
}
Status lower_hann(NodeContext& n) { return give_window(n, 0.5, 0.5, 0); }
Status lower_hamming(NodeContext& n) { return give_window(n, 25.0 / 46, 21.0 / 46, 0); }
Status lower_blackman(NodeContext& n) { return give_window(n, 0.42, 0.5, 0.08); }

// ---- the mel filter bank ----

Result<double> known_number(NodeContext& n, size_t i, const char* what) {
  if (!n.in(i).known || n.in(i).spec.element_count() != 1)
    return n.unsupported(std::string("its ") + what + " is not one number that is known at import");
  const double value = to_doubles(*n.in(i).known)[0];
  if (!std::isfinite(value)) return n.invalid(std::string("its ") + what + " is not finite");
  return value;
}

// Where the triangles begin, peak and end, as places of the spectrum.
std::vector<int64_t> mel_places(int64_t bins, int64_t length, double rate, double low, double high) {
  const auto to_mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double step = (to_mel(high) - to_mel(low)) / static_cast<double>(bins + 2);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < bins + 2; ++i) {
    const double mel = static_cast<double>(i) * step + to_mel(low);
    const double hertz = 700 * (std::pow(10, mel / 2595) - 1);
    const double place = std::floor(static_cast<double>(length + 1) * hertz / rate);
    places.push_back(static_cast<int64_t>(std::clamp(place, -1.0, 1e12)));
  }
  return places;
}

Status lower_mel(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(5));
  WEFT_TRY(const int64_t bins, n.one_int(0, "num_mel_bins"));
  WEFT_TRY(const int64_t length, n.one_int(1, "dft_length"));
  WEFT_TRY(const double rate, known_number(n, 2, "sample_rate"));
  WEFT_TRY(const double low, known_number(n, 3, "lower_edge_hertz"));
  WEFT_TRY(const double high, known_number(n, 4, "upper_edge_hertz"));
  WEFT_TRY(const DType dtype, dtype_attr(n));
  const int64_t most = n.options().limits.folded_value_bytes_max / 8;
  if (bins < 1 || length < 1 || bins > most || length > most || (length / 2 + 1) > most / bins ||
      !(rate > 0) || !(low >= 0) || !(high >= low))
    return n.invalid("its numbers make no filter bank, or one that is too large");
  const int64_t rows = length / 2 + 1;
  const std::vector<int64_t> places = mel_places(bins, length, rate, low, high);
  if (places.back() > rows || places[static_cast<size_t>(bins)] >= rows)
    return n.invalid("its upper edge is beyond half the sample rate");
  std::vector<double> values(static_cast<size_t>(rows * bins), 0);
  for (int64_t b = 0; b < bins; ++b) {
    const int64_t begin = places[static_cast<size_t>(b)], peak = places[static_cast<size_t>(b + 1)],
                  end = places[static_cast<size_t>(b + 2)];
    const auto at = [&](int64_t row) -> double& { return values[static_cast<size_t>(row * bins + b)]; };
    if (begin == peak) at(peak) = 1;
    for (int64_t row = begin; row <= peak && begin < peak; ++row)
      at(row) = static_cast<double>(row - begin) / static_cast<double>(peak - begin);
    for (int64_t row = peak; row < end; ++row)
      at(row) = static_cast<double>(end - row) / static_cast<double>(end - peak);
  }
  return n.give(n.constant(dag::from_doubles({dtype, {rows, bins}}, values)));
}

constexpr LowerRow kSignalRows[] = {
    {"DFT", lower_dft, operands(0), operands(1, 2)},
    {"STFT", lower_stft, operands(0), operands(1, 3)},  // a window is a table, and stays as it is
    {"HannWindow", lower_hann, kNoOperand, operands(0)},
    {"HammingWindow", lower_hamming, kNoOperand, operands(0)},
    {"BlackmanWindow", lower_blackman, kNoOperand, operands(0)},
    {"MelWeightMatrix", lower_mel, kNoOperand, operands(0, 1, 2, 3, 4)},
};

}  // namespace

std::span<const LowerRow> signal_lowerings() { return kSignalRows; }

}  // namespace weft::onnx
