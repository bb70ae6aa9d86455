#include "peer/backend/cuda/fused_source.h"

#include <algorithm>
#include <map>

#include "dag/op_table.h"
#include "peer/backend/cuda/fused_expression.h"
#include "peer/backend/cuda/kernel_cache.h"

namespace weft::peer::cuda {

using dag::OpKind;
using dag::ValueId;

namespace {

constexpr uint32_t kThreadsPerBlock = 256;
constexpr size_t kOperandsMax = 3;  // of one op

// A dim of the walk over an operand that is stretched.
struct Dim {
  int64_t size, stride;  // elements
};

// The operand's place of each element of `shape`, by the fewest dims: neighbours are merged where one step of
// the outer is `size` of the inner. Outermost first; empty for a single number.
std::vector<Dim> walk_of(const dag::Shape& from, const dag::Shape& shape) {
  std::vector<Dim> walk;
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    const size_t missing = shape.size() - from.size();
    const int64_t size = d < missing ? 1 : from[d - missing];
    const int64_t stride = size == 1 ? 0 : step;
    step *= size;
    if (shape[d] == 1) continue;
    if (!walk.empty() && stride == walk.back().stride * walk.back().size)
      walk.back().size *= shape[d];
    else
      walk.push_back({shape[d], stride});
  }
  std::reverse(walk.begin(), walk.end());
  const bool still = std::all_of(walk.begin(), walk.end(), [](const Dim& dim) { return dim.stride == 0; });
  if (still) walk.clear();
  return walk;
}

// How a thread gets an operand for its elements.
enum class Reading : uint8_t {
  Whole,       // neighbours, like the result: one wide load
  Number,      // a single number
  Still,       // one number for all the thread's elements
  Neighbours,  // one wide load, from somewhere else
  Scattered,   // one by one
};
Reading reading_of(const std::vector<Dim>& walk) {
  if (walk.empty()) return Reading::Number;
  const Dim& inner = walk.back();  // its stride is 0 or 1: an operand is dense
  if (walk.size() == 1 && inner.stride == 1) return Reading::Whole;
  if (inner.size % kFusedElements != 0) return Reading::Scattered;
  // Strides further out are multiples of the inner size, so that a load of neighbours is aligned.
  return inner.stride == 0 ? Reading::Still : Reading::Neighbours;
}

class Writer {
 public:
  Writer(const dag::Graph& graph, const GroupSignature& group) : graph_(graph), group_(group) {}

  std::optional<FusedSource> write() {
    const dag::TensorSpec& spec = graph_.spec(graph_.op(group_.ops.front()).outputs[0]);
    shape_ = spec.shape;
    count_ = spec.element_count();
    whole_fours_ = count_ % kFusedElements == 0;
    // Threads of the last block count beyond the end.
    narrow_ = count_ <= (int64_t{1} << 31);
    for (size_t slot = 0; slot < group_.inputs.size(); ++slot)
      if (!add_input(slot)) return std::nullopt;
    for (size_t i = 0; i < group_.ops.size(); ++i)
      if (!add_op(graph_.op(group_.ops[i]), i)) return std::nullopt;
    for (size_t slot = 0; slot < group_.outputs.size(); ++slot) add_output(slot);
    return finish();
  }

 private:
  std::string number(int64_t n) const { return std::to_string(n) + (narrow_ ? "u" : "ull"); }
  static std::string indexed(const char* name, size_t i) { return name + std::to_string(i); }

  // The place in the operand of element `i`.
  std::string place(const std::vector<Dim>& walk, const std::string& i) const {
    std::string sum;
    int64_t inside = 1;
    for (size_t d = walk.size(); d-- > 0;) {
      const Dim& dim = walk[d];
      if (dim.stride != 0) {
        std::string term = i;
        if (inside > 1) term += " / " + number(inside);
        if (d > 0) term += " % " + number(dim.size);
        if (dim.stride > 1) term.insert(0, "(").append(") * ").append(number(dim.stride));
        sum += (sum.empty() ? "" : " + ") + term;
      }
      inside *= dim.size;
    }
    return sum;
  }

  static bool stretches(const dag::Shape& from, const dag::Shape& to) {
    if (from.size() > to.size()) return false;
    const size_t missing = to.size() - from.size();
    for (size_t d = 0; d < from.size(); ++d)
      if (from[d] != 1 && from[d] != to[missing + d]) return false;
    return true;
  }

  bool add_input(size_t slot) {
    const dag::TensorSpec& spec = graph_.spec(group_.inputs[slot]);
    if (!stretches(spec.shape, shape_)) return false;
    const std::vector<Dim> walk = walk_of(spec.shape, shape_);
    const Reading reading = reading_of(walk);
    const std::string name = indexed("x", slot), from = "p." + indexed("in", slot),
                      type(memory_type(spec.dtype));
    std::string element = name;
    switch (reading) {
      case Reading::Whole:
        loads_ += "  const elements::Four<" + type + "> " + name + " = elements::load(" + from + ", i" +
                  (whole_fours_ ? "" : ", left") + ");\n";
        element += ".at[j]";
        break;
      case Reading::Number:
        loads_ += "  const " + type + " " + name + " = " + from + "[0];\n";
        break;
      case Reading::Still:
        loads_ += "  const " + type + " " + name + " = " + from + "[" + place(walk, "i") + "];\n";
        break;
      case Reading::Neighbours:
        loads_ += "  const elements::Four<" + type + "> " + name + " = elements::load(" + from + ", " +
                  place(walk, "i") + ");\n";
        element += ".at[j]";
        break;
      case Reading::Scattered:
        loads_ += "  elements::Four<" + type + "> " + name + (whole_fours_ ? "" : "{}") +
                  ";\n  WEFT_UNROLL\n  for (int j = 0; j < 4; ++j)" + (whole_fours_ ? "" : " if (j < left)") +
                  " " + name + ".at[j] = " + from + "[" + place(walk, "(i + j)") + "];\n";
        element += ".at[j]";
        break;
    }
    if (spec.dtype == dag::DType::Bool) element = "(" + element + " != 0)";
    values_[group_.inputs[slot].index] = element;
    whole_.push_back(reading == Reading::Whole);
    parameters_ += "  Array<const " + type + "> " + indexed("in", slot) + ";\n";
    made_.input_counts.push_back(spec.element_count());
    return true;
  }

  bool add_op(const dag::Op& op, size_t position) {
    const bool whole = std::all_of(op.inputs.begin(), op.inputs.end(), [](ValueId v) { return v.valid(); });
    if (!whole || op.inputs.empty() || op.inputs.size() > kOperandsMax || op.outputs.size() != 1)
      return false;
    const dag::TensorSpec& spec = graph_.spec(op.outputs[0]);
    if (spec.shape != shape_) return false;
    std::vector<std::string> operands;
    for (const ValueId input : op.inputs) {
      const auto found = values_.find(input.index);
      if (found == values_.end()) return false;
      operands.push_back(found->second);
    }
    const std::string draw = indexed("d", position);
    const std::optional<std::string> expression = element_expression(graph_, op, operands, draw + ".at[j]");
    if (!expression) return false;
    if (dag::op_table().row(op.kind).draws) add_draw(op, draw);
    const std::string name = indexed("r", position);
    body_ += "    const " + std::string(register_type(spec.dtype)) + " " + name + " = " + *expression + ";\n";
    values_[op.outputs[0].index] = name;
    return true;
  }

  // What does not lead with the microbatch is drawn once a step, but for Dropout, which always does.
  void add_draw(const dag::Op& op, const std::string& name) {
    made_.reads_context = true;
    const std::string key = std::to_string(static_cast<uint32_t>(op.attributes.get_int(dag::Attr::Key)));
    std::string first = "random::first_place(p.where[0], count";
    if (op.kind != OpKind::Dropout) first += ", " + std::to_string(shape_.empty() ? 0 : shape_[0]) + "ll";
    const bool normal = op.kind == OpKind::RandomNormal;
    loads_ += "  const elements::Four<" + std::string(normal ? "float" : "uint32_t") + "> " + name +
              " = random::" + (normal ? "normals" : "words") + "(random::draws(p.where[0], " + key + "u), " +
              first + ") + i);\n";
  }

  void add_output(size_t slot) {
    const ValueId value = group_.outputs[slot];
    const dag::DType dtype = graph_.spec(value).dtype;
    const std::string type(memory_type(dtype)), name = indexed("y", slot);
    parameters_ += "  Array<" + type + "> " + indexed("out", slot) + ";\n";
    declarations_ += "  elements::Four<" + type + "> " + name + ";\n";
    const std::string& result = values_.at(value.index);
    body_ += "    " + name +
             ".at[j] = " + (dtype == dag::DType::Bool ? "static_cast<uint8_t>(" + result + ")" : result) +
             ";\n";
    stores_ += "  elements::store(p." + indexed("out", slot) + ", i, " + name +
               (whole_fours_ ? "" : ", left") + ");\n";
    made_.output_counts.push_back(graph_.spec(value).element_count());
    made_.in_place.push_back(take_over(dtype));
  }

  // All of a thread's loads stand before its stores, and nobody else reads a whole operand's elements there.
  int take_over(dag::DType dtype) {
    for (size_t slot = 0; slot < group_.inputs.size(); ++slot)
      if (whole_[slot] && graph_.spec(group_.inputs[slot]).dtype == dtype) {
        whole_[slot] = false;
        return static_cast<int>(slot);
      }
    return -1;
  }

  // How many there are is told at the launch: groups that differ in nothing else are one kernel.
  std::string function_body() const {
    const std::string index = narrow_ ? "uint32_t" : "uint64_t";
    std::string text = "  const " + index + " count = static_cast<" + index + ">(p.out0.count);\n  const " +
                       index + " i = (static_cast<" + index + ">(blockIdx.x) * " +
                       std::to_string(kThreadsPerBlock) + "u + threadIdx.x) * " +
                       std::to_string(kFusedElements) + "u;\n  if (i >= count) return;\n";
    if (!whole_fours_) text += "  const int left = count - i < 4u ? static_cast<int>(count - i) : 4;\n";
    return text + loads_ + declarations_ + "  WEFT_UNROLL\n  for (int j = 0; j < 4; ++j) {\n" + body_ +
           "  }\n" + stores_;
  }

  FusedSource finish() {
    if (made_.reads_context) parameters_ += "  Array<const DeviceContext> where;\n";
    const std::string body = function_body(), name = "fused_" + checksum(parameters_ + body);
    const std::string parameters = name + "_Parameters";
    made_.source.name = name;
    made_.source.code =
        "#include \"peer/backend/cuda/kernels/device_code.h\"\n"
        "#include \"peer/backend/cuda/kernels/elements.cuh\"\n"
        "#include \"peer/backend/cuda/kernels/random.cuh\"\n"
        "namespace weft::peer::cuda {\n"
        "struct " +
        parameters + " {\n" + parameters_ +
        "};\n"
        "extern \"C\" __global__ void __launch_bounds__(" +
        std::to_string(kThreadsPerBlock) + ") " + name + "(" + parameters + " p) {\n" + body +
        "}\n"
        "#if defined(WEFT_CUDA_SHIM)\n"
        "WEFT_KERNEL_ENTRY(" +
        name + ", " + parameters +
        ")\n"
        "extern \"C\" const Entry* " +
        name + "_entry() { return &k_" + name +
        "; }\n"
        "#endif\n"
        "}\n";
    const size_t arrays = group_.inputs.size() + group_.outputs.size() + (made_.reads_context ? 1 : 0);
    made_.source.parameter_bytes = arrays * sizeof(Array<std::byte>);
    const int64_t each = kFusedElements * kThreadsPerBlock;
    made_.grid = {static_cast<uint32_t>((count_ + each - 1) / each), kThreadsPerBlock, 1};
    return std::move(made_);
  }

  const dag::Graph& graph_;
  const GroupSignature& group_;
  dag::Shape shape_;
  int64_t count_ = 0;
  bool whole_fours_ = true;                 // the count is a multiple of a thread's elements
  bool narrow_ = true;                      // indices of 32 bits
  std::map<uint32_t, std::string> values_;  // value -> its element's expression
  std::vector<bool> whole_;                 // by input: read Whole, and not yet taken over
  std::string parameters_, loads_, declarations_, body_, stores_;
  FusedSource made_;
};

}  // namespace

std::optional<FusedSource> make_fused_source(const dag::Graph& graph, const GroupSignature& group) {
  return Writer(graph, group).write();
}

}  // namespace weft::peer::cuda
