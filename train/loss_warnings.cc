#include "train/loss_warnings.h"

#include "dag/onnx/activation.h"

namespace weft::train {
namespace {

std::string own_activation(dag::LossType type) {
  switch (type) {
    case dag::LossType::CrossEntropy:
      return "softmax";
    case dag::LossType::BceWithLogits:
      return "sigmoid";
    case dag::LossType::Mse:
    case dag::LossType::L1:
    case dag::LossType::Output:
      return "";
  }
  return "";
}

}  // namespace

std::vector<std::string> values_read(std::span<const dag::LossSpec> losses) {
  std::vector<std::string> names;
  for (const dag::LossSpec& loss : losses) names.push_back(loss.prediction);
  return names;
}

std::vector<std::string> loss_warnings(const configs::Job& job, const onnx::OnnxModel& model) {
  std::vector<std::string> warnings;
  for (size_t i = 0; i < job.losses.size(); ++i) {
    const dag::LossSpec& loss = job.losses[i];
    const std::string own = own_activation(loss.type);
    if (own.empty()) continue;
    const auto found = onnx::activation_in_front(model, loss.prediction);
    if (!found) continue;
    const char* key = loss.type == dag::LossType::CrossEntropy ? "logits" : "output";
    warnings.push_back(to_string(job.where(job.loss_path(i))) + ": the loss makes a " + own +
                       " of its own, but '" + loss.prediction + "' is what " + found->op_type + " '" +
                       found->node + "' made of '" + found->value +
                       "': such a model learns little or nothing. " +
                       (found->reshaped ? "Where its shape fits the labels, name" : "Name") +
                       " the value in front of it: `" + key + ": " + found->value + "`");
  }
  return warnings;
}

}  // namespace weft::train
