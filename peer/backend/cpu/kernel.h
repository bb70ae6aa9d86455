// What the families share to make kernels: the request (which op, where its operands stand in the signature),
// and a kernel that is a function with captured choices.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "dag/op_table.h"
#include "peer/backend/cpu/loops/table.h"
#include "peer/backend/cpu/memory.h"
#include "peer/backend/cpu/team.h"
#include "peer/backend/kernel.h"

namespace weft::peer::cpu {

// What a kernel has at hand in one run.
struct Call {
  std::span<const View> inputs, outputs;
  std::byte* workspace = nullptr;
  const StepContext& context;

  // Slots are positions in the signature; a negative one is an absent operand: null.
  template <typename T>
  const T* in(int slot) const {
    return slot < 0 ? nullptr : pointer<const T>(inputs[static_cast<size_t>(slot)]);
  }
  template <typename T>
  T* out(int slot) const {
    return slot < 0 ? nullptr : pointer<T>(outputs[static_cast<size_t>(slot)]);
  }
  template <typename T>
  T* scratch(int64_t offset_bytes = 0) const {
    return reinterpret_cast<T*>(workspace + offset_bytes);
  }
};

class FunctionKernel final : public Kernel {
 public:
  using Function = std::function<Status(const Call&)>;
  FunctionKernel(std::string implementation, const Team& team, Function function, int64_t workspace_bytes = 0,
                 std::vector<int> in_place = {})
      : implementation_(std::move(implementation)),
        team_(team),
        function_(std::move(function)),
        workspace_bytes_(workspace_bytes),
        in_place_(std::move(in_place)) {}

  Bytes workspace_bytes() const override { return {workspace_bytes_}; }
  int in_place_input(size_t output) const override {
    return output < in_place_.size() ? in_place_[output] : -1;
  }
  Status run(std::span<const View> inputs, std::span<const View> outputs, View workspace,
             const StepContext& context) override try {
    const Team::Entered entered(team_);
    return function_({inputs, outputs, pointer<std::byte>(workspace), context});
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::ResourceExhausted, "cpu backend: no memory for a run of " + implementation_);
  }
  std::string_view implementation() const override { return implementation_; }

 private:
  std::string implementation_;
  const Team& team_;
  Function function_;
  int64_t workspace_bytes_;
  std::vector<int> in_place_;
};

using KernelResult = Result<std::unique_ptr<Kernel>>;

struct KernelRequest {
  const dag::Graph& graph;
  const GroupSignature& group;
  const dag::Op& op;  // the only op of the group, except for make_elementwise
  const Team& team;
  const LoopTable& loops;
  bool own_convolutions = false;  // never oneDNN's

  const dag::Attributes& attributes() const { return op.attributes; }
  bool has(size_t operand) const { return operand < op.inputs.size() && op.inputs[operand].valid(); }
  const dag::Value& in(size_t operand) const { return graph.value(op.inputs[operand]); }
  const dag::Value& out(size_t result = 0) const { return graph.value(op.outputs[result]); }
  const dag::Shape& in_shape(size_t operand) const { return in(operand).spec.shape; }
  const dag::Shape& out_shape(size_t result = 0) const { return out(result).spec.shape; }
  bool is_f32(const dag::Value& value) const { return value.spec.dtype == dag::DType::F32; }
  bool is_plain(const dag::Value& value) const { return value.layout == dag::Layout::Plain; }

  // Whether every operand and result lies plain: what most families take for granted.
  bool all_plain() const {
    const auto plain = [this](dag::ValueId v) { return !v.valid() || is_plain(graph.value(v)); };
    return std::all_of(op.inputs.begin(), op.inputs.end(), plain) &&
           std::all_of(op.outputs.begin(), op.outputs.end(), plain);
  }

  // Where an operand or result stands in the signature; -1: absent.
  int input_slot(size_t operand) const {
    return has(operand) ? slot_of(group.inputs, op.inputs[operand]) : -1;
  }
  int output_slot(size_t result) const { return slot_of(group.outputs, op.outputs[result]); }
  static int slot_of(const std::vector<dag::ValueId>& values, dag::ValueId value) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == value) return static_cast<int>(i);
    }
    return -1;
  }

  KernelResult make(std::string implementation, FunctionKernel::Function function,
                    int64_t workspace_bytes = 0, std::vector<int> in_place = {}) const {
    return std::unique_ptr<Kernel>(std::make_unique<FunctionKernel>(
        std::move(implementation), team, std::move(function), workspace_bytes, std::move(in_place)));
  }
  // The op as it stands (dtype, layout, attributes) is not served: the reference takes it.
  KernelResult decline() const { return std::unique_ptr<Kernel>(); }
};

// One function a family, in the file of its name. A null kernel: not served.
KernelResult make_elementwise(const KernelRequest& request);  // the whole group; Dropout as well
KernelResult make_shape(const KernelRequest& request);
KernelResult make_reduction(const KernelRequest& request);
KernelResult make_matmul(const KernelRequest& request);
KernelResult make_attention(const KernelRequest& request);
KernelResult make_convolution(const KernelRequest& request);
KernelResult make_integer_matmul(const KernelRequest& request);
KernelResult make_integer_conv(const KernelRequest& request);
KernelResult make_normalisation(const KernelRequest& request);
KernelResult make_softmax(const KernelRequest& request);
KernelResult make_pooling(const KernelRequest& request);
KernelResult make_sampling(const KernelRequest& request);
KernelResult make_recurrent(const KernelRequest& request);

// Any op whatever, by the reference backend's arithmetic.
KernelResult make_fallback(const KernelRequest& request);

// The family's kernel or the fallback; for a group of several ops that is no elementwise program, one after
// another.
KernelResult make_group_kernel(const dag::Graph& graph, const GroupSignature& group, const Team& team,
                               const LoopTable& loops, bool own_convolutions);

inline int lanes_of(dag::Layout layout) {
  switch (layout) {
    case dag::Layout::Plain:
      return 1;
    case dag::Layout::Blocked8:
      return 8;
    case dag::Layout::Blocked16:
      return 16;
  }
  return 1;
}

inline int64_t product(const dag::Shape& shape, size_t begin, size_t end) {
  int64_t count = 1;
  for (size_t i = begin; i < end; ++i) count *= shape[i];
  return count;
}

// Elements a thread should at least get, for work that moves memory.
inline constexpr int64_t kGrain = 16384;
inline int64_t rows_grain(int64_t row) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, row)); }

}  // namespace weft::peer::cpu
