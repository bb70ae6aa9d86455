#include "dag/onnx/roles.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "dag/onnx/analysis.h"
#include "dag/onnx/batch_norm.h"
#include "dag/onnx/node_questions.h"
#include "dag/onnx/number_patterns.h"
#include "dag/onnx/operand_meaning.h"
#include "dag/onnx/roles_of_graph.h"

namespace weft::onnx {
namespace {

bool is_one_of(const pb::NodeProto& node, std::initializer_list<std::string_view> types) {
  return is_standard(node) && std::find(types.begin(), types.end(), node.op_type()) != types.end();
}

// What reads a value, directly or through views of it: the first node of each kind.
struct Uses {
  const pb::NodeProto* weight = nullptr;
  const pb::NodeProto* bias = nullptr;  // added or multiplied right behind channels
  bool one_channel = false;             // which may be one alone
  const pb::NodeProto* number = nullptr;
  RoleReason number_reason = RoleReason::Attribute;
  const pb::NodeProto* statistic = nullptr;
  const pb::NodeProto* mask = nullptr;
  const pb::NodeProto* factor = nullptr;
  const pb::NodeProto* other = nullptr;
  std::vector<const pb::NodeProto*> readers = {};  // each once, the first of many

  static constexpr size_t kReadersMax = 64;

  void add_reader(const pb::NodeProto* node) {
    if (readers.size() < kReadersMax && std::find(readers.begin(), readers.end(), node) == readers.end())
      readers.push_back(node);
  }
  void merge(const Uses& more) {
    const auto take = [](const pb::NodeProto*& mine, const pb::NodeProto* theirs) {
      if (!mine) mine = theirs;
    };
    if (!number) number_reason = more.number_reason;
    take(weight, more.weight);
    take(bias, more.bias);
    take(number, more.number);
    take(statistic, more.statistic);
    take(mask, more.mask);
    take(factor, more.factor);
    take(other, more.other);
    one_channel |= more.one_channel;
    for (const pb::NodeProto* node : more.readers) add_reader(node);
  }
};

// Two passes over the nodes: forward for what values are made of, backward for what reads them.
class Reading {
 public:
  Reading(const OnnxModel::Structure& model, const ExpandedGraph& graph) : model_(model) {
    for (const auto& [name, tensor] : model.weights)
      if (is_float(tensor.dtype())) origins_[name] = name;
    std::vector<const pb::NodeProto*> nodes;
    visit_nodes(graph, [&](const pb::NodeProto& node) { nodes.push_back(&node); });
    for (const pb::NodeProto* node : nodes) make(*node);
    for (size_t i = nodes.size(); i-- > 0;) read(*nodes[i]);
  }

  Uses uses_of(const std::string& name) const {
    const auto found = uses_.find(name);
    return found == uses_.end() ? Uses{} : found->second;
  }
  // The tensor that the value is a view of; nullptr for others.
  const std::string* origin(const std::string& value) const {
    const auto found = origins_.find(value);
    return found == origins_.end() ? nullptr : &found->second;
  }

 private:
  struct Channels {
    bool one = false;  // there may be no more than one
  };

  // ---- forward

  const dag::Shape* shape_of_origin(const std::string& value) const {
    const std::string* name = origin(value);
    return name ? &model_.weights.find(*name)->second.shape() : nullptr;
  }

  void make(const pb::NodeProto& node) {
    if (node.output_size() == 0) return;
    const std::string& y = node.output(0);
    if (is_view_of_all(node)) {
      if (const std::string* from = origin(node.input(0))) {
        const std::string name = *from;
        for (const auto& output : node.output()) origins_.emplace(output, name);
      }
      if (const auto found = channels_.find(node.input(0)); found != channels_.end()) {
        const Channels channels = found->second;
        channels_.emplace(y, channels);
      }
      return;
    }
    if (const auto channels = channels_of(node)) channels_.emplace(y, *channels);
  }

  // Tensors put together are weights, as recurrent ones are; beside data they are not.
  bool is_view_of_all(const pb::NodeProto& node) const {
    if (node.input_size() == 0 || !is_view(node.domain(), node.op_type())) return false;
    return node.op_type() != "Concat" || std::all_of(node.input().begin(), node.input().end(),
                                                     [&](const auto& x) { return origin(x) != nullptr; });
  }

  std::optional<Channels> channels_of(const pb::NodeProto& node) const {
    const OperandMeaning* meaning = find_meaning(node.domain(), node.op_type());
    if (meaning && meaning->makes_channels) {
      bool weighted = meaning->weights == kNoOperand, one = false;
      for (int k = 0; k < node.input_size(); ++k) {
        if (!has_operand(meaning->weights, k)) continue;
        const dag::Shape* shape = shape_of_origin(node.input(k));
        if (!shape) continue;
        weighted = true;
        one |= makes_one_channel(node, *shape);
      }
      return weighted ? std::optional(Channels{one}) : std::nullopt;
    }
    // A scale behind a convolution is what BatchNormalization was folded into: a shift follows.
    for (int k = 0; k < 2 && is_elementwise(node); ++k)
      if (const auto found = channels_.find(node.input(k));
          found != channels_.end() && origin(node.input(1 - k)))
        return found->second;
    return std::nullopt;
  }

  // Whether a weight of this shape, perhaps transposed on its way, may make one channel.
  static bool makes_one_channel(const pb::NodeProto& node, const dag::Shape& shape) {
    if (shape.size() <= 2) return std::find(shape.begin(), shape.end(), 1) != shape.end();
    return shape[node.op_type() == "ConvTranspose" ? 1 : 0] == 1;
  }

  static bool is_elementwise(const pb::NodeProto& node) {
    return node.input_size() == 2 && is_one_of(node, {"Add", "Mul", "Sub", "Div"});
  }

  // ---- backward

  void read(const pb::NodeProto& node) {
    const bool view = is_view_of_all(node);
    mark_in_front_of_softmax(node);
    for (int k = 0; k < node.input_size(); ++k) {
      const std::string& x = node.input(k);
      if (x.empty() || !gradient_enters(node, k)) {
        note_statistic(node, k);
        continue;
      }
      if (view && (k == 0 || node.op_type() == "Concat")) {
        for (const auto& y : node.output()) hand_on(y, x);
      } else {
        note(node, k, uses_[x]);
      }
    }
    visit_bodies(node, [&](const pb::GraphProto& body) {
      for (int k = 0; k < std::min(body.input_size(), node.input_size()); ++k)
        hand_on(body.input(k).name(), node.input(k));
    });
  }

  void hand_on(const std::string& from, const std::string& to) {
    const auto found = uses_.find(from);
    if (found == uses_.end() || to.empty() || from == to) return;
    const Uses more = found->second;
    uses_[to].merge(more);
  }

  void note_statistic(const pb::NodeProto& node, int operand) {
    if (is_batch_norm(node) && (operand == 3 || operand == 4) && !node.input(operand).empty()) {
      Uses& uses = uses_[node.input(operand)];
      if (!uses.statistic) uses.statistic = &node;
    }
  }

  void note(const pb::NodeProto& node, int operand, Uses& uses) const {
    uses.add_reader(&node);
    const OperandMeaning* meaning = find_meaning(node.domain(), node.op_type());
    if (meaning && has_operand(meaning->weights, operand)) {
      uses.weight = &node;
      return;
    }
    if (meaning && has_operand(meaning->numbers, operand)) {
      uses.number = &node;
      uses.number_reason = meaning->reason;
      return;
    }
    if (is_elementwise(node) && operand < 2)
      if (const auto found = channels_.find(node.input(1 - operand)); found != channels_.end()) {
        uses.bias = &node;
        uses.one_channel |= found->second.one;
      }
    if (is_one_of(node, {"Add", "Sub", "Sum"}) && before_softmax_.contains(node.output(0))) uses.mask = &node;
    if (is_one_of(node, {"Mul", "Div"})) uses.factor = &node;
    uses.other = &node;
  }

  void mark_in_front_of_softmax(const pb::NodeProto& node) {
    if (node.output_size() == 0 || node.input_size() == 0) return;
    if (is_one_of(node, {"Softmax", "LogSoftmax"})) before_softmax_.insert(node.input(0));
    if (!before_softmax_.contains(node.output(0))) return;
    if (is_view(node.domain(), node.op_type())) before_softmax_.insert(node.input(0));
    if (is_one_of(node, {"Add", "Sub", "Sum", "Max", "Min", "Clip"}))
      before_softmax_.insert(node.input().begin(), node.input().end());
    if (is_one_of(node, {"Where"}))
      for (int k = 1; k < node.input_size(); ++k) before_softmax_.insert(node.input(k));
    if (!is_one_of(node, {"Mul", "Div"}) || node.input_size() != 2) return;
    for (int k = 0; k < 2; ++k)
      if (const dag::Shape* other = shape_of_origin(node.input(1 - k));
          other && std::all_of(other->begin(), other->end(), [](int64_t d) { return d == 1; }))
        before_softmax_.insert(node.input(k));
  }

  const OnnxModel::Structure& model_;
  std::unordered_map<std::string, std::string> origins_;  // the tensor that a value is a view of
  std::unordered_map<std::string, Channels> channels_;    // values that a weighted op gave channels
  std::unordered_map<std::string, Uses> uses_;
  std::unordered_set<std::string> before_softmax_;
};

std::string describe(const pb::NodeProto& node) {
  const std::string& name = !node.name().empty() || node.output_size() == 0 ? node.name() : node.output(0);
  return node.op_type().substr(0, 64) + " '" + name.substr(0, 128) + "'";
}

class Judge {
 public:
  Judge(const OnnxModel::Structure& model, const ExpandedGraph& graph, const RoleOptions& options,
        const LookAtValues& look)
      : model_(model),
        options_(options),
        look_(look),
        reading_(model, graph),
        patterns_(find_number_patterns(model, graph)),
        read_(count_uses(graph)),
        reached_(reached_by_gradient(graph, options.read)),
        exported_parameters_(exported_parameters(model)),
        exported_constants_(exported_constants(model, nullptr)),
        exporter_keeps_weights_apart_(keeps_weights_apart()) {
    for (const std::string& value : options.read) ++read_[value];
  }

  Result<RoleTable> run() {
    RoleTable table;
    for (const auto& proto : model_.proto.graph().initializer()) add(proto.name(), table);
    for (const auto& node : model_.proto.graph().node())
      if (node.output_size() == 1 && node.op_type() == "Constant" &&
          model_.constants.contains(node.output(0)))
        add(node.output(0), table);
    WEFT_TRY_STATUS(apply_train(table));
    apply_freeze(table);
    return table;
  }

 private:
  void add(const std::string& name, RoleTable& table) const {
    const dag::TensorSpec& spec = model_.weights.find(name)->second.spec();
    if (!is_float(spec.dtype)) return;
    TensorRow& row = table.emplace_back();
    row.name = name;
    row.constant_node = model_.constants.contains(name);
    const Uses uses = reading_.uses_of(name);
    row.readers = static_cast<int>(uses.readers.size());
    judge(spec, uses, row);
  }

  static void set(TensorRow& row, TensorRole role, RoleReason reason, const pb::NodeProto* node = nullptr) {
    row.role = role;
    row.reason = reason;
    if (node) row.node = describe(*node);
  }

  void judge(const dag::TensorSpec& spec, const Uses& uses, TensorRow& row) const {
    using enum RoleReason;
    const int64_t count = spec.element_count();
    const auto wide = std::count_if(spec.shape.begin(), spec.shape.end(), [](int64_t d) { return d > 1; });
    const bool is_bias = uses.bias && (wide == 1 || (count == 1 && spec.rank() > 0 && uses.one_channel));
    const auto constant = [&](RoleReason reason, const pb::NodeProto* node = nullptr) {
      set(row, TensorRole::Constant, reason, node);
    };
    if (uses.statistic) return set(row, TensorRole::Statistic, Statistic, uses.statistic);
    if (!read_.contains(row.name)) return constant(Unused);
    if (!reached_.contains(row.name)) return constant(Unreached);
    if (exported_constants_.contains(row.name)) return constant(Exported);
    if (row.constant_node && (exporter_keeps_weights_apart_ || fills_in(row.name, uses)))
      return constant(Written);
    const bool declared = exported_parameters_.contains(row.name);
    // Angles are gathered by position as rows of a table are.
    if (const auto angles = patterns_.angles.find(row.name);
        !declared && angles != patterns_.angles.end() &&
        (!uses.weight || is_one_of(*uses.weight, {"Gather"})))
      return constant(Angle, angles->second);
    if (uses.weight) return set(row, TensorRole::Trained, Weight, uses.weight);
    if (declared) return set(row, TensorRole::Trained, Weight);
    if (const auto repeats = patterns_.repeats.find(row.name); repeats != patterns_.repeats.end())
      if (const auto traits = look_(row.name); traits && all_ones(*traits))
        return constant(Repeat, repeats->second);
    if (is_bias) return set(row, TensorRole::Trained, Weight, uses.bias);
    if (uses.number && uses.number_reason == State) return judge_state(uses, row);
    if (uses.number) return constant(uses.number_reason, uses.number);
    if (count <= 1) return uses.factor ? constant(Factor, uses.factor) : constant(Number, uses.other);
    if (uses.mask) return constant(Mask, uses.mask);
    if (row.constant_node) return constant(Written);
    set(row, TensorRole::Trained, Free, uses.other);
    if (wide > 1) judge_by_value(row);
  }

  // Ones and zeros that a normalisation without weight and bias of its own was written with: a group's norm
  // as an instance norm, to which the group's own weight comes after.
  bool fills_in(const std::string& name, const Uses& uses) const {
    if (uses.readers.size() != 1 || !uses.weight || uses.weight->input_size() < 3) return false;
    if (!is_one_of(*uses.weight, {"InstanceNormalization", "LayerNormalization", "GroupNormalization"}))
      return false;
    const std::string* scale = reading_.origin(uses.weight->input(1));
    const std::string* bias = reading_.origin(uses.weight->input(2));
    return scale && bias && (*scale == name || *bias == name) && holds_only(*scale, 1) &&
           holds_only(*bias, 0);
  }

  static bool all_ones(const ValueTraits& traits) {
    return traits.all_equal && traits.zeros_and_ones && traits.content[0] != 0;
  }

  bool holds_only(const std::string& name, int number) const {
    if (!model_.constants.contains(name)) return false;
    const auto traits = look_(name);
    return traits && traits->all_equal && traits->zeros_and_ones &&
           (traits->content[0] != 0) == (number == 1);
  }

  // PyTorch's exporter writes parameters as initializers; what it has in Constant nodes is of the program.
  // Of a module that was frozen as a script all are Constant nodes.
  bool keeps_weights_apart() const {
    if (model_.proto.producer_name() != "pytorch") return false;
    return std::any_of(
        model_.proto.graph().initializer().begin(), model_.proto.graph().initializer().end(),
        [&](const auto& initializer) { return reading_.uses_of(initializer.name()).weight != nullptr; });
  }

  // Every framework begins with zeros, which no module has as a parameter.
  void judge_state(const Uses& uses, TensorRow& row) const {
    const auto traits = look_(row.name);
    row.looked_at = traits.has_value();
    if (traits && !traits->all_equal) return set(row, TensorRole::Trained, RoleReason::Free, uses.number);
    set(row, TensorRole::Constant, RoleReason::State, uses.number);
  }

  void judge_by_value(TensorRow& row) const {
    const auto traits = look_(row.name);
    row.looked_at = traits.has_value();
    if (!traits) return;
    if (traits->low) {
      set(row, TensorRole::Constant, RoleReason::Low);
    } else if (traits->constant_axis && !traits->all_equal) {
      set(row, TensorRole::Constant, RoleReason::ConstantAxis);
      row.axis = *traits->constant_axis;
    }
  }

  static bool can_be_trained(const TensorRow& row) {
    return row.role != TensorRole::Statistic && row.reason != RoleReason::Unreached &&
           row.reason != RoleReason::Unused;
  }

  static bool matches(std::span<const std::string> patterns, const std::string& name) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return matches_glob(pattern, name); });
  }

  Status apply_train(RoleTable& table) const {
    if (options_.train.empty()) return {};
    for (const std::string& pattern : options_.train)
      if (std::none_of(table.begin(), table.end(), [&](const TensorRow& row) {
            return can_be_trained(row) && matches_glob(pattern, row.name);
          }))
        return fail(ErrorCode::InvalidArgument,
                    "`train`: '" + pattern.substr(0, 128) + "' names nothing that can be trained: " +
                        "integers, running statistics, and what no gradient reaches cannot");
    bool names_all = false;
    for (const TensorRow& row : table)
      names_all |= row.role == TensorRole::Trained && matches(options_.train, row.name);
    for (TensorRow& row : table) {
      const bool named = can_be_trained(row) && matches(options_.train, row.name);
      if (named && row.role == TensorRole::Constant) set(row, TensorRole::Trained, RoleReason::Named);
      if (!named && names_all && row.role == TensorRole::Trained)
        set(row, TensorRole::Frozen, RoleReason::NotNamed);
    }
    return {};
  }

  void apply_freeze(RoleTable& table) const {
    for (TensorRow& row : table) {
      row.frozen = matches(options_.freeze, row.name) && !matches(options_.spare, row.name);
      if (row.frozen && row.role == TensorRole::Trained) row.role = TensorRole::Frozen;
    }
  }

  const OnnxModel::Structure& model_;
  const RoleOptions& options_;
  const LookAtValues& look_;
  Reading reading_;
  NumberPatterns patterns_;
  std::unordered_map<std::string, int> read_;
  std::unordered_set<std::string> reached_;
  std::set<std::string> exported_parameters_, exported_constants_;
  bool exporter_keeps_weights_apart_;
};

}  // namespace

LookAtValues look_at(const OnnxModel& model) {
  return [model](const std::string& name) -> std::optional<ValueTraits> {
    const auto found = model.weights().find(name);
    if (found == model.weights().end() || !is_float(found->second.dtype())) return std::nullopt;
    if (model.is_read(name)) return traits_of(found->second);
    if (!model.learnt()) return std::nullopt;
    const auto told = model.learnt()->traits.find(name);
    return told == model.learnt()->traits.end() ? std::nullopt : std::optional(told->second);
  };
}

OnnxModel with_traits(const OnnxModel& model, std::map<std::string, ValueTraits> traits) {
  OnnxModel::Learnt learnt = model.learnt() ? *model.learnt() : OnnxModel::Learnt{};
  learnt.traits = std::move(traits);
  return model.with(std::move(learnt));
}

OnnxModel with_roles(const OnnxModel& model, RoleTable table) {
  OnnxModel::Learnt learnt = model.learnt() ? *model.learnt() : OnnxModel::Learnt{};
  learnt.roles = std::move(table);
  return model.with(std::move(learnt));
}

const RoleTable* roles_of(const OnnxModel& model) {
  return model.learnt() && model.learnt()->roles ? &*model.learnt()->roles : nullptr;
}

std::optional<int64_t> nan_of_unread(const OnnxModel& model, std::string_view name) {
  if (!model.learnt()) return std::nullopt;
  const auto told = model.learnt()->traits.find(std::string(name));
  return told == model.learnt()->traits.end() ? std::nullopt : told->second.nan;
}

Result<RoleTable> roles_of_graph(const OnnxModel::Structure& model, const ExpandedGraph& graph,
                                 const RoleOptions& options, const LookAtValues& look) {
  return Judge(model, graph, options, look).run();
}

Result<RoleTable> judge_roles(const OnnxModel& model, const RoleOptions& options, const LookAtValues& look) {
  const ImportLimits limits;
  WEFT_TRY_STATUS(check_well_formed(model.structure(), limits));
  WEFT_TRY(ExpandedGraph graph, expand_functions(model.structure(), limits));
  replace_instance_norms(find_instance_norms(model.structure()), graph);
  WEFT_TRY_STATUS(check_freeze(model, options.freeze));
  WEFT_TRY_STATUS(check_train(model, options.train));
  return roles_of_graph(model.structure(), graph, options, look);
}

Status check_roles(const OnnxModel& model, const RoleTable& table) {
  const auto named = [](const std::string& name) { return "'" + name.substr(0, 128) + "'"; };
  std::unordered_set<std::string> seen;
  for (const TensorRow& row : table) {
    const auto found = model.weights().find(row.name);
    if (found == model.weights().end() || !is_float(found->second.dtype()))
      return fail(ErrorCode::InvalidArgument,
                  "the table of roles names " + named(row.name) + ", which is no float tensor of the model");
    if (!seen.insert(row.name).second)
      return fail(ErrorCode::InvalidArgument, "the table of roles names " + named(row.name) + " twice");
  }
  for (const auto& [name, tensor] : model.weights())
    if (is_float(tensor.dtype()) && !seen.contains(name))
      return fail(ErrorCode::InvalidArgument, "the table of roles lacks " + named(name));
  return {};
}

}  // namespace weft::onnx
