// Every op as loops that one can check by eye: in double for float dtypes, in int64 for integers and Bool,
// one thread, each sum in index order. This is what other backends are tested against, what they fall back
// to, and the constant folder of the importer. Only Cast rounds to its dtype; float32 values otherwise stay
// doubles between ops.
//
// Pure functions without state: safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/tensor.h"
#include "peer/backend/kernel.h"

namespace weft::peer {

// A tensor in the reference's storage. `reals` holds the elements of float dtypes, `wholes` those of integers
// and Bool (0 or 1); the other is empty.
struct RefValue {
  dag::TensorSpec spec;
  std::vector<double> reals;
  std::vector<int64_t> wholes;

  bool is_real() const { return dag::is_float(spec.dtype); }
  int64_t count() const { return spec.element_count(); }
};

// Exact both ways, but for F32, F16 and BF16, where to_tensor rounds.
RefValue ref_from_tensor(const dag::Tensor& tensor);
dag::Tensor ref_to_tensor(const RefValue& value);

// Runs one op. `inputs` in operand order, nullptr for an absent optional operand. Each of `outputs` has its
// spec set, as the op's shape rule gives it; its elements are made here. Only kind and attributes of `op` are
// read.
//
// REQUIRES: the specs are those that the shape rule accepted and gave.
// Errors: Unsupported for leaves; ResourceExhausted when memory runs out.
Status run_reference_op(const dag::Op& op, std::span<const RefValue* const> inputs,
                        std::span<RefValue> outputs, const StepContext& context);

// No fold makes a tensor of more elements or takes more operations than this: a model may ask for anything.
inline constexpr int64_t kFoldElementsMax = int64_t{1} << 26;
inline constexpr int64_t kFoldFlopsMax = int64_t{1} << 32;

// The same over host tensors, for constant folding; `outputs` as the shape rule gave them.
// Errors: also ResourceExhausted when the fold is beyond the limits above.
Result<std::vector<dag::Tensor>> evaluate_reference(const dag::Op& op,
                                                    std::span<const dag::Tensor* const> inputs,
                                                    std::span<const dag::TensorSpec> outputs);

}  // namespace weft::peer
