// What is left to the device's libraries: matrix products and convolutions, as they are asked for. Plain
// values; cuDNN and cuBLASLt stand behind Device::make_convolution and make_product.
#pragma once

#include <cstdint>
#include <vector>

#include "peer/backend/precision.h"

namespace weft::peer::cuda {

// One of the three convolutions of a layer, float32 in memory. NCHW; one to three spatial dims.
struct ConvolutionSpec {
  enum class Direction : uint8_t {
    Forward,     // x, w [, bias] -> y
    GradInput,   // y, w -> x
    GradWeight,  // x, y -> w
  };
  Direction direction = Direction::Forward;
  std::vector<int64_t> x, w, y;                                   // [N,C,...], [M,C/groups,...], [N,M,...]
  std::vector<int64_t> strides, pads_begin, pads_end, dilations;  // by spatial dim
  int64_t groups = 1;
  Arithmetic arithmetic = Arithmetic::F32;
};

// c[b] = epilogue(op(a[b]) op(b[b]) + bias), all row-major: op(a) is [m,k], op(b) [k,n], c [m,n].
struct ProductSpec {
  enum class Epilogue : uint8_t { None, Bias, BiasRelu, BiasGelu };  // Gelu by tanh; bias [n]
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t batch = 1;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;  // elements from one batch to the next; 0: the same again
  Epilogue epilogue = Epilogue::None;
  Arithmetic arithmetic = Arithmetic::F32;
};

}  // namespace weft::peer::cuda
