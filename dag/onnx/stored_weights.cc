#include "dag/onnx/stored_weights.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "dag/onnx/edit.h"
#include "dag/onnx/node_questions.h"
#include "dag/onnx/stored_nodes.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

using dag::DType;
using dag::StoredForm;
using dag::StoredMatrix;
using dag::TensorSpec;
using Use = StoredWeight::Use;

bool has(const pb::NodeProto& node, int operand) {
  return operand < node.input_size() && !node.input(operand).empty();
}
bool is_byte(DType dtype) { return dtype == DType::I8 || dtype == DType::U8; }
bool is_up_to_single(DType dtype) { return dtype == DType::F32 || is_half(dtype); }

// What ends a name that only says that there are fewer bits. A name of another kind gets an end: the numbers
// and the weight are two things, and files that merge adapters have both.
constexpr std::string_view kEndings[] = {"_Q4", "_Q8", "_quant", "_quantized"};
std::string whole_name(const HeldTensors& held, const std::string& numbers) {
  for (const std::string_view ending : kEndings)
    if (numbers.size() > ending.size() && numbers.ends_with(ending))
      if (std::string name = numbers.substr(0, numbers.size() - ending.size()); !held.is_taken(name))
        return name;
  std::string name = numbers + "_whole";
  while (held.is_taken(name)) name += "_";
  return name;
}

class Reader {
 public:
  Reader(const HeldTensors& held, const pb::NodeProto& node) : held_(held), node_(node) {}

  // x, scale, zero point
  std::optional<StoredWeight> dequantized() {
    if (!take(0, 1, 2)) return std::nullopt;
    const auto dims = dims_of(0);
    if (dims.size() != 2 || dims[0] < 1 || dims[1] < 1) return std::nullopt;
    const TensorSpec& scale = weight_.form.scale.spec;
    const int64_t given = int_of(node_, "output_dtype", 0);
    const auto dtype = given == 0 ? Result<DType>(scale.dtype) : dtype_from_onnx(static_cast<int32_t>(given));
    if (!dtype || !is_up_to_single(*dtype) || (*dtype != DType::F32 && *dtype != scale.dtype))
      return std::nullopt;
    int64_t axis = int_of(node_, "axis", 1);
    if (axis < 0) axis += 2;
    if (axis != 0 && axis != 1) return std::nullopt;
    const int64_t block = int_of(node_, "block_size", 0);
    matrix().rows = dims[0], matrix().columns = dims[1];
    if (block > 0) {
      if (dims_of(1).size() != 2) return std::nullopt;
      set_block(axis, std::min(block, dims[static_cast<size_t>(axis)]));
    } else if (scale.element_count() == 1 && scale.rank() <= 1) {
      matrix().block_rows = dims[0], matrix().block_columns = dims[1];
    } else {
      matrix().block_rows = axis == 0 ? 1 : dims[0], matrix().block_columns = axis == 0 ? dims[1] : 1;
    }
    weight_.use = Use::Result;
    weight_.name = node_.output(0);
    return finish(*dtype);
  }

  // Halves that were made of a weight, which has its name behind the Cast. Others are weights by themselves.
  std::optional<StoredWeight> cast() {
    if (!take(0, weight_.form.numbers) || int_of(node_, "to", 0) != pb::TensorProto::FLOAT)
      return std::nullopt;
    const TensorSpec& numbers = weight_.form.numbers.spec;
    if (!is_half(numbers.dtype) || numbers.rank() != 2 || numbers.element_count() == 0 ||
        weight_.form.numbers.name != name_of_half(node_.output(0), numbers.dtype))
      return std::nullopt;
    matrix() = {.rows = numbers.shape[0], .columns = numbers.shape[1], .numbers = numbers.dtype};
    weight_.name = node_.output(0);
    return weight_;
  }

  // a, numbers, scales, zero points, order of groups, bias
  std::optional<StoredWeight> product() {
    if (!take(1, 2, 3) || has(node_, 4)) return std::nullopt;
    const int64_t inner = int_of(node_, "K", 0), block = int_of(node_, "block_size", 0);
    matrix().rows = int_of(node_, "N", 0), matrix().columns = inner;
    if (matrix().rows < 1 || inner < 1 || block < 1 || inner % block != 0) return std::nullopt;
    if (!set_bits_in_bytes(int_of(node_, "bits", 4))) return std::nullopt;
    set_block(1, block);
    // Each row of packed zeros begins a byte.
    if (matrix().has_zero && matrix().bits == 4 && inner / block % 2 != 0) return std::nullopt;
    weight_.use = Use::Factor;
    weight_.name = whole_name(held_, weight_.form.numbers.name);
    return finish(weight_.form.scale.spec.dtype);
  }

  // table, indices, scales, zero points
  std::optional<StoredWeight> rows() {
    if (!take(0, 2, 3) || int_of(node_, "gather_axis", 0) != 0) return std::nullopt;
    auto dims = dims_of(0);
    if (dims.size() != 2 || dims[0] < 1 || dims[1] < 1) return std::nullopt;
    const int64_t axis = int_of(node_, "quantize_axis", 1), block = int_of(node_, "block_size", 128);
    if ((axis != 1 && axis != -1) || block < 1) return std::nullopt;
    if (!is_four_bit(*held_.find(node_.input(0))->proto)) {  // in whole bytes, as MatMulNBits has them
      if (matrix().numbers != DType::U8 || !set_bits_in_bytes(int_of(node_, "bits", 4))) return std::nullopt;
      dims[1] *= 8 / matrix().bits;
    }
    matrix().rows = dims[0], matrix().columns = dims[1];
    set_block(1, std::min(block, dims[1]));
    if (matrix().has_zero && matrix().bits == 4 && matrix().scale_columns() % 2 != 0) return std::nullopt;
    weight_.use = Use::Table;
    weight_.name = whole_name(held_, weight_.form.numbers.name);
    return finish(weight_.form.scale.spec.dtype);
  }

 private:
  StoredMatrix& matrix() { return weight_.form.matrix; }
  void set_block(int64_t axis, int64_t block) {
    matrix().block_rows = axis == 0 ? block : 1;
    matrix().block_columns = axis == 1 ? block : 1;
  }
  // Of numbers in bytes whose operator says how many bits each has; without zeros theirs is in the middle.
  bool set_bits_in_bytes(int64_t bits) {
    if (bits != 4 && bits != 8) return false;
    matrix().bits = bits;
    if (!matrix().has_zero) matrix().zero_of_all = bits == 4 ? 8 : 128;
    return true;
  }

  // REQUIRES: the operand was taken.
  const std::vector<int64_t>& dims_of(int operand) const { return held_.find(node_.input(operand))->dims; }

  bool take(int numbers, int scale, int zero) {
    if (!take(numbers, weight_.form.numbers) || !take(scale, weight_.form.scale)) return false;
    matrix().numbers = weight_.form.numbers.spec.dtype;
    matrix().scale = weight_.form.scale.spec.dtype;
    if (!is_byte(matrix().numbers) || !is_up_to_single(matrix().scale)) return false;
    // Small ones are held a number in a byte.
    const HeldTensor& tensor = *held_.find(node_.input(numbers));
    matrix().bits = is_packed(*tensor.proto, tensor.spec) ? 4 : 8;
    matrix().has_zero = has(node_, zero);
    return !matrix().has_zero || take(zero, weight_.form.zero);
  }
  bool take(int operand, StoredForm::Part& part) const {
    if (!has(node_, operand)) return false;
    const HeldTensor* found = held_.find(node_.input(operand));
    if (found == nullptr) return false;
    part = {found->initializer, found->spec};
    return true;
  }

  std::optional<StoredWeight> finish(DType dtype) {
    if (!dag::checked_element_count({matrix().rows, matrix().columns})) return std::nullopt;
    weight_.dtype = dtype;
    matrix().rounded = dtype;
    if (matrix().has_zero) matrix().zero_bits = matrix().zero_bits_of(weight_.form.zero.spec.element_count());
    const auto fits = [](const StoredForm::Part& part, const TensorSpec& want) {
      return part.spec.dtype == want.dtype && part.spec.element_count() == want.element_count();
    };
    const StoredForm& form = weight_.form;
    if (!fits(form.numbers, form.matrix.numbers_spec()) || !fits(form.scale, form.matrix.scale_spec()) ||
        (form.matrix.has_zero && !fits(form.zero, form.matrix.zero_spec())))
      return std::nullopt;
    return weight_;
  }

  const HeldTensors& held_;
  const pb::NodeProto& node_;
  StoredWeight weight_;
};

Result<dag::Tensor> whole(const OnnxModel& model, const StoredForm::Part& part) {
  if (part.name.empty()) return dag::Tensor();
  return model.read_whole(part.name);
}

// A shape with 0 and -1 resolved; nothing where it has not as many elements as `dims`.
std::optional<std::vector<int64_t>> reshaped(const std::vector<int64_t>& dims, std::vector<int64_t> shape) {
  const auto count = dag::checked_element_count(dims);
  if (!count || *count == 0) return std::nullopt;
  int64_t rest = *count;
  int64_t* open = nullptr;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && i < dims.size()) shape[i] = dims[i];
    if (shape[i] == -1 && open == nullptr) {
      open = &shape[i];
      continue;
    }
    if (shape[i] < 1 || rest % shape[i] != 0) return std::nullopt;
    rest /= shape[i];
  }
  if (open != nullptr) *open = rest;
  if (open == nullptr && rest != 1) return std::nullopt;
  return shape;
}

}  // namespace

HeldTensors::HeldTensors(const OnnxModel::Structure& model) {
  const pb::GraphProto& graph = model.proto.graph();
  for (const auto& input : graph.input()) taken_.insert(input.name());
  for (const auto& proto : graph.initializer()) {
    taken_.insert(proto.name());
    tensors_.emplace(proto.name(), HeldTensor{.initializer = proto.name(),
                                              .proto = &proto,
                                              .spec = model.weights.find(proto.name())->second.spec(),
                                              .dims = {proto.dims().begin(), proto.dims().end()}});
  }
  std::unordered_map<std::string, const pb::NodeProto*> constants;
  for (const auto& node : graph.node()) {
    taken_.insert(node.output().begin(), node.output().end());
    if (node.output_size() != 1) continue;
    if (is_op(&node, "Constant")) constants[node.output(0)] = &node;
    if (!is_op(&node, "Reshape") || node.input_size() != 2) continue;
    const auto constant = constants.find(node.input(1));
    add_reshaped(model, node, constant == constants.end() ? nullptr : constant->second);
  }
}

void HeldTensors::add_reshaped(const OnnxModel::Structure& model, const pb::NodeProto& node,
                               const pb::NodeProto* constant) {
  const HeldTensor* source = find(node.input(0));
  if (source == nullptr || is_four_bit(*source->proto) || int_of(node, "allowzero", 0) != 0) return;
  std::optional<std::vector<int64_t>> sizes;
  if (const auto shape = model.weights.find(node.input(1)); shape == model.weights.end())
    sizes = constant != nullptr ? small_ints_of_constant(*constant) : std::nullopt;
  else if (!model.unread.contains(shape->first))
    sizes = small_ints(shape->second);
  auto dims = sizes ? reshaped(source->dims, *sizes) : std::nullopt;
  if (!dims) return;
  HeldTensor tensor = *source;
  tensor.dims = std::move(*dims);
  tensors_.emplace(node.output(0), std::move(tensor));
}

const HeldTensor* HeldTensors::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::optional<StoredWeight> stored_weight_of(const HeldTensors& held, const pb::NodeProto& node) {
  Reader reader(held, node);
  if (node.output_size() != 1) return std::nullopt;
  if (is_standard(node)) {
    if (node.op_type() == "Cast") return reader.cast();
    return node.op_type() == "DequantizeLinear" ? reader.dequantized() : std::nullopt;
  }
  if (node.domain() != "com.microsoft") return std::nullopt;
  if (node.op_type() == "MatMulNBits") return reader.product();
  if (node.op_type() == "GatherBlockQuantized") return reader.rows();
  return std::nullopt;
}

StoredWeights stored_weights(const OnnxModel& model) {
  const HeldTensors held(model.structure());
  StoredWeights weights;
  for (const auto& node : model.structure().proto.graph().node())
    if (auto weight = stored_weight_of(held, node)) weights.emplace(weight->name, *weight);
  return weights;
}

bool is_one_of(const StoredWeights& weights, const StoredWeight& weight) {
  const auto found = weights.find(weight.name);
  return found != weights.end() && found->second.dtype == weight.dtype && found->second.form == weight.form;
}

TrainedTensors widened(const OnnxModel& model) {
  TrainedTensors tensors;
  StoredWeights weights = stored_weights(model);
  for (const auto& [name, weight] : weights)
    tensors.specs[name] = {DType::F32, {weight.form.matrix.rows, weight.form.matrix.columns}};
  tensors.read = [model, weights = std::move(weights)](const std::string& name,
                                                       const ByteSink& sink) -> Status {
    const StoredForm& form = weights.find(name)->second.form;
    dag::StoredTensors parts;
    WEFT_TRY(parts.numbers, whole(model, form.numbers));
    WEFT_TRY(parts.scale, whole(model, form.scale));
    WEFT_TRY(parts.zero, whole(model, form.zero));
    const int64_t step = std::max<int64_t>(1, (int64_t{1} << 18) / form.matrix.columns);
    for (int64_t row = 0; row < form.matrix.rows; row += step)
      WEFT_TRY_STATUS(
          sink(widened_rows(form.matrix, parts, row, std::min(step, form.matrix.rows - row)).bytes()));
    return {};
  };
  return tensors;
}

namespace {

// A node's place taken by others that read the whole weight.
void read_whole(const pb::NodeProto& node, const StoredWeight& weight, std::vector<pb::NodeProto>& nodes) {
  const auto add = [&](const char* type, std::vector<std::string> inputs, const std::string& output,
                       const std::string& suffix) -> pb::NodeProto& {
    pb::NodeProto& made = nodes.emplace_back();
    made.set_op_type(type);
    if (!node.name().empty()) made.set_name(node.name() + suffix);
    for (std::string& input : inputs) made.add_input(std::move(input));
    made.add_output(output);
    return made;
  };
  switch (weight.use) {
    case Use::Result:
      return;  // the initializer has the name of the result
    case Use::Table:
      add("Gather", {weight.name, node.input(1)}, node.output(0), "");
      return;
    case Use::Factor:
      break;
  }
  const bool has_bias = has(node, 5);
  const std::string turned = node.output(0) + "/transposed",
                    product = has_bias ? node.output(0) + "/product" : node.output(0);
  auto& perm = *add("Transpose", {weight.name}, turned, "/transposed").add_attribute();
  perm.set_name("perm");
  perm.set_type(pb::AttributeProto::INTS);
  perm.add_ints(1);
  perm.add_ints(0);
  add("MatMul", {node.input(0), turned}, product, "");
  if (has_bias) add("Add", {product, node.input(5)}, node.output(0), "/bias");
}

pb::NodeProto cast_to_float(const std::string& half, const std::string& weight) {
  pb::NodeProto cast;
  cast.set_op_type("Cast");
  cast.add_input(half);
  cast.add_output(weight);
  auto& to = *cast.add_attribute();
  to.set_name("to");
  to.set_type(pb::AttributeProto::INT);
  to.set_i(pb::TensorProto::FLOAT);
  return cast;
}

// Reshapes of initializers that nothing reads go; what they read.
std::set<std::string> remove_unread_reshapes(pb::GraphProto& graph, const HeldTensors& held) {
  std::set<std::string> read, inputs;
  add_names_read(graph, read);
  auto& nodes = *graph.mutable_node();
  const auto is_unread = [&](const pb::NodeProto& node) {
    if (!is_op(&node, "Reshape") || held.find(node.output(0)) == nullptr || read.contains(node.output(0)))
      return false;
    inputs.insert(node.input().begin(), node.input().end());
    return true;
  };
  nodes.erase(std::remove_if(nodes.begin(), nodes.end(), is_unread), nodes.end());
  return inputs;
}

}  // namespace

std::string name_of_half(const std::string& weight, DType half) {
  return weight + (half == DType::F16 ? "_f16" : "_bf16");
}

Result<OnnxModel> with_whole_weights(const OnnxModel& model, const std::map<std::string, DType>& dtypes) {
  auto made = std::make_shared<OnnxModel::Structure>(model.structure());
  const HeldTensors held(model.structure());
  pb::GraphProto& graph = *made->proto.mutable_graph();
  StoredWeights stored = stored_weights(model);
  std::erase_if(stored, [&](const auto& entry) { return !dtypes.contains(entry.first); });

  // How each is computed with.
  std::map<std::string, TensorSpec> weights;
  for (const auto& [name, weight] : stored)
    weights[name] = {weight.dtype, {weight.form.matrix.rows, weight.form.matrix.columns}};
  for (const auto& [name, dtype] : dtypes)
    if (const HeldTensor* tensor = held.find(name);
        tensor && tensor->initializer == name && !stored.contains(name))
      weights.emplace(name, tensor->spec);

  std::vector<pb::NodeProto> nodes;
  std::set<std::string> unread;  // what nothing may read any more
  for (const auto& [name, spec] : weights) {
    const DType dtype = dtypes.at(name);
    if (dtype == spec.dtype) continue;
    const std::string half = name_of_half(name, dtype);
    if (spec.dtype != DType::F32 || !is_half(dtype) || held.is_taken(half))
      return fail(ErrorCode::InvalidArgument,
                  "'" + name.substr(0, 128) + "' is " + to_string(spec) + " and cannot be written as " +
                      std::string(to_string(dtype)) +
                      (held.is_taken(half) ? ": the model has a '" + half.substr(0, 128) + "'" : ""));
    if (!stored.contains(name)) unread.insert(name);
    nodes.push_back(cast_to_float(half, name));
  }
  for (const auto& node : graph.node()) {
    const auto weight = stored_weight_of(held, node);
    if (weight && is_one_of(stored, *weight))
      read_whole(node, *weight, nodes);
    else
      nodes.push_back(node);
  }
  graph.clear_node();
  for (pb::NodeProto& node : nodes) *graph.add_node() = std::move(node);

  for (const auto& [name, weight] : stored)
    for (const StoredForm::Part* part : {&weight.form.numbers, &weight.form.scale, &weight.form.zero})
      unread.insert(part->name);
  const std::set<std::string> of_reshapes = remove_unread_reshapes(graph, held);
  unread.insert(of_reshapes.begin(), of_reshapes.end());
  std::set<std::string> read;
  add_names_read(graph, read);
  std::erase_if(unread,
                [&](const std::string& name) { return read.contains(name) && !weights.contains(name); });
  remove_initializers(*made, unread);
  for (const auto& [name, spec] : weights) {
    const DType dtype = dtypes.at(name);
    if (dtype != spec.dtype)
      WEFT_TRY_STATUS(
          add_initializer(*made, name_of_half(name, dtype), {dtype, spec.shape}, model.has_external_data()));
    else if (stored.contains(name))
      WEFT_TRY_STATUS(add_initializer(*made, name, spec, model.has_external_data()));
  }
  return OnnxModel(std::move(made));
}

namespace {

constexpr std::string_view kExchanged = "weft.exchanged_weights";  // names, a line each

std::set<std::string> lines_of(std::string_view text) {
  std::set<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.emplace(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

const pb::StringStringEntryProto* exchanged_entry(const pb::ModelProto& proto) {
  for (const auto& entry : proto.metadata_props())
    if (entry.key() == kExchanged) return &entry;
  return nullptr;
}

}  // namespace

std::set<std::string> exchanged_weights(const OnnxModel& model) {
  const auto* entry = exchanged_entry(model.structure().proto);
  return entry != nullptr ? lines_of(entry->value()) : std::set<std::string>();
}

void exchange_weights(const std::set<std::string>& names, OnnxModel::Structure& model) {
  if (names.empty()) return;
  auto* entry = const_cast<pb::StringStringEntryProto*>(exchanged_entry(model.proto));
  if (entry == nullptr) {
    entry = model.proto.add_metadata_props();
    entry->set_key(std::string(kExchanged));
  }
  std::set<std::string> lines = lines_of(entry->value());
  for (const std::string& name : names)
    if (lines.erase(name) == 0) lines.insert(name);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  entry->set_value(text);
}

std::map<std::string, bool> inputs_first(const OnnxModel& model) {
  const HeldTensors held(model.structure());
  struct Matrix {
    std::string weight;
    bool is_turned;
  };
  std::map<std::string, Matrix> matrices;  // by values that are one, or one transposed
  const auto find = [&](const std::string& value) -> std::optional<Matrix> {
    if (const auto at = matrices.find(value); at != matrices.end()) return at->second;
    const HeldTensor* tensor = held.find(value);
    return tensor && tensor->initializer == value ? std::optional(Matrix{value, false}) : std::nullopt;
  };
  std::map<std::string, bool> found;
  std::set<std::string> unclear;
  const auto read = [&](const std::string& weight, bool first) {
    if (const auto [at, is_new] = found.emplace(weight, first); at->second != first) unclear.insert(weight);
  };
  for (const auto& node : model.structure().proto.graph().node()) {
    const auto stored = stored_weight_of(held, node);
    if (stored && stored->use == Use::Factor) read(stored->name, false);
    if (stored && stored->use == Use::Result) matrices[node.output(0)] = {stored->name, false};
    for (int i = 0; is_standard(node) && i < std::min(node.input_size(), 2); ++i) {
      const auto matrix = find(node.input(i));
      if (!matrix) continue;
      if (node.op_type() == "Transpose" && node.output_size() == 1)
        matrices[node.output(0)] = {matrix->weight, !matrix->is_turned};
      if (node.op_type() == "MatMul") read(matrix->weight, (i == 1) != matrix->is_turned);
      if (node.op_type() == "Gemm") {
        const bool swaps = int_of(node, i == 1 ? "transB" : "transA", 0) != 0;
        read(matrix->weight, (i == 1) != (matrix->is_turned != swaps));
      }
    }
  }
  for (const std::string& weight : unclear) found.erase(weight);
  return found;
}

}  // namespace weft::onnx
