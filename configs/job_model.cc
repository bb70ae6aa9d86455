// What a job says of its model: inputs and losses.
#include "configs/job_sections.h"

#include <set>

#include "dag/metrics.h"

namespace weft::configs {
namespace {

// Lists of lists of numbers, all of one shape.
void read_input_value(MapReader& reader, const Node& node, size_t depth, InputValue& value) {
  if (node.kind != Node::Kind::Sequence) {
    if (depth < value.shape.size()) return reader.problem(node.where, "`value` has lists beside numbers");
    const bool is_truth = node.kind == Node::Kind::Scalar && (node.text == "true" || node.text == "false");
    if (is_truth) return value.numbers.push_back(node.text == "true" ? 1 : 0);
    if (const auto number = reader.parse_number(node, "value", {-kInfinity, kInfinity}))
      value.numbers.push_back(*number);
    return;
  }
  const auto length = static_cast<int64_t>(node.items.size());
  const bool is_new = depth == value.shape.size();
  if (length == 0) return reader.problem(node.where, "`value` has an empty list");
  if (is_new && value.numbers.empty()) value.shape.push_back(length);
  if (depth >= value.shape.size() || value.shape[depth] != length)
    return reader.problem(node.where, "the lists of `value` differ in length");
  for (const Node& item : node.items) read_input_value(reader, item, depth + 1, value);
}

void read_ignore_index(MapReader& reader, dag::LossSpec& loss) {
  loss.ignore_index = -100;  // PyTorch's
  const Node* node = reader.take("ignore_index");
  if (!node) return;
  const auto value = reader.parse_number(*node, "ignore_index", {-9007199254740992.0, 9007199254740992.0});
  if (value && *value != static_cast<double>(static_cast<int64_t>(*value)))
    reader.problem(node->where, "`" + reader.path_of("ignore_index") + "` must be a whole number");
  else if (value)
    loss.ignore_index = static_cast<int64_t>(*value);
}

void read_class_weights(MapReader& reader, dag::LossSpec& loss) {
  const Node* node = reader.take("class_weights");
  if (!node) return;
  if (node->kind != Node::Kind::Sequence || node->items.empty() || node->items.size() > dag::kClassWeightsMax)
    return reader.problem(node->where, "`" + reader.path_of("class_weights") +
                                           "` must be a list of one number a class, as [1, 2.5, 1]");
  for (size_t i = 0; i < node->items.size(); ++i)
    if (const auto weight = reader.parse_number(node->items[i], "class_weights[" + std::to_string(i) + "]",
                                                {0, dag::kCountWeightMax}))
      loss.class_weights.push_back(*weight);
}

void read_axis(MapReader& reader, dag::LossSpec& loss) {
  const Node* node = reader.take("axis");
  if (!node) return;
  const auto value = reader.parse_number(*node, "axis", {-64, 63});
  if (value && *value != static_cast<double>(static_cast<int64_t>(*value)))
    reader.problem(node->where, "`" + reader.path_of("axis") + "` must be a whole number");
  else if (value)
    loss.axis = static_cast<int64_t>(*value);
}

// Keys that only cross_entropy has.
void read_classes(MapReader& reader, dag::LossSpec& loss) {
  read_axis(reader, loss);
  read_ignore_index(reader, loss);
  read_class_weights(reader, loss);
  loss.label_smoothing = reader.number("label_smoothing", 0, {.min = 0, .max = 1, .below_max = true});
}

void read_loss_parts(MapReader& reader, dag::LossSpec& loss) {
  using dag::LossType;
  switch (loss.type) {
    case LossType::CrossEntropy:
      loss.prediction = reader.required_text("logits", "name the graph output that holds the logits");
      loss.target = reader.required_text("labels", "name the data column of the labels");
      read_classes(reader, loss);
      break;
    case LossType::Mse:
    case LossType::L1:
    case LossType::BceWithLogits:
      loss.prediction = reader.required_text("output", "name the graph output that is compared");
      loss.target = reader.required_text("target", "name the data column that it is compared with");
      break;
    case LossType::Output:
      loss.prediction = reader.required_text("name", "name the graph output that is the loss");
      break;
  }
  if (loss.type != LossType::Output) loss.sample_weights = reader.text("sample_weights", "");
  loss.weight = reader.number("weight", 1, {-dag::kLossWeightMax, dag::kLossWeightMax});
}

void read_loss_term(const Node& node, const std::string& path, Problems& problems, Job& job) {
  using dag::LossType;
  static constexpr Choice<LossType> kLosses[] = {{"cross_entropy", LossType::CrossEntropy},
                                                 {"mse", LossType::Mse},
                                                 {"l1", LossType::L1},
                                                 {"bce_with_logits", LossType::BceWithLogits},
                                                 {"output", LossType::Output}};
  MapReader reader(node, path, problems);
  const auto type = reader.choice(
      reader.require("type", "say cross_entropy, mse, l1, bce_with_logits or output"), "type", kLosses);
  if (!type) return;
  dag::LossSpec& loss = job.losses.emplace_back();
  loss.type = *type;
  read_loss_parts(reader, loss);
  reader.finish();
}

}  // namespace

void read_inputs(MapReader& root, Problems& problems, Job& job) {
  const Node* node = root.require("inputs", "say which data column feeds each graph input, as {x: image}");
  if (!node) return;
  if (node->kind != Node::Kind::Map || node->entries.empty()) {
    root.problem(node->where, "`inputs` must be a map from graph inputs to data columns, as {x: image}");
    return;
  }
  for (const Entry& entry : node->entries) {
    if (entry.key.empty()) root.problem(entry.where, "an input needs a name");
    if (entry.value.kind == Node::Kind::Map) {
      MapReader reader(entry.value, "inputs." + entry.key, problems);
      if (const Node* value = reader.require("value", "say what it is for every sample, as {value: 16000}"))
        read_input_value(reader, *value, 0, job.input_values[entry.key]);
      reader.finish();
      continue;
    }
    const auto column = root.parse_text(entry.value, "inputs." + entry.key);
    if (column) job.inputs[entry.key] = *column;
  }
}

void read_loss(MapReader& root, Problems& problems, Job& job) {
  const Node* node = root.require("loss", "as {type: cross_entropy, logits: logits, labels: label}");
  if (!node) return;
  if (node->kind != Node::Kind::Sequence) return read_loss_term(*node, "loss", problems, job);
  if (node->items.empty() || node->items.size() > dag::kLossTermsMax) {
    root.problem(node->where, "`loss` is a list of " + std::to_string(node->items.size()) +
                                  " losses; it must hold 1 to " + std::to_string(dag::kLossTermsMax));
    return;
  }
  for (size_t i = 0; i < node->items.size(); ++i)
    read_loss_term(node->items[i], "loss[" + std::to_string(i) + "]", problems, job);
}

}  // namespace weft::configs
