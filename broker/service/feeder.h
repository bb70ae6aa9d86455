// Microbatches of data for the stages that read them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "broker/service/job_context.h"
#include "data/sample_sequence.h"

namespace weft::broker {

// Belongs to one thread.
class Feeder {
 public:
  explicit Feeder(const JobContexts& contexts) : contexts_(contexts) {}

  struct Microbatch {
    uint64_t sample_position = 0;  // of its first sample: in the endless sequence, or in the evaluation
    uint32_t valid_count = 0;
    std::vector<dag::Tensor> tensors;  // in the order asked
  };
  // Errors: NotFound (no such job, program, input, microbatch), OutOfRange (the data holds what the model
  // cannot take), what reading says.
  Result<Microbatch> read(const proto::GetMicrobatch& request);

 private:
  const JobContexts& contexts_;
  std::map<proto::JobNumber, data::SampleSequence> sequences_;  // of training
};

}  // namespace weft::broker
