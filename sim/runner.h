// What a peer's compute holds in the simulation: the stage's state as hashes, and the microbatches under way.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "peer/machine/stage.h"
#include "sim/agreement.h"
#include "sim/arithmetic.h"
#include "sim/exact_sums.h"

namespace weft::sim {

class HashRunner {
 public:
  explicit HashRunner(std::shared_ptr<const proto::AssignStage> assignment, Bug bug = Bug::None);

  struct Inputs {
    std::vector<std::pair<uint32_t, uint64_t>> received;  // by index in StageProgram::receives
    std::optional<uint64_t> sample_position;
    std::vector<HashShare> agreed;  // of Mean and Agree, Reduce and Gather
  };
  using Named = HashAgreement::Named;
  struct Output {
    peer::TaskOutcome outcome;
    std::vector<std::pair<uint32_t, uint64_t>> sends;  // by index in StageProgram::sends
    std::vector<Named> snapshot, predictions;
    std::vector<HashAgreement::Sent> agreed;  // for the seats of other replicas
  };
  Result<Output> run(const peer::Task& task, const Inputs& inputs);
  // How many kernels the task takes.
  uint32_t work(const peer::Task& task) const;
  const proto::StageProgram& program(proto::ProgramKind kind) const { return *programs_.at(kind).stage; }
  // Received values that the segment reads.
  bool reads(const peer::Task& task, uint32_t receive) const;
  std::vector<Named> state() const;
  std::map<uint32_t, uint64_t> agreed() const;  // weights, by number
  void distort_means(std::function<bool()> now) {
    if (agreement_) agreement_->distort_means(std::move(now));
  }
  const HashAgreement* agreement() const { return agreement_ ? &*agreement_ : nullptr; }

 private:
  struct Program {
    const proto::StageProgram* stage = nullptr;
    std::shared_ptr<const HashProgram> hashes;
    std::vector<size_t> weights;  // by index of the graph's initializers
    std::vector<uint32_t> receive_segment, send_segment;
    std::map<uint32_t, std::vector<uint64_t>> active;  // values, by microbatch
  };
  struct Parameter {
    std::string name;
    uint32_t initializer = 0;  // of the training graph
    size_t weight = 0;
    uint32_t gradient = 0;  // output's index
    TensorState state;
    uint64_t accumulated = 0, range = 0;  // of the step, and of the range that is added up now
    uint32_t terms = 0;
    bool is_updated = true;  // here
  };
  Status run_segment(const peer::Task& task, const Inputs& inputs, Output& output);
  Status update(const peer::Task& task, Output& output);
  void add_gradient(Parameter& parameter, const peer::MicrobatchKey& key, uint64_t gradient, Output& output);
  Status run_sums(const peer::Task& task, const Inputs& inputs, Output& output);
  Status run_agreement(const peer::Task& task, const Inputs& inputs, Output& output);
  uint64_t number_of_update(const peer::Task& task) const;

  std::shared_ptr<const proto::AssignStage> assignment_;
  std::map<proto::ProgramKind, Program> programs_;
  std::vector<uint64_t> weights_;  // of all programs
  std::vector<Parameter> parameters_;
  std::vector<dag::StateSlot> slots_;
  std::optional<HashAgreement> agreement_;  // of a replica with local steps
  std::optional<HashSums> sums_;            // of one that adds each step's gradients
};

}  // namespace weft::sim
