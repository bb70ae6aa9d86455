// From a plan to a run that can be assigned: each stage's pieces of the job's graphs, its tensors, its links.
// Pure; what is random is handed in. The planner's worker and the simulator make their runs with it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "broker/events.h"
#include "broker/place/routes.h"
#include "broker/place/stage_state.h"
#include "dag/lower.h"
#include "plan/replicas.h"

namespace weft::broker {

using LoweredGraphs = std::vector<std::shared_ptr<const dag::Lowered>>;  // by class of device

// What the stages, and who conducts them, are told of a job.
struct JobTerms {
  proto::RunTerms run{};  // what its job says of it
  dag::Arithmetic arithmetic = dag::Arithmetic::F32;
  bool chooses_codecs = false;  // the planner does, and may have to choose gentler ones
  bool limits_owners = false;   // an owner's machines may have so much of the model and no more
  // Of replicas that add up each step's gradients (proto::ExactTerms).
  compress::Codec gradient_codec{};

  struct Program {
    const dag::Graph* graph = nullptr;  // before lowering
    uint64_t samples = 0;               // of its data
  };
  std::map<proto::ProgramKind, Program> programs{};
  using Initial = std::map<std::string, proto::TensorReference>;
  const Initial* initial = nullptr;                             // by initializer: the submitted value
  const std::map<std::string, dag::MadeValue>* made = nullptr;  // of some of these: how it is made
};

// What one stage runs of one graph.
struct StagePiece {
  uint32_t stage = 0;
  proto::StageProgram program{};
};

// Cuts a graph. `lowered`: it by class; `class_of_stage`: an index into it. Not every stage need have a part.
// Errors: of dag::split.
Result<std::vector<StagePiece>> cut_program(proto::ProgramKind kind, const dag::Graph& graph,
                                            const plan::Plan& plan, const std::vector<uint32_t>& stage_of_op,
                                            const LoweredGraphs& lowered,
                                            const std::vector<uint32_t>& class_of_stage);

// Builds the assignments of one planned run. What it is given outlives it, but for the plan.
class Assembly {
 public:
  // `copy_rate`: of copies of state, bytes per second; 0: none are made.
  Assembly(const StartPlanning& request, const JobTerms& terms, plan::Plan plan, uint64_t copy_rate,
           DrawSecret draw_secret);
  // Of replicas that make local steps, where the terms say so; else there is one.
  Assembly(const StartPlanning& request, const JobTerms& terms, plan::ReplicasPlan plan, uint64_t copy_rate,
           DrawSecret draw_secret);

  void add(const std::vector<StagePiece>& pieces, uint32_t replica = 0);
  // Cuts it, and adds the pieces.
  Status add_program(proto::ProgramKind kind, const std::vector<uint32_t>& stage_of_op,
                     const LoweredGraphs& lowered, const std::vector<uint32_t>& class_of_stage,
                     uint32_t replica = 0);
  // Errors: Corrupted when the checkpoint's tensors are not the model's.
  Result<std::shared_ptr<const PlannedRun>> finish();

 private:
  const plan::StagePlan& planned(const plan::Seat& seat) const;
  void describe(PlannedRun& run);
  void describe_peers(PlannedRun& run) const;
  void add_agreed();
  std::vector<uint32_t> parameters_of_stage(const proto::AssignStage& stage) const;
  Status name_tensors(const SavedState& saved, proto::AssignStage& stage) const;

  const StartPlanning& request_;
  const JobTerms& terms_;
  const plan::ReplicasPlan plan_;
  const uint64_t copy_rate_;
  const DrawSecret draw_secret_;
  std::vector<StageAtPeer> stages_;  // by seat, ascending
  std::map<plan::Seat, uint32_t> index_of_;
  std::map<std::string, uint32_t> parameters_;  // each one's place in the whole graph
};

// The same stages at other peers, as request.placed has it: nothing is cut or measured again. A stage whose
// new device runs other ops is lowered for it by itself. `initial`: none when the job is not at hand.
// Errors: Unavailable when the run starts over and nobody knows the submitted values.
Result<std::shared_ptr<const PlannedRun>> place_stages_again(const StartPlanning& request,
                                                             const JobTerms::Initial* initial,
                                                             uint64_t copy_rate,
                                                             const DrawSecret& draw_secret);

}  // namespace weft::broker
