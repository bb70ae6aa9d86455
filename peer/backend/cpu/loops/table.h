// The vector loops: plain C-like loops that the compiler vectorises, compiled once for each instruction set
// and chosen when the program starts. This header is all that those files share with the rest: no library
// header, no inline function, so that nothing compiled for a wide instruction set can be picked up by code
// that runs everywhere.
#pragma once

#include <stdint.h>

namespace weft::peer::cpu {

constexpr int kCastTypes = 8;

// One operation on contiguous elements. Suffixes name the operand type: none F32, B Bool (a byte, 0 or 1),
// I32, I64, U8.
enum ElementCode : int {
  // F32 -> F32
  kNeg,
  kAbs,
  kSign,
  kExp,
  kLog,
  kSqrt,
  kReciprocal,
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kTanh,
  kSigmoid,
  kRelu,
  kErf,
  kGelu,
  kGeluTanh,
  kSoftplus,
  kFloor,
  kCeil,
  kRound,
  kRoundToF16,
  kRoundToBF16,
  kSquare,
  kCube,
  kClip,
  kDropout,
  // low[], high[] or mean[], scale[] as arrays -> F32
  kRandomUniform,
  kRandomNormal,
  // F32 -> Bool
  kIsNaN,
  kIsInf,
  // F32, F32 -> F32
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,
  kMin,
  kMax,
  kModFloor,
  kModTruncate,
  kReluGrad,
  kTanhGrad,
  kSigmoidGrad,
  kGeluGrad,
  kGeluTanhGrad,
  // F32, F32 -> Bool
  kEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  // Bool
  kNotB,
  kAndB,
  kOrB,
  kXorB,
  kEqualB,
  // integers
  kNegI32,
  kAbsI32,
  kSignI32,
  kAddI32,
  kSubI32,
  kMulI32,
  kDivI32,
  kMinI32,
  kMaxI32,
  kModI32,
  kRemainderI32,
  kEqualI32,
  kLessI32,
  kLessEqualI32,
  kGreaterI32,
  kGreaterEqualI32,
  kNegI64,
  kAbsI64,
  kSignI64,
  kAddI64,
  kSubI64,
  kMulI64,
  kDivI64,
  kMinI64,
  kMaxI64,
  kModI64,
  kRemainderI64,
  kEqualI64,
  kLessI64,
  kLessEqualI64,
  kGreaterI64,
  kGreaterEqualI64,
  // Bool, T, T -> T by element size
  kWhere1,
  kWhere2,
  kWhere4,
  kWhere8,
  // from F32, Bool, I32, I64, U8, F16, BF16, I8 (rows) to the same (columns)
  kCastFirst,
  kCastLast = kCastFirst + kCastTypes * kCastTypes - 1,
  kElementCodeCount
};

struct ElementArgs {
  void* out;
  const void* in[3];
  int64_t count;
  float p0, p1;  // kClip: bounds; kDropout: p0 = scale of what is kept
  // kDropout, kRandom*: the draw of element i is that of flat position `position + i`.
  uint64_t position;
  uint64_t seed;
  uint32_t step, key, threshold;
};
// out may be the same array as any operand; otherwise they do not overlap.
using ElementLoop = void (*)(const ElementArgs& args);

struct SgdArgs {
  float learning_rate, weight_decay, momentum, keep /* 1 - dampening */, gradient_scale;
  int first, nesterov;
};
// A slot in eight bits of the elements from `first` of their tensor on: dag/slot_codes.h has what the numbers
// are. `draw` is of the update.
constexpr int64_t kSlotBlock = 256;
struct CodedSlot {
  uint8_t *codes, *scales;
  int64_t first;  // a multiple of kSlotBlock
  uint32_t draw;
};
struct AdamArgs {
  float decay_factor;  // adamw: the parameter times this first; adam: 1
  float weight_decay;  // adam: added to the gradient; adamw: 0
  float beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_sqrt_correction2, epsilon,
      gradient_scale;
};

// The windows of a convolution or of pooling over one sample; fewer spatial dims are three with leading ones.
struct WindowArgs {
  int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
};

// Pooling over one [depth, height, width, lanes] plane.
struct PoolArgs {
  WindowArgs window;
  int64_t pad_end[3];  // only counted by AveragePool with count_include_pad
  int count_include_pad;
  int lanes;  // 1, 8 or 16
};

constexpr int64_t kGemmDepth = 256;

// c[m, n] = a[m, k] b[k, n] for a strip of columns of b.
constexpr int kFewRows = 8;  // the largest m
struct FewRowsArgs {
  const float *a, *b;
  int64_t n, k, a_stride;
  int64_t b_stride;  // from row to row, and, across, from column to column
  float* c;
  int64_t c_stride;
  float* sums;  // scratch: [m, n]
};
using FewRowsLoop = void (*)(const FewRowsArgs& args);

// A stretch of `count` hidden units of one row of a recurrent cell. Its gates lie `stride` apart in x, gates
// and d, `product_stride` apart in product. Not every cell has every array.
struct CellArgs {
  int64_t count, stride, product_stride;
  const float* x;        // the input's part of the gates
  const float* product;  // the state's
  const float *before, *c_before;
  const float* bias;  // within GRU's reset
  float *gates, *inner, *c, *h;
  int relu;
};
// The way back: what the forward cell made, and cotangents. dh and dc flow from step to step; what a product
// with the weights adds to dh comes afterwards.
struct CellGradArgs {
  int64_t count, stride;
  const float *gates, *inner, *c, *h, *before, *c_before, *dy;
  float *dh, *dc, *d, *dinner;
  int relu;
};
using CellLoop = void (*)(const CellArgs& args);
using CellGradLoop = void (*)(const CellGradArgs& args);

constexpr int64_t kBytePanelColumns = 64;

// Where a stretch of a row's bytes comes to lie among a panel's columns.
struct ByteSegment {
  int64_t source, target, count;
};
// Rows of bytes as a panel: [depth / 4, kBytePanelColumns, 4 of depth], the depth padded with zeros. What the
// segments leave out is undefined.
struct BytePanelArgs {
  const uint8_t* const* rows;
  int64_t depth;
  const ByteSegment* segments;
  int64_t segment_count, stride;  // stride: of the sources
  int has_slack;                  // kBytePanelColumns bytes may be read from any source
  int flip_signs;                 // adds 128: what was unsigned counts as signed, and the other way round
  uint8_t* panel;
};
// c[m, n] = a[m, 4 * quads] times a panel, one factor unsigned and the other signed, and for each of the two
// `of_column` that are there, the outer product with of_row. n <= kBytePanelColumns <= entries of of_column.
// Sums wrap around.
struct ByteProductArgs {
  const uint8_t* a;
  int64_t a_stride;
  int a_unsigned;
  int64_t m, quads, n;
  const uint8_t* panel;
  const int32_t *of_row[2], *of_column[2];
  int32_t* c;
  int64_t c_stride;
};

enum StoredKind : int { kStoredF32, kStoredF16, kStoredBF16, kStoredI8, kStoredU8 };
// A matrix of weights in fewer bits: dag/stored_matrix.h has what the numbers are.
struct StoredArgs {
  const void *numbers, *scale, *zero;  // zero may be null
  int kind, scale_kind, rounded;       // rounded: kStoredF32 for as they are
  int bits, zero_bits;                 // of integers: 8 or 4
  int zero_of_all;                     // where zero is null
  int64_t columns;                     // of the whole matrix
  int64_t block_rows, block_columns, scale_columns;
};

enum ReduceCode : int { kReduceSum, kReduceMax, kReduceMin, kReduceProd, kReduceCodeCount };

// All arrays are float and contiguous unless said otherwise. `lanes` (1, 8 or 16) is the number of channels
// that lie innermost: a plane is [positions, lanes], and per-channel arrays have `lanes` entries.
struct LoopTable {
  const char* isa;
  int lanes;  // channels side by side that suit its vectors: 8 or 16
  ElementLoop element[kElementCodeCount];

  // Rows.
  float (*reduce_row[kReduceCodeCount])(const float* x, int64_t count);
  void (*reduce_into[kReduceCodeCount])(float* into, const float* x,
                                        int64_t count);  // into[i] = into[i] op x[i]
  void (*scale)(float* x, float factor, int64_t count);
  void (*fill)(float* x, float value, int64_t count);
  void (*softmax_row)(const float* x, float* y, int64_t count);
  void (*softmax_grad_row)(const float* dy, const float* y, float* dx, int64_t count);
  void (*log_softmax_row)(const float* x, float* y, int64_t count);
  void (*log_softmax_grad_row)(const float* dy, const float* y, float* dx, int64_t count);
  float (*log_sum_exp_row)(const float* x, int64_t count);
  // dx[i] = factor * exp(x[i] - lse)
  void (*scaled_exp_row)(const float* x, float lse, float factor, float* dx, int64_t count);
  // scale and bias may be null. moments: mean, then 1 / deviation.
  void (*layer_norm_row)(const float* x, const float* scale, const float* bias, float* y, int64_t count,
                         float epsilon, float* moments);
  // Adds to dscale and dbias (which may be null).
  void (*layer_norm_grad_row)(const float* dy, const float* x, const float* scale, float mean, float rstd,
                              float* dx, float* dscale, float* dbias, int64_t count);
  double (*sum_of_squares)(const float* x, int64_t count);

  // Planes.
  // mean and sum of squared distances from it, of each lane.
  void (*moments_plane)(const float* x, int64_t positions, int lanes, double* mean, double* m2);
  // y = (x - mean) * factor + bias
  void (*normalise_plane)(const float* x, float* y, int64_t positions, int lanes, const float* mean,
                          const float* factor, const float* bias);
  // sum of dy, and of dy * (x - mean)
  void (*norm_grad_sums_plane)(const float* dy, const float* x, int64_t positions, int lanes,
                               const float* mean, double* sum_dy, double* sum_dy_x);
  // dx = factor * (dy - mean_dy - (x - mean) * slope)
  void (*norm_grad_plane)(const float* dy, const float* x, float* dx, int64_t positions, int lanes,
                          const float* mean, const float* factor, const float* mean_dy, const float* slope);
  void (*sum_plane)(const float* x, int64_t positions, int lanes, float* sum);
  void (*fill_plane)(float* y, int64_t positions, int lanes, const float* values);
  void (*max_pool_plane)(const float* x, float* y, int32_t* indices, const PoolArgs& args);
  void (*max_pool_grad_plane)(const float* dy, const int32_t* indices, float* dx, const PoolArgs& args);
  void (*average_pool_plane)(const float* x, float* y, const PoolArgs& args);
  void (*average_pool_grad_plane)(const float* dy, float* dx, const PoolArgs& args);

  // The convolution as a matrix product. Row r of `columns` stands for tap r % taps of channel r / taps of
  // x[channels, in], its column j for output position `position + j`. unfold writes the elements of x under
  // the windows, zero outside; fold adds each element to its place in x.
  void (*unfold)(const float* x, const WindowArgs& args, int64_t row, int64_t rows, int64_t position,
                 int64_t positions, float* columns, int64_t column_stride);
  void (*fold)(const float* columns, int64_t column_stride, const WindowArgs& args, int64_t row, int64_t rows,
               int64_t position, int64_t positions, float* x);

  // A convolution of each channel by itself over planes of `lanes` (8 or 16) channels: x[in, lanes],
  // w[taps, lanes], y[out, lanes]. bias (a number a lane) may be null; the gradient of w is added to dw.
  void (*depthwise_plane)(const float* x, const float* w, const float* bias, float* y, const WindowArgs& args,
                          int lanes);
  void (*depthwise_grad_input_plane)(const float* dy, const float* w, float* dx, const WindowArgs& args,
                                     int lanes);
  void (*depthwise_grad_weight_plane)(const float* x, const float* dy, float* dw, const WindowArgs& args,
                                      int lanes);

  // The cotangent of x of a group of 8 channels from 8 of y, added to dx[in, 8]: dy[out, 8], w[taps, 8 of y,
  // 8 of x].
  void (*grouped_grad_input_plane)(const float* dy, const float* w, float* dx, const WindowArgs& args);

  // target[c * target_stride + r] = source[r * source_stride + c], 4-byte elements.
  void (*transpose)(const float* source, int64_t source_stride, float* target, int64_t target_stride,
                    int64_t rows, int64_t columns);

  // Matrix products c[m,n] = a[m,k] b[k,n] in blocks of at most kGemmDepth terms. An element's terms are
  // added in order of k within a block, and the block's sum to what is there: its bits depend on k alone.
  int gemm_rows;  // rows of a sliver of packed a
  // A block of a, [m, depth] with strides, as slivers [depth, gemm_rows] one after another, padded with zero
  // rows.
  void (*gemm_pack)(const float* a, int64_t row_stride, int64_t column_stride, int64_t m, int64_t depth,
                    float* packed);
  // c (+)= packed a times a block of b, [depth, n] with strides. `scratch` holds kGemmDepth * 64 floats,
  // aligned to 64 bytes.
  void (*gemm_block)(const float* packed, int64_t m, int64_t depth, const float* b, int64_t row_stride,
                     int64_t column_stride, int64_t n, float* c, int64_t c_stride, int accumulate,
                     float* scratch);
  // The same sums for m = 1, 2, .. kFewRows rows, without packing: b row-major, and, across, column-major.
  FewRowsLoop few_rows[kFewRows], few_rows_across[kFewRows];

  // The block of the stored matrix as float32, row-major.
  void (*widen_stored)(const StoredArgs& args, int64_t row, int64_t rows, int64_t column, int64_t columns,
                       float* out, int64_t out_stride);

  // c[m, panel_columns] (+)= a[m, depth] panel; a panel is [depth, panel_columns], padded with zero columns.
  // An element's terms are added in order of depth.
  int panel_columns;
  void (*multiply_panel)(const float* a, int64_t a_stride, int64_t m, int64_t depth, const float* panel,
                         float* c, int64_t c_stride, int accumulate);
  // GRU with the reset after the product is one stretch; with the reset before it, two around the product.
  CellLoop lstm_cell, gru_linear_cell, gru_open_cell, gru_close_cell, rnn_cell;
  CellGradLoop lstm_cell_grad, gru_linear_cell_grad, gru_open_cell_grad, gru_close_cell_grad, rnn_cell_grad;

  void (*byte_panel)(const BytePanelArgs& args);
  void (*byte_product)(const ByteProductArgs& args);
  int32_t (*byte_sum)(const uint8_t* x, int64_t count, int is_unsigned);  // count < 2^23
  void (*byte_product_vnni)(const ByteProductArgs& args);  // null where the processor lacks the instruction

  // slot arrays may be null where the rule has none.
  void (*sgd)(float* parameter, const float* gradient, float* momentum, int64_t count, const SgdArgs& args);
  void (*adam)(float* parameter, const float* gradient, float* m, float* v, int64_t count,
               const AdamArgs& args);
  void (*coded_sgd)(float* parameter, const float* gradient, const CodedSlot& momentum, int64_t count,
                    const SgdArgs& args);
  void (*coded_adam)(float* parameter, const float* gradient, const CodedSlot& m, const CodedSlot& v,
                     int64_t count, const AdamArgs& args);
};

// The widest set that this processor has, up to `widest`, the name of one ("baseline", "v3", "v4").
// Immutable.
const LoopTable& loop_table(const char* widest);
// For tests: the one named; null where the processor or the build lacks it.
const LoopTable* loop_table_for(const char* isa);

}  // namespace weft::peer::cpu
