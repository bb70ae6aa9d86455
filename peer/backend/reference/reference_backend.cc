#include "peer/backend/reference/reference_backend.h"

#include <gnu/libc-version.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "dag/slot_codes.h"
#include "peer/backend/host/host_memory.h"
#include "peer/backend/host/host_timer.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::peer {
namespace {

constexpr int64_t kStorageSize = 8;  // bytes an element: double or int64
constexpr int64_t kAlignment = 64;

class ReferenceMemory final : public Memory {
 public:
  ReferenceMemory(std::byte* bytes, Bytes size, std::shared_ptr<int64_t> used)
      : bytes_(bytes), size_(size), used_(std::move(used)) {
    *used_ += size_.value;
  }
  ReferenceMemory(const ReferenceMemory&) = delete;
  ReferenceMemory& operator=(const ReferenceMemory&) = delete;
  ~ReferenceMemory() override {
    ::operator delete (bytes_, std::align_val_t{kAlignment});
    *used_ -= size_.value;
  }
  Bytes size() const override { return size_; }
  std::byte* bytes() const { return bytes_; }

 private:
  std::byte* bytes_;
  Bytes size_;
  std::shared_ptr<int64_t> used_;
};

// The elements of a view. REQUIRES: they lie within the block.
template <typename T>
std::span<T> elements(View view, int64_t count) {
  const auto* memory = static_cast<ReferenceMemory*>(view.memory);
  WEFT_CHECK(memory != nullptr && view.offset >= 0 && view.offset % kStorageSize == 0);
  WEFT_CHECK(view.offset + count * kStorageSize <= memory->size().value);
  return {reinterpret_cast<T*>(memory->bytes() + view.offset), static_cast<size_t>(count)};
}

RefValue load(View view, const dag::TensorSpec& spec) {
  RefValue value{spec, {}, {}};
  if (value.is_real()) {
    const auto from = elements<double>(view, spec.element_count());
    value.reals.assign(from.begin(), from.end());
  } else {
    const auto from = elements<int64_t>(view, spec.element_count());
    value.wholes.assign(from.begin(), from.end());
  }
  return value;
}

void store(const RefValue& value, View view) {
  if (value.is_real())
    std::copy(value.reals.begin(), value.reals.end(), elements<double>(view, value.count()).begin());
  else
    std::copy(value.wholes.begin(), value.wholes.end(), elements<int64_t>(view, value.count()).begin());
}

// A group of ops, one after the other. Everything it needs is copied out of the graph.
class ReferenceKernel final : public Kernel {
 public:
  ReferenceKernel(const dag::Graph& graph, const GroupSignature& group) {
    for (const dag::ValueId value : group.inputs) inputs_.push_back(slot(graph, value));
    for (const dag::OpId id : group.ops) {
      const dag::Op& op = graph.op(id);
      Step step{op, {}, {}};
      for (const dag::ValueId input : op.inputs)
        step.inputs.push_back(input.valid() ? slot(graph, input) : kAbsent);
      for (const dag::ValueId output : op.outputs) step.outputs.push_back(slot(graph, output));
      if (op.kind == dag::OpKind::Constant)
        constants_.emplace(step.outputs[0], ref_from_tensor(graph.constant(op)));
      steps_.push_back(std::move(step));
    }
    for (const dag::ValueId value : group.outputs) outputs_.push_back(slot(graph, value));
  }

  Status run(std::span<const View> inputs, std::span<const View> outputs, View,
             const StepContext& context) override try {
    WEFT_CHECK(inputs.size() == inputs_.size() && outputs.size() == outputs_.size());
    std::vector<RefValue> values(specs_.size());
    for (size_t i = 0; i < inputs.size(); ++i) values[inputs_[i]] = load(inputs[i], specs_[inputs_[i]]);
    for (const Step& step : steps_) WEFT_TRY_STATUS(run_step(step, values, context));
    for (size_t i = 0; i < outputs.size(); ++i) store(values[outputs_[i]], outputs[i]);
    return {};
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::ResourceExhausted, "the reference backend has no memory for temporaries");
  }

  std::string_view implementation() const override { return "reference"; }

 private:
  static constexpr size_t kAbsent = static_cast<size_t>(-1);
  struct Step {
    dag::Op op;
    std::vector<size_t> inputs, outputs;  // slots
  };

  Status run_step(const Step& step, std::vector<RefValue>& values, const StepContext& context) const {
    if (step.op.kind == dag::OpKind::Constant) {
      values[step.outputs[0]] = constants_.at(step.outputs[0]);
      return {};
    }
    std::vector<const RefValue*> operands;
    operands.reserve(step.inputs.size());
    for (const size_t input : step.inputs) operands.push_back(input == kAbsent ? nullptr : &values[input]);
    std::vector<RefValue> results;
    results.reserve(step.outputs.size());
    for (const size_t output : step.outputs) results.push_back({specs_[output], {}, {}});
    WEFT_TRY_STATUS(run_reference_op(step.op, operands, results, context));
    for (size_t i = 0; i < results.size(); ++i) values[step.outputs[i]] = std::move(results[i]);
    return {};
  }

  size_t slot(const dag::Graph& graph, dag::ValueId value) {
    const auto [entry, fresh] = slots_.emplace(value, specs_.size());
    if (fresh) specs_.push_back(graph.spec(value));
    return entry->second;
  }

  std::map<dag::ValueId, size_t> slots_;
  std::vector<dag::TensorSpec> specs_;  // by slot
  std::map<size_t, RefValue> constants_;
  std::vector<Step> steps_;
  std::vector<size_t> inputs_, outputs_;
};

// ---- update rules, one element at a time ----

struct Element {
  double& parameter;
  double gradient;
};

void update_sgd(const dag::OptimizerSpec& spec, const dag::UpdateStep& step, Element e, double* momentum) {
  double g = e.gradient + spec.weight_decay * e.parameter;
  if (momentum) {
    *momentum = step.step == 1 ? g : spec.momentum * *momentum + (1 - spec.dampening) * g;
    g = spec.nesterov ? g + spec.momentum * *momentum : *momentum;
  }
  e.parameter -= step.learning_rate * g;
}

void update_adam(const dag::OptimizerSpec& spec, const dag::UpdateStep& step, Element e, double& m,
                 double& v) {
  double g = e.gradient;
  if (spec.type == dag::OptimizerType::AdamW)
    e.parameter *= 1 - step.learning_rate * spec.weight_decay;
  else
    g += spec.weight_decay * e.parameter;
  m = spec.beta1 * m + (1 - spec.beta1) * g;
  v = spec.beta2 * v + (1 - spec.beta2) * g * g;
  const auto t = static_cast<double>(step.step);
  const double first = 1 - std::pow(spec.beta1, t), second = 1 - std::pow(spec.beta2, t);
  e.parameter -= step.learning_rate / first * m / (std::sqrt(v) / std::sqrt(second) + spec.epsilon);
}

// A slot while its parameter is updated: in double, or in eight bits (dag/slot_codes.h), a byte an element.
class RefSlot {
 public:
  RefSlot(View view, int64_t count, dag::StateSlot slot, dag::SlotType type, bool second)
      : format_(dag::slot_format(slot)), count_(count), second_(second) {
    if (type == dag::SlotType::Float32)
      reals_ = elements<double>(view, count);
    else
      bytes_ = elements<int64_t>(view, dag::coded_slot_bytes(count));
  }
  // Of the block that begins there: into `block`, and from there back.
  void load(int64_t begin, std::span<double> block) const {
    for (size_t i = 0; i < block.size(); ++i) {
      const auto at = static_cast<size_t>(begin) + i;
      block[i] = bytes_.empty() ? reals_[at]
                                : double{dag::widen_code(format_, static_cast<uint8_t>(bytes_[at]),
                                                         static_cast<uint8_t>(scale_of(begin)))};
    }
  }
  void store(int64_t begin, std::span<const double> block, uint32_t draw) const {
    if (bytes_.empty()) {
      std::copy(block.begin(), block.end(), reals_.begin() + begin);
      return;
    }
    float largest = 0;
    for (const double value : block)
      if (const auto x = std::abs(static_cast<float>(value)); std::isfinite(x))
        largest = std::max(largest, x);
    const uint8_t scale = dag::slot_scale(format_, largest);
    scale_of(begin) = scale;
    for (size_t i = 0; i < block.size(); ++i) {
      const int64_t at = begin + static_cast<int64_t>(i);
      bytes_[static_cast<size_t>(at)] =
          dag::narrow_code(format_, static_cast<float>(block[i]), scale, dag::slot_chance(draw, at, second_));
    }
  }

 private:
  int64_t& scale_of(int64_t begin) const {
    return bytes_[static_cast<size_t>(count_ + begin / dag::kSlotBlock)];
  }
  dag::SlotFormat format_;
  int64_t count_;
  bool second_;
  std::span<double> reals_{};
  std::span<int64_t> bytes_{};
};

void update_parameter(const dag::OptimizerSpec& of_all, const dag::UpdateStep& step_of_all,
                      const ParameterUpdate& update) {
  const auto [optimizer, step] = dag::update_of_group(of_all, step_of_all, update.group);
  const int64_t count = update.spec.element_count();
  const auto p = elements<double>(update.parameter, count), g = elements<double>(update.gradient, count);
  const std::vector<dag::StateSlot> kinds = dag::optimizer_slots(optimizer);
  WEFT_CHECK(update.slots.size() == kinds.size());
  std::vector<RefSlot> slots;
  slots.reserve(kinds.size());
  for (size_t s = 0; s < kinds.size(); ++s)
    slots.emplace_back(update.slots[s], count, kinds[s], optimizer.slots, s == 1);
  const uint32_t draw = dag::slot_draw(step.step);
  std::array<std::array<double, dag::kSlotBlock>, 2> block;
  for (int64_t begin = 0; begin < count; begin += dag::kSlotBlock) {
    const auto size = static_cast<size_t>(std::min(dag::kSlotBlock, count - begin));
    for (size_t s = 0; s < slots.size(); ++s) slots[s].load(begin, std::span(block[s]).first(size));
    for (size_t i = 0; i < size; ++i) {
      const size_t at = static_cast<size_t>(begin) + i;
      const Element element{p[at], step.gradient_scale * g[at]};
      if (optimizer.type == dag::OptimizerType::Sgd)
        update_sgd(optimizer, step, element, slots.empty() ? nullptr : &block[0][i]);
      else
        update_adam(optimizer, step, element, block[0][i], block[1][i]);
    }
    for (size_t s = 0; s < slots.size(); ++s) slots[s].store(begin, std::span(block[s]).first(size), draw);
  }
}

double sum_of_squares(std::span<const double> values) {
  constexpr size_t kBlock = 4096;
  double total = 0;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    double sum = 0;
    for (const double value : values.subspan(begin, std::min(kBlock, values.size() - begin)))
      sum += value * value;
    total += sum;
  }
  return total;
}

class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  // exp and its like come from the C library, which therefore decides bits too.
  std::string numerics_fingerprint() const override {
    return std::string("reference/1 double glibc ") + gnu_get_libc_version();
  }
  BackendTraits traits() const override { return {}; }
  int64_t alignment() const override { return kAlignment; }

  Bytes storage_bytes(const dag::TensorSpec& spec, dag::Layout) const override {
    return {spec.element_count() * kStorageSize};
  }

  Result<std::unique_ptr<Memory>> allocate(Bytes size) override {
    WEFT_CHECK(size.value >= 0);
    WEFT_TRY_STATUS(admit(size, {*used_}));
    const auto bytes = static_cast<size_t>(std::max<int64_t>(size.value, kAlignment));
    const bool sane = size.value <= dag::kElementCountMax * kStorageSize;
    auto* block =
        sane ? static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow))
             : nullptr;
    if (!block)
      return fail(ErrorCode::ResourceExhausted, "the reference backend cannot allocate " +
                                                    std::to_string(size.value) +
                                                    " bytes: try smaller microbatches or more stages");
    return std::make_unique<ReferenceMemory>(block, size, used_);
  }
  Result<MemoryUse> memory() const override { return host_memory_use({*used_}); }

  Result<std::unique_ptr<Kernel>> make_kernel(const dag::Graph& graph, const GroupSignature& group) override {
    for (const dag::OpId id : group.ops) {
      const dag::OpKind kind = graph.op(id).kind;
      if (kind == dag::OpKind::Input || kind == dag::OpKind::Initializer)
        return fail(ErrorCode::Unsupported, std::string(to_string(kind)) + " is no kernel: upload its value");
    }
    return std::make_unique<ReferenceKernel>(graph, group);
  }

  Status upload(const dag::Tensor& tensor, View target, dag::Layout) override try {
    store(ref_from_tensor(tensor), target);
    return {};
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::ResourceExhausted, "no memory to upload " + to_string(tensor.spec()));
  }
  Result<std::unique_ptr<Download>> begin_download(View source, const dag::TensorSpec& spec, dag::Layout,
                                                   const Encoding& encoding) override try {
    WEFT_TRY_STATUS(need_dense(encoding));
    return std::make_unique<FinishedDownload>(ref_to_tensor(load(source, spec)));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::ResourceExhausted, "no memory to download " + to_string(spec));
  }

  Status fill_zero(View target, const dag::TensorSpec& spec) override {
    // All-zero bytes are 0.0 and 0 alike.
    for (std::byte& byte : std::as_writable_bytes(elements<double>(target, spec.element_count())))
      byte = std::byte{0};
    return {};
  }
  Status copy(View source, View target, const dag::TensorSpec& spec) override {
    const int64_t count = spec.element_count();
    const auto from = elements<double>(source, count), to = elements<double>(target, count);
    if (count > 0) std::memmove(to.data(), from.data(), from.size_bytes());
    return {};
  }
  Status accumulate(View from, View into, const dag::TensorSpec& spec) override {
    const auto terms = elements<double>(from, spec.element_count()),
               sums = elements<double>(into, spec.element_count());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += terms[i];
    return {};
  }

  Result<std::unique_ptr<Download>> begin_sums_of_squares(std::span<const TensorView> sources) override {
    std::vector<double> sums;
    for (const TensorView& source : sources)
      sums.push_back(sum_of_squares(elements<double>(source.view, source.spec.element_count())));
    return std::make_unique<FinishedDownload>(
        dag::from_doubles({dag::DType::F64, {static_cast<int64_t>(sums.size())}}, sums));
  }
  Status update(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step,
                std::span<const ParameterUpdate> parameters) override {
    for (const ParameterUpdate& parameter : parameters) update_parameter(optimizer, step, parameter);
    return {};
  }

  Result<std::unique_ptr<Timer>> start_timer() override { return std::make_unique<HostTimer>(); }
  Status synchronize() override { return {}; }

 private:
  std::shared_ptr<int64_t> used_ = std::make_shared<int64_t>(0);
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace weft::peer
