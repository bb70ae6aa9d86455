// What the families share to make kernels for a Device: the request (which op, where its operands stand in
// the signature), and a kernel that is a function with captured choices. A family's file has the choices; the
// device's code is in kernels/<family>.cu, its parameters and entries in kernels/<family>.h.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dag/op_table.h"
#include "peer/backend/cuda/device.h"
#include "peer/backend/kernel.h"

namespace weft::peer::cuda {

// A block of device memory, as kernels see it. The backend's Memory.
class DeviceMemory : public Memory {
 public:
  virtual std::byte* data() const = 0;
};
inline std::byte* address(View view) {
  return view.memory == nullptr ? nullptr : static_cast<DeviceMemory*>(view.memory)->data() + view.offset;
}

// What a kernel has at hand in one run.
struct Call {
  Device& device;
  std::span<const View> inputs, outputs;
  std::byte* workspace = nullptr;
  const DeviceContext* context = nullptr;  // in device memory

  // Slots are positions in the signature; a negative one is an absent operand: an empty Array. `count`:
  // elements of the value.
  template <typename T>
  Array<const T> in(int slot, int64_t count) const {
    if (slot < 0) return {};
    return {reinterpret_cast<const T*>(address(inputs[static_cast<size_t>(slot)])), count};
  }
  template <typename T>
  Array<T> out(int slot, int64_t count) const {
    if (slot < 0) return {};
    return {reinterpret_cast<T*>(address(outputs[static_cast<size_t>(slot)])), count};
  }
  template <typename T>
  Array<T> scratch(int64_t offset_bytes, int64_t count) const {
    return {reinterpret_cast<T*>(workspace + offset_bytes), count};
  }
  Array<const DeviceContext> where() const { return {context, 1}; }
  template <typename Parameters>
  Status launch(const EntryOf<Parameters>& kernel, const Grid& grid, const Parameters& parameters) const {
    return device.launch(Stream::Compute, kernel, grid, &parameters);
  }
};

// What a kernel needs of its backend. Outlives the kernel.
class KernelHost {
 public:
  virtual ~KernelHost() = default;
  // The context in device memory, as what is submitted from now on is to see it.
  virtual Result<const DeviceContext*> place(const StepContext& context) = 0;
  // Lets it go once the device has done what was submitted so far.
  virtual void retire(std::shared_ptr<const void> thing) = 0;
};

class FunctionKernel final : public Kernel {
 public:
  using Function = std::function<Status(const Call&)>;
  FunctionKernel(std::string implementation, Device& device, KernelHost& host, Function function,
                 int64_t workspace_bytes, std::vector<int> in_place, bool reads_context)
      : implementation_(std::move(implementation)),
        device_(device),
        host_(host),
        function_(std::make_shared<const Function>(std::move(function))),
        workspace_bytes_(workspace_bytes),
        in_place_(std::move(in_place)),
        reads_context_(reads_context) {}
  ~FunctionKernel() override { host_.retire(std::move(function_)); }

  Bytes workspace_bytes() const override { return {workspace_bytes_}; }
  int in_place_input(size_t output) const override {
    return output < in_place_.size() ? in_place_[output] : -1;
  }
  Status run(std::span<const View> inputs, std::span<const View> outputs, View workspace,
             const StepContext& context) override {
    const DeviceContext* placed = nullptr;
    if (reads_context_) {
      WEFT_TRY(placed, host_.place(context));
    }
    return (*function_)({device_, inputs, outputs, address(workspace), placed});
  }
  std::string_view implementation() const override { return implementation_; }

 private:
  std::string implementation_;
  Device& device_;
  KernelHost& host_;
  std::shared_ptr<const Function> function_;  // and the library ops and memory that it holds
  int64_t workspace_bytes_;
  std::vector<int> in_place_;
  bool reads_context_;
};

using KernelResult = Result<std::unique_ptr<Kernel>>;

struct KernelRequest {
  const dag::Graph& graph;
  const GroupSignature& group;
  const dag::Op& op;  // the only op of the group, except for make_elementwise
  Device& device;
  KernelHost& host;

  const dag::Attributes& attributes() const { return op.attributes; }
  bool has(size_t operand) const { return operand < op.inputs.size() && op.inputs[operand].valid(); }
  const dag::Value& in(size_t operand) const { return graph.value(op.inputs[operand]); }
  const dag::Value& out(size_t result = 0) const { return graph.value(op.outputs[result]); }
  const dag::Shape& in_shape(size_t operand) const { return in(operand).spec.shape; }
  const dag::Shape& out_shape(size_t result = 0) const { return out(result).spec.shape; }
  int64_t in_count(size_t operand) const { return has(operand) ? in(operand).spec.element_count() : 0; }
  int64_t out_count(size_t result = 0) const { return out(result).spec.element_count(); }
  bool is_f32(const dag::Value& value) const { return value.spec.dtype == dag::DType::F32; }

  // Where an operand or result stands in the signature; -1: absent.
  int input_slot(size_t operand) const {
    return has(operand) ? slot_of(group.inputs, op.inputs[operand]) : -1;
  }
  int output_slot(size_t result) const { return slot_of(group.outputs, op.outputs[result]); }
  static int slot_of(const std::vector<dag::ValueId>& values, dag::ValueId value) {
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] == value) return static_cast<int>(i);
    return -1;
  }

  KernelResult make(std::string implementation, FunctionKernel::Function function,
                    int64_t workspace_bytes = 0, std::vector<int> in_place = {},
                    bool reads_context = false) const {
    return std::unique_ptr<Kernel>(std::make_unique<FunctionKernel>(std::move(implementation), device, host,
                                                                    std::move(function), workspace_bytes,
                                                                    std::move(in_place), reads_context));
  }
  // The op as it stands (dtype, attributes, a shape beyond what its kernel counts with) has no kernel here:
  // the host takes it.
  KernelResult decline() const { return std::unique_ptr<Kernel>(); }
};

// One function a family, in the file of its name. A null kernel: not served. Values are plain (the device's
// traits ask for no blocked layout), never empty (the host takes those), and lie at multiples of 256 bytes.
KernelResult make_elementwise(const KernelRequest& request);  // the whole group; random ops as well
KernelResult make_shape(const KernelRequest& request);
KernelResult make_reduction(const KernelRequest& request);
KernelResult make_matmul(const KernelRequest& request);
KernelResult make_attention(const KernelRequest& request);
KernelResult make_product_group(
    const KernelRequest& request);  // the whole group: a product and what it takes in
KernelResult make_convolution(const KernelRequest& request);
KernelResult make_normalisation(const KernelRequest& request);
KernelResult make_softmax(const KernelRequest& request);
KernelResult make_pooling(const KernelRequest& request);
KernelResult make_sampling(const KernelRequest& request);
KernelResult make_recurrent(const KernelRequest& request);

// Any op whatever, by the reference backend's arithmetic on the host.
KernelResult make_fallback(const KernelRequest& request);

// The family's kernel or the fallback; for a group of several ops that is no elementwise one, one after
// another. Unsupported, naming the op, for what is not computed at all.
KernelResult make_group_kernel(const dag::Graph& graph, const GroupSignature& group, Device& device,
                               KernelHost& host);

// Blocks that give each of `count` elements a thread of its own, or, beyond what keeps a GPU busy, fewer
// whose threads go on in strides of the whole grid.
inline constexpr uint32_t kThreads = 256;
inline Grid grid_for(int64_t count, uint32_t threads = kThreads) {
  constexpr int64_t kBlocksMax = 1 << 20;
  const int64_t blocks = (count + threads - 1) / threads;
  return {static_cast<uint32_t>(std::clamp<int64_t>(blocks, 1, kBlocksMax)), threads, 1};
}

inline int64_t product(const dag::Shape& shape, size_t begin, size_t end) {
  int64_t count = 1;
  for (size_t i = begin; i < end; ++i) count *= shape[i];
  return count;
}

}  // namespace weft::peer::cuda
