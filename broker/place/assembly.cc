#include "broker/place/assembly.h"

#include <algorithm>
#include <set>

#include "broker/pool/candidates.h"
#include "dag/op_table.h"
#include "dag/recompute.h"
#include "dag/split.h"
#include "dag/state.h"
#include "plan/copies.h"

namespace weft::broker {

using dag::OutputRole;
using proto::ProgramKind;

namespace {

using Saved = std::map<dag::StateKey, const proto::TensorReference*>;

Saved saved_in(const StartPlanning& request) {
  Saved saved;
  if (request.checkpoint)
    for (const auto& tensor : request.checkpoint->tensors) saved[tensor.key] = &tensor;
  return saved;
}

// What a stage begins with after `saved`: what is trained as saved there; what is not, and what no checkpoint
// holds, as it was assigned before. From the start: as submitted, which the plan before says if it began
// there.
Result<std::vector<proto::TensorReference>> tensors_again(const proto::AssignStage& before,
                                                          const Saved& saved,
                                                          const JobTerms::Initial* initial) {
  std::vector<proto::TensorReference> tensors;
  std::set<std::string> named;
  for (const proto::TensorReference& tensor : before.tensors) {
    if (!is_weight(tensor.key.slot) || !named.insert(tensor.key.name).second) continue;
    const auto at = find_weight(saved, tensor.key.name);
    if (at != saved.end()) {
      tensors.push_back(*at->second);
    } else if (!saved.empty() || before.after_step == 0) {
      tensors.push_back(tensor);
    } else {
      if (initial == nullptr || !initial->contains(tensor.key.name))
        return fail(ErrorCode::Unavailable, "the job is not at hand");
      tensors.push_back(initial->at(tensor.key.name));
    }
    for (const dag::StateSlot slot : optimizer_slots(before.training.optimizer))
      if (const auto found = saved.find({tensor.key.owner, tensor.key.name, slot}); found != saved.end())
        tensors.push_back(*found->second);
  }
  return tensors;
}

// For a device of another class than the stage was made for.
void make_for(proto::AssignStage& stage, const dag::BackendTraits& traits) {
  for (proto::StageProgram& program : stage.programs) {
    const dag::StageGraph before{.graph = *program.graph,
                                 .segment_of_op = program.segment_of_op,
                                 .segment_count = program.segment_count,
                                 .op_in_whole = {}};
    dag::Relowered after = dag::relower(before, traits, dag::op_table());
    for (auto* ends : {&program.receives, &program.sends})
      for (proto::EdgeEnd& end : *ends) end.value = after.value_of[end.value.index];
    program.segment_of_op = std::move(after.stage.segment_of_op);
    program.graph = std::make_shared<const dag::Graph>(std::move(after.stage.graph));
  }
  stage.device_class.traits = traits;
}

// Samples of an evaluation or prediction, in microbatches. A loss that the model computes itself cannot leave
// padding out: a short last microbatch is not evaluated.
void count_forward(ProgramKind kind, const JobTerms::Program& program, PlannedRun& run) {
  run.masked = program.graph->find_output(OutputRole::Counted) != nullptr;
  run.accuracy = program.graph->find_output(OutputRole::Correct) != nullptr;
  const uint32_t size = run.training.microbatch_size;
  const bool whole_only = kind == ProgramKind::Evaluate && !run.masked;
  run.forward_microbatches =
      static_cast<uint32_t>(whole_only ? program.samples / size : (program.samples + size - 1) / size);
  run.forward_samples = whole_only ? uint64_t{run.forward_microbatches} * size : program.samples;
}

}  // namespace

Result<std::vector<StagePiece>> cut_program(ProgramKind kind, const dag::Graph& graph, const plan::Plan& plan,
                                            const std::vector<uint32_t>& stage_of_op,
                                            const LoweredGraphs& lowered,
                                            const std::vector<uint32_t>& class_of_stage) {
  std::set<uint32_t> used(stage_of_op.begin(), stage_of_op.end());
  const std::vector<uint32_t> stage_of_piece(used.begin(), used.end());
  std::vector<uint32_t> piece_of_op;
  piece_of_op.reserve(stage_of_op.size());
  for (const uint32_t stage : stage_of_op)
    piece_of_op.push_back(static_cast<uint32_t>(
        std::lower_bound(stage_of_piece.begin(), stage_of_piece.end(), stage) - stage_of_piece.begin()));
  std::vector<const dag::Lowered*> classes;
  classes.reserve(lowered.size());
  std::vector<uint32_t> class_of_piece;
  class_of_piece.reserve(stage_of_piece.size());
  for (const auto& one : lowered) classes.push_back(one.get());
  for (const uint32_t stage : stage_of_piece) class_of_piece.push_back(class_of_stage[stage]);
  WEFT_TRY(dag::Split split, dag::split({&graph, piece_of_op, classes, class_of_piece}, dag::op_table()));
  for (uint32_t piece = 0; kind == ProgramKind::Train && piece < split.stages.size(); ++piece)
    if (plan.stages[stage_of_piece[piece]].recomputes) dag::recompute(split, piece, dag::op_table());
  std::vector<StagePiece> pieces;
  for (size_t piece = 0; piece < split.stages.size(); ++piece) {
    dag::StageGraph& stage_graph = split.stages[piece];
    proto::StageProgram stage;
    stage.kind = kind;
    stage.segment_of_op = std::move(stage_graph.segment_of_op);
    stage.segment_count = stage_graph.segment_count;
    std::set<uint32_t> received;
    for (uint32_t e = 0; e < split.cut_edges.size(); ++e) {
      const dag::CutEdge& edge = split.cut_edges[e];
      const uint32_t from = stage_of_piece[edge.from_stage], to = stage_of_piece[edge.to_stage];
      const compress::Codec codec =
          plan::codec_of(plan.codecs, from, to, graph.producer(edge.value).phase == dag::Phase::Backward,
                         graph.spec(edge.value));
      if (edge.to_stage == piece) {
        stage.receives.push_back({e, edge.received, from, codec});
        received.insert(edge.received.index);
      }
      if (edge.from_stage == piece) stage.sends.push_back({e, edge.sent, to, codec});
    }
    for (const dag::ValueId input : stage_graph.graph.inputs())
      if (!received.contains(input.index)) stage.data_inputs.push_back(stage_graph.graph.value(input).name);
    stage.graph = std::make_shared<const dag::Graph>(std::move(stage_graph.graph));
    pieces.push_back({stage_of_piece[piece], std::move(stage)});
  }
  return pieces;
}

Assembly::Assembly(const StartPlanning& request, const JobTerms& terms, const plan::Plan& plan,
                   uint64_t copy_rate, DrawSecret draw_secret)
    : request_(request),
      terms_(terms),
      plan_(plan),
      copy_rate_(copy_rate),
      draw_secret_(std::move(draw_secret)) {
  stages_.resize(plan.stages.size());
  for (size_t s = 0; s < stages_.size(); ++s) {
    stages_[s].peer = request.candidates[plan.stages[s].devices.front()];
    stages_[s].stage = std::make_shared<proto::AssignStage>();
  }
}

void Assembly::add(const std::vector<StagePiece>& pieces) {
  for (const StagePiece& piece : pieces) stages_[piece.stage].stage->programs.push_back(piece.program);
}

Status Assembly::add_program(ProgramKind kind, const std::vector<uint32_t>& stage_of_op,
                             const LoweredGraphs& lowered, const std::vector<uint32_t>& class_of_stage) {
  WEFT_TRY(const auto pieces,
           cut_program(kind, *terms_.programs.at(kind).graph, plan_, stage_of_op, lowered, class_of_stage));
  add(pieces);
  return {};
}

Result<std::shared_ptr<const PlannedRun>> Assembly::finish() {
  auto run = std::make_shared<PlannedRun>();
  describe(*run);
  run->data_key = draw_secret_();
  for (uint32_t s = 0; s < stages_.size(); ++s) {
    proto::AssignStage& stage = *stages_[s].stage;
    stage.run = request_.job;
    stage.plan_version = request_.plan_version;
    stage.seat = {s};
    stage.stage_count = static_cast<uint32_t>(stages_.size());
    stage.training = run->training;
    stage.microbatches_in_flight = plan_.stages[s].microbatches_in_flight;
    stage.after_step = request_.checkpoint ? request_.checkpoint->step : 0;
    stage.skipped_steps = request_.checkpoint ? request_.checkpoint->skipped_steps : 0;
    stage.data_key = run->data_key;
    stage.copy_rate = plan::copy_rate(copy_rate_, request_.cluster, plan_.stages[s].devices.front());
    stage.device_class = stages_[s].peer.device.device_class();
    stage.arithmetic = terms_.arithmetic;
    stage.microbatch_seconds = computing_seconds(s);
    WEFT_TRY_STATUS(name_tensors(stage));
  }
  set_links(stages_, *run, draw_secret_);
  for (uint32_t s = 0; s < stages_.size(); ++s) {
    const StageAtPeer& stage = stages_[s];
    run->stages.push_back({{.peer = stage.peer.peer,
                            .parameters = parameters_of_stage(*stage.stage),
                            .microbatch_seconds = stage.stage->microbatch_seconds,
                            .pinned = plan_.stages[s].pinned,
                            .owner = terms_.limits_owners ? owner_of(stage.peer) : ""},
                           stage.stage});
  }
  return std::shared_ptr<const PlannedRun>(std::move(run));
}

double Assembly::computing_seconds(size_t stage) const {
  return seconds(plan_.stages[stage].forward + plan_.stages[stage].backward);
}

std::vector<uint32_t> Assembly::parameters_of_stage(const proto::AssignStage& stage) const {
  std::vector<uint32_t> parameters;
  for (const proto::StageProgram& program : stage.programs)
    if (program.kind == ProgramKind::Train)
      for (const std::string& name : dag::trained_parameters(*program.graph))
        parameters.push_back(parameters_.at(name));
  return parameters;
}

void Assembly::describe(PlannedRun& run) {
  static_cast<proto::RunTerms&>(run) = terms_.run;
  const dag::TrainingSpec& training = run.training;
  run.microbatches = training.microbatches();
  run.explanation = plan_.explanation;
  run.predicted_step = plan_.predicted_step;
  if (terms_.chooses_codecs && !plan_.codecs.empty()) run.gentler = request_.gentler;
  if (training.steps != 0)
    for (const std::string& name : dag::trained_parameters(*terms_.programs.at(ProgramKind::Train).graph))
      parameters_.emplace(name, static_cast<uint32_t>(parameters_.size()));
  run.parameter_count = static_cast<uint32_t>(parameters_.size());
  const ProgramKind forward = training.steps != 0 ? ProgramKind::Evaluate : ProgramKind::Predict;
  if (const auto program = terms_.programs.find(forward); program != terms_.programs.end())
    count_forward(forward, program->second, run);
  else
    run.loss_terms = {};  // nothing is evaluated by them
  for (const StageAtPeer& stage : stages_) {
    if (run.fingerprint.empty()) run.fingerprint = stage.peer.device.fingerprint;
    run.equal_bits = run.equal_bits && stage.peer.device.fingerprint == run.fingerprint;
    for (const proto::StageProgram& program : stage.stage->programs)
      if (program.kind == ProgramKind::Predict && program.graph->find_output(OutputRole::Prediction))
        ++run.prediction_stages;
  }
}

// Values from the checkpoint where it has them, else as submitted; slots from the checkpoint, else zero.
Status Assembly::name_tensors(proto::AssignStage& stage) const {
  const Saved saved = saved_in(request_);
  std::set<std::string> named;
  for (const proto::StageProgram& program : stage.programs)
    for (const dag::Initializer& initializer : program.graph->initializers()) {
      if (!named.insert(initializer.name).second) continue;
      const auto at = find_weight(saved, initializer.name);
      const proto::TensorReference& reference =
          at != saved.end() ? *at->second : terms_.initial->at(initializer.name);
      const dag::TensorSpec& spec = program.graph->spec(initializer.value);
      if (reference.spec != spec && !is_widened(reference.spec, spec))
        return fail(ErrorCode::Corrupted, "the checkpoint's '" + initializer.name + "' is " +
                                              dag::to_string(reference.spec) + ", the model's another");
      stage.tensors.push_back(reference);
      for (const dag::StateSlot slot : optimizer_slots(terms_.run.training.optimizer))
        if (const auto found = saved.find(dag::of_initializer(initializer.name, slot)); found != saved.end())
          stage.tensors.push_back(*found->second);
    }
  return {};
}

Result<std::shared_ptr<const PlannedRun>> place_stages_again(const StartPlanning& request,
                                                             const JobTerms::Initial* initial,
                                                             uint64_t copy_rate,
                                                             const DrawSecret& draw_secret) {
  auto run = std::make_shared<PlannedRun>(*request.previous);
  run->data_key = draw_secret();
  const Saved saved = saved_in(request);
  std::vector<StageAtPeer> stages;
  for (size_t s = 0; s < run->stages.size(); ++s) {
    PlannedStage& planned = run->stages[s];
    auto stage = std::make_shared<proto::AssignStage>(*planned.assignment);
    planned.peer = request.candidates[request.placed[s]].peer;
    stage->plan_version = request.plan_version;
    stage->after_step = request.checkpoint ? request.checkpoint->step : 0;
    stage->skipped_steps = request.checkpoint ? request.checkpoint->skipped_steps : 0;
    stage->data_key = run->data_key;
    stage->copy_rate = plan::copy_rate(copy_rate, request.cluster, request.placed[s]);
    WEFT_TRY(stage->tensors, tensors_again(*planned.assignment, saved, initial));
    const proto::DeviceReport& device = request.candidates[request.placed[s]].device;
    // A plan that was recorded before classes were written down has been placed by them.
    if (!stage->device_class.fingerprint.empty() && stage->device_class.traits != device.traits)
      make_for(*stage, device.traits);
    planned.assignment = stage;
    stages.push_back({request.candidates[request.placed[s]], std::move(stage)});
  }
  run->fingerprint = stages.front().peer.device.fingerprint;
  run->equal_bits = std::all_of(stages.begin(), stages.end(), [&](const StageAtPeer& stage) {
    return stage.peer.device.fingerprint == run->fingerprint;
  });
  set_links(stages, *run, draw_secret);
  return std::shared_ptr<const PlannedRun>(std::move(run));
}

}  // namespace weft::broker
