#include "dag/onnx/batch_norm.h"

#include <optional>
#include <string_view>
#include <unordered_map>

#include "dag/onnx/node_questions.h"

namespace weft::onnx {
namespace {

class Finder {
 public:
  explicit Finder(const OnnxModel::Structure& model) : model_(model) {
    for (const auto& node : model.proto.graph().node()) {
      for (const auto& output : node.output()) producers_[output] = &node;
      for (const auto& input : node.input()) readers_[input].push_back(&node);
    }
    for (const auto& output : model.proto.graph().output()) returned_.insert(output.name());
  }

  std::set<std::string> run() const {
    std::set<std::string> names;
    for (const auto& node : model_.proto.graph().node())
      if (is_batch_norm(node) && has_training_form(node, model_.opset) && node.input_size() >= 5 &&
          comes_with_samples_in_channels(node.input(0)) && leaves_by_reshape(node.output(0)) && alone(node))
        names.insert(node.output(0));
    return names;
  }

 private:
  static constexpr int kStepsMax = 8;

  const pb::NodeProto* producer(const std::string& name) const {
    const auto found = producers_.find(name);
    return found == producers_.end() ? nullptr : found->second;
  }
  // Nobody asks for the statistics.
  bool alone(const pb::NodeProto& node) const {
    for (int i = 1; i < node.output_size(); ++i)
      if (!node.output(i).empty() &&
          (readers_.contains(node.output(i)) || returned_.contains(node.output(i))))
        return false;
    return true;
  }

  bool comes_with_samples_in_channels(const std::string& x) const {
    const pb::NodeProto* node = producer(x);
    for (int step = 0; step < kStepsMax && is_op(node, "Identity") && node->input_size() == 1; ++step)
      node = producer(node->input(0));
    return is_op(node, "Reshape") && node->input_size() == 2 && first_dim(node->input(1)) == 1;
  }

  bool leaves_by_reshape(const std::string& y) const {
    if (returned_.contains(y)) return false;
    const auto found = readers_.find(y);
    if (found == readers_.end()) return false;
    for (const pb::NodeProto* reader : found->second)
      if (!is_op(reader, "Reshape") || reader->input(0) != y) return false;
    return true;
  }

  // Of a shape, where the file says it.
  std::optional<int64_t> first_dim(std::string name) const {
    for (int step = 0; step < kStepsMax; ++step) {
      if (const auto weight = model_.weights.find(name); weight != model_.weights.end())
        return first_of(small_ints(weight->second));
      const pb::NodeProto* node = producer(name);
      if (is_op(node, "Constant")) return first_of(small_ints_of_constant(*node));
      const bool passes = is_op(node, "Identity") || is_op(node, "Cast") || is_op(node, "Unsqueeze") ||
                          (is_op(node, "Concat") && int_of(*node, "axis", 0) == 0);
      if (!passes || node->input_size() == 0) return std::nullopt;
      name = node->input(0);
    }
    return std::nullopt;
  }

  static std::optional<int64_t> first_of(const std::optional<std::vector<int64_t>>& ints) {
    return !ints || ints->empty() ? std::nullopt : std::optional(ints->front());
  }

  const OnnxModel::Structure& model_;
  std::unordered_map<std::string, const pb::NodeProto*> producers_;
  std::unordered_map<std::string, std::vector<const pb::NodeProto*>> readers_;
  std::set<std::string> returned_;
};

}  // namespace

bool is_batch_norm(const pb::NodeProto& node) {
  return is_standard(node) && node.op_type() == "BatchNormalization" && node.output_size() > 0;
}

bool has_training_form(const pb::NodeProto& node, int64_t opset) {
  if (opset >= 14) return int_of(node, "training_mode", 0) != 0;
  // Before opset 14 training mode shows by the number of outputs.
  return node.output_size() > 1 && (opset >= 7 || int_of(node, "is_test", 0) == 0);
}

std::set<std::string> find_instance_norms(const OnnxModel::Structure& model) { return Finder(model).run(); }

pb::NodeProto as_instance_norm(const pb::NodeProto& node) {
  pb::NodeProto to;
  to.set_name(node.name());
  to.set_op_type("InstanceNormalization");
  for (int i = 0; i < 3; ++i) to.add_input(node.input(i));
  to.add_output(node.output(0));
  for (const auto& attribute : node.attribute())
    if (attribute.name() == "epsilon") *to.add_attribute() = attribute;
  return to;
}

void replace_instance_norms(const std::set<std::string>& names, ExpandedGraph& graph) {
  if (names.empty()) return;
  for (const pb::NodeProto*& node : graph.nodes) {
    if (!is_batch_norm(*node) || node->input_size() < 5 || !names.contains(node->output(0))) continue;
    graph.made.push_back(as_instance_norm(*node));
    node = &graph.made.back();
  }
}

}  // namespace weft::onnx
