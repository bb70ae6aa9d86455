// Attention over a few queries at a time: their scores are all of the scores that there ever are. Each
// product adds up as the blocked one does (matmul.cc), and each step between is the loop of its op, so the
// bits are those of the ops one after the other, as long as no product there cuts its sums into ranges.
#include <algorithm>
#include <cmath>

#include "peer/backend/cpu/matmul.h"
#include "peer/backend/cpu/strided.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::Shape;

constexpr int64_t kQueries = 64;  // forward: their scores stay in a second-level cache
// Back: the keys' gradients add up over so many, as a product's blocks do.
constexpr int64_t kQueriesBack = kGemmDepth;
constexpr int64_t kScoresHeld = int64_t{1} << 22;  // by a thread, or those of one query
constexpr int64_t kTileM = 384;

// What is added to the scores, or a mask of them: where its rows for each matrix begin.
struct Addend {
  int slot = -1;
  std::vector<int64_t> offsets{};  // by matrix, in elements
  int64_t row = 0, column = 0;     // steps

  Addend() = default;
  Addend(const KernelRequest& request, size_t operand, const Shape& scores) {
    slot = request.input_slot(operand);
    if (slot < 0) return;
    const Strides strides = broadcast_strides(request.in_shape(operand), scores);
    row = strides[strides.size() - 2], column = strides.back();
    offsets = {0};
    for (size_t d = 0; d + 2 < scores.size(); ++d) {
      std::vector<int64_t> next;
      for (const int64_t offset : offsets)
        for (int64_t i = 0; i < scores[d]; ++i) next.push_back(offset + i * strides[d]);
      offsets = std::move(next);
    }
  }
  int64_t at(int64_t matrix, int64_t query) const {
    return offsets[static_cast<size_t>(matrix)] + query * row;
  }
};

struct Plan {
  int64_t matrices = 1, queries = 0, keys = 0, inner = 0, columns = 0;
  int64_t key_row = 0, key_column = 0;  // steps in k seen as [inner, keys]
  float alpha = 1, fill = 0;
  bool scales = false, zero_rows = false;
  int q = -1, k = -1, v = -1;
  Addend bias, keep;

  Plan(const KernelRequest& request, size_t first) {
    const Shape &of_q = request.in_shape(first), &of_v = request.in_shape(first + 2);
    queries = of_q[of_q.size() - 2], inner = of_q.back();
    keys = of_v[of_v.size() - 2], columns = of_v.back();
    matrices = product(of_q, 0, of_q.size() - 2);
    const bool trans_b = request.attributes().get_int(Attr::TransB) != 0;
    key_row = trans_b ? 1 : keys, key_column = trans_b ? inner : 1;
    alpha = static_cast<float>(request.attributes().get_double(Attr::Alpha, 1));
    fill = static_cast<float>(request.attributes().get_double(Attr::Value, 0));
    scales = alpha != 1;
    zero_rows = request.attributes().get_int(Attr::ZeroRows) != 0;
    q = request.input_slot(first), k = request.input_slot(first + 1), v = request.input_slot(first + 2);
    Shape scores(of_q.begin(), of_q.end() - 1);
    scores.push_back(keys);
    bias = Addend(request, first + 3, scores);
    keep = Addend(request, first + 4, scores);
  }
  bool is_empty() const { return matrices * queries * inner * columns == 0; }
};

// So many queries at a time, and what a thread needs for them of the workspace.
struct Blocks {
  int64_t queries, elements, packed_elements, scores;
  bool has_slopes;

  Blocks(const Plan& plan, const LoopTable& loops, int64_t most, bool slopes) : has_slopes(slopes) {
    queries =
        std::clamp<int64_t>(std::min(most, plan.queries), 1, std::max<int64_t>(1, kScoresHeld / plan.keys));
    packed_elements = (kTileM + loops.gemm_rows) * kGemmDepth;
    scores = align_up(queries * plan.keys);
    elements = 64 * kGemmDepth + packed_elements + (has_slopes ? 2 : 1) * scores;
  }
  int64_t bytes(const Team& team) const {
    return team.size() * elements * static_cast<int64_t>(sizeof(float));
  }
};

// Memory of the calling thread.
struct Memory {
  float *panel, *packed, *scores, *slopes;
  Memory(const Call& call, const Blocks& blocks) {
    panel = call.scratch<float>() + omp_get_thread_num() * blocks.elements;
    packed = panel + 64 * kGemmDepth;
    scores = packed + blocks.packed_elements;
    slopes = scores + blocks.scores;
  }
};

// c (+)= a b by one thread.
void multiply(const LoopTable& loops, const Memory& memory, const Product& p, const float* a, const float* b,
              float* c, bool adds) {
  for (int64_t m0 = 0; m0 < p.m; m0 += kTileM) {
    const int64_t m = std::min(kTileM, p.m - m0);
    for (int64_t k0 = 0; k0 < p.k; k0 += kGemmDepth) {
      const int64_t depth = std::min(kGemmDepth, p.k - k0);
      loops.gemm_pack(a + m0 * p.a_row + k0 * p.a_column, p.a_row, p.a_column, m, depth, memory.packed);
      loops.gemm_block(memory.packed, m, depth, b + k0 * p.b_row, p.b_row, p.b_column, p.n, c + m0 * p.n, p.n,
                       adds || k0 > 0, memory.panel);
    }
  }
}

// The softmax of the scores of `count` queries from `first` on, in memory.scores.
void weigh(const Plan& plan, const LoopTable& loops, const Call& call, const Memory& memory, int64_t matrix,
           int64_t first, int64_t count) {
  const float *q = call.in<float>(plan.q) + (matrix * plan.queries + first) * plan.inner,
              *k = call.in<float>(plan.k) + matrix * plan.keys * plan.inner;
  multiply(loops, memory, {count, plan.keys, plan.inner, plan.inner, 1, plan.key_row, plan.key_column}, q, k,
           memory.scores,
           /*adds=*/false);
  for (int64_t i = 0; i < count; ++i) {
    float* row = memory.scores + i * plan.keys;
    if (plan.scales) loops.scale(row, plan.alpha, plan.keys);
    if (plan.bias.slot >= 0) {
      const float* bias = call.in<float>(plan.bias.slot) + plan.bias.at(matrix, first + i);
      for (int64_t j = 0; j < plan.keys; ++j) row[j] += bias[j * plan.bias.column];
    }
    if (plan.keep.slot >= 0) {
      const uint8_t* keep = call.in<uint8_t>(plan.keep.slot) + plan.keep.at(matrix, first + i);
      for (int64_t j = 0; j < plan.keys; ++j) row[j] = keep[j * plan.keep.column] != 0 ? row[j] : plan.fill;
    }
    loops.softmax_row(row, row, plan.keys);
    if (plan.zero_rows && std::isnan(row[0])) loops.fill(row, 0, plan.keys);  // one NaN is in all of them
  }
}

KernelResult make_forward(const KernelRequest& request) {
  const Plan plan(request, 0);
  if (plan.is_empty()) return request.decline();
  const int y = request.output_slot(0);
  const Blocks blocks(plan, request.loops, kQueries, /*slopes=*/false);
  const int64_t count_of_blocks = (plan.queries + blocks.queries - 1) / blocks.queries;
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    team.pieces(plan.matrices * count_of_blocks, [&](int64_t piece) {
      const int64_t matrix = piece / count_of_blocks, first = piece % count_of_blocks * blocks.queries,
                    count = std::min(blocks.queries, plan.queries - first);
      const Memory memory(call, blocks);
      weigh(plan, loops, call, memory, matrix, first, count);
      multiply(loops, memory, {count, plan.columns, plan.keys, plan.keys, 1, plan.columns, 1}, memory.scores,
               call.in<float>(plan.v) + matrix * plan.keys * plan.columns,
               call.out<float>(y) + (matrix * plan.queries + first) * plan.columns, /*adds=*/false);
    });
    return {};
  };
  return request.make(std::string("attention by queries ") + request.loops.isa, run,
                      blocks.bytes(request.team));
}

// From the gradient of the softmax's row to that of the scores as they were multiplied.
void to_slopes(const Plan& plan, const LoopTable& loops, const Call& call, const Memory& memory,
               int64_t matrix, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float* slope = memory.slopes + i * plan.keys;
    loops.softmax_grad_row(slope, memory.scores + i * plan.keys, slope, plan.keys);
    if (plan.keep.slot >= 0) {
      const uint8_t* keep = call.in<uint8_t>(plan.keep.slot) + plan.keep.at(matrix, first + i);
      for (int64_t j = 0; j < plan.keys; ++j) slope[j] = keep[j * plan.keep.column] != 0 ? slope[j] : 0.0f;
    }
    if (plan.scales) loops.scale(slope, plan.alpha, plan.keys);
  }
}

KernelResult make_backward(const KernelRequest& request) {
  const Plan plan(request, 1);
  if (plan.is_empty()) return request.decline();
  const Blocks blocks(plan, request.loops, kQueriesBack, /*slopes=*/true);
  const int dy = request.input_slot(0), dq = request.output_slot(0), dk = request.output_slot(1),
            dv = request.output_slot(2);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    team.pieces(plan.matrices, [&](int64_t matrix) {
      const int64_t of_keys = matrix * plan.keys;
      const float *q = call.in<float>(plan.q) + matrix * plan.queries * plan.inner,
                  *k = call.in<float>(plan.k) + of_keys * plan.inner,
                  *v = call.in<float>(plan.v) + of_keys * plan.columns,
                  *of_y = call.in<float>(dy) + matrix * plan.queries * plan.columns;
      float *to_q = call.out<float>(dq) + matrix * plan.queries * plan.inner,
            *to_k = call.out<float>(dk) + of_keys * plan.inner,
            *to_v = call.out<float>(dv) + of_keys * plan.columns;
      const int64_t n = plan.keys, d = plan.inner, e = plan.columns;
      const Memory memory(call, blocks);
      for (int64_t first = 0; first < plan.queries; first += blocks.queries) {
        const int64_t m = std::min(blocks.queries, plan.queries - first);
        const bool adds = first > 0;
        weigh(plan, loops, call, memory, matrix, first, m);
        const float *slope = of_y + first * e, *rows = q + first * d;
        multiply(loops, memory, {n, e, m, 1, n, e, 1}, memory.scores, slope, to_v, adds);
        multiply(loops, memory, {m, n, e, e, 1, 1, e}, slope, v, memory.slopes, /*adds=*/false);
        to_slopes(plan, loops, call, memory, matrix, first, m);
        multiply(loops, memory, {m, d, n, n, 1, plan.key_column, plan.key_row}, memory.slopes, k,
                 to_q + first * d, /*adds=*/false);
        if (plan.key_row == 1)  // k is [keys, inner]
          multiply(loops, memory, {n, d, m, 1, n, d, 1}, memory.slopes, rows, to_k, adds);
        else
          multiply(loops, memory, {d, n, m, 1, d, n, 1}, rows, memory.slopes, to_k, adds);
      }
    });
    return {};
  };
  return request.make(std::string("attention by queries ") + request.loops.isa, run,
                      blocks.bytes(request.team));
}

}  // namespace

KernelResult make_attention(const KernelRequest& request) {
  const bool is_grad = request.op.kind == dag::OpKind::AttentionGrad;
  if (!request.is_f32(request.in(0)) || !request.all_plain()) return request.decline();
  return is_grad ? make_backward(request) : make_forward(request);
}

}  // namespace weft::peer::cpu
