#include "peer/backend/cpu/elementwise_program.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

namespace weft::peer::cpu {

using dag::Attr;
using dag::OpKind;
using dag::ValueId;

namespace {
constexpr int64_t kBlock = 1024;              // elements
constexpr int64_t kBufferBytes = kBlock * 8;  // of the widest dtype
}  // namespace

class ElementProgram::Builder {
 public:
  explicit Builder(const KernelRequest& request) : graph_(request.graph), group_(request.group) {}

  std::optional<ElementProgram> build() {
    const dag::Value& shape_giver = graph_.value(graph_.op(group_.ops.front()).outputs[0]);
    shape_ = shape_giver.spec.shape;
    layout_ = shape_giver.layout;
    program_.count_ = shape_giver.spec.element_count();
    program_.leading_ = shape_.empty() ? 0 : shape_[0];
    find_last_uses();
    for (size_t i = 0; i < group_.ops.size(); ++i) {
      if (!add(graph_.op(group_.ops[i]), i)) return std::nullopt;
    }
    for (const ValueId value : group_.inputs) program_.input_dtypes_.push_back(graph_.spec(value).dtype);
    for (const ValueId value : group_.outputs) program_.output_dtypes_.push_back(graph_.spec(value).dtype);
    return std::move(program_);
  }

 private:
  void find_last_uses() {
    for (size_t i = 0; i < group_.ops.size(); ++i) {
      for (const ValueId input : graph_.op(group_.ops[i]).inputs) last_use_[input.index] = i;
    }
  }

  bool add(const dag::Op& op, size_t position) {
    const dag::Value& result = graph_.value(op.outputs[0]);
    const bool whole = std::all_of(op.inputs.begin(), op.inputs.end(), [](ValueId v) { return v.valid(); });
    if (!whole || op.inputs.size() > std::size(Instruction{}.in)) return false;
    if (op.outputs.size() != 1 || result.spec.shape != shape_ || result.layout != layout_) return false;
    if (dag::op_table().row(op.kind).draws && layout_ != dag::Layout::Plain) return false;
    const std::optional<ElementChoice> choice = choose_element_loop(graph_, op);
    if (!choice) return false;
    Instruction instruction{choice->code, {}, {}, choice->operands};
    for (int i = 0; i < choice->operands; ++i) {
      const std::optional<Place> place = place_of(op.inputs[static_cast<size_t>(i)]);
      if (!place) return false;
      instruction.in[i] = *place;
    }
    set_numbers(op, instruction);
    const int output = KernelRequest::slot_of(group_.outputs, op.outputs[0]);
    const int64_t size = dag::element_size(result.spec.dtype);
    // Loops may run in place, but only over elements of one size.
    release(op, position, [size](int64_t operand_size) { return operand_size == size; });
    instruction.out =
        output >= 0 ? Place{Place::Output, output, size} : Place{Place::Buffer, take_buffer(), size};
    release(op, position, [](int64_t) { return true; });
    places_[op.outputs[0].index] = instruction.out;
    program_.instructions_.push_back(instruction);
    return true;
  }

  // Gives back the buffers of operands that are read here for the last time.
  template <typename Predicate>
  void release(const dag::Op& op, size_t position, Predicate of_size) {
    for (const ValueId input : op.inputs) {
      const auto it = places_.find(input.index);
      if (it == places_.end() || it->second.kind != Place::Buffer || it->second.index < 0) continue;
      if (last_use_[input.index] != position || pinned(it->second.index) || !of_size(it->second.element_size))
        continue;
      free_.push_back(it->second.index);
      it->second.index = -1;
    }
  }

  static void set_numbers(const dag::Op& op, Instruction& instruction) {
    if (op.kind == OpKind::Clip) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      instruction.p0 = static_cast<float>(op.attributes.get_double(Attr::Min, -kInfinity));
      instruction.p1 = static_cast<float>(op.attributes.get_double(Attr::Max, kInfinity));
    }
    if (op.kind == OpKind::Dropout) {
      const double ratio = op.attributes.get_double(Attr::Ratio);
      instruction.p0 = ratio < 1 ? static_cast<float>(1 / (1 - ratio)) : 0.0f;
      const double threshold = ratio * 4294967296.0;
      instruction.threshold = threshold >= 4294967295.0 ? 0xffffffffu : static_cast<uint32_t>(threshold);
    }
    instruction.key = static_cast<uint32_t>(op.attributes.get_int(Attr::Key));
  }

  // Where an operand's elements of the current block are; none when they cannot be read as this program
  // walks.
  std::optional<Place> place_of(ValueId value) {
    if (const auto it = places_.find(value.index); it != places_.end()) return it->second;
    const int slot = KernelRequest::slot_of(group_.inputs, value);
    if (slot < 0) return std::nullopt;
    const dag::Value& operand = graph_.value(value);
    const int64_t size = dag::element_size(operand.spec.dtype);
    Place place{Place::Input, slot, size};
    const bool same = operand.spec.shape == shape_ && operand.layout == layout_;
    if (!same) {
      const bool scalar = operand.spec.element_count() == 1;
      if (!scalar && operand.layout != dag::Layout::Plain) return std::nullopt;
      // A buffer of its own: it is filled before the first instruction of a block.
      place = Place{Place::Buffer, program_.buffers_++, size};
      pinned_.push_back(place.index);
      program_.loads_.push_back({slot, place.index, size, scalar, walk_of(operand)});
    }
    places_[value.index] = place;
    return place;
  }

  // How a plain operand is read while the elements are walked in the program's layout.
  Walk walk_of(const dag::Value& operand) const {
    dag::Shape shape = shape_;
    Strides strides = broadcast_strides(operand.spec.shape, shape_);
    if (const int lanes = lanes_of(layout_); lanes > 1) {
      shape[1] /= lanes;
      shape.push_back(lanes);
      strides.push_back(strides[1]);
      strides[1] *= lanes;
    }
    return simplify(shape, {strides});
  }

  bool pinned(int buffer) const { return std::find(pinned_.begin(), pinned_.end(), buffer) != pinned_.end(); }
  int take_buffer() {
    if (free_.empty()) return program_.buffers_++;
    const int buffer = free_.back();
    free_.pop_back();
    return buffer;
  }

  const dag::Graph& graph_;
  const GroupSignature& group_;
  dag::Shape shape_;
  dag::Layout layout_ = dag::Layout::Plain;
  ElementProgram program_;
  std::map<uint32_t, size_t> last_use_;  // value -> position of the last op of the group that reads it
  std::map<uint32_t, Place> places_;
  std::vector<int> free_, pinned_;
};

std::optional<ElementProgram> ElementProgram::compile(const KernelRequest& request) {
  return Builder(request).build();
}

std::vector<int> ElementProgram::in_place() const {
  std::vector<int> result(output_dtypes_.size(), -1);
  std::vector<bool> taken(input_dtypes_.size(), false);
  std::vector<size_t> last_read(input_dtypes_.size(), 0);
  std::vector<bool> direct(input_dtypes_.size(), false), loaded(input_dtypes_.size(), false);
  for (const Load& load : loads_) loaded[static_cast<size_t>(load.input)] = true;
  for (size_t i = 0; i < instructions_.size(); ++i) {
    for (int k = 0; k < instructions_[i].operands; ++k) {
      const Place& place = instructions_[i].in[k];
      if (place.kind != Place::Input) continue;
      last_read[static_cast<size_t>(place.index)] = i;
      direct[static_cast<size_t>(place.index)] = true;
    }
  }
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (instructions_[i].out.kind != Place::Output) continue;
    const size_t output = static_cast<size_t>(instructions_[i].out.index);
    for (size_t input = 0; input < taken.size() && result[output] < 0; ++input) {
      const bool fits = direct[input] && !loaded[input] && !taken[input] && last_read[input] <= i &&
                        input_dtypes_[input] == output_dtypes_[output];
      if (fits) {
        result[output] = static_cast<int>(input);
        taken[input] = true;
      }
    }
  }
  return result;
}

void ElementProgram::run(const Call& call, const Team& team, const LoopTable& loops) const {
  team.ranges(count_, kBlock * 8, [&](int64_t begin, int64_t end) { run_blocks(call, loops, begin, end); });
}

bool ElementProgram::draws(ElementCode code) {
  return code == kDropout || code == kRandomUniform || code == kRandomNormal;
}

// Of the first element in the batch. What does not lead with the microbatch is drawn once a step.
uint64_t ElementProgram::first_place(ElementCode code, const StepContext& context) const {
  const int64_t samples = std::max<int64_t>(1, context.microbatch_size);
  if (code != kDropout && leading_ != samples) return 0;
  return static_cast<uint64_t>(context.sample_position * (count_ / samples));
}

void ElementProgram::run_blocks(const Call& call, const LoopTable& loops, int64_t begin, int64_t end) const {
  static thread_local std::vector<std::byte> arena;
  arena.resize(static_cast<size_t>(buffers_ * kBufferBytes + kAlignment));
  std::byte* buffers = arena.data() + (-reinterpret_cast<intptr_t>(arena.data()) & (kAlignment - 1));
  for (const Load& load : loads_) {
    if (!load.scalar) continue;
    const Walk once{{kBlock}, {{0}}};
    load_strided(once, call.in<std::byte>(load.input), load.element_size, 0, kBlock,
                 buffers + load.buffer * kBufferBytes);
  }
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t count = std::min(kBlock, end - start);
    for (const Load& load : loads_) {
      if (load.scalar) continue;
      load_strided(load.walk, call.in<std::byte>(load.input), load.element_size, start, count,
                   buffers + load.buffer * kBufferBytes);
    }
    const auto address = [&](const Place& place) -> const std::byte* {
      switch (place.kind) {
        case Place::Input:
          return call.in<std::byte>(place.index) + start * place.element_size;
        case Place::Output:
          return call.out<std::byte>(place.index) + start * place.element_size;
        case Place::Buffer:
          return buffers + place.index * kBufferBytes;
      }
      return nullptr;
    };
    for (const Instruction& instruction : instructions_) {
      ElementArgs args{};
      args.out = const_cast<std::byte*>(address(instruction.out));
      for (int i = 0; i < instruction.operands; ++i) args.in[i] = address(instruction.in[i]);
      args.count = count;
      args.p0 = instruction.p0;
      args.p1 = instruction.p1;
      if (draws(instruction.code)) {
        args.position = first_place(instruction.code, call.context) + static_cast<uint64_t>(start);
        args.seed = call.context.seed;
        args.step = static_cast<uint32_t>(call.context.step);
        args.key = instruction.key;
        args.threshold = instruction.threshold;
      }
      loops.element[instruction.code](args);
    }
  }
}

}  // namespace weft::peer::cpu
