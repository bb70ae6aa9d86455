// What comes for a stage from outside: tensors of other stages and microbatches of data, by key. It says what
// may come, what is there, and which data to ask for next. It holds no bytes: those lie with whoever runs the
// tasks, under the same keys. Pure.
//
// Bounds: tensors of kStepsAhead steps and of 4096 microbatches more; data of the microbatches in flight and
// what Options says of prefetching.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "peer/machine/task.h"
#include "proto/messages.h"

namespace weft::peer {

class Arrivals {
 public:
  // Behind a neighbour that needs nothing back (its parameters do not train) this stage may be as many steps
  // as the broker grants ahead.
  static constexpr uint64_t kStepsAhead = 16;

  // Of data, beyond the microbatches in flight: at least so many, and of small ones as many as take
  // prefetch_bytes, for a broker far away answers late.
  struct Options {
    uint32_t prefetch_microbatches = 4, prefetch_microbatches_max = 32;
    uint64_t prefetch_bytes = 4 << 20;
  };
  Arrivals(std::shared_ptr<const proto::AssignStage> assignment, const Options& options);

  // A tensor from another stage; its bytes are kept by the caller until the task that reads it has run.
  // `completed`: the training steps that the stage has done. Errors: InvalidArgument for one that comes too
  // late, twice or too early, or is another than the assignment says.
  Status on_tensor(const plan::Seat& from, const proto::TensorHeader& header, uint64_t completed);
  // `sample_position`: of the microbatch's first sample in the endless sequence.
  void on_data(const MicrobatchKey& key, uint64_t sample_position);

  // Whether all that the segment reads is there. REQUIRES: the program was assigned.
  bool are_there(const MicrobatchKey& key, uint32_t segment) const;
  // The seat whose tensor was the last of the segment's inputs; nothing when that was data, or there are
  // none. REQUIRES: are_there().
  std::optional<plan::Seat> last_to_come(const MicrobatchKey& key, uint32_t segment) const;

  // Data will be read of these microbatches of each step, if the program reads any.
  struct Range {
    proto::ProgramKind program = proto::ProgramKind::Train;
    uint64_t first_step = 0, last_step = 0;
    uint32_t first_microbatch = 0, microbatches = 0;
  };
  void expect(const Range& range);
  // Microbatches of data to ask the broker for, each once.
  std::vector<MicrobatchKey> fetches();

  // The stage is done with the microbatch: where its data began, if it read any.
  std::optional<uint64_t> finish(const MicrobatchKey& key);
  // Keys whose tensors and data are not needed any more.
  std::vector<MicrobatchKey> take_finished() { return std::exchange(finished_, {}); }

 private:
  struct Program {
    const proto::StageProgram* stage = nullptr;
    std::vector<std::vector<uint32_t>> edges_of_segment;  // indices into stage->receives
    std::map<uint32_t, uint32_t> receive_of_edge;
    std::optional<uint32_t> data_segment;  // the first that reads data
    uint64_t data_bytes = 0;               // of a microbatch
  };
  struct DataRange {
    MicrobatchKey next;
    Range of;
  };
  struct Data {
    uint64_t sample_position = 0, arrival = 0;
  };
  static Program program_of(const proto::StageProgram& stage);

  std::shared_ptr<const proto::AssignStage> assignment_;
  uint32_t prefetch_ = 0;  // microbatches of data beyond those in flight
  std::map<proto::ProgramKind, Program> programs_;
  uint64_t arrivals_ = 0;                                          // of tensors and data: numbers them
  std::map<MicrobatchKey, std::map<uint32_t, uint64_t>> tensors_;  // edges, and the numbers of their arrivals
  std::map<MicrobatchKey, Data> data_;
  std::deque<DataRange> data_ranges_;
  uint32_t data_outstanding_ = 0;  // asked for and not finished with
  std::vector<MicrobatchKey> finished_;
};

}  // namespace weft::peer
