// Batch and layer normalisation. Statistics in two passes: the mean, then the mean square distance from it.
#include <cmath>

#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {
namespace {

// Calls visit(flat) for each element of channel k of a tensor seen as [N, C, plane].
template <typename Visit>
void for_each_of_channel(const AxisView& view, int64_t k, Visit visit) {
  for (int64_t n = 0; n < view.outer; ++n)
    for (int64_t i = 0; i < view.inner; ++i) visit(at((n * view.size + k) * view.inner + i));
}

void batch_norm(const Call& c) {
  const AxisView view = axis_view(c.shape(0), 1);
  const auto count = static_cast<double>(view.outer * view.inner);
  const double epsilon = c.attributes.get_double(Attr::Epsilon);
  const Reals& x = c.reals(0);
  for (int64_t k = 0; k < view.size; ++k) {
    double sum = 0, squares = 0;
    for_each_of_channel(view, k, [&](size_t i) { sum += x[i]; });
    const double mean = sum / count;
    for_each_of_channel(view, k, [&](size_t i) { squares += (x[i] - mean) * (x[i] - mean); });
    const double variance = squares / count, rstd = 1 / std::sqrt(variance + epsilon);
    const double scale = c.reals(1)[at(k)], bias = c.reals(2)[at(k)];
    for_each_of_channel(view, k, [&](size_t i) { c.out(0).reals[i] = (x[i] - mean) * rstd * scale + bias; });
    c.out(1).reals[at(k)] = mean;
    c.out(2).reals[at(k)] = variance;
  }
}

// With n = (x - mean) rstd: dx = scale rstd (dy - mean(dy) - n mean(dy n)).
void batch_norm_grad(const Call& c) {
  const AxisView view = axis_view(c.shape(1), 1);
  const auto count = static_cast<double>(view.outer * view.inner);
  const Reals &dy = c.reals(0), &x = c.reals(1);
  for (int64_t k = 0; k < view.size; ++k) {
    const double scale = c.reals(2)[at(k)], mean = c.reals(3)[at(k)];
    const double rstd = 1 / std::sqrt(c.reals(4)[at(k)] + c.attributes.get_double(Attr::Epsilon));
    double sum = 0, dot = 0;
    for_each_of_channel(view, k, [&](size_t i) {
      sum += dy[i];
      dot += dy[i] * (x[i] - mean) * rstd;
    });
    for_each_of_channel(view, k, [&](size_t i) {
      const double n = (x[i] - mean) * rstd;
      c.out(0).reals[i] = scale * rstd * (dy[i] - sum / count - n * dot / count);
    });
    c.out(1).reals[at(k)] = dot;
    c.out(2).reals[at(k)] = sum;
  }
}

void batch_norm_inference(const Call& c) {
  const AxisView view = axis_view(c.shape(0), 1);
  for (int64_t k = 0; k < view.size; ++k) {
    const double scale = c.reals(1)[at(k)], bias = c.reals(2)[at(k)], mean = c.reals(3)[at(k)];
    const double rstd = 1 / std::sqrt(c.reals(4)[at(k)] + c.attributes.get_double(Attr::Epsilon));
    for_each_of_channel(view, k,
                        [&](size_t i) { c.out().reals[i] = (c.reals(0)[i] - mean) * rstd * scale + bias; });
  }
}

// x seen as [rows, width]: the normalised dims are one row.
struct Rows {
  int64_t rows = 1, width = 1;
};
Rows rows_of(const Call& c, const Shape& x) {
  Rows view;
  for (int64_t d = 0; d < static_cast<int64_t>(x.size()); ++d)
    (d < c.attributes.get_int(Attr::Axis) ? view.rows : view.width) *= x[at(d)];
  return view;
}

void layer_norm(const Call& c) {
  const Rows view = rows_of(c, c.shape(0));
  const auto width = static_cast<double>(view.width);
  const double epsilon = c.attributes.get_double(Attr::Epsilon);
  for (int64_t row = 0; row < view.rows; ++row) {
    const double* x = c.reals(0).data() + row * view.width;
    double* y = c.out(0).reals.data() + row * view.width;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < view.width; ++i) sum += x[i];
    const double mean = sum / width;
    for (int64_t i = 0; i < view.width; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double rstd = 1 / std::sqrt(squares / width + epsilon);
    for (int64_t i = 0; i < view.width; ++i) {
      y[i] = (x[i] - mean) * rstd;
      if (c.has(1)) y[i] *= c.reals(1)[at(i)];
      if (c.has(2)) y[i] += c.reals(2)[at(i)];
    }
    c.out(1).reals[at(row)] = mean;
    c.out(2).reals[at(row)] = rstd;
  }
}

// As batch_norm_grad, row by row, with g = dy scale: dx = rstd (g - mean(g) - n mean(g n)).
void layer_norm_grad(const Call& c) {
  const Rows view = rows_of(c, c.shape(1));
  const auto width = static_cast<double>(view.width);
  for (int64_t row = 0; row < view.rows; ++row) {
    const double* dy = c.reals(0).data() + row * view.width;
    const double* x = c.reals(1).data() + row * view.width;
    const double mean = c.reals(3)[at(row)], rstd = c.reals(4)[at(row)];
    const auto scaled = [&](int64_t i) { return c.has(2) ? dy[i] * c.reals(2)[at(i)] : dy[i]; };
    double sum = 0, dot = 0;
    for (int64_t i = 0; i < view.width; ++i) {
      const double n = (x[i] - mean) * rstd;
      sum += scaled(i);
      dot += scaled(i) * n;
      c.out(1).reals[at(i)] += dy[i] * n;
      c.out(2).reals[at(i)] += dy[i];
    }
    for (int64_t i = 0; i < view.width; ++i) {
      const double n = (x[i] - mean) * rstd;
      c.out(0).reals[at(row * view.width + i)] = rstd * (scaled(i) - sum / width - n * dot / width);
    }
  }
}

}  // namespace

void run_normalisation(const Call& call) {
  switch (call.kind) {
    case OpKind::BatchNorm:
      return batch_norm(call);
    case OpKind::BatchNormGrad:
      return batch_norm_grad(call);
    case OpKind::BatchNormInference:
      return batch_norm_inference(call);
    case OpKind::LayerNorm:
      return layer_norm(call);
    case OpKind::LayerNormGrad:
      return layer_norm_grad(call);
    default:
      WEFT_CHECK_MSG(false, "not a normalisation");
  }
}

}  // namespace weft::peer::reference
