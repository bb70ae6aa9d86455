// What is said of a table of roles.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "dag/onnx/analysis.h"
#include "dag/onnx/batch_norm.h"
#include "dag/onnx/roles.h"

namespace weft::onnx {
namespace {

constexpr size_t kShownMax = 6;

std::string named(const std::string& name) { return "'" + name.substr(0, 128) + "'"; }

std::string more_than(size_t count) {
  return count > kShownMax ? " and " + std::to_string(count - kShownMax) + " more" : "";
}

// ["a", "b"]: as a job file has it.
std::string patterns_of(std::span<const TensorRow* const> rows) {
  std::string text = "[";
  for (size_t i = 0; i < std::min(rows.size(), kShownMax); ++i)
    text += (i ? ", \"" : "\"") + rows[i]->name.substr(0, 128) + "\"";
  return text + (rows.size() > kShownMax ? ", ...]" : "]");
}

const dag::TensorSpec& spec_of(const OnnxModel& model, const std::string& name) {
  return model.weights().find(name)->second.spec();
}

std::string with_spec(const OnnxModel& model, const std::string& name) {
  return named(name) + " " + to_string(spec_of(model, name));
}

// A scalar that something is multiplied with is learnt in some models: a logit scale, a residual's gain.
bool may_be_learnt(const OnnxModel& model, const TensorRow& row) {
  return row.role == TensorRole::Constant && row.reason == RoleReason::Factor && !row.constant_node &&
         spec_of(model, row.name).rank() == 0;
}

// Constant by what it is; not for want of a gradient, nor because the file says so.
bool was_judged(const TensorRow& row) {
  switch (row.reason) {
    case RoleReason::Exponent:
    case RoleReason::Limit:
    case RoleReason::Attribute:
    case RoleReason::Number:
    case RoleReason::Factor:
    case RoleReason::Mask:
    case RoleReason::State:
    case RoleReason::Low:
    case RoleReason::ConstantAxis:
    case RoleReason::Angle:
    case RoleReason::Repeat:
      return row.role == TensorRole::Constant && !row.constant_node;
    case RoleReason::Weight:
    case RoleReason::Free:
    case RoleReason::Named:
    case RoleReason::NotNamed:
    case RoleReason::Statistic:
    case RoleReason::Exported:
    case RoleReason::Written:
    case RoleReason::Unreached:
    case RoleReason::Unused:
      return false;
  }
  return false;
}

void note_constants(const OnnxModel& model, const RoleTable& table, std::vector<std::string>& notes) {
  std::vector<const TensorRow*> rows;
  for (const TensorRow& row : table)
    if (was_judged(row) && !may_be_learnt(model, row)) rows.push_back(&row);
  if (rows.empty()) return;
  std::string text = "constant, not trained: ";
  for (size_t i = 0; i < std::min(rows.size(), kShownMax); ++i)
    text += (i ? ", " : "") + named(rows[i]->name) + " (" + why(*rows[i]) + ")";
  notes.push_back(text + more_than(rows.size()) +
                  "; what is a parameter after all is trained by naming it: train: " + patterns_of(rows));
}

void note_factors(const OnnxModel& model, const RoleTable& table, std::vector<std::string>& notes) {
  std::vector<const TensorRow*> rows;
  for (const TensorRow& row : table)
    if (may_be_learnt(model, row)) rows.push_back(&row);
  if (rows.empty()) return;
  std::string text = rows.size() == 1 ? "a scalar factor stays as it is: "
                                      : std::to_string(rows.size()) + " scalar factors stay as they are: ";
  for (size_t i = 0; i < std::min(rows.size(), kShownMax); ++i)
    text += (i ? ", " : "") + named(rows[i]->name) + (rows[i]->node.empty() ? "" : " of " + rows[i]->node);
  notes.push_back(
      text + more_than(rows.size()) +
      "; one that is learnt (a logit scale, the gain of a residual) is trained by naming it: train: " +
      patterns_of(rows));
}

// Meant, or the work of a tool that keeps equal tensors once: training ties them either way.
void note_shared(const OnnxModel& model, const RoleTable& table, std::vector<std::string>& notes) {
  std::vector<const TensorRow*> rows;
  for (const TensorRow& row : table)
    if (row.role == TensorRole::Trained && row.readers > 1) rows.push_back(&row);
  if (rows.empty()) return;
  std::string text;
  for (size_t i = 0; i < std::min(rows.size(), kShownMax); ++i)
    text += (i ? ", " : "") + with_spec(model, rows[i]->name) + " (shared by " +
            std::to_string(rows[i]->readers) + " nodes)";
  notes.push_back("one parameter each, though several nodes read it: " + text + more_than(rows.size()));
}

// What is taken from the model's input, or what it is divided by, before anything else is made of it: the
// mean and deviation of the data, as a rule. By name, the operator.
std::map<std::string, std::string> scales_of_inputs(const OnnxModel& model) {
  std::map<std::string, std::string> scales;
  const auto& graph = model.structure().proto.graph();
  std::unordered_set<std::string> data;
  for (const auto& input : graph.input())
    if (!model.weights().contains(input.name())) data.insert(input.name());
  for (const auto& node : graph.node()) {
    if (node.output_size() == 0 || node.input_size() == 0 || !data.contains(node.input(0))) continue;
    const std::string& op = node.op_type();
    const bool view = op == "Identity" || op == "Cast" || op == "Transpose";
    const bool scaled = node.input_size() == 2 && model.weights().contains(node.input(1)) &&
                        (op == "Sub" || op == "Div" || op == "Mul" || op == "Add");
    if (scaled && (op == "Sub" || op == "Div")) scales.emplace(node.input(1), op);
    if (view || scaled) data.insert(node.output(0));
  }
  return scales;
}

// By the names of tensors, behind Identity nodes too.
class BatchNorms {
 public:
  BatchNorms(const OnnxModel& model, const RoleTable& table) {
    for (const TensorRow& row : table) rows_[row.name] = &row;
    const ImportLimits limits;
    if (!check_well_formed(model.structure(), limits)) return;
    auto expanded = expand_functions(model.structure(), limits);
    if (!expanded) return;
    graph_ = std::move(*expanded);
    instance_norms_ = find_instance_norms(model.structure());
    replace_instance_norms(instance_norms_, graph_);
    std::unordered_map<std::string, std::string> same;
    visit_nodes(graph_, [&](const pb::NodeProto& node) {
      if (node.op_type() == "Identity" && node.input_size() == 1 && node.output_size() == 1) {
        const auto found = same.find(node.input(0));
        const std::string from = found == same.end() ? node.input(0) : found->second;
        same[node.output(0)] = from;
      }
      if (!is_batch_norm(node) || node.input_size() < 5) return;
      Layer layer{&node, has_training_form(node, graph_.opset_of(node)), {}};
      for (int k = 1; k < 5; ++k) {
        const auto found = same.find(node.input(k));
        const auto row = rows_.find(found == same.end() ? node.input(k) : found->second);
        layer.rows[k - 1] = row == rows_.end() ? nullptr : row->second;
      }
      layers_.push_back(layer);
    });
  }

  // Layers with frozen weight and bias, whose statistics go on moving: as in PyTorch.
  std::string note_on_frozen() const {
    return list(
        [](const Layer& layer) {
          return layer.training && layer.is(0, TensorRole::Frozen) && layer.is(1, TensorRole::Frozen) &&
                 !layer.held();
        },
        "its weight and bias are frozen, and its running statistics go on moving, as in PyTorch; "
        "freeze them too, and the layer normalises by them");
  }
  std::string note_on_instance_norms() const {
    if (instance_norms_.empty()) return {};
    return named(*instance_norms_.begin()) +
           (instance_norms_.size() > 1 ? " and " + std::to_string(instance_norms_.size() - 1) + " more are"
                                       : " is") +
           " what an InstanceNorm returns that was written as BatchNormalization between two Reshapes: each "
           "sample "
           "is normalised by itself, in evaluation and in the inference file too";
  }
  std::string warning_on_inference_form() const {
    return list(
        [](const Layer& layer) {
          return !layer.training && (layer.is(0, TensorRole::Trained) || layer.is(1, TensorRole::Trained));
        },
        "it is in inference form: the model was exported in evaluation mode. It is trained with its "
        "running statistics as they are, and without dropout that the module may have; export in "
        "training mode (training=torch.onnx.TrainingMode.TRAINING) where that is not meant");
  }
  std::string warning_on_one_held() const {
    return list([](const Layer& layer) { return layer.training && layer.frozen(2) != layer.frozen(3); },
                "one of its running statistics is frozen and the other moves: name both in `freeze`");
  }

 private:
  struct Layer {
    const pb::NodeProto* node;
    bool training;
    const TensorRow* rows[4];  // weight, bias, mean, variance

    bool is(int k, TensorRole role) const { return rows[k] && rows[k]->role == role; }
    bool frozen(int k) const { return rows[k] && rows[k]->frozen; }
    bool held() const { return frozen(2) && frozen(3); }
  };

  template <typename Is>
  std::string list(const Is& is, const char* what) const {
    size_t count = 0;
    std::string first;
    for (const Layer& layer : layers_)
      if (is(layer) && count++ == 0)
        first = named(layer.node->name().empty() ? layer.node->output(0) : layer.node->name());
    if (count == 0) return {};
    return "BatchNormalization " + first +
           (count > 1 ? " and " + std::to_string(count - 1) + " more, each: " : ": ") + what;
  }

  std::set<std::string> instance_norms_;
  ExpandedGraph graph_;
  std::unordered_map<std::string, const TensorRow*> rows_;
  std::vector<Layer> layers_;
};

// ---- trained tensors that may be none, or one

std::string looks_like_a_table(const TensorRow& row, const std::optional<ValueTraits>& traits, bool wide) {
  if (const std::string word = word_of_table(row.name); !word.empty())
    return "its name has '" + word + "' in it";
  if (!traits) return {};
  if (traits->low) return "it holds values of -10000 or less";
  if (!wide || traits->all_equal) return {};  // all zero is a fresh weight
  if (traits->constant_axis) return "it is constant along axis " + std::to_string(*traits->constant_axis);
  return traits->zeros_and_ones ? "it holds only zeros and ones" : "";
}

struct Trained {
  const TensorRow* row;
  const dag::Shape* shape;
  ValueTraits traits;
};

std::string warning_on_twins(const OnnxModel& model, const Trained& a, const Trained& b, Likeness likeness) {
  return with_spec(model, a.row->name) + " and " + with_spec(model, b.row->name) + " hold the same numbers" +
         (likeness == Likeness::Transposed ? ", one transposed" : "") +
         ": they may be one weight that the exporter wrote twice, and they are trained apart; export them as "
         "one initializer where they are tied";
}

void warn_of_twins(const OnnxModel& model, std::span<const Trained> trained,
                   std::vector<std::string>& warnings) {
  std::map<std::array<uint64_t, 2>, size_t> first;  // by content: the first tensor of it
  for (size_t i = 0; i < trained.size(); ++i) {
    const auto [entry, is_new] = first.try_emplace(trained[i].traits.content, i);
    if (is_new) continue;
    const Trained &a = trained[entry->second], &b = trained[i];
    const Likeness found = likeness(*a.shape, a.traits, *b.shape, b.traits);
    if (found != Likeness::None) warnings.push_back(warning_on_twins(model, a, b, found));
  }
}

}  // namespace

std::string why(const TensorRow& row) {
  const std::string of = row.node.empty() ? "" : " of " + row.node;
  const std::string in = row.node.empty() ? "" : " in " + row.node;
  switch (row.reason) {
    case RoleReason::Weight:
    case RoleReason::Free:
    case RoleReason::Named:
      return "";
    case RoleReason::NotNamed:
      return "`train` does not name it";
    case RoleReason::Statistic:
      return "a running statistic" + of;
    case RoleReason::Exponent:
      return "the exponent" + of;
    case RoleReason::Limit:
      return "a limit" + of;
    case RoleReason::Attribute:
      return "an attribute" + of;
    case RoleReason::Number:
    case RoleReason::Factor:
      return "a single number" + in;
    case RoleReason::Mask:
      return "a mask in front of Softmax" + in;
    case RoleReason::State:
      return "the initial state" + of;
    case RoleReason::Low:
      return "it holds values of -10000 or less";
    case RoleReason::ConstantAxis:
      return "it is constant along axis " + std::to_string(row.axis);
    case RoleReason::Exported:
      return "the exported program has it as a constant";
    case RoleReason::Written:
      return "a Constant node that holds no weight";
    case RoleReason::Unreached:
      return "no gradient reaches it";
    case RoleReason::Unused:
      return "nothing reads it";
    case RoleReason::Angle:
      return "the angles of a rotation" + in;
    case RoleReason::Repeat:
      return "all ones, to repeat an axis" + in;
  }
  return "";
}

std::string_view to_string(TensorRole role) {
  switch (role) {
    case TensorRole::Trained:
      return "trained";
    case TensorRole::Frozen:
      return "frozen";
    case TensorRole::Constant:
      return "constant";
    case TensorRole::Statistic:
      return "statistic";
  }
  return "";
}

std::vector<std::string> role_notes(const OnnxModel& model, const RoleTable& table) {
  std::vector<std::string> notes;
  note_constants(model, table, notes);
  note_factors(model, table, notes);
  note_shared(model, table, notes);
  const BatchNorms layers(model, table);
  for (std::string note : {layers.note_on_frozen(), layers.note_on_instance_norms()})
    if (!note.empty()) notes.push_back(std::move(note));
  return notes;
}

std::vector<std::string> role_warnings(const OnnxModel& model, const RoleTable& table,
                                       const LookAtValues& look) {
  std::vector<std::string> warnings;
  std::vector<Trained> trained;
  const auto scales = scales_of_inputs(model);
  for (const TensorRow& row : table) {
    if (row.role != TensorRole::Trained || row.reason == RoleReason::Named) continue;
    const dag::Shape& shape = spec_of(model, row.name).shape;
    const bool wide = std::count_if(shape.begin(), shape.end(), [](int64_t d) { return d > 1; }) > 1;
    const auto traits = look(row.name);
    if (const std::string looks = looks_like_a_table(row, traits, wide); !looks.empty())
      warnings.push_back(with_spec(model, row.name) + " will be trained but looks like a table or a mask: " +
                         looks + "; freeze it unless it is a parameter (freeze: [\"" + row.name + "\"])");
    if (const auto found = scales.find(row.name); found != scales.end() && row.reason == RoleReason::Free)
      warnings.push_back(with_spec(model, row.name) + " will be trained, but the model's input is " +
                         (found->second == "Sub" ? "shifted by it, as by the mean of the data"
                                                 : "divided by it, as by the deviation of the data") +
                         "; freeze it unless it is a parameter (freeze: [\"" + row.name + "\"])");
    if (wide && traits) trained.push_back({&row, &shape, *traits});
  }
  warn_of_twins(model, trained, warnings);
  const BatchNorms layers(model, table);
  for (std::string warning : {layers.warning_on_inference_form(), layers.warning_on_one_held()})
    if (!warning.empty()) warnings.push_back(std::move(warning));
  return warnings;
}

}  // namespace weft::onnx
