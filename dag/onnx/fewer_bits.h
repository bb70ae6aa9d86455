// A model whose matrices are kept in fewer bits than it came with: another model, for numbers are rounded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dag/onnx/model.h"
#include "dag/rounding.h"
#include "dag/tensor.h"

namespace weft::onnx {

// One tensor of those that a matrix became.
struct MadeOfMatrix {
  const std::string& source;  // the matrix's initializer
  bool turned = false;        // rows are those of its columns
  const dag::Rounding& how;
  // Hands on the matrix's numbers as float32, in the order in which they were rounded.
  std::function<void(const std::function<void(std::span<const float>)>&)> numbers;
  const dag::Tensor& made;
};

struct FewerBits {
  int bits = 4;  // 4, 8: integers with a scale for each block; 16: BF16
  int64_t block =
      128;  // numbers of a block, along what products add up; a smaller one where that does not divide
  // Which initializers.
  std::function<bool(const std::string& name)> takes;
  // Told of each as it is written, perhaps more than once; empty: nobody asks.
  std::function<void(const MadeOfMatrix&)> on_made{};
};

struct WrittenBits {
  size_t matrices = 0;              // kept in fewer bits now
  uint64_t before = 0, after = 0;   // their bytes
  std::vector<std::string> passed;  // matrices that were asked for and are as they were, with why
};

// Writes the model so: the matrices that MatMul and Gemm multiply with as MatMulNBits of com.microsoft has
// them, those whose rows Gather takes as GatherBlockQuantized, BF16 with a Cast behind it. dag/rounding.h
// says what becomes of a number. One that is read otherwise is as it was. One matrix is held at a time.
// Errors: what reading and writing say.
Result<WrittenBits> write_in_fewer_bits(const OnnxModel& model, const FewerBits& how,
                                        const std::filesystem::path& output);

// The same for plans: a model whose matrices of fewer bits have no values. None is read.
struct InFewerBits {
  OnnxModel model;
  WrittenBits bits;
};
Result<InFewerBits> outline_in_fewer_bits(const OnnxModel& model, const FewerBits& how);

}  // namespace weft::onnx
