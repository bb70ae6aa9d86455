// Nothing is computed twice and no sum is cut, so how the columns are dealt to threads changes no bit.
#include "peer/backend/cpu/few_rows.h"

#include <algorithm>

namespace weft::peer::cpu {
namespace {

constexpr int64_t kStripStep = 64;          // whole cache lines, and whole vectors of every instruction set
constexpr int64_t kPieceMin = 64 << 10;     // bytes of b that are worth a thread's attention
constexpr int64_t kPiecesForOneThread = 2;  // of a long product, so that an idle thread finds one

// Columns of a piece.
int64_t strip_of(const Product& p, int64_t batches, int threads) {
  const int64_t bytes = p.k * p.n * batches * static_cast<int64_t>(sizeof(float));
  const int64_t wanted = threads == 1 ? 1 : std::min(threads * kPiecesForOneThread, bytes / kPieceMin);
  const int64_t strips = std::max<int64_t>(1, wanted / batches);
  const int64_t strip = ((p.n + strips - 1) / strips + kStripStep - 1) / kStripStep * kStripStep;
  return std::min<int64_t>(strip, p.m == 1   ? 2048
                                  : p.m <= 4 ? 1024
                                             : 512);  // sums stay in a first-level cache
}

}  // namespace

bool suits_few_rows(const Product& p) {
  return p.m <= kFewRows && p.a_column == 1 && (p.b_row == 1 || p.b_column == 1);
}

KernelResult make_few_rows(const KernelRequest& request, const Product& p, BatchOffsets offsets,
                           const ProductSlots& slots) {
  const auto batches = static_cast<int64_t>(offsets.a.size());
  const bool across = p.b_row == 1;
  const FewRowsLoop multiply = (across ? request.loops.few_rows_across : request.loops.few_rows)[p.m - 1];
  const int64_t strip = strip_of(p, batches, request.team.size()), strips = (p.n + strip - 1) / strip;
  const bool is_small = p.k * p.n * batches * static_cast<int64_t>(sizeof(float)) < 2 * kPieceMin;
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const float *a = call.in<float>(slots.a), *b = call.in<float>(slots.b),
                *bias = call.in<float>(slots.bias);
    const auto piece = [&](int64_t i) {
      const auto batch = static_cast<size_t>(i / strips);
      const int64_t first = i % strips * strip, columns = std::min(strip, p.n - first);
      float* c = call.out<float>(slots.c) + i / strips * p.m * p.n + first;
      multiply({.a = a + offsets.a[batch],
                .b = b + offsets.b[batch] + first * p.b_column,
                .n = columns,
                .k = p.k,
                .a_stride = p.a_row,
                .b_stride = across ? p.b_column : p.b_row,
                .c = c,
                .c_stride = p.n,
                .sums = thread_scratch(p.m * strip)});
      for (int64_t row = 0; bias != nullptr && row < p.m; ++row)
        loops.reduce_into[kReduceSum](c + row * p.n, bias + first, columns);
    };
    if (!is_small) team.pieces(batches * strips, piece);
    for (int64_t i = 0; is_small && i < batches * strips; ++i) piece(i);
    return {};
  };
  return request.make(std::string("few rows ") + request.loops.isa, run);
}

}  // namespace weft::peer::cpu
