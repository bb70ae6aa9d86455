// Stored weights as float32: halves widened, integers less their zero times their scale.
#include "peer/backend/cpu/loops/halves.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

constexpr int64_t kStretch = 512;  // columns at a time: what they go through stays in a first-level cache

float float_of(const void* numbers, int kind, int64_t i) {
  if (kind == kStoredF16) return widened(static_cast<const Half*>(numbers)[i]);
  if (kind == kStoredBF16) return widened(static_cast<const Brain*>(numbers)[i]);
  return static_cast<const float*>(numbers)[i];
}

template <typename Number>
void widen(const void* numbers, int64_t first, int64_t count, float* out) {
  const Number* from = static_cast<const Number*>(numbers) + first;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = widened(from[i]);
}
// Two in a byte, in order. `flip` 8 makes of a signed number one that is 8 larger, without a sign.
void to_bytes(const void* numbers, int64_t first, int64_t count, int flip, int8_t* out) {
  using Bytes = signed char __attribute__((vector_size(16)));
  using Unsigned = unsigned char __attribute__((vector_size(16)));
  const uint8_t* from = static_cast<const uint8_t*>(numbers) + first / 2;
  const auto one = [flip](int four) WEFT_LOOP_LAMBDA { return static_cast<int8_t>((four ^ flip) - flip); };
  int64_t i = 0;
  if (first % 2 != 0 && count > 0) out[i++] = one(*from++ >> 4);
  const auto sign = static_cast<signed char>(flip);
  for (; i + 32 <= count; i += 32, from += 16) {
    Unsigned both;
    __builtin_memcpy(&both, from, sizeof both);
    const Bytes low = (reinterpret_cast<Bytes>(both & 15) ^ sign) - sign,
                high = (reinterpret_cast<Bytes>(both >> 4) ^ sign) - sign;
    const Bytes begin =
        __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const Bytes end =
        __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    __builtin_memcpy(out + i, &begin, sizeof begin);
    __builtin_memcpy(out + i + 16, &end, sizeof end);
  }
  for (; i < count; i += 2, ++from) {
    out[i] = one(*from & 15);
    if (i + 1 < count) out[i + 1] = one(*from >> 4);
  }
}

float zero_at(const StoredArgs& args, int64_t i) {
  if (args.zero == nullptr) return static_cast<float>(args.zero_of_all);
  const bool is_signed = args.kind == kStoredI8;
  if (args.zero_bits == 8)
    return is_signed ? static_cast<float>(static_cast<const int8_t*>(args.zero)[i])
                     : static_cast<float>(static_cast<const uint8_t*>(args.zero)[i]);
  const int four = static_cast<const uint8_t*>(args.zero)[i / 2] >> (i % 2 * 4) & 15,
            flip = is_signed ? 8 : 0;
  return static_cast<float>((four ^ flip) - flip);
}

template <typename Nearest>
void map_all(int64_t count, float* out, const Nearest& nearest) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = nearest(out[i]);
}
void round_to(int kind, int64_t count, float* out) {
  if (kind == kStoredF16) map_all(count, out, [](float x) WEFT_LOOP_LAMBDA { return nearest_f16(x); });
  if (kind == kStoredBF16) map_all(count, out, [](float x) WEFT_LOOP_LAMBDA { return nearest_bf16(x); });
}

// A stretch of a row that has a scale for each column.
struct ColumnScales {
  float scale[kStretch], zero[kStretch];
  int64_t row = -1;

  void read(const StoredArgs& args, int64_t block_row, int64_t column, int64_t count) {
    if (row == block_row) return;
    row = block_row;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = block_row * args.scale_columns + column + i;
      scale[i] = float_of(args.scale, args.scale_kind, at);
      zero[i] = zero_at(args, at);
    }
  }
  template <typename Number>
  void apply(const Number* from, int64_t count, float* out) const {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = (static_cast<float>(from[i]) - zero[i]) * scale[i];
  }
};

template <typename Number>
void apply_blocks(const StoredArgs& args, const Number* from, int64_t block_row, int64_t column,
                  int64_t count, float* out) {
  for (int64_t done = 0; done < count;) {
    const int64_t block = (column + done) / args.block_columns;
    const int64_t end = (block + 1) * args.block_columns - column;
    const int64_t until = end < count ? end : count;
    const int64_t at = block_row * args.scale_columns + block;
    const float scale = float_of(args.scale, args.scale_kind, at), zero = zero_at(args, at);
#pragma omp simd
    for (int64_t i = done; i < until; ++i) out[i] = (static_cast<float>(from[i]) - zero) * scale;
    done = until;
  }
}

// Numbers of one row, a byte each.
template <typename Number>
void widen_integers(const StoredArgs& args, const Number* from, int64_t row, int64_t column, int64_t count,
                    ColumnScales& scales, float* out) {
  if (args.block_columns == 1) {
    scales.read(args, row / args.block_rows, column, count);
    scales.apply(from, count, out);
  } else {
    apply_blocks(args, from, row / args.block_rows, column, count, out);
  }
  round_to(args.rounded, count, out);
}

void widen_stored(const StoredArgs& args, int64_t row, int64_t rows, int64_t column, int64_t columns,
                  float* out, int64_t out_stride) {
  ColumnScales scales;
  for (int64_t c0 = 0; c0 < columns; c0 += kStretch) {
    const int64_t count = columns - c0 < kStretch ? columns - c0 : kStretch;
    scales.row = -1;
    for (int64_t r = row; r < row + rows; ++r) {
      float* to = out + (r - row) * out_stride + c0;
      const int64_t first = r * args.columns + column + c0;
      if (args.kind == kStoredF16) {
        widen<Half>(args.numbers, first, count, to);
      } else if (args.kind == kStoredBF16) {
        widen<Brain>(args.numbers, first, count, to);
      } else if (args.bits == 4) {
        int8_t bytes[kStretch];
        to_bytes(args.numbers, first, count, args.kind == kStoredI8 ? 8 : 0, bytes);
        widen_integers(args, bytes, r, column + c0, count, scales, to);
      } else if (args.kind == kStoredI8) {
        widen_integers(args, static_cast<const int8_t*>(args.numbers) + first, r, column + c0, count, scales,
                       to);
      } else {
        widen_integers(args, static_cast<const uint8_t*>(args.numbers) + first, r, column + c0, count, scales,
                       to);
      }
    }
  }
}

}  // namespace

void add_stored_loops(LoopTable& table) { table.widen_stored = widen_stored; }

}  // namespace weft::peer::cpu::WEFT_ISA
