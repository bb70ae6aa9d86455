// A model whose matrices are kept in fewer bits than it came with: another model, for numbers are rounded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dag/onnx/model.h"
#include "dag/tensor.h"

namespace weft::onnx {

struct FewerBits {
  int bits = 4;  // 4, 8: integers with a scale for each block; 16: BF16
  int64_t block =
      128;  // numbers of a block, along what products add up; a smaller one where that does not divide
  // Which initializers.
  std::function<bool(const std::string& name)> takes;
};

struct WrittenBits {
  size_t matrices = 0;              // kept in fewer bits now
  uint64_t before = 0, after = 0;   // their bytes
  std::vector<std::string> passed;  // matrices that were asked for and are as they were, with why
};

// Writes the model so: the matrices that MatMul and Gemm multiply with as MatMulNBits of com.microsoft has
// them, those whose rows Gather takes as GatherBlockQuantized, BF16 with a Cast behind it. A number becomes
// the nearest of 16 or 256 steps of its block's scale, which is the number of largest magnitude over -8 or
// -128; its magnitude over 7 or 127 where all are whole steps of that already. One that is read otherwise is
// as it was. One matrix is held at a time. Errors: what reading and writing say.
Result<WrittenBits> write_in_fewer_bits(const OnnxModel& model, const FewerBits& how,
                                        const std::filesystem::path& output);

// The same for plans: a model whose matrices of fewer bits have no values. None is read.
struct InFewerBits {
  OnnxModel model;
  WrittenBits bits;
};
Result<InFewerBits> outline_in_fewer_bits(const OnnxModel& model, const FewerBits& how);

}  // namespace weft::onnx
