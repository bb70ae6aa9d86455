// From a group of ops to a kernel: the family's own, the fallback, or a sequence.
#include "base/check.h"
#include "peer/backend/cpu/layout.h"

namespace weft::peer::cpu {
namespace {

using dag::Family;
using dag::OpId;
using dag::ValueId;

KernelResult make_family(const KernelRequest& request) {
  switch (dag::op_table().row(request.op.kind).family) {
    case Family::Leaf:
      return request.decline();
    case Family::Elementwise:
    case Family::Random:
      return make_elementwise(request);
    case Family::Shape:
      return make_shape(request);
    case Family::Reduction:
      return make_reduction(request);
    case Family::MatMul:
      return make_matmul(request);
    case Family::Convolution:
      return make_convolution(request);
    case Family::Normalisation:
      return make_normalisation(request);
    case Family::Softmax:
      return make_softmax(request);
    case Family::Pooling:
      return make_pooling(request);
    case Family::Sampling:
      return make_sampling(request);
    case Family::Recurrent:
      return make_recurrent(request);
  }
  return request.decline();
}

bool has_empty_value(const KernelRequest& request) {
  const auto empty = [&](ValueId v) { return v.valid() && request.graph.spec(v).element_count() == 0; };
  for (const ValueId v : request.op.inputs) {
    if (empty(v)) return true;
  }
  for (const ValueId v : request.op.outputs) {
    if (empty(v)) return true;
  }
  return false;
}

KernelResult make_lone(const KernelRequest& request) {
  if (dag::op_table().row(request.op.kind).family == Family::Leaf)
    return fail(ErrorCode::Unsupported,
                "cpu backend: " + std::string(to_string(request.op.kind)) + " is not computed");
  // Empty tensors have special cases in every family; the reference has them all.
  if (!has_empty_value(request)) {
    WEFT_TRY(std::unique_ptr<Kernel> kernel, make_family(request));
    if (kernel != nullptr) return kernel;
  }
  return make_fallback(request);
}

// The ops of a group one after another, inner values in the workspace.
class SequenceKernel final : public Kernel {
 public:
  static KernelResult make(const KernelRequest& whole) {
    const dag::Graph& graph = whole.graph;
    const GroupSignature& group = whole.group;
    auto sequence = std::unique_ptr<SequenceKernel>(new SequenceKernel());
    int64_t inner_bytes = 0, scratch_bytes = 0;
    std::vector<std::pair<ValueId, int64_t>> inner;  // value, offset
    for (const OpId id : group.ops) {
      const dag::Op& op = graph.op(id);
      Step step;
      GroupSignature lone{{id}, {}, op.outputs};
      for (const ValueId input : op.inputs) {
        if (!input.valid() || KernelRequest::slot_of(lone.inputs, input) >= 0) continue;
        lone.inputs.push_back(input);
        step.inputs.push_back(source_of(group, inner, input));
      }
      for (const ValueId output : op.outputs) {
        if (KernelRequest::slot_of(group.outputs, output) < 0) {
          inner.emplace_back(output, inner_bytes);
          inner_bytes += align_up(graph.spec(output).bytes().value);
        }
        step.outputs.push_back(source_of(group, inner, output));
      }
      WEFT_TRY(step.kernel, make_lone({graph, lone, op, whole.team, whole.loops, whole.own_convolutions}));
      scratch_bytes = std::max(scratch_bytes, step.kernel->workspace_bytes().value);
      if (!sequence->name_.empty()) sequence->name_ += " + ";
      sequence->name_ += step.kernel->implementation();
      sequence->steps_.push_back(std::move(step));
    }
    sequence->inner_bytes_ = align_up(inner_bytes);
    sequence->bytes_ = sequence->inner_bytes_ + scratch_bytes;
    return std::unique_ptr<Kernel>(std::move(sequence));
  }

  Bytes workspace_bytes() const override { return {bytes_}; }
  std::string_view implementation() const override { return name_; }

  Status run(std::span<const View> inputs, std::span<const View> outputs, View workspace,
             const StepContext& context) override {
    const auto view = [&](const Source& source) -> View {
      switch (source.from) {
        case Source::Input:
          return inputs[static_cast<size_t>(source.at)];
        case Source::Output:
          return outputs[static_cast<size_t>(source.at)];
        case Source::Inner:
          return {workspace.memory, workspace.offset + source.at};
      }
      return {};
    };
    for (const Step& step : steps_) {
      std::vector<View> in, out;
      for (const Source& source : step.inputs) in.push_back(view(source));
      for (const Source& source : step.outputs) out.push_back(view(source));
      WEFT_TRY_STATUS(
          step.kernel->run(in, out, {workspace.memory, workspace.offset + inner_bytes_}, context));
    }
    return {};
  }

 private:
  struct Source {
    enum From { Input, Output, Inner } from;
    int64_t at;  // slot of the group's signature, or offset in the workspace
  };
  struct Step {
    std::unique_ptr<Kernel> kernel;
    std::vector<Source> inputs, outputs;
  };

  static Source source_of(const GroupSignature& group, const std::vector<std::pair<ValueId, int64_t>>& inner,
                          ValueId value) {
    if (const int slot = KernelRequest::slot_of(group.outputs, value); slot >= 0)
      return {Source::Output, slot};
    if (const int slot = KernelRequest::slot_of(group.inputs, value); slot >= 0) return {Source::Input, slot};
    for (const auto& [id, offset] : inner) {
      if (id == value) return {Source::Inner, offset};
    }
    WEFT_CHECK_MSG(false, "a group reads a value that nobody hands it");
    return {Source::Inner, 0};
  }

  std::vector<Step> steps_;
  int64_t inner_bytes_ = 0, bytes_ = 0;
  std::string name_;
};

// A graph may come from outside with layouts that its values cannot have; the kernels take them for granted.
Status need_layouts(const dag::Graph& graph, const GroupSignature& group) {
  const auto check = [&](OpId id, ValueId v) -> Status {
    if (!v.valid()) return {};
    const Status good = need_layout(graph.spec(v), graph.value(v).layout);
    return good ? good : tl::unexpected(good.error().within(to_string(graph.op(id).kind)));
  };
  for (const OpId id : group.ops) {
    for (const ValueId v : graph.op(id).inputs) WEFT_TRY_STATUS(check(id, v));
    for (const ValueId v : graph.op(id).outputs) WEFT_TRY_STATUS(check(id, v));
  }
  return {};
}

}  // namespace

KernelResult make_group_kernel(const dag::Graph& graph, const GroupSignature& group, const Team& team,
                               const LoopTable& loops, bool own_convolutions) {
  const dag::Op& op = graph.op(group.ops.front());
  const KernelRequest request{graph, group, op, team, loops, own_convolutions};
  WEFT_TRY_STATUS(need_layouts(graph, group));
  if (group.ops.size() == 1 && group.outputs.size() == op.outputs.size()) return make_lone(request);
  bool elementwise = group.ops.size() > 1;
  for (const OpId id : group.ops) {
    const Family family = dag::op_table().row(graph.op(id).kind).family;
    elementwise = elementwise && (family == Family::Elementwise || family == Family::Random);
  }
  if (elementwise && graph.spec(op.outputs[0]).element_count() > 0) {
    WEFT_TRY(std::unique_ptr<Kernel> kernel, make_elementwise(request));
    if (kernel != nullptr) return kernel;
  }
  return SequenceKernel::make(request);
}

}  // namespace weft::peer::cpu
