// Reductions of lines, the running sum, and the first of a line in order of size.
#pragma once

#include "peer/backend/cuda/kernels/lines.h"

namespace weft::peer::cuda {

enum class ReduceCode : int32_t { Sum, Product, Max, Min };

// y[outer, pieces, inner] = factor * fold of x[outer, size, inner] over each piece. Integers take no factor.
template <typename T>
struct Reduce {
  Lines lines;
  Array<const T> x;
  Array<T> y;
  float factor;
  ReduceCode code;
};
extern const EntryOf<Reduce<float>> k_reduce_f32;
extern const EntryOf<Reduce<int32_t>> k_reduce_i32;
extern const EntryOf<Reduce<int64_t>> k_reduce_i64;

// The place of the extreme of each line: the first of equals, or the first NaN.
template <typename T>
struct ArgExtreme {
  Lines lines;  // in one piece
  Array<const T> x;
  Array<int64_t> y;
  int32_t largest;
};
extern const EntryOf<ArgExtreme<float>> k_arg_extreme_f32;
extern const EntryOf<ArgExtreme<int32_t>> k_arg_extreme_i32;
extern const EntryOf<ArgExtreme<int64_t>> k_arg_extreme_i64;

// Running sums along lines; float ones are added in double.
template <typename T>
struct RunningSum {
  int64_t outer, size, inner;
  Array<const T> x;
  Array<T> y;
  int32_t exclusive, reverse;
};
// By one thread a line.
extern const EntryOf<RunningSum<float>> k_running_sum_f32;
extern const EntryOf<RunningSum<int32_t>> k_running_sum_i32;
extern const EntryOf<RunningSum<int64_t>> k_running_sum_i64;
// By one block of kLineThreads a line.
extern const EntryOf<RunningSum<float>> k_running_sum_long_f32;
extern const EntryOf<RunningSum<int32_t>> k_running_sum_long_i32;
extern const EntryOf<RunningSum<int64_t>> k_running_sum_long_i64;

// The first `count` of each line: the extreme first, the first of equals first, a NaN as larger than every
// number. A block a line.
template <typename T>
struct FirstOfLine {
  int64_t outer, size, inner, count;
  Array<const T> x;
  Array<T> y;
  Array<int64_t> places;
  int32_t largest;
};
// Each element counts those before it. REQUIRES: size is at most kRankedMax.
inline constexpr int64_t kRankedMax = 1024;
extern const EntryOf<FirstOfLine<float>> k_rank_f32;
extern const EntryOf<FirstOfLine<int32_t>> k_rank_i32;
extern const EntryOf<FirstOfLine<int64_t>> k_rank_i64;
// `count` rounds, each of which takes the next. REQUIRES: kLineThreads threads.
extern const EntryOf<FirstOfLine<float>> k_select_f32;
extern const EntryOf<FirstOfLine<int32_t>> k_select_i32;
extern const EntryOf<FirstOfLine<int64_t>> k_select_i64;

}  // namespace weft::peer::cuda
