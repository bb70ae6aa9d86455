// Microbatches of data for the stages that read them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "broker/service/job_feeds.h"
#include "data/dataset.h"
#include "data/sample_sequence.h"

namespace weft::broker {

// Belongs to one thread.
class Feeder {
 public:
  explicit Feeder(const JobFeeds& feeds) : feeds_(feeds) {}

  struct Fed {                     // a microbatch of a data set, as a peer asked for it
    uint64_t sample_position = 0;  // of its first sample: in the endless sequence, or in the evaluation
    uint32_t valid_count = 0;
    std::vector<dag::Tensor> tensors;  // in the order asked
  };
  // Errors: NotFound (no such job, program, input, microbatch), OutOfRange (the data holds what the model
  // cannot take), what reading says.
  Result<Fed> read(const proto::GetMicrobatch& request);

 private:
  struct Opened {
    std::shared_ptr<const data::Dataset> dataset;
    uint64_t used = 0;  // the larger, the later
  };
  using Key = std::pair<proto::JobNumber, proto::ProgramKind>;
  Result<std::shared_ptr<const data::Dataset>> dataset_of(const Key& key, const JobFeed::Program& program);
  void make_room(uint64_t bytes);

  const JobFeeds& feeds_;
  std::map<Key, Opened> opened_;  // bounded in number, and in what they take in memory
  uint64_t uses_ = 0;
  // Of training.
  struct Sequence {
    data::SampleSequence samples;
    data::StepDivisors divisors;
  };
  std::map<proto::JobNumber, Sequence> sequences_;
};

}  // namespace weft::broker
