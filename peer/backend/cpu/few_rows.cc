// Nothing is computed twice and no sum is cut, so how the columns are dealt to threads changes no bit.
#include "peer/backend/cpu/few_rows.h"

#include <algorithm>

namespace weft::peer::cpu {
namespace {

constexpr int64_t kStripStep = 64;  // whole cache lines, and whole vectors of every instruction set
// Bytes of b that are worth a thread: some 20 us of one. On a machine that others use, too, a team waits
// milliseconds for each of its threads.
constexpr int64_t kPieceMin = 256 << 10;
constexpr int64_t kPiecesForOneThread = 2;  // of a long product, so that an idle thread finds one

constexpr int64_t kRowsMax = 2 * int64_t{kFewRows};  // by two passes; more rows are worth packing

// Columns of a stored matrix that are widened at a time, by kGemmDepth rows: they stay in a second-level
// cache.
constexpr int64_t kStoredStrip = 128;

struct Plan {
  Product product;
  BatchOffsets offsets;
  std::optional<StoredOperand> stored{};
  int64_t strip = 1;  // columns of a piece

  bool across() const { return product.b_row == 1; }
  int64_t batches() const { return static_cast<int64_t>(offsets.a.size()); }
  int64_t strips() const { return (product.n + strip - 1) / strip; }
  int64_t pieces() const { return batches() * strips(); }
  int64_t bytes() const { return product.k * product.n * batches() * static_cast<int64_t>(sizeof(float)); }
};

int64_t choose_strip(const Plan& plan, int threads) {
  const Product& p = plan.product;
  const int64_t wanted = threads == 1 ? 1 : std::min(threads * kPiecesForOneThread, plan.bytes() / kPieceMin);
  const int64_t strips = std::max<int64_t>(1, wanted / plan.batches());
  const int64_t strip = ((p.n + strips - 1) / strips + kStripStep - 1) / kStripStep * kStripStep;
  if (plan.stored) return std::min(strip, kStoredStrip);
  return std::min<int64_t>(strip, p.m == 1 ? 2048 : p.m <= 4 ? 1024 : 512);  // sums in a first-level cache
}

void add_bias(const Plan& plan, const LoopTable& loops, const float* bias, int64_t columns, float* c) {
  for (int64_t row = 0; bias != nullptr && row < plan.product.m; ++row)
    loops.reduce_into[kReduceSum](c + row * plan.product.n, bias, columns);
}

// Some rows of a times some of b's; the first ones, whose sums are begun, or further ones.
struct Block {
  const float *a, *b;
  int64_t depth, b_stride, columns;
  bool begins;
};
void add_block(const Plan& plan, const LoopTable& loops, const Block& block, float* sums, float* c) {
  const Product& p = plan.product;
  const FewRowsLoop* by_rows = plan.across() ? loops.few_rows_across : loops.few_rows;
  const int64_t passes = (p.m + kFewRows - 1) / kFewRows;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t begin = p.m * pass / passes, rows = p.m * (pass + 1) / passes - begin;
    float* into = c + begin * p.n;
    by_rows[rows - 1]({.a = block.a + begin * p.a_row,
                       .b = block.b,
                       .n = block.columns,
                       .k = block.depth,
                       .a_stride = p.a_row,
                       .b_stride = block.b_stride,
                       .c = block.begins ? into : sums,
                       .c_stride = block.begins ? p.n : block.columns,
                       .sums = nullptr});  // of a block of kGemmDepth there are none before
    for (int64_t row = 0; !block.begins && row < rows; ++row)
      loops.reduce_into[kReduceSum](into + row * p.n, sums + row * block.columns, block.columns);
  }
}

// b is widened block by block, and each block's sums are added to those before, as they are of floats.
void multiply_stored(const Plan& plan, const LoopTable& loops, int64_t piece, const float* a,
                     const StoredArgs& b, const float* bias, float* c) {
  const Product& p = plan.product;
  const int64_t first = piece * plan.strip, columns = std::min(plan.strip, p.n - first);
  float *tile = thread_scratch((kGemmDepth + kFewRows) * columns), *sums = tile + kGemmDepth * columns;
  for (int64_t k = 0; k < p.k; k += kGemmDepth) {
    const int64_t depth = std::min(kGemmDepth, p.k - k);
    const int64_t stride = plan.across() ? depth : columns;
    if (plan.across())
      loops.widen_stored(b, first, columns, k, depth, tile, stride);
    else
      loops.widen_stored(b, k, depth, first, columns, tile, stride);
    add_block(plan, loops, {a + k, tile, depth, stride, columns, k == 0}, sums, c + first);
  }
  add_bias(plan, loops, bias == nullptr ? nullptr : bias + first, columns, c + first);
}

void multiply(const Plan& plan, const LoopTable& loops, int64_t piece, const float* a, const float* b,
              const float* bias, float* c) {
  const Product& p = plan.product;
  const auto batch = static_cast<size_t>(piece / plan.strips());
  const int64_t first = piece % plan.strips() * plan.strip, columns = std::min(plan.strip, p.n - first);
  const FewRowsLoop* by_rows = plan.across() ? loops.few_rows_across : loops.few_rows;
  c += piece / plan.strips() * p.m * p.n + first;
  const int64_t passes = (p.m + kFewRows - 1) / kFewRows;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const int64_t begin = p.m * pass / passes, rows = p.m * (pass + 1) / passes - begin;
    by_rows[rows - 1]({.a = a + plan.offsets.a[batch] + begin * p.a_row,
                       .b = b + plan.offsets.b[batch] + first * p.b_column,
                       .n = columns,
                       .k = p.k,
                       .a_stride = p.a_row,
                       .b_stride = plan.across() ? p.b_column : p.b_row,
                       .c = c + begin * p.n,
                       .c_stride = p.n,
                       .sums = thread_scratch(rows * columns)});
  }
  add_bias(plan, loops, bias == nullptr ? nullptr : bias + first, columns, c);
}

}  // namespace

bool suits_few_rows(const Product& p) {
  return p.m <= kRowsMax && p.a_column == 1 && (p.b_row == 1 || p.b_column == 1);
}

KernelResult make_few_rows(const KernelRequest& request, const Product& product, BatchOffsets offsets,
                           const ProductSlots& slots, std::optional<StoredOperand> stored) {
  Plan plan{product, std::move(offsets), stored};
  plan.strip = choose_strip(plan, request.team.size());
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const float *a = call.in<float>(slots.a), *bias = call.in<float>(slots.bias);
    float* c = call.out<float>(slots.c);
    const StoredArgs parts = plan.stored ? plan.stored->args(call) : StoredArgs{};
    const auto piece = [&](int64_t i) {
      if (plan.stored)
        multiply_stored(plan, loops, i, a, parts, bias, c);
      else
        multiply(plan, loops, i, a, call.in<float>(slots.b), bias, c);
    };
    const bool is_small = plan.bytes() < 2 * kPieceMin;
    if (!is_small) team.pieces(plan.pieces(), piece);
    for (int64_t i = 0; is_small && i < plan.pieces(); ++i) piece(i);
    return {};
  };
  return request.make(std::string("few rows ") + request.loops.isa, run);
}

}  // namespace weft::peer::cpu
