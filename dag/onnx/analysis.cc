#include "dag/onnx/analysis.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "dag/onnx/lowering.h"
#include "dag/onnx/node_questions.h"

namespace weft::onnx {
namespace {

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

bool decides_shape(const pb::NodeProto& node, int operand) {
  const LowerRow* row = find_lowering(node.domain(), node.op_type());
  return row != nullptr && has_operand(row->shapes, operand);
}

constexpr char kExportCall[] =
    "torch.onnx.export(model, inputs, path, training=torch.onnx.TrainingMode.TRAINING, "
    "do_constant_folding=False)";

}  // namespace

bool gradient_enters(const pb::NodeProto& node, int operand) {
  const LowerRow* row = find_lowering(node.domain(), node.op_type());
  if (row == nullptr) return true;
  return row->gradient == kWhenToFloat ? casts_to_float(node) : has_operand(row->gradient, operand);
}

std::unordered_map<std::string, int> count_uses(const ExpandedGraph& graph) {
  std::unordered_map<std::string, int> uses;
  visit_nodes(graph, [&](const pb::NodeProto& node) {
    for (const auto& input : node.input())
      if (!input.empty()) ++uses[input];
    visit_bodies(node, [&](const pb::GraphProto& body) {
      for (const auto& output : body.output()) ++uses[output.name()];
    });
  });
  for (const auto& output : graph.graph->output()) ++uses[output.name()];
  return uses;
}

std::map<std::string, int64_t> count_ops(const ExpandedGraph& graph) {
  std::map<std::string, int64_t> counts;
  visit_nodes(graph, [&](const pb::NodeProto& node) {
    ++counts[(is_standard(node) ? "" : node.domain().substr(0, 128) + ".") + node.op_type().substr(0, 128)];
  });
  return counts;
}

Status check_supported(const ExpandedGraph& graph) {
  std::map<std::string, int64_t> unsupported;
  int64_t total = 0, all = 0;
  visit_nodes(graph, [&](const pb::NodeProto& node) {
    ++all;
    std::string name = node.op_type().substr(0, 128);
    const LowerRow* row = find_lowering(node.domain(), node.op_type());
    if (has_subgraph(node) && (row == nullptr || !row->has_bodies)) {
      name += " (with a subgraph)";
    } else if (row != nullptr) {
      return;
    } else if (!is_standard(node)) {
      name = node.domain().substr(0, 128) + "." + name;
    }
    if (const std::string_view why = why_refused(node.op_type()); !why.empty())
      name += " (" + std::string(why) + ")";
    ++unsupported[name];
    ++total;
  });
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
                                          std::to_string(all) + " nodes: " + list);
}

Status check_well_formed(const OnnxModel::Structure& model, const ImportLimits& limits) {
  const auto& graph = model.proto.graph();
  std::unordered_set<std::string_view> defined;
  const auto too_long = [&](const std::string& name) {
    return static_cast<int64_t>(name.size()) > limits.name_bytes_max;
  };
  for (const auto& initializer : graph.initializer()) defined.insert(initializer.name());
  std::unordered_set<std::string_view> inputs;
  for (const auto& input : graph.input()) {
    if (input.name().empty()) return fail(ErrorCode::InvalidArgument, "an input of the model has no name");
    if (too_long(input.name())) return fail(ErrorCode::OutOfRange, "the name of an input is too long");
    if (!inputs.insert(input.name()).second)
      return fail(ErrorCode::InvalidArgument, "two inputs have the name " + short_name(input.name()));
    defined.insert(input.name());
  }
  for (const auto& node : graph.node()) {
    const std::string where = node.op_type().substr(0, 64) + " " + short_name(node.name());
    if (too_long(node.name()) || too_long(node.op_type()))
      return fail(ErrorCode::OutOfRange, "the name of a node is too long");
    for (const auto& input : node.input()) {
      if (input.empty() || defined.contains(input)) continue;
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

namespace {

using Names = std::unordered_set<std::string>;

bool any_output_in(const pb::NodeProto& node, const Names& names) {
  return std::any_of(node.output().begin(), node.output().end(),
                     [&](const std::string& output) { return names.contains(output); });
}

// What a Loop's body returns first is whether to go on.
int first_result(const pb::NodeProto& node) { return node.op_type() == "Loop" ? 1 : 0; }

// A body's results all count as reached when one of the node's is, so that what one iteration hands to the
// next is reached too.
void reach_node(const pb::NodeProto& node, Names& reached) {
  if (!any_output_in(node, reached)) return;
  visit_bodies(node, [&](const pb::GraphProto& body) {
    for (int i = first_result(node); i < body.output_size(); ++i) reached.insert(body.output(i).name());
    for (int i = body.node_size(); i-- > 0;) reach_node(body.node(i), reached);
  });
  for (int k = 0; k < node.input_size(); ++k)
    if (!node.input(k).empty() && gradient_enters(node, k)) reached.insert(node.input(k));
}

}  // namespace

std::unordered_set<std::string> reached_by_gradient(const ExpandedGraph& graph,
                                                    std::span<const std::string> read) {
  Names reached(read.begin(), read.end());
  for (const auto& output : graph.graph->output()) reached.insert(output.name());
  for (size_t i = graph.nodes.size(); i-- > 0;) reach_node(*graph.nodes[i], reached);
  return reached;
}

namespace {

constexpr int kGraphMetadata = 16;  // of GraphProto (see unread_field)

// Names that the exporter of torch.export gives to what it found as a number in the program.
bool names_a_constant(std::string_view name) {
  for (const std::string_view prefix : {"val_", "_val_", "scalar_tensor", "_tensor_constant",
                                        "_lifted_tensor_constant", "lifted_tensor_", "c_lifted_tensor_"}) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = name.substr(prefix.size());
    return prefix != "val_" ||
           std::all_of(rest.begin(), rest.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
  }
  return false;
}

std::string program_signature(const pb::GraphProto& graph) {
  for (const auto& bytes : unread_field(graph, kGraphMetadata)) {
    pb::StringStringEntryProto entry;
    if (entry.ParseFromString(bytes) && entry.key() == "pkg.torch.export.ExportedProgram.graph_signature")
      return entry.value();
  }
  return {};
}

// Targets of kind PARAMETER. Each input of the program stands on a line of its own, or after "InputSpec(".
std::set<std::string> parameters_of(std::string_view signature) {
  constexpr std::string_view kTarget = "target='";
  std::set<std::string> names;
  size_t from = 0;
  for (size_t at = signature.find(kTarget); at != std::string_view::npos; at = signature.find(kTarget, at)) {
    std::string_view before = signature.substr(from, at - from);
    for (const std::string_view start : {"InputSpec(", "\n"})
      if (const size_t last = before.rfind(start); last != std::string_view::npos)
        before = before.substr(last);
    at += kTarget.size();
    const size_t end = std::min(signature.find('\'', at), signature.size());
    if (before.find("PARAMETER") != std::string_view::npos) names.emplace(signature.substr(at, end - at));
    at = from = end;
  }
  return names;
}

}  // namespace

std::set<std::string> exported_parameters(const OnnxModel::Structure& model) {
  return parameters_of(program_signature(model.proto.graph()));
}

std::set<std::string> exported_constants(const OnnxModel::Structure& model,
                                         std::vector<std::string>* warnings) {
  const std::set<std::string> parameters = exported_parameters(model);
  std::vector<std::string> lost;
  for (const std::string& name : parameters)
    if (!model.weights.contains(name)) lost.push_back(name);
  std::set<std::string> constants;
  for (const auto& [name, tensor] : model.weights) {
    if (!is_float(tensor.dtype()) || parameters.contains(name)) continue;
    // A parameter that is lost was folded into something else, which then is to be trained.
    const bool by_signature =
        lost.size() < parameters.size() && (lost.empty() || tensor.element_count() == 1);
    if (by_signature || (names_a_constant(name) && tensor.element_count() == 1)) constants.insert(name);
  }
  if (warnings && !lost.empty())
    warnings->push_back("the exported program has " + std::to_string(lost.size()) +
                        " parameters that the file lacks (" + short_name(lost.front()) +
                        " first): the exporter folded them; export with optimize=False");
  return constants;
}

Status check_no_merged_parameters(const OnnxModel::Structure& model, const ExpandedGraph& graph,
                                  const std::unordered_set<std::string>& reached) {
  const auto uses = count_uses(graph);
  std::map<std::string, std::vector<std::string>> aliases;
  for (const pb::NodeProto* node : graph.nodes) {
    if (!is_standard(*node) || node->op_type() != "Identity" || node->input_size() != 1 ||
        node->output_size() != 1)
      continue;
    const auto weight = model.weights.find(node->input(0));
    if (weight == model.weights.end() || !is_float(weight->second.dtype()) ||
        !reached.contains(node->output(0)))
      continue;
    aliases[node->input(0)].push_back(node->output(0));
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

namespace {

void need_node(const pb::NodeProto& node, Names& needed);

// What the body needs of the node's operands: those of its own inputs, by position, and in a loop what the
// next iteration needs of the one before. A few rounds; then all of them.
void need_body(const pb::NodeProto& node, const pb::GraphProto& body, bool whole, Names& needed) {
  constexpr int kRounds = 4;
  for (int i = 0; i < body.output_size(); ++i)
    if (whole || i < first_result(node)) needed.insert(body.output(i).name());
  size_t before = 0;
  for (int round = 0; round <= kRounds && needed.size() != before; ++round) {
    before = needed.size();
    for (int i = body.node_size(); i-- > 0;) need_node(body.node(i), needed);
    for (int k = 0; k < std::min(body.input_size(), node.input_size()); ++k) {
      if (!needed.contains(body.input(k).name()) && round < kRounds) continue;
      needed.insert(node.input(k));
      const int next = k - 1 + (first_result(node) == 0 ? 1 : 0);
      if (next >= 0 && next < body.output_size()) needed.insert(body.output(next).name());
    }
  }
}

void need_node(const pb::NodeProto& node, Names& needed) {
  if (is_standard(node) && (node.op_type() == "Shape" || node.op_type() == "Size")) return;
  const bool whole = any_output_in(node, needed);
  visit_bodies(node, [&](const pb::GraphProto& body) { need_body(node, body, whole, needed); });
  for (int k = 0; k < node.input_size(); ++k)
    if (!node.input(k).empty() && (whole || decides_shape(node, k))) needed.insert(node.input(k));
}

}  // namespace

std::vector<std::string> shape_inputs(const OnnxModel& model) {
  const ImportLimits limits;
  if (!check_well_formed(model.structure(), limits)) return {};  // the import says why
  const auto expanded = expand_functions(model.structure(), limits);
  if (!expanded) return {};
  Names needed;
  for (size_t i = expanded->nodes.size(); i-- > 0;) need_node(*expanded->nodes[i], needed);
  std::vector<std::string> names;
  for (const auto& input : expanded->graph->input())
    if (needed.contains(input.name()) && !model.weights().contains(input.name()))
      names.push_back(input.name());
  return names;
}

std::string word_of_table(const std::string& name) {
  std::string current;
  for (size_t i = 0; i <= name.size(); ++i) {
    if (i < name.size() && std::isalpha(static_cast<unsigned char>(name[i]))) {
      current += static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
      continue;
    }
    if (current == "mask" || current == "masks" || current == "cos" || current == "sin") return current;
    current.clear();
  }
  return {};
}

}  // namespace weft::onnx
