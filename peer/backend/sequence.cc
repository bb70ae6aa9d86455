#include "peer/backend/sequence.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace weft::peer {
namespace {

using dag::OpId;
using dag::ValueId;

int slot_of(const std::vector<ValueId>& values, ValueId value) {
  const auto found = std::find(values.begin(), values.end(), value);
  return found == values.end() ? -1 : static_cast<int>(found - values.begin());
}

class SequenceKernel final : public Kernel {
 public:
  struct Source {
    enum From { Input, Output, Inner } from;
    int64_t at;  // slot of the group's signature, or offset in the workspace
  };
  struct Step {
    std::unique_ptr<Kernel> kernel;
    std::vector<Source> inputs, outputs;
  };

  SequenceKernel(std::vector<Step> steps, int64_t inner_bytes)
      : steps_(std::move(steps)), inner_bytes_(inner_bytes) {
    for (const Step& step : steps_) {
      scratch_bytes_ = std::max(scratch_bytes_, step.kernel->workspace_bytes().value);
      if (!name_.empty()) name_ += " + ";
      name_ += step.kernel->implementation();
    }
  }

  Bytes workspace_bytes() const override { return {inner_bytes_ + scratch_bytes_}; }
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
  std::vector<Step> steps_;
  int64_t inner_bytes_, scratch_bytes_ = 0;
  std::string name_;
};

using Inner = std::vector<std::pair<ValueId, int64_t>>;  // value, offset

SequenceKernel::Source source_of(const GroupSignature& group, const Inner& inner, ValueId value) {
  if (const int slot = slot_of(group.outputs, value); slot >= 0)
    return {SequenceKernel::Source::Output, slot};
  if (const int slot = slot_of(group.inputs, value); slot >= 0) return {SequenceKernel::Source::Input, slot};
  for (const auto& [id, offset] : inner)
    if (id == value) return {SequenceKernel::Source::Inner, offset};
  WEFT_CHECK_MSG(false, "a group reads a value that nobody hands it");
  return {SequenceKernel::Source::Inner, 0};
}

}  // namespace

Result<std::unique_ptr<Kernel>> make_sequence(
    const dag::Graph& graph, const GroupSignature& group, int64_t alignment,
    const std::function<Result<std::unique_ptr<Kernel>>(const GroupSignature& lone)>& make_lone) {
  std::vector<SequenceKernel::Step> steps;
  Inner inner;
  int64_t inner_bytes = 0;
  for (const OpId id : group.ops) {
    const dag::Op& op = graph.op(id);
    SequenceKernel::Step step;
    GroupSignature lone{{id}, {}, op.outputs, group.precision, group.rows_alone};
    for (const ValueId input : op.inputs) {
      if (!input.valid() || slot_of(lone.inputs, input) >= 0) continue;
      lone.inputs.push_back(input);
      step.inputs.push_back(source_of(group, inner, input));
    }
    for (const ValueId output : op.outputs) {
      if (slot_of(group.outputs, output) < 0) {
        inner.emplace_back(output, inner_bytes);
        inner_bytes += align_up(graph.spec(output).bytes().value, alignment);
      }
      step.outputs.push_back(source_of(group, inner, output));
    }
    WEFT_TRY(step.kernel, make_lone(lone));
    steps.push_back(std::move(step));
  }
  return std::make_unique<SequenceKernel>(std::move(steps), align_up(inner_bytes, alignment));
}

}  // namespace weft::peer
