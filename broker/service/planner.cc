#include "broker/service/planner.h"

#include <algorithm>
#include <set>

#include "broker/candidates.h"
#include "broker/service/routes.h"
#include "broker/service/submitted_files.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "dag/recompute.h"
#include "dag/split.h"
#include "plan/constraints.h"
#include "plan/copies.h"
#include "plan/explain.h"
#include "plan/follow.h"
#include "plan/owners.h"
#include "plan/plan.h"
#include "proto/codec/codec.h"

namespace weft::broker {

using dag::OutputRole;
using proto::ProgramKind;

namespace {

using LoweredGraphs = std::vector<std::shared_ptr<const dag::Lowered>>;  // by class

LoweredGraphs lower_for(const dag::Graph& graph, const std::vector<dag::BackendTraits>& classes) {
  LoweredGraphs lowered;
  for (const dag::BackendTraits& traits : classes)
    lowered.push_back(
        std::make_shared<const dag::Lowered>(dag::lower_traced(graph, dag::op_table(), traits)));
  return lowered;
}

// At once, as a plan has it: of a step, or about as many as fill a pipeline.
uint32_t microbatches_of(const configs::Job& job) {
  return job.task == configs::Task::Train ? job.batch_size / job.microbatch_size : 8;
}

Result<std::vector<plan::Pin>> resolve_pins(const configs::Job& job, const dag::Graph& graph,
                                            const plan::ClusterView& cluster) {
  std::vector<plan::Pin> pins;
  for (size_t i = 0; i < job.pins.size(); ++i) {
    auto pin = plan::resolve_pin(job.pins[i], graph, cluster);
    if (!pin)
      return fail(
          job.error(pin.error().code, "placement.pin[" + std::to_string(i) + "]", pin.error().message));
    pins.push_back(std::move(*pin));
  }
  return pins;
}

// Initializers with a gradient, in the order that sums of squares are added in.
std::vector<std::string> parameters_of(const dag::Graph& graph) {
  std::vector<std::string> names;
  for (const dag::Initializer& initializer : graph.initializers())
    if (graph.find_output(OutputRole::Gradient, initializer.name)) names.push_back(initializer.name);
  return names;
}

using Saved = std::map<dag::StateKey, const proto::TensorReference*>;

// Builds the assignments of one planned run.
class Assembly {
 public:
  Assembly(const StartPlanning& request, const JobContext& context, const plan::Plan& plan,
           const std::vector<Candidate>& candidates, uint64_t replication_rate)
      : request_(request), context_(context), plan_(plan), replication_rate_(replication_rate) {
    stages_.resize(plan.stages.size());
    for (size_t s = 0; s < stages_.size(); ++s) {
      stages_[s].peer = candidates[plan.stages[s].devices.front()];
      stages_[s].stage = std::make_shared<proto::AssignStage>();
    }
  }

  // `lowered`: the program's graph by class; `class_of_stage` an index into it.
  Status add_program(ProgramKind kind, const std::vector<uint32_t>& stage_of_op, const LoweredGraphs& lowered,
                     const std::vector<uint32_t>& class_of_stage) {
    const JobContext::Program& program = context_.programs.at(kind);
    // Not every stage has a part in every graph.
    std::set<uint32_t> used(stage_of_op.begin(), stage_of_op.end());
    const std::vector<uint32_t> stage_of_piece(used.begin(), used.end());
    std::vector<uint32_t> piece_of_op;
    for (const uint32_t stage : stage_of_op)
      piece_of_op.push_back(static_cast<uint32_t>(
          std::lower_bound(stage_of_piece.begin(), stage_of_piece.end(), stage) - stage_of_piece.begin()));
    std::vector<const dag::Lowered*> classes;
    std::vector<uint32_t> class_of_piece;
    for (const auto& one : lowered) classes.push_back(one.get());
    for (const uint32_t stage : stage_of_piece) class_of_piece.push_back(class_of_stage[stage]);
    WEFT_TRY(dag::Split split,
             dag::split({&program.graph, piece_of_op, classes, class_of_piece}, dag::op_table()));
    for (uint32_t piece = 0; kind == ProgramKind::Train && piece < split.stages.size(); ++piece)
      if (plan_.stages[stage_of_piece[piece]].recomputes) dag::recompute(split, piece, dag::op_table());
    for (size_t piece = 0; piece < split.stages.size(); ++piece) {
      dag::StageGraph& graph = split.stages[piece];
      proto::StageProgram stage;
      stage.kind = kind;
      stage.segment_of_op = std::move(graph.segment_of_op);
      stage.segment_count = graph.segment_count;
      std::set<uint32_t> received;
      for (uint32_t e = 0; e < split.cut_edges.size(); ++e) {
        const dag::CutEdge& edge = split.cut_edges[e];
        const uint32_t from = stage_of_piece[edge.from_stage], to = stage_of_piece[edge.to_stage];
        const compress::Codec codec = plan::codec_of(
            plan_.codecs, from, to, program.graph.producer(edge.value).phase == dag::Phase::Backward,
            program.graph.spec(edge.value));
        if (edge.to_stage == piece) {
          stage.receives.push_back({e, edge.received, from, codec});
          received.insert(edge.received.index);
        }
        if (edge.from_stage == piece) stage.sends.push_back({e, edge.sent, to, codec});
      }
      for (const dag::ValueId input : graph.graph.inputs())
        if (!received.contains(input.index)) stage.data_inputs.push_back(graph.graph.value(input).name);
      stage.graph = std::make_shared<const dag::Graph>(std::move(graph.graph));
      stages_[stage_of_piece[piece]].stage->programs.push_back(std::move(stage));
    }
    return {};
  }

  Result<std::shared_ptr<const PlannedRun>> finish() {
    auto run = std::make_shared<PlannedRun>();
    describe(*run);
    run->data_key = random_secret();
    for (uint32_t s = 0; s < stages_.size(); ++s) {
      proto::AssignStage& stage = *stages_[s].stage;
      stage.run = request_.job;
      stage.plan_version = request_.plan_version;
      stage.seat = {s};
      stage.stage_count = static_cast<uint32_t>(stages_.size());
      stage.training = training();
      stage.microbatches_in_flight = plan_.stages[s].microbatches_in_flight;
      stage.after_step = request_.checkpoint ? request_.checkpoint->step : 0;
      stage.skipped_steps = request_.checkpoint ? request_.checkpoint->skipped_steps : 0;
      stage.data_key = run->data_key;
      stage.replication_rate =
          plan::copy_rate(replication_rate_, request_.cluster, plan_.stages[s].devices.front());
      stage.device_class = stages_[s].peer.device.device_class();
      stage.arithmetic = context_.job.arithmetic;
      stage.microbatch_seconds = computing_seconds(s);
      WEFT_TRY_STATUS(name_tensors(stage));
    }
    set_links(stages_, *run);
    for (const Stage& stage : stages_) {
      if (proto::encode(*stage.stage).size() > proto::kMessageSizeMax)
        return fail(ErrorCode::Unsupported, "a stage's graph takes more than " +
                                                std::to_string(proto::kMessageSizeMax >> 20) +
                                                " MiB without its tensors: its constants are too large");
      std::vector<uint32_t> parameters;
      for (const proto::StageProgram& program : stage.stage->programs)
        if (program.kind == ProgramKind::Train)
          for (const std::string& name : parameters_of(*program.graph))
            parameters.push_back(static_cast<uint32_t>(
                std::find(parameters_.begin(), parameters_.end(), name) - parameters_.begin()));
      const plan::StagePlan& planned = plan_.stages[stage.stage->seat.stage];
      run->stages.push_back({.peer = stage.peer.peer,
                             .assignment = stage.stage,
                             .parameters = std::move(parameters),
                             .microbatch_seconds = stage.stage->microbatch_seconds,
                             .pinned = planned.pinned,
                             .owner = context_.job.owner_share_max < 1 ? owner_of(stage.peer) : ""});
    }
    return std::shared_ptr<const PlannedRun>(std::move(run));
  }

 private:
  using Stage = StageAtPeer;

  double computing_seconds(size_t stage) const {  // a microbatch
    return seconds(plan_.stages[stage].forward + plan_.stages[stage].backward);
  }

  proto::TrainingSpec training() const {
    const configs::Job& job = context_.job;
    return {.seed = job.seed,
            .batch_size = job.batch_size,
            .microbatch_size = job.microbatch_size,
            .steps = context_.steps,
            .optimizer = job.optimizer,
            .schedule = job.schedule,
            .clip_norm = job.clip_norm,
            .gradient_ranges = job.gradient_ranges,
            .on_divergence = job.on_divergence};
  }

  void describe(PlannedRun& run) {
    const configs::Job& job = context_.job;
    run.steps = context_.steps;
    run.batch_size = job.batch_size;
    run.microbatch_size = job.microbatch_size;
    run.microbatches = job.batch_size / job.microbatch_size;
    run.optimizer = job.optimizer;
    run.schedule = job.schedule;
    run.clip_norm = job.clip_norm;
    run.on_divergence = job.on_divergence;
    run.evaluate_every = job.evaluate_every;
    run.checkpoint_every = job.checkpoint.every;
    run.checkpoint_steps = job.checkpoint.steps;
    run.explanation = plan_.explanation;
    run.predicted_step = plan_.predicted_step;
    if (job.compression.policy == plan::CompressionPolicy::Auto && !plan_.codecs.empty())
      run.gentler = request_.gentler;
    run.equal_bits_required = job.equal_bits == plan::EqualBits::Require;
    if (context_.steps != 0) parameters_ = parameters_of(context_.programs.at(ProgramKind::Train).graph);
    run.parameter_count = static_cast<uint32_t>(parameters_.size());
    const ProgramKind forward = context_.steps != 0 ? ProgramKind::Evaluate : ProgramKind::Predict;
    if (const auto program = context_.programs.find(forward); program != context_.programs.end()) {
      const dag::Graph& graph = program->second.graph;
      const uint64_t samples = program->second.sample_count;
      run.masked = graph.find_output(OutputRole::Counted) != nullptr;
      run.accuracy = graph.find_output(OutputRole::Correct) != nullptr;
      if (!job.losses.empty()) run.loss_terms = dag::loss_terms(job.losses);
      // A loss that the model computes itself cannot leave padding out: a short last microbatch is not
      // evaluated.
      const bool whole_only = forward == ProgramKind::Evaluate && !run.masked;
      run.forward_microbatches =
          static_cast<uint32_t>(whole_only ? samples / job.microbatch_size
                                           : (samples + job.microbatch_size - 1) / job.microbatch_size);
      run.forward_samples = whole_only ? uint64_t{run.forward_microbatches} * job.microbatch_size : samples;
    }
    for (const Stage& stage : stages_) {
      if (run.fingerprint.empty()) run.fingerprint = stage.peer.device.fingerprint;
      run.equal_bits = run.equal_bits && stage.peer.device.fingerprint == run.fingerprint;
      for (const proto::StageProgram& program : stage.stage->programs)
        if (program.kind == ProgramKind::Predict && program.graph->find_output(OutputRole::Prediction))
          ++run.prediction_stages;
    }
  }

  // Values from the checkpoint where it has them, else as submitted; slots from the checkpoint, else zero.
  Status name_tensors(proto::AssignStage& stage) const {
    Saved saved;
    if (request_.checkpoint)
      for (const auto& tensor : request_.checkpoint->tensors) saved[tensor.key] = &tensor;
    std::set<std::string> named;
    for (const proto::StageProgram& program : stage.programs)
      for (const dag::Initializer& initializer : program.graph->initializers()) {
        if (!named.insert(initializer.name).second) continue;
        const auto at = find_weight(saved, initializer.name);
        const proto::TensorReference& reference =
            at != saved.end() ? *at->second : context_.initial.at(initializer.name);
        if (!(reference.spec == program.graph->spec(initializer.value)))
          return fail(ErrorCode::Corrupted, "the checkpoint's '" + initializer.name + "' is " +
                                                dag::to_string(reference.spec) + ", the model's another");
        stage.tensors.push_back(reference);
        for (const dag::StateSlot slot : optimizer_slots(context_.job.optimizer))
          if (const auto found = saved.find(dag::of_initializer(initializer.name, slot));
              found != saved.end())
            stage.tensors.push_back(*found->second);
      }
    return {};
  }

  const StartPlanning& request_;
  const JobContext& context_;
  const plan::Plan& plan_;
  uint64_t replication_rate_;
  std::vector<Stage> stages_;
  std::vector<std::string> parameters_;
};

}  // namespace

Status Planner::read_job(const StartPlanning& request) {
  const bool whole =
      context_ && std::all_of(context_->initial.begin(), context_->initial.end(), [&](const auto& entry) {
        // collected while the job waited: made anew
        return blobs_.has(entry.second.sha256);
      });
  // What was chosen for a plan that never ran is chosen anew, for these peers.
  if (whole &&
      (context_->microbatch_choice.empty() || context_->job.microbatch_size == request.microbatch_size))
    return {};
  WEFT_TRY(const OpenedJob opened, open_submission(request.submission, blobs_, folder_of(request.job)));
  plan::MicrobatchChoice choice{opened.job.microbatch_size, {}};
  if (choice.size == 0) choice.size = request.microbatch_size;
  if (choice.size == 0) {
    WEFT_TRY(choice, choose_microbatch(request, opened));
  }
  WEFT_TRY(const auto context, make_job_context(request.job, opened, choice.size, blobs_));
  context->microbatch_choice = choice.why;
  context_ = context;
  return {};
}

Result<plan::MicrobatchChoice> Planner::choose_microbatch(const StartPlanning& request,
                                                          const OpenedJob& opened) const {
  WEFT_TRY(const auto sizes, train::microbatch_sizes(opened.job, opened.model));
  const auto classes = classes_of(request.candidates);
  return plan::choose_microbatch_size(sizes, opened.job.batch_size, [&](uint32_t size) -> Result<double> {
    const configs::Job job = opened.job.with_microbatch_size(size);
    WEFT_TRY(const train::Prepared prepared, prepare_main(opened, size));
    WEFT_TRY(const auto plan, make_plan(request, job, prepared.graph, lower_for(prepared.graph, classes)));
    return seconds(plan.predicted_step) / (microbatches_of(job) * size);
  });
}

Result<plan::Plan> Planner::make_plan(const StartPlanning& request, const configs::Job& job,
                                      const dag::Graph& graph, const LoweredGraphs& lowered) const {
  const bool trains = job.task == configs::Task::Train;
  WEFT_TRY(std::vector<plan::Pin> pins, resolve_pins(job, graph, request.cluster));
  plan::Compression compression = job.compression;
  compression.gentler = request.gentler;
  return plan::make_plan({.graph = &graph,
                          .classes = lowered,
                          .microbatches = microbatches_of(job),
                          .samples = trains ? job.batch_size : 0,
                          .stages = job.stages,
                          .optimizer_slots = static_cast<uint32_t>(optimizer_slots(job.optimizer).size()),
                          .gradient_sums = job.gradient_ranges > 1 ? 2u : 1u,
                          .clips_norm = trains && job.decides_together(),
                          .evaluates = trains && job.test.has_value(),
                          .copies = trains ? replication_rate_ : std::nullopt,
                          .equal_bits = job.equal_bits,
                          .cluster = request.cluster,
                          .strategy = job.strategy,
                          .pins = std::move(pins),
                          .owner_share_max = job.owner_share_max,
                          .compression = compression});
}

Result<std::shared_ptr<const PlannedRun>> Planner::plan(const StartPlanning& request, bool is_first) {
  if (request.candidates.empty()) return fail(ErrorCode::Infeasible, "no peer is free");
  WEFT_TRY_STATUS(read_job(request));
  const JobContext& context = *context_;
  const bool trains = context.steps != 0;
  const ProgramKind main = trains ? ProgramKind::Train : ProgramKind::Predict;
  const dag::Graph& graph = context.programs.at(main).graph;
  const configs::Job& job = context.job;
  // Cuts fall where no class of the candidates is cut through, so that any of them may take any stage.
  const std::vector<dag::BackendTraits> classes = classes_of(request.candidates);
  const LoweredGraphs lowered = lower_for(graph, classes);
  const plan::ClusterView& cluster = request.cluster;
  WEFT_TRY(plan::Plan plan, make_plan(request, job, graph, lowered));
  if (!context.microbatch_choice.empty()) plan.explanation.push_back(context.microbatch_choice);
  if (is_first && trains && job.compression.policy == plan::CompressionPolicy::None) {
    // What `auto` would reach, nearly: one plan more, not three.
    configs::Job compressed = job;
    compressed.compression = {.policy = plan::CompressionPolicy::Uniform,
                              .codec = compress::parse("int6").value()};
    if (const auto other = make_plan(request, compressed, graph, lowered))
      if (const std::string gain = plan::describe_gain(plan, *other); !gain.empty())
        plan.explanation.insert(plan.explanation.begin() + 1, gain);
  }
  if (!trains && plan.stages.size() > 1)
    plan.explanation.push_back(
        plan.codecs.empty()
            ? "predictions travel dense, also those of a model that was trained over compressed links: "
              "`compression`, as in its training, predicts as it was evaluated"
            : "predictions are computed over compressed links; a model that was trained over others, or over "
              "dense ones, predicts a little differently");
  std::vector<uint32_t> class_of_stage;
  for (const plan::StagePlan& stage : plan.stages)
    class_of_stage.push_back(cluster.devices()[stage.devices.front()].device_class);
  Assembly assembly(request, context, plan, request.candidates, replication_rate_.value_or(0));
  WEFT_TRY_STATUS(assembly.add_program(main, plan.stage_of_op, lowered, class_of_stage));
  if (const auto evaluation = context.programs.find(ProgramKind::Evaluate);
      evaluation != context.programs.end()) {
    const LoweredGraphs followed = lower_for(evaluation->second.graph, classes);
    std::vector<uint32_t> devices;
    for (const plan::StagePlan& stage : plan.stages) devices.push_back(stage.devices.front());
    const auto floors = plan::floors_of(job.pins, evaluation->second.graph, cluster, devices);
    const std::vector<uint32_t> stage_of_op =
        plan::follow_stages(evaluation->second.graph, followed, graph, plan.stage_of_op, floors);
    // What runs as one there may read a weight of a stage before.
    const plan::PlanRequest evaluates{
        .graph = &evaluation->second.graph, .cluster = cluster, .owner_share_max = job.owner_share_max};
    if (const plan::OwnerShares shares(evaluates); !shares.are_kept(stage_of_op, devices))
      return fail(ErrorCode::Infeasible,
                  "evaluation would not keep what training does: " + shares.describe(stage_of_op, devices) +
                      "; allow a little more, or evaluate by yourself");
    WEFT_TRY_STATUS(assembly.add_program(ProgramKind::Evaluate, stage_of_op, followed, class_of_stage));
  }
  return assembly.finish();
}

Status Planner::open(proto::JobNumber job, const proto::SubmitJob& submission, uint32_t microbatch_size) {
  if (context_ && context_->job.microbatch_size == microbatch_size) return {};
  WEFT_TRY(const OpenedJob opened, open_submission(submission, blobs_, folder_of(job)));
  WEFT_TRY(context_, make_job_context(job, opened, microbatch_size, blobs_));
  return {};
}

proto::JobFeed Planner::feed() const { return feed_of(*context_, folder_of(context_->number)); }

Result<Planner::Wanted> Planner::check(const proto::SubmitJob& submission) const {
  WEFT_TRY(const configs::Job job, check_submission(submission, blobs_, folder_));
  return Wanted{job.compression.policy != plan::CompressionPolicy::None, job.arithmetic,
                job.on_divergence == dag::OnDivergence::Skip};
}

}  // namespace weft::broker
