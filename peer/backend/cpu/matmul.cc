// Matrix products by blocks of our own (loops/gemm.cc), in pieces that depend on the shapes alone. oneDNN's
// sgemm is as fast on some shapes, but its own threading changes bits from three threads on, and cut into
// one-thread calls it loses up to half where a leading dimension is a multiple of a page.
#include <algorithm>
#include <cstring>
#include <optional>

#include "peer/backend/cpu/few_rows.h"
#include "peer/backend/cpu/stored.h"
#include "peer/backend/cpu/strided.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::Shape;

// The result in tiles of tile_m x tile_n, its sums in ranges of range_k that are added in order afterwards.
struct Plan {
  Product product;
  BatchOffsets offsets;
  std::optional<StoredOperand> stored{};  // what b is made of, tile by tile
  int64_t tile_m = 0, tile_n = 0, range_k = 0;
  // a is packed once for all tiles of a row; else by each piece for itself.
  bool shares_a = false;
  int64_t sliver = 1;

  int64_t batches() const { return static_cast<int64_t>(offsets.a.size()); }
  int64_t tiles_m() const { return (product.m + tile_m - 1) / tile_m; }
  int64_t tiles_n() const { return (product.n + tile_n - 1) / tile_n; }
  int64_t ranges_k() const { return (product.k + range_k - 1) / range_k; }
  int64_t pieces() const { return batches() * tiles_m() * tiles_n() * ranges_k(); }
  int64_t result_elements() const { return batches() * product.m * product.n; }
  int64_t padded_m() const { return (product.m + sliver - 1) / sliver * sliver; }
  int64_t partial_elements() const { return (ranges_k() - 1) * result_elements(); }
  int64_t packed_elements() const { return shares_a ? padded_m() * product.k : 0; }
};

constexpr int64_t kTileM = 384;  // with kGemmDepth terms: what stays in a second-level cache
constexpr int64_t kTileN = 1024;
constexpr int64_t kPieces = 16;

int64_t cut(int64_t size, int64_t parts, int64_t multiple) {
  const int64_t part = (size + parts - 1) / parts;
  return (part + multiple - 1) / multiple * multiple;
}

void choose_pieces(Plan& plan, bool cuts_sums) {
  const Product& p = plan.product;
  plan.range_k = std::max<int64_t>(1, p.k);
  plan.tile_m = cut(p.m, (p.m + kTileM - 1) / kTileM, plan.sliver);
  plan.tile_n = std::min(cut(p.n, 1, 64), kTileN);
  // Enough pieces for a handful of threads, as long as each has work for some hundred microseconds.
  const double flops = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) *
                       static_cast<double>(plan.batches());
  const auto wanted = static_cast<int64_t>(std::clamp(flops / 1e7, 1.0, static_cast<double>(kPieces)));
  if (plan.pieces() < wanted && p.n > 64) {
    const int64_t parts = (wanted + plan.batches() * plan.tiles_m() - 1) / (plan.batches() * plan.tiles_m());
    plan.tile_n = std::min(plan.tile_n, cut(p.n, parts, 64));
  }
  if (plan.pieces() < wanted && p.m > 4 * plan.sliver) {
    const int64_t parts = (wanted + plan.batches() * plan.tiles_n() - 1) / (plan.batches() * plan.tiles_n());
    plan.tile_m = std::min(plan.tile_m, cut(p.m, parts, 4 * plan.sliver));
  }
  if (plan.pieces() < wanted && cuts_sums && p.k >= 8 * kGemmDepth)
    plan.range_k =
        cut(p.k, std::min(p.k / (4 * kGemmDepth), (wanted + plan.pieces() - 1) / plan.pieces()), kGemmDepth);
  plan.shares_a = plan.batches() == 1 && plan.tiles_n() > 1;
}

// Packs columns [k0, k0 + depth) of all of a: where a block lies in the packed whole is k0 * padded_m.
void pack_all(const Plan& plan, const Team& team, const LoopTable& loops, const float* a, float* packed) {
  const Product& p = plan.product;
  const int64_t depths = (p.k + kGemmDepth - 1) / kGemmDepth, step = 8 * plan.sliver,
                strips = (p.m + step - 1) / step;
  team.ranges(depths * strips, rows_grain(step * kGemmDepth), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t k0 = i / strips * kGemmDepth, m0 = i % strips * step;
      const int64_t depth = std::min(kGemmDepth, p.k - k0);
      loops.gemm_pack(a + m0 * p.a_row + k0 * p.a_column, p.a_row, p.a_column, std::min(step, p.m - m0),
                      depth, packed + k0 * plan.padded_m() + m0 * depth);
    }
  });
}

// A block of b in the order in which the whole would have it, so that its products are the same.
struct BlockOfB {
  const float* from;
  int64_t row_step, column_step;
};
BlockOfB widened_block(const Plan& plan, const LoopTable& loops, const StoredArgs& stored, int64_t k0,
                       int64_t depth, int64_t n0, int64_t n, float* tile) {
  if (plan.product.b_column == 1) {
    loops.widen_stored(stored, k0, depth, n0, n, tile, n);
    return {tile, n, 1};
  }
  loops.widen_stored(stored, n0, n, k0, depth, tile, depth);
  return {tile, 1, depth};
}

// Of b either the floats or, with plan.stored, what they are made of.
struct FromB {
  const float* floats = nullptr;
  StoredArgs stored{};
};

void multiply(const Plan& plan, const LoopTable& loops, int64_t piece, const float* a, const float* packed,
              const FromB& b, float* c, float* partials) {
  const Product& p = plan.product;
  const int64_t range = piece % plan.ranges_k();
  piece /= plan.ranges_k();
  const int64_t n0 = piece % plan.tiles_n() * plan.tile_n;
  piece /= plan.tiles_n();
  const int64_t m0 = piece % plan.tiles_m() * plan.tile_m, batch = piece / plan.tiles_m();
  const int64_t m = std::min(plan.tile_m, p.m - m0), n = std::min(plan.tile_n, p.n - n0);
  float* target = range == 0 ? c : partials + (range - 1) * plan.result_elements();
  target += (batch * p.m + m0) * p.n + n0;
  const int64_t own_rows = plan.shares_a ? 0 : plan.tile_m + plan.sliver;
  float* scratch = thread_scratch((64 + own_rows + (plan.stored ? plan.tile_n : 0)) * kGemmDepth);
  float *own = scratch + 64 * kGemmDepth, *tile = own + own_rows * kGemmDepth;
  const int64_t k_begin = range * plan.range_k, k_end = std::min(p.k, k_begin + plan.range_k);
  for (int64_t k0 = k_begin; k0 < k_end; k0 += kGemmDepth) {
    const int64_t depth = std::min(kGemmDepth, k_end - k0);
    const float* block = packed + k0 * plan.padded_m() + m0 * depth;
    if (!plan.shares_a) {
      loops.gemm_pack(a + plan.offsets.a[static_cast<size_t>(batch)] + m0 * p.a_row + k0 * p.a_column,
                      p.a_row, p.a_column, m, depth, own);
      block = own;
    }
    BlockOfB from_b{b.floats, p.b_row, p.b_column};
    if (plan.stored)
      from_b = widened_block(plan, loops, b.stored, k0, depth, n0, n, tile);
    else
      from_b.from += plan.offsets.b[static_cast<size_t>(batch)] + k0 * p.b_row + n0 * p.b_column;
    loops.gemm_block(block, m, depth, from_b.from, from_b.row_step, from_b.column_step, n, target, p.n,
                     k0 > k_begin, scratch);
  }
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

// Cuts the plan into pieces and makes it a kernel. The bias, where there is one, is added to each row.
KernelResult make_planned(const KernelRequest& request, Plan plan, const ProductSlots& slots) {
  const bool rows_alone = request.group.rows_alone;
  if (rows_alone && suits_few_rows(plan.product))
    return make_few_rows(request, plan.product, std::move(plan.offsets), slots, plan.stored);
  plan.sliver = request.loops.gemm_rows;
  // Whether a sum is cut depends on how many rows there are: not where each must come out as if alone.
  choose_pieces(plan, /*cuts_sums=*/!rows_alone);
  const int64_t packed_bytes = align_up(plan.packed_elements() * static_cast<int64_t>(sizeof(float)));
  const int64_t partial_bytes = plan.partial_elements() * static_cast<int64_t>(sizeof(float));
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const float *from_a = call.in<float>(slots.a), *bias = call.in<float>(slots.bias);
    const FromB from_b =
        plan.stored ? FromB{.stored = plan.stored->args(call)} : FromB{call.in<float>(slots.b)};
    float *result = call.out<float>(slots.c), *packed = call.scratch<float>(),
          *partials = call.scratch<float>(packed_bytes);
    if (plan.shares_a) pack_all(plan, team, loops, from_a, packed);
    team.pieces(plan.pieces(), [&](int64_t piece) {
      multiply(plan, loops, piece, from_a, packed, from_b, result, partials);
    });
    const int64_t count = plan.result_elements(), columns = plan.product.n;
    if (plan.ranges_k() > 1) {
      team.ranges(count, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t r = 0; r + 1 < plan.ranges_k(); ++r)
          loops.reduce_into[kReduceSum](result + begin, partials + r * count + begin, end - begin);
      });
    }
    for (int64_t row = 0; bias != nullptr && row < count / columns; ++row)
      loops.reduce_into[kReduceSum](result + row * columns, bias, columns);
    return {};
  };
  return request.make(std::string("blocked gemm ") + request.loops.isa, run, packed_bytes + partial_bytes);
}

// x[..,K] times a stored matrix: the bits of the product with its floats.
KernelResult make_stored_matmul(const KernelRequest& request) {
  if (!request.all_plain()) return request.decline();
  const Shape& x = request.in_shape(0);
  Plan plan;
  plan.stored = StoredOperand::of(request, 1);
  Product& p = plan.product;
  p.m = product(x, 0, x.size() - 1);
  p.n = request.out_shape().back();
  p.k = x.back();
  p.a_row = p.k, p.a_column = 1;
  const bool trans_b = request.attributes().get_int(Attr::TransB) != 0;
  p.b_row = trans_b ? 1 : p.n, p.b_column = trans_b ? p.k : 1;
  plan.offsets = {{0}, {0}};
  return make_planned(request, std::move(plan), {.a = request.input_slot(0), .c = request.output_slot(0)});
}

}  // namespace

KernelResult make_product(const KernelRequest& request, const Product& product, const ProductSlots& slots) {
  Plan plan;
  plan.product = product;
  plan.offsets = {{0}, {0}};
  return make_planned(request, std::move(plan), slots);
}

KernelResult make_matmul(const KernelRequest& request) {
  if (request.op.kind == dag::OpKind::IntegerMatMul) return make_integer_matmul(request);
  if (request.op.kind == dag::OpKind::StoredMatMul) return make_stored_matmul(request);
  if (request.op.kind == dag::OpKind::StoredWeight) return make_stored_weight(request);
  if (request.op.kind == dag::OpKind::Attention || request.op.kind == dag::OpKind::AttentionGrad)
    return make_attention(request);
  if (request.op.kind != dag::OpKind::MatMul || !request.is_f32(request.in(0)) || !request.all_plain())
    return request.decline();
  const Shape &a = request.in_shape(0), &b = request.in_shape(1), &c = request.out_shape();
  const bool trans_a = request.attributes().get_int(Attr::TransA) != 0;
  const bool trans_b = request.attributes().get_int(Attr::TransB) != 0;
  Plan plan;
  Product& p = plan.product;
  p.m = c[c.size() - 2];
  p.n = c.back();
  p.k = trans_a ? a[a.size() - 2] : a.back();
  p.a_row = trans_a ? 1 : p.k, p.a_column = trans_a ? p.m : 1;
  p.b_row = trans_b ? 1 : p.n, p.b_column = trans_b ? p.k : 1;
  const Shape batch(c.begin(), c.end() - 2);
  const int64_t batches = product(batch, 0, batch.size());
  if (product(b, 0, b.size() - 2) == 1 && !trans_a && product(a, 0, a.size() - 2) == batches) {
    p.m *= batches;  // x[B,T,K] w[K,N]: rows are rows
    plan.offsets = {{0}, {0}};
  } else {
    plan.offsets.a = batch_offsets(a, batch);
    plan.offsets.b = batch_offsets(b, batch);
  }
  return make_planned(request, std::move(plan),
                      {.a = request.input_slot(0), .b = request.input_slot(1), .c = request.output_slot(0)});
}

}  // namespace weft::peer::cpu
