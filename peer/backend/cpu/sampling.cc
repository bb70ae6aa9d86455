// Values at places that lie between elements, as sparse sums: which elements each result reads, and by how
// much.
#include "peer/backend/cpu/sampling.h"

#include <cstring>

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::OpKind;
using dag::Shape;

// One number a row: the last axis, mostly.
template <int kTerms>
void sum_fixed(const SparseRows& rows, int64_t begin, int64_t end, const float* x, float* y) {
  const int32_t* from = rows.from + begin * kTerms;
  const float* weights = rows.weights + begin * kTerms;
  for (int64_t r = 0; r < end - begin; ++r) {
    float sum = 0;
    for (int t = 0; t < kTerms; ++t) sum += weights[r * kTerms + t] * x[from[r * kTerms + t]];
    y[r] = sum;
  }
}

void sum_any(const SparseRows& rows, int64_t begin, int64_t end, const float* x, float* y) {
  for (int64_t r = begin; r < end; ++r) {
    float sum = 0;
    for (int32_t k = rows.starts[r]; k < rows.starts[r + 1]; ++k) sum += rows.weights[k] * x[rows.from[k]];
    y[r - begin] = sum;
  }
}

// Rows of `inner` numbers: as many terms at a time as registers like.
void sum_slices(const SparseRows& rows, int64_t row, const float* x, int64_t inner, float* y) {
  int32_t k = rows.starts[row];
  const int32_t end = rows.starts[row + 1];
  if (k == end) {
    std::memset(y, 0, static_cast<size_t>(inner) * sizeof(float));
    return;
  }
  const auto slice = [&](int32_t term) { return x + rows.from[term] * inner; };
  const float w0 = rows.weights[k];
  const float* x0 = slice(k++);
  if (k == end) {
#pragma omp simd
    for (int64_t i = 0; i < inner; ++i) y[i] = w0 * x0[i];
    return;
  }
  const float w1 = rows.weights[k];
  const float* x1 = slice(k++);
#pragma omp simd
  for (int64_t i = 0; i < inner; ++i) y[i] = w0 * x0[i] + w1 * x1[i];
  for (; k < end; ++k) {
    const float w = rows.weights[k];
    const float* more = slice(k);
#pragma omp simd
    for (int64_t i = 0; i < inner; ++i) y[i] += w * more[i];
  }
}

// The taps of Resample, [out, taps], in the order of their results; `flipped`: of ResampleGrad, by what they
// read, in the order of o and t. Indices outside are left out.
SparseRows rows_of_taps(const int64_t* indices, const float* weights, int64_t out, int64_t taps, int64_t size,
                        bool flipped, std::byte* memory) {
  const int64_t count = flipped ? size : out;
  auto* starts = reinterpret_cast<int32_t*>(memory);
  auto* from = starts + count + 1;
  auto* factors = reinterpret_cast<float*>(from + out * taps);
  const auto row_of = [&](int64_t o, int64_t index) { return flipped ? index : o; };
  const auto for_each = [&](const auto& visit) {
    for (int64_t o = 0; o < out; ++o)
      for (int64_t t = 0; t < taps; ++t)
        if (const int64_t index = indices[o * taps + t]; index >= 0 && index < size)
          visit(o, index, weights[o * taps + t]);
  };
  std::fill_n(starts, count + 1, 0);
  for_each([&](int64_t o, int64_t index, float) { ++starts[row_of(o, index) + 1]; });
  for (int64_t r = 0; r < count; ++r) starts[r + 1] += starts[r];
  for_each([&](int64_t o, int64_t index, float weight) {
    const int32_t k = starts[row_of(o, index)]++;
    from[k] = static_cast<int32_t>(flipped ? o : index);
    factors[k] = weight;
  });
  for (int64_t r = count; r > 0; --r) starts[r] = starts[r - 1];
  starts[0] = 0;
  return {count, terms_of(starts, count), starts, from, factors};
}

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

KernelResult make_resample(const KernelRequest& request) {
  const bool grad = request.op.kind == OpKind::ResampleGrad;
  const Shape &x_shape = grad ? request.out_shape() : request.in_shape(0), &table = request.in_shape(1);
  const auto axis = static_cast<size_t>(request.attributes().get_int(Attr::Axis));
  const int64_t outer = product(x_shape, 0, axis), size = x_shape[axis];
  const int64_t inner = product(x_shape, axis + 1, x_shape.size());
  const int64_t out = table[0], taps = table[1];
  if (!request.is_f32(request.in(0)) || size > kMost || out * taps > kMost) return request.decline();
  const int64_t from_size = grad ? out : size, to_size = grad ? size : out;
  const int from = request.input_slot(0), at = request.input_slot(1), by = request.input_slot(2);
  const int to = request.output_slot(0);
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    const SparseRows rows =
        rows_of_taps(call.in<int64_t>(at), call.in<float>(by), out, taps, size, grad, call.workspace);
    const float* x = call.in<float>(from);
    float* y = call.out<float>(to);
    if (inner > 1) {
      team.ranges(outer * to_size, rows_grain(inner), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          sum_slices(rows, i % to_size, x + i / to_size * from_size * inner, inner, y + i * inner);
      });
      return {};
    }
    team.ranges(outer, rows_grain(to_size), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum_rows(rows, 0, to_size, x + i * from_size, y + i * to_size);
    });
    return {};
  };
  return request.make("sparse sums", run, (to_size + 1 + 2 * out * taps) * int64_t{4});
}

}  // namespace

void sum_rows(const SparseRows& rows, int64_t begin, int64_t end, const float* x, float* y) {
  if (rows.terms == 1) return sum_fixed<1>(rows, begin, end, x, y);
  if (rows.terms == 2) return sum_fixed<2>(rows, begin, end, x, y);
  if (rows.terms == 4) return sum_fixed<4>(rows, begin, end, x, y);
  sum_any(rows, begin, end, x, y);
}

int32_t terms_of(const int32_t* starts, int64_t count) {
  const int32_t terms = count > 0 ? starts[1] - starts[0] : 0;
  for (int64_t r = 0; r < count; ++r)
    if (starts[r + 1] - starts[r] != terms) return -1;
  return terms;
}

KernelResult make_sampling(const KernelRequest& request) {
  for (size_t i = 0; i < request.op.inputs.size(); ++i)
    if (request.has(i) && !request.is_plain(request.in(i))) return request.decline();
  switch (request.op.kind) {
    case OpKind::Resample:
    case OpKind::ResampleGrad:
      return make_resample(request);
    case OpKind::GridSample:
    case OpKind::GridSampleGrad:
      return make_grid_sample(request);
    default:
      return request.decline();
  }
}

}  // namespace weft::peer::cpu
