#include "peer/service/serve_runner.h"

#include <algorithm>

#include "dag/op_table.h"
#include "peer/backend/host/host_memory.h"
#include "peer/backend/reference/reference_kernels.h"
#include "peer/machine/serve_requests.h"
#include "peer/service/serve_draft.h"

namespace weft::peer {

using proto::ServeEnd;
using proto::ServeProgress;

namespace {

constexpr double kRowCostAlone = 1.0 / 7;  // of a stage that has no links: its rows take computing alone

static_assert(kServeHistoryPasses == serve::kHistoryNumbers);
constexpr double kBytesMost = 1e18;  // of what an assignment says; more has no room anywhere

uint64_t behind_history(uint64_t plan_version) {
  return serve::numbers_of(plan_version) + serve::kHistoryNumbers - 1;
}

serve::RingOptions options_of(const proto::ServeProgram& program, uint64_t plan_version) {
  return {.rows_max = program.rows_max,
          .passes_max = program.passes_max,
          .sequences_max = program.sequences_max,
          .positions_max = static_cast<int64_t>(program.positions_max),
          .waiting_max = ServeRequests::kWaitingMax,
          .kept_positions_max = static_cast<int64_t>(program.kept_positions_max),
          .numbers_behind = behind_history(plan_version)};
}

// Of a ring of one stage, which has no links: itself.
PeerId peer_behind(const proto::AssignStage& assignment) {
  for (const proto::LinkRoute& link : assignment.links)
    if (link.seat == ServeScript::behind(assignment)) return link.peer;
  return {};
}

serve::Request request_of(const proto::ServeRequest& request) {
  return {.prompt = request.tokens,
          .tokens_max = static_cast<int64_t>(request.tokens_max),
          .sampling = {.temperature = request.temperature,
                       .top_p = request.top_p,
                       .top_k = static_cast<int64_t>(request.top_k),
                       .seed = request.seed,
                       .alternatives = request.alternatives ? int64_t{*request.alternatives} : -1},
          .ends = request.ends};
}

ServeEnd end_of(serve::Finish finish) {
  switch (finish) {
    case serve::Finish::Stop:
      return ServeEnd::Stop;
    case serve::Finish::Length:
      return ServeEnd::Length;
    case serve::Finish::Cancelled:
      return ServeEnd::Cancelled;
    case serve::Finish::Failed:
      break;
  }
  return ServeEnd::Failed;
}

proto::ServedToken token_of(const serve::Draw& draw) {
  return {draw.token, draw.log_probability, draw.alternatives};
}

Result<dag::Weights> weights_of(const proto::AssignStage& assignment,
                                const StageRunner::TensorSource& tensors) {
  dag::Weights weights;
  for (const proto::TensorReference& reference : assignment.tensors)
    if (dag::is_weight(reference.key.slot)) {
      WEFT_TRY(weights[reference.key.name], tensors(reference));
    }
  return weights;
}

Status check_ranges(const std::vector<dag::PartRange>& ranges, uint32_t parts) {
  for (const dag::PartRange& range : ranges)
    if (range.begin >= range.end || range.end > parts)
      return fail(ErrorCode::InvalidArgument, "parts " + std::to_string(range.begin) + " to " +
                                                  std::to_string(range.end) + " of a model that has " +
                                                  std::to_string(parts));
  return {};
}

std::map<std::string, dag::TensorSpec> weights_read(const dag::Incremental& model,
                                                    const std::vector<dag::PartRange>& ranges) {
  std::map<std::string, dag::TensorSpec> read;
  for (const dag::PartRange& range : ranges)
    for (uint32_t part = range.begin; part < range.end; ++part) {
      const dag::Graph graph = part % 2 == 0 ? model.rows(part / 2, 1) : model.attending(part / 2, 1, 1);
      for (const dag::Initializer& initializer : graph.initializers())
        read.emplace(initializer.name, graph.spec(initializer.value));
    }
  return read;
}

// There may be no room for them twice: each is let go of while it is written.
Status move_to_device(const std::map<std::string, dag::TensorSpec>& read, dag::Weights& weights,
                      State& state) {
  std::vector<State::Claim> claims;
  for (const auto& [name, spec] : read)
    if (weights.contains(name)) claims.push_back({dag::of_initializer(name), spec});
  WEFT_TRY_STATUS(state.claim(claims));
  for (const State::Claim& claim : claims) {
    const auto taken = weights.extract(claim.key.name);
    const dag::Tensor& tensor = taken.mapped();
    WEFT_TRY_STATUS(state.write(claim.key, tensor, [&](std::span<const std::byte> bytes) {
      if (!tensor.is_shared()) give_up_contents(bytes);
    }));
  }
  return {};
}

// Of all positions that may be granted. No more than that: the plan has found room for so many.
int64_t bytes_of_caches(const proto::ServeProgram& program, const serve::Stage& stage, int64_t context) {
  const double positions =
      std::min(static_cast<double>(program.positions_max),
               static_cast<double>(program.sequences_max) * static_cast<double>(context));
  const double bytes = static_cast<double>(stage.bytes_of(context).value) / static_cast<double>(context);
  return static_cast<int64_t>(std::min(positions * bytes, kBytesMost));
}

// Of all rows that may be kept, as they go to the stage behind. One that is alone sends nothing.
int64_t bytes_of_kept_rows(const proto::ServeProgram& program, const dag::Incremental& model) {
  const uint32_t end = program.ranges.front().end;
  if (end == serve::part_count(model)) return 0;
  double bytes = 0;
  for (const dag::RowSpec& row : serve::rows_before(model, end))
    bytes += static_cast<double>(dag::TensorSpec{row.dtype, {row.width}}.bytes().value);
  return static_cast<int64_t>(std::min(static_cast<double>(program.kept_positions_max) * bytes, kBytesMost));
}

}  // namespace

Result<std::unique_ptr<ServeRunner>> ServeRunner::create(std::shared_ptr<const proto::AssignStage> assignment,
                                                         const StageRunner::TensorSource& tensors,
                                                         Backend& backend) {
  std::unique_ptr<ServeRunner> runner(new ServeRunner(std::move(assignment), backend));
  WEFT_TRY_STATUS(runner->load(tensors));
  return runner;
}

Status ServeRunner::load(const StageRunner::TensorSource& tensors) {
  const proto::ServeProgram& program = *assignment_->serve;
  WEFT_TRY(const MemoryUse before, backend_.memory());
  WEFT_TRY(dag::Weights weights, weights_of(*assignment_, tensors));
  WEFT_TRY(auto derived, dag::Incremental::derive(program.graph, dag::op_table(),
                                                  {.tokens = program.tokens,
                                                   .logits = program.logits,
                                                   .evaluate = evaluate_reference,
                                                   .weights = &weights}));
  const auto model = std::make_shared<const dag::Incremental>(std::move(derived));
  WEFT_TRY_STATUS(check_ranges(program.ranges, serve::part_count(*model)));
  WEFT_TRY(const EntryDraft draft, make_draft(program, model->logits().width, weights, backend_));
  const auto state = std::make_shared<State>(backend_);
  WEFT_TRY_STATUS(move_to_device(weights_read(*model, program.ranges), weights, *state));
  WEFT_TRY(auto stage, serve::Stage::create(model, program.ranges, weights, state, program.rows_max));
  WEFT_TRY(const MemoryUse after, backend_.memory());
  bytes_ = draft.caches +
           Bytes{after.used.value - before.used.value + bytes_of_caches(program, *stage, model->context())};
  kept_bytes_ = {bytes_of_kept_rows(program, *model)};
  return make_ring(model, std::move(stage), draft.draft);
}

Status ServeRunner::make_ring(std::shared_ptr<const dag::Incremental> model,
                              std::unique_ptr<serve::Stage> stage, std::shared_ptr<serve::Draft> draft) {
  const proto::ServeProgram& program = *assignment_->serve;
  serve::RingOptions options = options_of(program, assignment_->plan_version);
  options.draft = std::move(draft);
  if (program.draft) options.passes_shared = program.draft->passes_shared;
  if (assignment_->stage_count == 1) options.row_cost = kRowCostAlone;
  if (assignment_->seat.stage == 0) {
    WEFT_TRY(entry_, serve::RingEntry::create(std::move(model), program.ranges, std::move(stage), options));
  } else {
    WEFT_TRY(stage_,
             serve::RingStage::create(std::move(model), program.ranges.front(), std::move(stage), options));
  }
  return {};
}

void ServeRunner::take_over(std::shared_ptr<const proto::AssignStage> assignment) {
  const bool same_behind = peer_behind(*assignment) == peer_behind(*assignment_);
  assignment_ = std::move(assignment);
  last_sent_ = 0;
  spoilt_ = {};
  for (ServeProgress& told : told_) told.plan_version = assignment_->plan_version;
  if (entry_)
    entry_->resume(same_behind, behind_history(assignment_->plan_version));
  else
    stage_->resume(same_behind);
}

const std::vector<dag::RowSpec>& ServeRunner::edges() const {
  return entry_ ? entry_->edges_in() : stage_->edges_in();
}

// ---- requests

ServeProgress& ServeRunner::told_of(uint64_t request, uint64_t first) {
  if (told_.empty() || told_.back().request != request)
    told_.push_back({.run = assignment_->run,
                     .plan_version = assignment_->plan_version,
                     .request = request,
                     .first = first});
  return told_.back();
}

void ServeRunner::on_end(uint64_t request, uint64_t first, ServeEnd end, const Status& status) {
  ids_.erase(request);
  ServeProgress& told = told_of(request, first);
  told.end = end;
  if (!status) told.error = status.error();
}

void ServeRunner::count(const serve::Engine::Tick& tick) {
  guesses_ += static_cast<uint32_t>(tick.guessed);
  guesses_right_ += static_cast<uint32_t>(tick.accepted);
  if (tick.rows == 0) return;
  ++load_.passes;
  load_.rows += static_cast<uint32_t>(tick.rows);
}

// A guess may be known to be right before its own pass has come round, where it is counted.
void ServeRunner::tell_guesses() {
  if (told_.empty()) return;
  ServeProgress& told = told_.front();
  told.guesses = std::exchange(guesses_, 0);
  told.guesses_right = std::min(told.guesses, guesses_right_);
  guesses_right_ -= told.guesses_right;
}

void ServeRunner::add(const proto::ServeRequest& request) {
  if (!entry_) return;
  const uint64_t number = request.request;
  const auto next = std::make_shared<uint64_t>(request.tokens.size());  // position
  serve::Listener listener{.on_token =
                               [this, number, next](const serve::Generated& generated) {
                                 told_of(number, *next).tokens.push_back(token_of(generated.draw));
                                 ++*next;
                                 return true;
                               },
                           .on_end =
                               [this, number, next](serve::Finish finish, const Status& status) {
                                 on_end(number, *next, end_of(finish), status);
                               }};
  const auto added = entry_->add(request_of(request), std::move(listener));
  if (added)
    ids_[number] = *added;
  else
    on_end(number, *next, ServeEnd::Failed, fail(added.error()));
}

void ServeRunner::cancel(uint64_t request) {
  if (const auto id = ids_.find(request); entry_ && id != ids_.end()) entry_->cancel(id->second);
}

// ---- passes

Result<TaskOutcome> ServeRunner::run(const Task& task, Tensors tensors, const Send& send) {
  if (failed_) return fail(ErrorCode::Cancelled, "a task before this one failed");
  TaskOutcome outcome;
  WEFT_TRY(const auto busy, backend_.start_timer());
  const Status done = run_now(task, std::move(tensors), send, outcome);
  failed_ = !done;
  if (failed_) return fail(done.error());
  WEFT_TRY_STATUS(busy->stop());
  WEFT_TRY(outcome.busy, busy->elapsed());
  tell_guesses();
  outcome.served = std::exchange(told_, {});
  if (!entry_) return outcome;
  outcome.under_way = static_cast<uint32_t>(entry_->under_way());
  outcome.load = std::exchange(load_, {});
  outcome.load.positions = static_cast<uint64_t>(entry_->positions());
  outcome.load.under_way = outcome.under_way;
  return outcome;
}

Status ServeRunner::run_now(const Task& task, Tensors tensors, const Send& send, TaskOutcome& outcome) {
  if (task.kind == TaskKind::Pass) {
    WEFT_TRY(const serve::Pass pass, pass_of(task.key.step, std::move(tensors)));
    WEFT_TRY_STATUS(spoilt_.look_at(pass));
    if (stage_) return run_stage(pass, send);
    WEFT_TRY(const auto tick, entry_->finish(pass));
    count(tick);
  }
  return entry_ ? begin(send, outcome) : Status{};
}

// The entry has no use for history.
Status ServeRunner::run_stage(const serve::Pass& pass, const Send& send) {
  const auto goes_on = [&](const serve::Pass& out) {
    return !out.pieces.empty() &&
           !(serve::is_history(out.pieces) && ServeScript::behind(*assignment_) == plan::Seat{});
  };
  for (const serve::Pass& before : stage_->history(pass))
    if (goes_on(before)) pass_on(before, stage_->edges_out(), send);
  WEFT_TRY(const serve::Pass out, stage_->run(pass));
  if (goes_on(out)) pass_on(out, stage_->edges_out(), send);
  return {};
}

// One that is alone computes a pass at a time, so that requests are heard in between.
Status ServeRunner::begin(const Send& send, TaskOutcome& outcome) {
  for (;;) {
    WEFT_TRY(const serve::RingEntry::Step step, entry_->next());
    for (const serve::Pass& before : step.history) pass_on(before, entry_->edges_out(), send);
    if (step.send) pass_on(*step.send, entry_->edges_out(), send);
    count(step.tick);
    if (step.tick.idle) return {};
    if (!entry_->is_alone()) continue;
    outcome.more = true;
    return {};
  }
}

// Where a pass has nothing but ends, no rows belong to it; it comes over each edge all the same.
Result<serve::Pass> ServeRunner::pass_of(uint64_t number, Tensors tensors) const {
  const serve::PassLimits limits = entry_ ? entry_->limits() : stage_->limits();
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  if (tensors.size() != edges().size()) return fail(ErrorCode::Internal, "a pass that is not whole");
  std::vector<dag::Tensor> by_edge;
  for (auto& [edge, tensor] : tensors) by_edge.push_back(std::move(tensor));
  WEFT_TRY(const auto pieces, serve::pieces_from(by_edge.front(), limits));
  const size_t count = serve::edge_count(pieces, edges());
  for (size_t edge = count; edge < by_edge.size(); ++edge)
    if (by_edge[edge].element_count() != 0)
      return fail(ErrorCode::InvalidArgument, "rows of a pass that has nothing but ends");
  return serve::pass_from(numbers() + number, std::span(by_edge).first(count), edges(), limits);
}

void ServeRunner::pass_on(const serve::Pass& pass, std::span<const dag::RowSpec> edges, const Send& send) {
  std::vector<dag::Tensor> tensors = serve::tensors_of(pass, edges);
  for (size_t edge = tensors.size(); edge < edges.size(); ++edge)
    tensors.emplace_back(dag::TensorSpec{edges[edge].dtype, {0, edges[edge].width}});
  proto::TensorHeader header{.run = assignment_->run,
                             .plan_version = assignment_->plan_version,
                             .step = pass.number - numbers(),
                             .microbatch = static_cast<uint32_t>(pass.number - numbers() - last_sent_),
                             .program = proto::ProgramKind::Serve,
                             .replica = static_cast<uint16_t>(assignment_->seat.replica)};
  last_sent_ = header.step;
  for (const dag::Tensor& tensor : tensors) {
    header.spec = tensor.spec();
    send(header, tensor);
    ++header.edge;
  }
}

}  // namespace weft::peer
