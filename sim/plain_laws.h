// What must be true of what a job of one pipeline computes: at every step the state of one machine that goes
// through the whole graph alone. Each function says what is wrong; nothing: it is in order.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "broker/records.h"
#include "sim/model.h"

namespace weft::sim {

class PlainLaws {
 public:
  using Complaint = std::optional<std::string>;
  explicit PlainLaws(const JobSpec& spec) : spec_(spec) {}

  Complaint on_step(const proto::JobEvent& event);
  Complaint on_evaluation(const proto::JobEvent& event);
  Complaint on_prediction(const proto::PredictionReport& report);
  Complaint on_checkpoint(const broker::CheckpointCommitted& checkpoint);
  Complaint check_tensors(uint64_t step, std::span<const proto::TensorReference> tensors, const char* where);

 private:
  Alone& alone();  // made once somebody asks

  const JobSpec& spec_;
  std::unique_ptr<Alone> alone_;
};

}  // namespace weft::sim
