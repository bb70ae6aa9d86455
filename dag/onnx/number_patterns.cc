#include "dag/onnx/number_patterns.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dag/onnx/node_questions.h"
#include "dag/onnx/operand_meaning.h"

namespace weft::onnx {
namespace {

constexpr int kStepsMax = 16;  // nodes that are followed backwards

// A value times one that is taken from a tensor of the file. Names are those of the nodes: a file may name
// one value of many letters in many sums.
struct Scaled {
  std::string_view value, factor;
  const pb::NodeProto* node = nullptr;
  bool operator<(const Scaled& other) const {
    return std::tie(value, factor) < std::tie(other.value, other.factor);
  }
};

class Finder {
 public:
  Finder(const OnnxModel::Structure& model, const ExpandedGraph& graph) : model_(model) {
    visit_nodes(graph, [&](const pb::NodeProto& node) {
      nodes_.push_back(&node);
      for (const auto& output : node.output()) producers_[output] = &node;
    });
  }

  NumberPatterns run() && {
    for (const pb::NodeProto* node : nodes_) {
      if (node->input_size() != 2 || node->output_size() != 1) continue;
      if (is_op(node, "Add")) note_sum(*node);
      if (is_op(node, "Sub")) note_difference(*node);
      if (is_op(node, "Mul")) note_repeat(*node);
    }
    for (const auto& [a, b] : differences_)
      if (sums_.contains({{a.value, b.factor}, {b.value, a.factor}}) ||
          sums_.contains({{b.value, a.factor}, {a.value, b.factor}}))
        note_angles(a, b);
    return std::move(found_);
  }

 private:
  const pb::NodeProto* producer(std::string_view value) const {
    const auto found = producers_.find(value);
    return found == producers_.end() ? nullptr : found->second;
  }

  // The float tensor that the value is a view of, or rows of.
  const std::string* source(std::string_view name) const {
    for (int step = 0; step < kStepsMax; ++step) {
      if (const auto found = model_.weights.find(std::string(name)); found != model_.weights.end())
        return is_float(found->second.dtype()) ? &found->first : nullptr;
      const pb::NodeProto* node = producer(name);
      if (!node || node->input_size() == 0 || is_op(node, "Concat")) return nullptr;
      if (!is_op(node, "Gather") && !is_view(node->domain(), node->op_type())) return nullptr;
      name = node->input(0);
    }
    return nullptr;
  }

  std::optional<Scaled> scaled(std::string_view value) const {
    const pb::NodeProto* node = producer(value);
    if (!is_op(node, "Mul") || node->input_size() != 2) return std::nullopt;
    for (int k = 0; k < 2; ++k)
      if (source(node->input(k)) && !source(node->input(1 - k)))
        return Scaled{node->input(1 - k), node->input(k), node};
    return std::nullopt;
  }

  void note_angles(const Scaled& a, const Scaled& b) {
    for (const Scaled* one : {&a, &b}) found_.angles.emplace(*source(one->factor), one->node);
  }

  void note_sum(const pb::NodeProto& node) {
    const auto a = scaled(node.input(0)), b = scaled(node.input(1));
    if (!a || !b || a->factor == b->factor) return;
    if (is_half_turn(a->value, b->value) || is_half_turn(b->value, a->value)) note_angles(*a, *b);
    sums_.insert({*a, *b});
  }
  void note_difference(const pb::NodeProto& node) {
    const auto a = scaled(node.input(0)), b = scaled(node.input(1));
    if (a && b && a->factor != b->factor) differences_.emplace_back(*a, *b);
  }

  // The value in another shape or type.
  std::string_view behind_shapes(std::string_view value) const {
    for (int step = 0; step < kStepsMax; ++step) {
      const pb::NodeProto* node = producer(value);
      if (!is_op(node, "Identity") && !is_op(node, "Cast") && !is_op(node, "Reshape") &&
          !is_op(node, "Flatten") && !is_op(node, "Squeeze") && !is_op(node, "Unsqueeze"))
        break;
      if (node->input_size() == 0) break;
      value = node->input(0);
    }
    return value;
  }

  // turned = Concat(-part of x, part of x), of halves, or of every second element and then brought together.
  bool is_half_turn(std::string_view x, std::string_view turned) const {
    const pb::NodeProto* both = producer(behind_shapes(turned));
    if (!is_op(both, "Concat") || both->input_size() != 2) return false;
    const pb::NodeProto* negated = producer(behind_shapes(both->input(0)));
    if (!is_op(negated, "Neg") || negated->input_size() != 1) return false;
    return is_part_of(x, negated->input(0)) && is_part_of(x, both->input(1));
  }
  bool is_part_of(std::string_view x, std::string_view value) const {
    const pb::NodeProto* node = producer(behind_shapes(value));
    return (is_op(node, "Slice") || is_op(node, "Split") || is_op(node, "Gather")) &&
           node->input_size() > 0 && behind_shapes(node->input(0)) == behind_shapes(x);
  }

  void note_repeat(const pb::NodeProto& node) {
    for (int k = 0; k < 2; ++k) {
      const auto factor = model_.weights.find(node.input(k));
      const pb::NodeProto* reshape = producer(node.input(1 - k));
      if (factor == model_.weights.end() || !is_float(factor->second.dtype())) continue;
      if (!is_op(reshape, "Reshape") || reshape->input_size() != 2) continue;
      const auto dims = dims_of(reshape->input(1));
      if (dims && repeats(factor->second.shape(), *dims)) found_.repeats.emplace(factor->first, &node);
    }
  }

  static bool repeats(const dag::Shape& factor, const std::vector<int64_t>& dims) {
    if (factor.size() > dims.size()) return false;
    bool longer = false;
    for (size_t i = 0; i < factor.size(); ++i) {
      if (factor[i] == 1) continue;
      if (dims[dims.size() - factor.size() + i] != 1) return false;
      longer = true;
    }
    return longer;
  }

  // Of a shape that the file has as a number.
  std::optional<std::vector<int64_t>> dims_of(const std::string& name) const {
    if (const auto weight = model_.weights.find(name); weight != model_.weights.end())
      return model_.unread.contains(name) ? std::nullopt : small_ints(weight->second);
    const pb::NodeProto* node = producer(name);
    return is_op(node, "Constant") ? small_ints_of_constant(*node) : std::nullopt;
  }

  const OnnxModel::Structure& model_;
  std::vector<const pb::NodeProto*> nodes_;
  std::unordered_map<std::string_view, const pb::NodeProto*> producers_;
  std::set<std::pair<Scaled, Scaled>> sums_;
  std::vector<std::pair<Scaled, Scaled>> differences_;
  NumberPatterns found_;
};

}  // namespace

NumberPatterns find_number_patterns(const OnnxModel::Structure& model, const ExpandedGraph& graph) {
  return Finder(model, graph).run();
}

}  // namespace weft::onnx
