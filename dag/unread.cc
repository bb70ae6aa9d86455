#include "dag/unread.h"

#include <algorithm>

namespace weft::dag {

namespace {

// What is made of the values that the loss reads, without another parameter: a softmax behind the logits.
std::vector<bool> made_of(const Graph& model, std::vector<bool> values) {
  std::vector<bool> parameter(values.size(), false);
  for (const Initializer& initializer : model.initializers())
    parameter[initializer.value.index] = initializer.role == InitializerRole::Parameter;
  for (const Op& op : model.ops()) {
    const auto any = [&](const std::vector<bool>& of) {
      return std::any_of(op.inputs.begin(), op.inputs.end(),
                         [&](ValueId v) { return v.valid() && of[v.index]; });
    };
    if (any(values) && !any(parameter))
      for (const ValueId output : op.outputs) values[output.index] = true;
  }
  return values;
}

}  // namespace

Unread find_unread(const Graph& model, std::span<const LossSpec> losses) {
  std::vector<bool> read(model.values().size(), false);
  for (const LossSpec& loss : losses)
    if (const GraphOutput* output = model.find_output(OutputRole::Prediction, loss.prediction))
      read[output->value.index] = true;
  const std::vector<bool> made = made_of(model, read);
  for (size_t i = model.ops().size(); i-- > 0;) {
    const Op& op = model.ops()[i];
    if (std::none_of(op.outputs.begin(), op.outputs.end(), [&](ValueId v) { return read[v.index]; }))
      continue;
    for (const ValueId input : op.inputs)
      if (input.valid()) read[input.index] = true;
  }
  Unread unread;
  for (const Initializer& initializer : model.initializers())
    if (initializer.role == InitializerRole::Parameter && !read[initializer.value.index])
      unread.parameters.push_back(initializer.name);
  for (const GraphOutput& output : model.outputs())
    if (output.role == OutputRole::Prediction && !read[output.value.index] && !made[output.value.index] &&
        is_float(model.spec(output.value).dtype))
      unread.outputs.push_back(output.name);
  return unread;
}

std::vector<std::string> describe(const Unread& unread) {
  static constexpr size_t kShownMax = 10;
  const auto list = [](const std::vector<std::string>& names) {
    std::string text;
    for (size_t i = 0; i < std::min(names.size(), kShownMax); ++i) text += (i ? ", '" : "'") + names[i] + "'";
    if (names.size() > kShownMax) text += " and " + std::to_string(names.size() - kShownMax) + " more";
    return text;
  };
  std::vector<std::string> warnings;
  if (!unread.parameters.empty())
    warnings.push_back("the loss does not reach " + list(unread.parameters) + ": not trained");
  if (!unread.outputs.empty())
    warnings.push_back(std::string("the loss does not read the model's output") +
                       (unread.outputs.size() > 1 ? "s " : " ") + list(unread.outputs));
  return warnings;
}

}  // namespace weft::dag
