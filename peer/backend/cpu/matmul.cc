// Matrix products by oneDNN's sgemm, in pieces that depend on the shapes alone and run on one thread each: sgemm's own
// threading changes bits from three threads on. A piece is a tile of one product, or a range of its inner dimension when
// the result is small; ranges are added in order.
#include <dnnl.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "peer/backend/cpu/kernel.h"
#include "peer/backend/cpu/strided.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::Shape;

// c[M,N] = a[M,K] b[K,N], row-major; trans_a: a is stored [K,M]; trans_b: b is stored [N,K].
struct Product {
  int64_t m, n, k;
  bool trans_a, trans_b;
};

struct Plan {
  Product product;
  std::vector<int64_t> a_offsets, b_offsets;  // elements, by batch
  int64_t tiles_m = 1, tiles_n = 1, ranges_k = 1;

  int64_t batches() const { return static_cast<int64_t>(a_offsets.size()); }
  int64_t pieces() const { return batches() * tiles_m * tiles_n * ranges_k; }
  int64_t result_elements() const { return batches() * product.m * product.n; }
};

constexpr int64_t kSide = 64;       // no tile has a shorter side, unless the matrix has
constexpr int64_t kRange = 1024;    // nor fewer terms of a sum
constexpr double kPieceFlops = 3e7; // about half a millisecond
constexpr double kPiecesMax = 32;

int64_t tile_size(int64_t size, int64_t tiles) {
  const int64_t tile = (size + tiles - 1) / tiles;
  return tiles == 1 ? tile : (tile + 15) / 16 * 16;
}

// Cuts where the sum of a tile's sides, which is what each piece packs, shrinks most.
void choose_pieces(Plan& plan) {
  const Product& p = plan.product;
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const double wanted = std::clamp(flops * static_cast<double>(plan.batches()) / kPieceFlops, 1.0, kPiecesMax);
  while (static_cast<double>(plan.pieces()) < wanted) {
    const int64_t side_m = p.m / plan.tiles_m, side_n = p.n / plan.tiles_n;
    const bool can_m = side_m >= 2 * kSide, can_n = side_n >= 2 * kSide;
    if (can_n && (side_n >= side_m || !can_m)) {
      plan.tiles_n *= 2;
    } else if (can_m) {
      plan.tiles_m *= 2;
    } else if (p.k / plan.ranges_k >= 2 * kRange) {
      plan.ranges_k *= 2;
    } else {
      break;
    }
  }
}

bool multiply(const Plan& plan, int64_t piece, const float* a, const float* b, float* c, float* partials) {
  const Product& p = plan.product;
  const int64_t range = piece % plan.ranges_k;
  piece /= plan.ranges_k;
  const int64_t tile_n = piece % plan.tiles_n;
  piece /= plan.tiles_n;
  const int64_t tile_m = piece % plan.tiles_m, batch = piece / plan.tiles_m;
  const int64_t step_m = tile_size(p.m, plan.tiles_m), step_n = tile_size(p.n, plan.tiles_n);
  const int64_t step_k = tile_size(p.k, plan.ranges_k);
  const int64_t m0 = tile_m * step_m, n0 = tile_n * step_n, k0 = range * step_k;
  const int64_t m = std::min(step_m, p.m - m0), n = std::min(step_n, p.n - n0), k = std::min(step_k, p.k - k0);
  if (m <= 0 || n <= 0) return true;
  float* target = range == 0 ? c : partials + (range - 1) * plan.result_elements();
  target += (batch * p.m + m0) * p.n + n0;
  if (k <= 0) {
    for (int64_t i = 0; i < m; ++i) std::memset(target + i * p.n, 0, static_cast<size_t>(n) * sizeof(float));
    return true;
  }
  const int64_t lda = p.trans_a ? p.m : p.k, ldb = p.trans_b ? p.k : p.n;
  const float* from_a = a + plan.a_offsets[static_cast<size_t>(batch)] + (p.trans_a ? k0 * lda + m0 : m0 * lda + k0);
  const float* from_b = b + plan.b_offsets[static_cast<size_t>(batch)] + (p.trans_b ? n0 * ldb + k0 : k0 * ldb + n0);
  return dnnl_sgemm(p.trans_a ? 'T' : 'N', p.trans_b ? 'T' : 'N', m, n, k, 1.0f, from_a, lda, from_b, ldb, 0.0f, target,
                    p.n) == dnnl_success;
}

std::vector<int64_t> batch_offsets(const Shape& operand, const Shape& batch) {
  const Shape lead(operand.begin(), operand.end() - 2);
  const int64_t matrix = operand[operand.size() - 2] * operand.back();
  const Strides strides = broadcast_strides(lead, batch);
  std::vector<int64_t> offsets{0};
  for (size_t d = 0; d < batch.size(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t offset : offsets)
      for (int64_t i = 0; i < batch[d]; ++i) next.push_back(offset + i * strides[d] * matrix);
    offsets = std::move(next);
  }
  return offsets;
}

}  // namespace

KernelResult make_matmul(const KernelRequest& request) {
  if (!request.is_f32(request.in(0))) return request.decline();
  const Shape &a = request.in_shape(0), &b = request.in_shape(1), &c = request.out_shape();
  Plan plan;
  Product& p = plan.product;
  p.trans_a = request.attributes().get_int(Attr::TransA) != 0;
  p.trans_b = request.attributes().get_int(Attr::TransB) != 0;
  p.m = c[c.size() - 2];
  p.n = c.back();
  p.k = p.trans_a ? a[a.size() - 2] : a.back();
  const Shape batch(c.begin(), c.end() - 2);
  const bool one_b = product(b, 0, b.size() - 2) == 1;
  if (one_b && !p.trans_a && product(a, 0, a.size() - 2) == product(batch, 0, batch.size())) {
    p.m *= product(batch, 0, batch.size());  // x[B,T,K] w[K,N]: rows are rows
    plan.a_offsets = plan.b_offsets = {0};
  } else {
    plan.a_offsets = batch_offsets(a, batch);
    plan.b_offsets = batch_offsets(b, batch);
  }
  choose_pieces(plan);
  const int64_t partial_bytes = (plan.ranges_k - 1) * plan.result_elements() * static_cast<int64_t>(sizeof(float));
  const int x = request.input_slot(0), w = request.input_slot(1), y = request.output_slot(0);
  const auto run = [plan, x, w, y, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const float *from_a = call.in<float>(x), *from_b = call.in<float>(w);
    float *result = call.out<float>(y), *partials = call.scratch<float>();
    std::atomic<bool> good = true;
    team.pieces(plan.pieces(), [&](int64_t piece) {
      if (!multiply(plan, piece, from_a, from_b, result, partials)) good = false;
    });
    if (!good) return fail(ErrorCode::Internal, "cpu backend: sgemm refused its operands");
    const int64_t count = plan.result_elements();
    if (plan.ranges_k > 1) {
      team.ranges(count, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t r = 0; r + 1 < plan.ranges_k; ++r)
          loops.reduce_into[kReduceSum](result + begin, partials + r * count + begin, end - begin);
      });
    }
    return {};
  };
  return request.make("onednn sgemm", run, partial_bytes);
}

}  // namespace weft::peer::cpu
