#include "sim/plain_laws.h"

namespace weft::sim {

namespace {
std::string text_of(uint64_t value) { return std::to_string(value); }
}  // namespace

Alone& PlainLaws::alone() {
  if (!alone_) alone_ = std::make_unique<Alone>(spec_);
  return *alone_;
}

PlainLaws::Complaint PlainLaws::on_step(const proto::JobEvent& event) {
  const Alone::Step& expected = alone().after(event.step);
  if (event.loss != expected.loss)
    return "the loss of step " + text_of(event.step) + " is " + std::to_string(event.loss) +
           ", alone it is " + std::to_string(expected.loss);
  if (event.gradient_norm != expected.norm)
    return "the gradient norm of step " + text_of(event.step) + " is another than alone";
  return std::nullopt;
}

PlainLaws::Complaint PlainLaws::on_evaluation(const proto::JobEvent& event) {
  if (event.metrics == alone().evaluation(event.step)) return std::nullopt;
  return "the evaluation after step " + text_of(event.step) + " is another than alone";
}

PlainLaws::Complaint PlainLaws::on_prediction(const proto::PredictionReport& report) {
  for (const auto& output : report.outputs)
    if (value_of(output.sha256) != alone().prediction(report.microbatch))
      return "the prediction of microbatch " + text_of(report.microbatch) + " is another";
  return std::nullopt;
}

PlainLaws::Complaint PlainLaws::on_checkpoint(const broker::CheckpointCommitted& checkpoint) {
  const size_t wanted = size_t{spec_.layers} * (1 + spec_.slots);
  if (checkpoint.tensors.size() != wanted)
    return "the checkpoint of step " + text_of(checkpoint.step) + " has " +
           text_of(checkpoint.tensors.size()) + " tensors, the model " + text_of(wanted);
  return check_tensors(checkpoint.step, checkpoint.tensors, "the checkpoint");
}

PlainLaws::Complaint PlainLaws::check_tensors(uint64_t step, std::span<const proto::TensorReference> tensors,
                                              const char* where) {
  const Alone::State& expected = alone().after(step).state;
  for (const auto& tensor : tensors) {
    const auto at = expected.find(tensor.key.name);
    if (at == expected.end())
      return std::string(where) + " holds a tensor that the model has not: " + tensor.key.name;
    const uint64_t value = value_of(tensor.sha256);
    const uint64_t wanted = tensor.key.slot == dag::StateSlot::Value ? at->second.value
                            : tensor.key.slot == dag::StateSlot::V   ? at->second.slots[1]
                                                                     : at->second.slots[0];
    if (value == wanted) continue;
    std::string like;
    for (uint64_t other = step > 8 ? step - 8 : 0; other < step + 8 && other <= spec_.steps; ++other) {
      const TensorState& state = alone().after(other).state.at(tensor.key.name);
      if (value == state.value || value == state.slots[0] || (spec_.slots == 2 && value == state.slots[1]))
        like = ": it is step " + text_of(other) + "'s";
    }
    return std::string(where) + " of step " + text_of(step) + " holds another " + to_string(tensor.key) +
           like;
  }
  return std::nullopt;
}

}  // namespace weft::sim
