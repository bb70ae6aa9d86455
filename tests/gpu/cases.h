// What weft_gpu_check runs: the cases of every op, those of large shapes, products and convolutions in other
// arithmetic, and random groups of elementwise ops.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dag/graph.h"
#include "dag/op_table.h"
#include "peer/backend/precision.h"

namespace weft::test {

struct GpuCase {
  enum class Kind { Op, Large, Arithmetic, Group };
  Kind kind;
  std::string name;  // unique
  dag::Graph graph;
  dag::Graph apart;  // of a Group: op by op, the same bits
  std::vector<dag::ValueId> wanted;
  std::vector<dag::Tensor> inputs;
  double tolerance = 0;  // relative to the largest element; of all but groups
  peer::Precision precision{};
  // A product, a convolution or made of them: the device's library decides its bits.
  bool is_library = false;
};
std::string_view to_string(GpuCase::Kind kind);

std::vector<GpuCase> gpu_cases();

// SHA-256 of shape, dtype and values, every NaN the same: a processor and a GPU make different ones.
std::string digest_of(const dag::Tensor& tensor);
bool same_values(const dag::Tensor& a, const dag::Tensor& b);

}  // namespace weft::test
