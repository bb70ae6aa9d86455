#include "broker/place/assembly.h"

#include <algorithm>
#include <set>

#include "broker/pool/candidates.h"
#include "broker/run/inner_steps.h"
#include "dag/op_table.h"
#include "dag/recompute.h"
#include "dag/split.h"
#include "dag/state.h"
#include "plan/copies.h"
#include "proto/agreed_weights.h"

namespace weft::broker {

using dag::OutputRole;
using proto::ProgramKind;

namespace {

constexpr double kNormBound = 10;  // times what is usual may a replica's difference be

// What a stage begins with after `saved`: what is trained as saved there; what is not, and what no checkpoint
// holds, as it was assigned before. From the start: as submitted, which the plan before says if it began
// there.
Result<std::vector<proto::TensorReference>> tensors_again(const proto::AssignStage& before,
                                                          const SavedState& saved,
                                                          const JobTerms::Initial* initial) {
  const StageState state(before);
  std::vector<proto::TensorReference> tensors;
  std::set<std::string> named;
  for (const proto::TensorReference& tensor : before.tensors) {
    if (!is_weight(tensor.key.slot) || !named.insert(tensor.key.name).second) continue;
    if (const auto* found = saved.find_weight(tensor.key.name)) {
      tensors.push_back(*found);
    } else if (!saved.empty() || before.after_step == 0) {
      tensors.push_back(tensor);
    } else {
      if (initial == nullptr || !initial->contains(tensor.key.name))
        return fail(ErrorCode::Unavailable, "the job is not at hand");
      tensors.push_back(initial->at(tensor.key.name));
    }
    state.add_beside(saved, tensor.key.name, tensors);
  }
  return tensors;
}

// Those of them that are as they were made, by their places among these tensors.
std::vector<proto::MadeTensor> made_again(const proto::AssignStage& before,
                                          const std::vector<proto::TensorReference>& tensors) {
  std::map<dag::StateKey, uint32_t> places;
  for (uint32_t i = 0; i < tensors.size(); ++i) places[tensors[i].key] = i;
  std::vector<proto::MadeTensor> made;
  for (const proto::MadeTensor& one : before.made) {
    const proto::TensorReference& tensor = before.tensors[one.tensor];
    const auto at = places.find(tensor.key);
    if (at != places.end() && tensors[at->second].sha256 == tensor.sha256)
      made.push_back({at->second, one.how});
  }
  return made;
}

// Where replicas came or went, inner steps are counted anew from what all of them had made. Those that are
// left out count as skipped, so that an optimizer's number of updates is what it was.
void go_on_from(const SavedState& saved, proto::AssignStage& stage) {
  stage.after_step =
      stage.local ? InnerSteps(stage.local->steps).find(saved.step(), saved.made()).value_or(saved.made())
                  : saved.step();
  stage.skipped_steps = saved.skipped_steps(own_set(stage)) + stage.after_step - saved.step();
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

Assembly::Assembly(const StartPlanning& request, const JobTerms& terms, plan::Plan plan, uint64_t copy_rate,
                   DrawSecret draw_secret)
    : Assembly(request, terms, plan::alone(std::move(plan)), copy_rate, std::move(draw_secret)) {}

Assembly::Assembly(const StartPlanning& request, const JobTerms& terms, plan::ReplicasPlan plan,
                   uint64_t copy_rate, DrawSecret draw_secret)
    : request_(request),
      terms_(terms),
      plan_(std::move(plan)),
      copy_rate_(copy_rate),
      draw_secret_(std::move(draw_secret)) {
  std::set<plan::Seat> seats;
  for (uint32_t replica = 0; replica < plan_.replicas.size(); ++replica)
    for (uint32_t stage = 0; stage < plan_.replicas[replica].stages.size(); ++stage)
      seats.insert({stage, replica});
  for (const plan::Seat& seat : seats) {
    index_of_[seat] = static_cast<uint32_t>(stages_.size());
    auto stage = std::make_shared<proto::AssignStage>();
    stage->seat = seat;
    stage->stage_count = static_cast<uint32_t>(plan_.replicas[seat.replica].stages.size());
    stages_.push_back({request.candidates[planned(seat).devices.front()], std::move(stage)});
  }
}

const plan::StagePlan& Assembly::planned(const plan::Seat& seat) const {
  return plan_.replicas[seat.replica].stages[seat.stage];
}

void Assembly::add(const std::vector<StagePiece>& pieces, uint32_t replica) {
  for (const StagePiece& piece : pieces)
    stages_[index_of_.at({piece.stage, replica})].stage->programs.push_back(piece.program);
}

Status Assembly::add_program(ProgramKind kind, const std::vector<uint32_t>& stage_of_op,
                             const LoweredGraphs& lowered, const std::vector<uint32_t>& class_of_stage,
                             uint32_t replica) {
  WEFT_TRY(const auto pieces, cut_program(kind, *terms_.programs.at(kind).graph, plan_.replicas[replica],
                                          stage_of_op, lowered, class_of_stage));
  add(pieces, replica);
  return {};
}

Result<std::shared_ptr<const PlannedRun>> Assembly::finish() {
  auto run = std::make_shared<PlannedRun>();
  describe(*run);
  run->data_key = draw_secret_();
  add_agreed();
  const SavedState saved(request_);
  for (StageAtPeer& at : stages_) {
    proto::AssignStage& stage = *at.stage;
    const plan::StagePlan& planned_stage = planned(stage.seat);
    stage.run = request_.job;
    stage.plan_version = request_.plan_version;
    stage.training = run->training;
    stage.microbatches_in_flight = planned_stage.microbatches_in_flight;
    go_on_from(saved, stage);
    stage.data_key = run->data_key;
    stage.copy_rate = plan::copy_rate(copy_rate_, request_.cluster, planned_stage.devices.front());
    stage.device_class = at.peer.device.device_class();
    stage.arithmetic = terms_.arithmetic;
    stage.microbatch_seconds = seconds(planned_stage.forward + planned_stage.backward);
    WEFT_TRY_STATUS(name_tensors(saved, stage));
  }
  set_links(stages_, *run, draw_secret_);
  for (const StageAtPeer& at : stages_)
    run->stages.push_back({{.peer = at.peer.peer,
                            .parameters = parameters_of_stage(*at.stage),
                            .microbatch_seconds = at.stage->microbatch_seconds,
                            .pinned = planned(at.stage->seat).pinned,
                            .owner = terms_.limits_owners ? owner_of(at.peer) : ""},
                           at.stage});
  return std::shared_ptr<const PlannedRun>(std::move(run));
}

// What each stage has of what replicas agree about, and which stages of the others have it, too.
void Assembly::add_agreed() {
  const auto& ranges = terms_.run.exact_ranges;
  if (!terms_.run.local_steps && ranges.empty()) return;
  std::map<std::string_view, std::vector<proto::AgreedTensor>> agreed;
  for (const plan::AgreedWeight& weight : plan_.agreed)
    agreed[weight.name].push_back({weight.number, weight.name, weight.owner, weight.stages, weight.elements,
                                   weight.fragment});
  for (StageAtPeer& at : stages_) {
    std::vector<proto::AgreedTensor> own;
    for (const proto::StageProgram& program : at.stage->programs) {
      if (program.kind != ProgramKind::Train) continue;
      for (const dag::StateKey& key : dag::trained_state(*program.graph, {}))
        if (is_weight(key.slot))
          own.insert(own.end(), agreed.at(key.name).begin(), agreed.at(key.name).end());
    }
    std::sort(own.begin(), own.end(), [](const auto& a, const auto& b) { return is_before(a, b); });
    if (ranges.empty())
      at.stage->local = proto::LocalTerms{*terms_.run.local_steps, std::move(own), kNormBound};
    else
      at.stage->exact = proto::ExactTerms{ranges, std::move(own), terms_.gradient_codec, plan_.shares_slots};
  }
}

std::vector<uint32_t> Assembly::parameters_of_stage(const proto::AssignStage& stage) const {
  std::vector<uint32_t> parameters;
  for (const std::string& name : updated_parameters(stage)) parameters.push_back(parameters_.at(name));
  return parameters;
}

void Assembly::describe(PlannedRun& run) {
  static_cast<proto::RunTerms&>(run) = terms_.run;
  const dag::TrainingSpec& training = run.training;
  run.microbatches = training.microbatches();
  run.explanation = plan_.explanation;
  run.predicted_step = plan_.predicted_step;
  if (terms_.chooses_codecs && std::any_of(plan_.replicas.begin(), plan_.replicas.end(),
                                           [](const plan::Plan& plan) { return !plan.codecs.empty(); }))
    run.gentler = request_.gentler;
  if (training.steps != 0)
    for (const std::string& name : dag::trained_parameters(*terms_.programs.at(ProgramKind::Train).graph))
      parameters_.emplace(name, static_cast<uint32_t>(parameters_.size()));
  run.parameter_count = static_cast<uint32_t>(parameters_.size());
  const ProgramKind forward = training.steps != 0 ? ProgramKind::Evaluate : ProgramKind::Predict;
  if (const auto program = terms_.programs.find(forward); program != terms_.programs.end())
    count_forward(forward, program->second, run);
  else
    run.loss_terms = {};  // nothing is evaluated by them
  describe_peers(run);
}

void Assembly::describe_peers(PlannedRun& run) const {
  for (const StageAtPeer& stage : stages_) {
    if (run.fingerprint.empty()) run.fingerprint = stage.peer.device.fingerprint;
    run.equal_bits = run.equal_bits && stage.peer.device.fingerprint == run.fingerprint;
    for (const proto::StageProgram& program : stage.stage->programs)
      if (program.kind == ProgramKind::Predict && program.graph->find_output(OutputRole::Prediction))
        ++run.prediction_stages;
  }
}

// Values from the checkpoint where it has them, else as submitted; what is beside them from the checkpoint,
// else zero.
Status Assembly::name_tensors(const SavedState& saved, proto::AssignStage& stage) const {
  const StageState state(stage);
  std::set<std::string> named;
  for (const proto::StageProgram& program : stage.programs)
    for (const dag::Initializer& initializer : program.graph->initializers()) {
      if (!named.insert(initializer.name).second) continue;
      const auto* found = saved.find_weight(initializer.name);
      const proto::TensorReference& reference =
          found != nullptr ? *found : terms_.initial->at(initializer.name);
      const dag::TensorSpec& spec = program.graph->spec(initializer.value);
      if (reference.spec != spec && !is_widened(reference.spec, spec))
        return fail(ErrorCode::Corrupted, "the checkpoint's '" + initializer.name + "' is " +
                                              dag::to_string(reference.spec) + ", the model's another");
      if (found == nullptr && terms_.made != nullptr)
        if (const auto how = terms_.made->find(initializer.name); how != terms_.made->end())
          stage.made.push_back({static_cast<uint32_t>(stage.tensors.size()), how->second});
      stage.tensors.push_back(reference);
      state.add_beside(saved, initializer.name, stage.tensors);
    }
  return {};
}

Result<std::shared_ptr<const PlannedRun>> place_stages_again(const StartPlanning& request,
                                                             const JobTerms::Initial* initial,
                                                             uint64_t copy_rate,
                                                             const DrawSecret& draw_secret) {
  auto run = std::make_shared<PlannedRun>(*request.previous);
  run->data_key = draw_secret();
  const SavedState saved(request);
  std::vector<StageAtPeer> stages;
  for (size_t s = 0; s < run->stages.size(); ++s) {
    PlannedStage& planned = run->stages[s];
    auto stage = std::make_shared<proto::AssignStage>(*planned.assignment);
    planned.peer = request.candidates[request.placed[s]].peer;
    stage->plan_version = request.plan_version;
    go_on_from(saved, *stage);
    stage->data_key = run->data_key;
    stage->copy_rate = plan::copy_rate(copy_rate, request.cluster, request.placed[s]);
    WEFT_TRY(stage->tensors, tensors_again(*planned.assignment, saved, initial));
    stage->made = made_again(*planned.assignment, stage->tensors);
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
