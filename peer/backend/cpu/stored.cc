#include "peer/backend/cpu/stored.h"

#include <limits>

#include "base/check.h"

namespace weft::peer::cpu {
namespace {

int kind_of(dag::DType dtype) {
  switch (dtype) {
    case dag::DType::F32:
      return kStoredF32;
    case dag::DType::F16:
      return kStoredF16;
    case dag::DType::BF16:
      return kStoredBF16;
    case dag::DType::I8:
      return kStoredI8;
    default:
      WEFT_CHECK(dtype == dag::DType::U8);
      return kStoredU8;
  }
}

}  // namespace

StoredOperand StoredOperand::of(const KernelRequest& request, size_t first) {
  return {.matrix = stored_matrix_of(request.graph, request.op, first),
          .numbers = request.input_slot(first),
          .scale = request.input_slot(first + 1),
          .zero = request.input_slot(first + 2)};
}

StoredArgs StoredOperand::args(const Call& call) const {
  return {.numbers = call.in<std::byte>(numbers),
          .scale = call.in<std::byte>(scale),
          .zero = call.in<std::byte>(zero),
          .kind = kind_of(matrix.numbers),
          .scale_kind = kind_of(matrix.scale),
          .rounded = kind_of(matrix.rounded),
          .bits = static_cast<int>(matrix.bits),
          .zero_bits = static_cast<int>(matrix.zero_bits),
          .zero_of_all = static_cast<int>(matrix.zero_of_all),
          .columns = matrix.columns,
          .block_rows = matrix.block_rows,
          .block_columns = matrix.block_columns,
          .scale_columns = matrix.scale_columns()};
}

KernelResult make_stored_weight(const KernelRequest& request) {
  const StoredOperand stored = StoredOperand::of(request, 0);
  const int at = request.input_slot(3), y = request.output_slot(0);
  const int64_t columns = stored.matrix.columns, rows = stored.matrix.rows;
  if (at < 0) {
    const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
      const StoredArgs args = stored.args(call);
      team.ranges(rows, rows_grain(columns), [&](int64_t begin, int64_t end) {
        loops.widen_stored(args, begin, end - begin, 0, columns, call.out<float>(y) + begin * columns,
                           columns);
      });
      return {};
    };
    return request.make("widen", run);
  }
  const bool wide = request.in(3).spec.dtype == dag::DType::I64;
  const int64_t count = request.in(3).spec.element_count();
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const StoredArgs args = stored.args(call);
    team.ranges(count, rows_grain(columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t raw = wide ? call.in<int64_t>(at)[i] : call.in<int32_t>(at)[i];
        const int64_t row = raw < 0 ? raw + rows : raw;
        float* target = call.out<float>(y) + i * columns;
        if (row >= 0 && row < rows)
          loops.widen_stored(args, row, 1, 0, columns, target, columns);
        else
          std::fill(target, target + columns, std::numeric_limits<float>::quiet_NaN());
      }
    });
    return {};
  };
  return request.make("widen rows", run);
}

}  // namespace weft::peer::cpu
