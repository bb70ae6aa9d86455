#include "dag/onnx/analysis.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

bool is_standard(const pb::NodeProto& node) { return node.domain().empty() || node.domain() == "ai.onnx"; }

bool has_subgraph(const pb::NodeProto& node) {
  return std::any_of(node.attribute().begin(), node.attribute().end(),
                     [](const auto& attribute) { return attribute.has_g() || attribute.graphs_size() > 0; });
}

std::string short_name(std::string_view name) { return "'" + std::string(name.substr(0, 128)) + "'"; }

bool casts_to_float(const pb::NodeProto& node) {
  for (const auto& attribute : node.attribute())
    if (attribute.name() == "to")
      return attribute.i() == pb::TensorProto::FLOAT || attribute.i() == pb::TensorProto::DOUBLE ||
             attribute.i() == pb::TensorProto::FLOAT16 || attribute.i() == pb::TensorProto::BFLOAT16;
  return false;
}

bool gradient_enters(const pb::NodeProto& node, int operand) {
  const LowerRow* row = find_lowering(node.domain(), node.op_type());
  if (row == nullptr) return true;
  return row->gradient == kWhenToFloat ? casts_to_float(node) : has_operand(row->gradient, operand);
}

bool decides_shape(const pb::NodeProto& node, int operand) {
  const LowerRow* row = find_lowering(node.domain(), node.op_type());
  return row != nullptr && has_operand(row->shapes, operand);
}

constexpr char kExportCall[] =
    "torch.onnx.export(model, inputs, path, training=torch.onnx.TrainingMode.TRAINING, "
    "do_constant_folding=False)";

}  // namespace

std::unordered_map<std::string, int> count_uses(const pb::GraphProto& graph) {
  std::unordered_map<std::string, int> uses;
  for (const auto& node : graph.node())
    for (const auto& input : node.input())
      if (!input.empty()) ++uses[input];
  for (const auto& output : graph.output()) ++uses[output.name()];
  return uses;
}

std::map<std::string, int64_t> count_ops(const pb::GraphProto& graph) {
  std::map<std::string, int64_t> counts;
  for (const auto& node : graph.node())
    ++counts[(is_standard(node) ? "" : node.domain().substr(0, 128) + ".") + node.op_type().substr(0, 128)];
  return counts;
}

Status check_supported(const pb::GraphProto& graph) {
  std::map<std::string, int64_t> unsupported;
  int64_t total = 0;
  for (const auto& node : graph.node()) {
    std::string name = node.op_type().substr(0, 128);
    if (has_subgraph(node)) {
      name += " (with a subgraph)";
    } else if (find_lowering(node.domain(), node.op_type())) {
      continue;
    } else if (!is_standard(node)) {
      name = node.domain().substr(0, 128) + "." + name;
    }
    ++unsupported[name];
    ++total;
  }
  if (unsupported.empty()) return {};
  std::string list;
  size_t shown = 0;
  for (const auto& [name, count] : unsupported) {
    if (shown++ == 50) {
      list += ", ...";
      break;
    }
    list += (list.empty() ? "" : ", ") + std::to_string(count) + " x " + name;
  }
  return fail(ErrorCode::Unsupported, "cannot import " + std::to_string(total) + " of the model's " +
                                          std::to_string(graph.node_size()) + " nodes: " + list);
}

Status check_well_formed(const OnnxModel::Structure& model, const ImportLimits& limits) {
  const auto& graph = model.proto.graph();
  std::unordered_set<std::string_view> defined;
  std::unordered_set<std::string_view>
      produced;  // by any node, to tell a cycle from a name that does not exist
  const auto too_long = [&](const std::string& name) {
    return static_cast<int64_t>(name.size()) > limits.name_bytes_max;
  };
  for (const auto& [name, tensor] : model.weights) defined.insert(name);
  std::unordered_set<std::string_view> inputs;
  for (const auto& input : graph.input()) {
    if (input.name().empty()) return fail(ErrorCode::InvalidArgument, "an input of the model has no name");
    if (too_long(input.name())) return fail(ErrorCode::OutOfRange, "the name of an input is too long");
    if (!inputs.insert(input.name()).second)
      return fail(ErrorCode::InvalidArgument, "two inputs have the name " + short_name(input.name()));
    defined.insert(input.name());
  }
  for (const auto& node : graph.node())
    for (const auto& output : node.output()) produced.insert(output);
  for (const auto& node : graph.node()) {
    const std::string where = node.op_type().substr(0, 64) + " " + short_name(node.name());
    if (too_long(node.name()) || too_long(node.op_type()))
      return fail(ErrorCode::OutOfRange, "the name of a node is too long");
    for (const auto& input : node.input()) {
      if (input.empty() || defined.contains(input)) continue;
      if (produced.contains(input))
        return fail(ErrorCode::InvalidArgument,
                    where + " reads " + short_name(input) +
                        " before it is computed: the graph has a cycle, or its nodes are out of order");
      return fail(ErrorCode::InvalidArgument,
                  where + " reads " + short_name(input) + ", which nothing defines");
    }
    std::unordered_set<std::string_view> attributes;
    for (const auto& attribute : node.attribute())
      if (!attributes.insert(attribute.name()).second)
        return fail(ErrorCode::InvalidArgument,
                    where + " has the attribute " + short_name(attribute.name()) + " twice");
    for (const auto& output : node.output()) {
      if (output.empty()) continue;
      if (too_long(output))
        return fail(ErrorCode::OutOfRange, where + " has an output whose name is too long");
      if (!defined.insert(output).second)
        return fail(ErrorCode::InvalidArgument,
                    where + " defines " + short_name(output) + ", which is defined already");
    }
  }
  if (graph.output_size() == 0) return fail(ErrorCode::InvalidArgument, "the model has no outputs");
  std::unordered_set<std::string_view> outputs;
  for (const auto& output : graph.output()) {
    if (!defined.contains(output.name()) || output.name().empty())
      return fail(ErrorCode::InvalidArgument,
                  "the model's output " + short_name(output.name()) + " is computed by nothing");
    if (!outputs.insert(output.name()).second)
      return fail(ErrorCode::InvalidArgument, "two outputs have the name " + short_name(output.name()));
  }
  return {};
}

std::unordered_set<std::string> reached_by_gradient(const pb::GraphProto& graph) {
  std::unordered_set<std::string> reached;
  for (const auto& output : graph.output()) reached.insert(output.name());
  for (int i = graph.node_size(); i-- > 0;) {
    const auto& node = graph.node(i);
    const bool any = std::any_of(node.output().begin(), node.output().end(),
                                 [&](const std::string& output) { return reached.contains(output); });
    if (!any) continue;
    for (int k = 0; k < node.input_size(); ++k)
      if (!node.input(k).empty() && gradient_enters(node, k)) reached.insert(node.input(k));
  }
  return reached;
}

std::set<std::string> running_statistics(const pb::GraphProto& graph) {
  std::set<std::string> names;
  for (const auto& node : graph.node())
    if (is_standard(node) && node.op_type() == "BatchNormalization" && node.input_size() >= 5) {
      names.insert(node.input(3));
      names.insert(node.input(4));
    }
  return names;
}

Status check_no_merged_parameters(const OnnxModel::Structure& model,
                                  const std::unordered_set<std::string>& reached) {
  const auto& graph = model.proto.graph();
  const auto uses = count_uses(graph);
  std::map<std::string, std::vector<std::string>> aliases;
  for (const auto& node : graph.node()) {
    if (!is_standard(node) || node.op_type() != "Identity" || node.input_size() != 1 ||
        node.output_size() != 1)
      continue;
    const auto weight = model.weights.find(node.input(0));
    if (weight == model.weights.end() || !is_float(weight->second.dtype()) ||
        !reached.contains(node.output(0)))
      continue;
    aliases[node.input(0)].push_back(node.output(0));
  }
  for (const auto& [name, copies] : aliases) {
    // An initializer that is read once, through one Identity, is merely renamed.
    const auto found = uses.find(name);
    if (found == uses.end() || found->second < 2) continue;
    return fail(ErrorCode::Unsupported, "initializer " + short_name(name) + " stands for " +
                                            std::to_string(found->second) + " parameters (" +
                                            short_name(copies.front()) +
                                            " among them) that were equal when the file was written: " +
                                            "this is an evaluation-mode export, and training it would tie "
                                            "parameters that are independent.\n" +
                                            "Export for training instead: " + kExportCall);
  }
  return {};
}

std::vector<std::string> shape_inputs(const OnnxModel& model) {
  const auto& graph = model.structure().proto.graph();
  std::unordered_set<std::string> needed;
  for (int i = graph.node_size(); i-- > 0;) {
    const auto& node = graph.node(i);
    if (node.op_type() == "Shape" || node.op_type() == "Size") continue;
    const bool whole = std::any_of(node.output().begin(), node.output().end(),
                                   [&](const std::string& output) { return needed.contains(output); });
    for (int k = 0; k < node.input_size(); ++k) {
      if (!node.input(k).empty() && (whole || decides_shape(node, k))) needed.insert(node.input(k));
    }
  }
  std::vector<std::string> names;
  for (const auto& input : graph.input())
    if (needed.contains(input.name()) && !model.weights().contains(input.name()))
      names.push_back(input.name());
  return names;
}

bool matches_glob(std::string_view pattern, std::string_view text) {
  // Greedy with one point to return to: linear in practice, quadratic at worst.
  size_t p = 0, t = 0, star = std::string_view::npos, after = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++after;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

namespace {

bool name_says_so(const std::string& name, std::string& word) {
  std::string current;
  for (size_t i = 0; i <= name.size(); ++i) {
    if (i < name.size() && std::isalpha(static_cast<unsigned char>(name[i]))) {
      current += static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
      continue;
    }
    if (current == "mask" || current == "masks" || current == "cos" || current == "sin") {
      word = current;
      return true;
    }
    current.clear();
  }
  return false;
}

// Whether all values along some dim of more than one element are equal.
int constant_axis(const dag::Shape& shape, const std::vector<double>& values) {
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] < 2) continue;
    size_t inner = 1;
    for (size_t k = d + 1; k < shape.size(); ++k) inner *= static_cast<size_t>(shape[k]);
    const size_t block = inner * static_cast<size_t>(shape[d]);
    bool constant = true;
    for (size_t i = 0; i < values.size() && constant; ++i)
      if (i % block >= inner) constant = values[i] == values[i - inner];
    if (constant) return static_cast<int>(d);
  }
  return -1;
}

}  // namespace

std::string table_or_mask(const std::string& name, const dag::Tensor& tensor) {
  std::string word;
  if (name_says_so(name, word)) return "its name has '" + word + "' in it";
  if (!is_float(tensor.dtype()) || tensor.element_count() < 2) return {};
  const auto values = to_doubles(tensor);
  if (std::any_of(values.begin(), values.end(), [](double v) { return v <= -1e4; }))
    return "it holds values of -10000 or less";
  // One-dimensional scales and biases start constant; a matrix does not.
  int64_t wide = 0;
  for (const int64_t dim : tensor.shape()) wide += dim > 1;
  if (wide < 2) return {};
  const int axis = constant_axis(tensor.shape(), values);
  if (axis >= 0) return "it is constant along axis " + std::to_string(axis);
  if (std::all_of(values.begin(), values.end(), [](double v) { return v == 0 || v == 1; }))
    return "it holds only zeros and ones";
  return {};
}

}  // namespace weft::onnx
