#include "broker/service/planner.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "broker/place/assembly.h"
#include "broker/place/pace.h"
#include "broker/pool/candidates.h"
#include "broker/run/local_plan.h"
#include "broker/service/random_secret.h"
#include "broker/service/served_plan.h"
#include "broker/service/submitted_files.h"
#include "dag/lower.h"
#include "dag/op_set.h"
#include "dag/op_table.h"
#include "plan/constraints.h"
#include "plan/explain.h"
#include "plan/follow.h"
#include "plan/owners.h"
#include "plan/plan.h"
#include "proto/codec/codec.h"
#include "train/plan_request.h"
#include "train/prepare.h"

namespace weft::broker {

using proto::ProgramKind;

namespace {

LoweredGraphs lower_for(const dag::Graph& graph, const std::vector<dag::BackendTraits>& classes) {
  LoweredGraphs lowered;
  for (const dag::BackendTraits& traits : classes)
    lowered.push_back(
        std::make_shared<const dag::Lowered>(dag::lower_traced(graph, dag::op_table(), traits)));
  return lowered;
}

Result<std::vector<plan::Pin>> resolve_pins(const configs::Job& job, const dag::Graph& graph,
                                            const plan::ClusterView& cluster) {
  std::vector<plan::Pin> pins;
  for (size_t i = 0; i < job.placement.pins.size(); ++i) {
    auto pin = plan::resolve_pin(job.placement.pins[i], graph, cluster);
    if (!pin)
      return fail(
          job.error(pin.error().code, "placement.pin[" + std::to_string(i) + "]", pin.error().message));
    pins.push_back(std::move(*pin));
  }
  return pins;
}

// Whose inner steps begin where the job did: at a checkpoint that came with it.
std::optional<replicas::LocalSteps> local_steps_of(const JobContext& context, const StartPlanning& request,
                                                   const plan::ReplicasPlan& plan) {
  const configs::Job& job = context.job;
  if (context.steps == 0 || !job.replicas.are_local()) return std::nullopt;
  const auto& beginning = request.submission->beginning;
  replicas::LocalSteps local{job.replicas, context.steps, beginning ? beginning->step : 0};
  local.terms.count = static_cast<uint32_t>(plan.replicas.size());
  local.terms.every = plan.every;
  local.terms.codec = plan.codec;
  local.terms.shares = plan.shares;
  local.terms.followers = plan.followers;
  return go_on_from(std::move(local), request.checkpoint, job.may_grow());
}

// What a plan before chose; shares only where there are as many replicas as then.
void keep_chosen(const replicas::ChosenTerms& chosen, bool may_grow, plan::ReplicasRequest& request) {
  if (!may_grow && !chosen.shares.empty()) request.shares = chosen.shares;
  if (chosen.every == 0) return;
  request.every = chosen.every;
  request.every_max = 0;
  request.codec = chosen.codec;
  request.codecs.clear();
}

Status check_beginning(const proto::SubmitJob& submission, uint64_t steps) {
  const auto& beginning = submission.beginning;
  if (!beginning || beginning->step < steps) return {};
  return fail(ErrorCode::InvalidArgument, "nothing is left to train: the checkpoint is after step " +
                                              std::to_string(beginning->step) + ", and the job has " +
                                              std::to_string(steps) + " steps");
}

JobTerms terms_of(const JobContext& context, const StartPlanning& request, const plan::ReplicasPlan& plan) {
  const configs::Job& job = context.job;
  JobTerms terms;
  terms.run.local_steps = local_steps_of(context, request, plan);
  terms.run.exact_ranges = plan.ranges;
  const auto& local = terms.run.local_steps;
  if (local && job.may_grow()) terms.run.replicas_max = job.replica_choice.count_max;
  terms.run.training = {job, local ? last_inner_step(*local) : context.steps, context.empty_steps};
  terms.run.borders = job;
  if (!job.losses.empty()) terms.run.loss_terms = train::loss_terms_of(job);
  // Weights that each replica updates by itself would come apart on devices of other kinds.
  terms.run.equal_bits_required =
      job.placement.equal_bits == plan::EqualBits::Require || !plan.ranges.empty();
  terms.arithmetic = job.arithmetic;
  terms.chooses_codecs = job.compression.policy == plan::CompressionPolicy::Auto;
  terms.limits_owners = job.placement.owner_share_max < 1;
  if (!plan.ranges.empty()) terms.gradient_codec = job.replicas.codec;
  for (const auto& [kind, program] : context.programs)
    terms.programs[kind] = {&program.graph, program.sample_count};
  terms.initial = &context.initial;
  terms.made = &context.made;
  return terms;
}

std::vector<uint32_t> classes_of_stages(const plan::Plan& plan, const plan::ClusterView& cluster) {
  std::vector<uint32_t> classes;
  classes.reserve(plan.stages.size());
  for (const plan::StagePlan& stage : plan.stages)
    classes.push_back(cluster.devices()[stage.devices.front()].device_class);
  return classes;
}

// Of tensors that are what was submitted.
std::vector<proto::BlobRecipe> recipes_for(const std::vector<proto::TensorReference>& tensors,
                                           const std::vector<proto::BlobRecipe>& all) {
  std::set<Digest> blobs;
  for (const proto::TensorReference& tensor : tensors) blobs.insert(tensor.sha256);
  std::vector<proto::BlobRecipe> recipes;
  std::copy_if(all.begin(), all.end(), std::back_inserter(recipes),
               [&](const proto::BlobRecipe& one) { return blobs.contains(one.sha256); });
  return recipes;
}

// With the bytes of each assignment, which names the job for people. Errors: Unsupported, for what no peer
// could be sent.
Result<std::shared_ptr<const PlannedRun>> encoded(const PlannedRun& planned,
                                                  const proto::SubmitJob& submission) {
  auto run = std::make_shared<PlannedRun>(planned);
  for (PlannedStage& stage : run->stages) {
    proto::AssignStage named = *stage.assignment;
    named.job_name = submission.name;
    named.submitter = submission.submitter;
    named.recipes = recipes_for(named.tensors, submission.recipes);
    stage.assignment = proto::with_bytes(proto::Encoded<proto::AssignStage>(std::move(named)));
    if (stage.assignment.bytes().bytes.size() > proto::kMessageSizeMax)
      return fail(ErrorCode::Unsupported, "a stage's graph takes more than " +
                                              std::to_string(proto::kMessageSizeMax >> 20) +
                                              " MiB without its tensors: its constants are too large");
  }
  return run;
}

// What lowering puts in (Reorder) was there from the first.
std::vector<const dag::Graph*> graphs_of(const JobContext& context) {
  std::vector<const dag::Graph*> graphs;
  graphs.reserve(context.programs.size() + 2);
  for (const auto& [kind, program] : context.programs) graphs.push_back(&program.graph);
  if (!context.served) return graphs;
  graphs.push_back(context.served->model.graph.get());
  if (context.served->draft) graphs.push_back(context.served->draft->model.graph.get());
  return graphs;
}

dag::OpKind newest_op(const std::vector<const dag::Graph*>& graphs) {
  dag::OpKind newest = dag::OpKind::Input;
  for (const dag::Graph* graph : graphs)
    if (const dag::OpKind op = dag::newest_op(*graph); dag::op_set_of(op) > dag::op_set_of(newest))
      newest = op;
  return newest;
}

// Leaves those out whose software does not know the op, and says so; empty: all know it.
std::string leave_out_older(StartPlanning& request, dag::OpKind newest) {
  std::vector<uint32_t> left;
  std::string names;
  for (uint32_t i = 0; i < request.candidates.size(); ++i) {
    const Candidate& candidate = request.candidates[i];
    if (candidate.device.op_set >= dag::op_set_of(newest))
      left.push_back(i);
    else
      names += (names.empty() ? "" : ", ") + candidate.name;
  }
  if (names.empty()) return {};
  keep_only(request, left);
  return "no part for " + names + ": their weft is too old to know " + std::string(to_string(newest)) +
         ", an op of the job's graph";
}

}  // namespace

Status JobPlanner::read_job(const StartPlanning& request) {
  const bool whole =
      context_ && std::all_of(context_->initial.begin(), context_->initial.end(), [&](const auto& entry) {
        // collected while the job waited: made anew
        return blobs_.has(entry.second.sha256);
      });
  // What was chosen for a plan that never ran is chosen anew, for these peers.
  if (whole &&
      (context_->microbatch_choice.empty() || context_->job.microbatch_size == request.microbatch_size))
    return {};
  WEFT_TRY(const OpenedJob opened, open_submission(*request.submission, blobs_, folder_of(request.job)));
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

Result<plan::MicrobatchChoice> JobPlanner::choose_microbatch(const StartPlanning& request,
                                                             const OpenedJob& opened) const {
  WEFT_TRY(const auto sizes, train::microbatch_sizes(opened.job, opened.model));
  const auto classes = classes_of(request.candidates);
  return plan::choose_microbatch_size(sizes, opened.job.batch_size, [&](uint32_t size) -> Result<double> {
    const configs::Job job = opened.job.with_microbatch_size(size);
    WEFT_TRY(const train::Prepared prepared, prepare_main(opened, size));
    WEFT_TRY(const auto plan, make_plan(request, job, prepared.graph, lower_for(prepared.graph, classes)));
    return seconds(plan.predicted_step) / (train::microbatches_at_once(job) * size);
  });
}

Result<plan::ReplicasPlan> JobPlanner::make_plan(const StartPlanning& request, const configs::Job& job,
                                                 const dag::Graph& graph, const LoweredGraphs& lowered,
                                                 bool compares) const {
  plan::PlanRequest asked = train::plan_request(job, graph, lowered, copy_rate_);
  asked.cluster = request.cluster;
  WEFT_TRY(asked.pins, resolve_pins(job, graph, request.cluster));
  asked.compression.gentler = request.gentler;
  if (auto replicas = train::replicas_request(job, asked)) {
    replicas->compares = compares;
    replicas->divides_tensors = request.submission->peer_minor >= proto::kProtocolMinorOfParts;
    if (job.replicas.are_local()) keep_chosen(request.chosen, job.may_grow(), *replicas);
    for (const Candidate& candidate : request.candidates) replicas->before.push_back(candidate.replica);
    // What stays with its replicas takes long to be copied.
    replicas->may_follow = request.may_follow && job.may_grow();
    return plan::make_replicas_plan(*replicas);
  }
  WEFT_TRY(plan::Plan plan, plan::make_plan(asked));
  const auto say = [&](const std::string& gain) {
    if (!gain.empty()) plan.explanation.insert(plan.explanation.begin() + 1, gain);
  };
  say(train::describe_one_pipeline(job, graph));
  if (compares) say(train::describe_replicas_gain(job, graph, asked, plan));
  if (compares && job.task == configs::Task::Train &&
      job.compression.policy == plan::CompressionPolicy::None) {
    // What `auto` would reach, nearly: one plan more, not three.
    asked.compression = {.policy = plan::CompressionPolicy::Uniform,
                         .codec = compress::parse("int6").value()};
    if (const auto other = plan::make_plan(asked)) say(plan::describe_gain(plan, *other));
  }
  return plan::alone(std::move(plan));
}

Result<std::shared_ptr<const PlannedRun>> JobPlanner::plan(const StartPlanning& asked, bool is_first) {
  if (asked.candidates.empty()) return fail(ErrorCode::Infeasible, "no peer is free");
  WEFT_TRY_STATUS(read_job(asked));
  const JobContext& context = *context_;
  StartPlanning request = asked;
  const dag::OpKind newest = newest_op(graphs_of(context));
  const std::string older = leave_out_older(request, newest);
  if (request.candidates.empty()) return fail(ErrorCode::Infeasible, older);
  WEFT_TRY(const std::shared_ptr<const PlannedRun> planned,
           context.served ? plan_served(context, request) : plan_run(request, is_first));
  PlannedRun run = *planned;
  run.op_set = dag::op_set_of(newest);
  if (!older.empty())
    run.explanation.insert(run.explanation.begin() + (run.explanation.empty() ? 0 : 1), older);
  return encoded(run, *request.submission);
}

Result<std::shared_ptr<const PlannedRun>> JobPlanner::plan_run(const StartPlanning& request,
                                                               bool is_first) const {
  const JobContext& context = *context_;
  const bool trains = context.steps != 0;
  const ProgramKind main = trains ? ProgramKind::Train : ProgramKind::Predict;
  const dag::Graph& graph = context.programs.at(main).graph;
  // Cuts fall where no class of the candidates is cut through, so that any of them may take any stage.
  const LoweredGraphs lowered = lower_for(graph, classes_of(request.candidates));
  WEFT_TRY(plan::ReplicasPlan plan, make_plan(request, context.job, graph, lowered, is_first));
  if (!context.microbatch_choice.empty()) plan.explanation.push_back(context.microbatch_choice);
  if (!trains && plan.replicas.front().stages.size() > 1)
    plan.explanation.push_back(
        plan.replicas.front().codecs.empty()
            ? "predictions travel dense, also those of a model that was trained over compressed links: "
              "`compression`, as in its training, predicts as it was evaluated"
            : "predictions are computed over compressed links; a model that was trained over others, or over "
              "dense ones, predicts a little differently");
  if (context.job.replicas.are_local() && trains)
    WEFT_TRY_STATUS(check_beginning(*request.submission, context.steps));
  const JobTerms terms = terms_of(context, request, plan);
  Assembly assembly(request, terms, plan, copy_rate_.value_or(0), random_secret);
  for (uint32_t replica = 0; replica < plan.replicas.size(); ++replica) {
    const plan::Plan& own = plan.replicas[replica];
    WEFT_TRY_STATUS(assembly.add_program(main, own.stage_of_op, lowered,
                                         classes_of_stages(own, request.cluster), replica));
  }
  if (context.programs.contains(ProgramKind::Evaluate))
    WEFT_TRY_STATUS(add_evaluation(request, plan.replicas.front(), assembly));
  return assembly.finish();
}

// On the stages of one replica: where all have agreed, each has the same weights.
Status JobPlanner::add_evaluation(const StartPlanning& request, const plan::Plan& plan,
                                  Assembly& assembly) const {
  const configs::Job& job = context_->job;
  const plan::ClusterView& cluster = request.cluster;
  const dag::Graph& trained = context_->programs.at(ProgramKind::Train).graph;
  const dag::Graph& graph = context_->programs.at(ProgramKind::Evaluate).graph;
  const LoweredGraphs lowered = lower_for(graph, classes_of(request.candidates));
  std::vector<uint32_t> devices;
  devices.reserve(plan.stages.size());
  for (const plan::StagePlan& stage : plan.stages) devices.push_back(stage.devices.front());
  const auto floors = plan::floors_of(job.placement.pins, graph, cluster, devices);
  const std::vector<uint32_t> stage_of_op =
      plan::follow_stages(graph, lowered, trained, plan.stage_of_op, floors);
  // What runs as one there may read a weight of a stage before.
  const plan::PlanRequest evaluates{
      .graph = &graph, .cluster = cluster, .owner_share_max = job.placement.owner_share_max};
  if (const plan::OwnerShares shares(evaluates); !shares.are_kept(stage_of_op, devices))
    return fail(ErrorCode::Infeasible,
                "evaluation would not keep what training does: " + shares.describe(stage_of_op, devices) +
                    "; allow a little more, or evaluate by yourself");
  return assembly.add_program(ProgramKind::Evaluate, stage_of_op, lowered, classes_of_stages(plan, cluster));
}

Status JobPlanner::open(proto::JobNumber job, const proto::SubmitJob& submission, uint32_t microbatch_size) {
  if (context_ && context_->job.microbatch_size == microbatch_size) return {};
  WEFT_TRY(const OpenedJob opened, open_submission(submission, blobs_, folder_of(job)));
  WEFT_TRY(context_, make_job_context(job, opened, microbatch_size, blobs_));
  return check_beginning(submission, context_->steps);
}

proto::JobFeed JobPlanner::feed() const { return feed_of(*context_, folder_of(context_->number)); }

// Whether its tokenizer can be read. The model is looked at when it is planned, in more time.
Result<JobPlanner::Wanted> JobPlanner::check_served(const proto::SubmitJob& submission,
                                                    const configs::Job& job) const {
  WEFT_TRY(const auto tokenizer, submitted_tokenizer(submission, job, blobs_, folder_));
  const int64_t vocabulary = tokenizer ? std::numeric_limits<int64_t>::max() : 256;
  WEFT_TRY_STATUS(train::check_text(job, tokenizer ? &*tokenizer : nullptr, vocabulary));
  const bool has_model = job.serve->draft.kind == plan::DraftKind::Decoder;  // that guesses
  return Wanted{.peer_minor = has_model ? proto::kProtocolMinorOfDrafts : proto::kProtocolMinorOfServing,
                .serves = job.serve->name};
}

namespace {

// The oldest whose peers know all that the job asks of a stage.
uint32_t peer_minor_of(const configs::Job& job) {
  const struct {
    bool asks;
    uint32_t minor;
  } features[] = {
      {job.may_have_empty_steps() || !job.optimizer.groups.empty(), proto::kProtocolMinorOfEmptySteps},
      {job.replicas.are_local(), proto::kProtocolMinorOfLocalSteps},
      {train::may_divide_tensors(job), proto::kProtocolMinorOfParts},
      {job.replicas.fragments > 1, proto::kProtocolMinorOfFragments},
      {train::exact_replicas_max(job) > 1, proto::kProtocolMinorOfExactReplicas},
      {train::exact_replicas_max(job) > 1 && job.replicas.codec.kind != compress::Kind::Dense,
       proto::kProtocolMinorOfCodedGradients},
      {job.optimizer.slots != dag::SlotType::Float32, proto::kProtocolMinorOfCodedSlots},
      {train::exact_replicas_max(job) > 1 && train::shares_slots(job), proto::kProtocolMinorOfSharedSlots},
  };
  uint32_t minor = 0;
  for (const auto& feature : features)
    if (feature.asks) minor = std::max(minor, feature.minor);
  return minor;
}

}  // namespace

Result<JobPlanner::Wanted> JobPlanner::check(const proto::SubmitJob& submission) const {
  WEFT_TRY(const configs::Job job, check_submission(submission, blobs_, folder_));
  if (job.task == configs::Task::Serve) return check_served(submission, job);
  // Rows that are not of the model are refused at once; its weights do not matter for that.
  if (!submission.tensors.empty()) {
    SubmittedModel files(submission, model_path(job, folder_), blobs_);
    WEFT_TRY_STATUS(open_submitted(submission, files, 0));
  }
  return Wanted{.compresses = job.compression.policy != plan::CompressionPolicy::None,
                .arithmetic = job.arithmetic,
                .skips_steps = job.skips_diverged(),
                .peer_minor = peer_minor_of(job)};
}

}  // namespace weft::broker
