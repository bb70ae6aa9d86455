#include "peer/machine/serve_script.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace weft::peer {

using proto::ProgramKind;

namespace {
tl::unexpected<Error> refuse(const std::string& what) { return fail(ErrorCode::InvalidArgument, what); }

std::string name_of(const proto::TensorHeader& header) {
  return "edge " + std::to_string(header.edge) + " of pass " + std::to_string(header.step);
}
}  // namespace

Status check_serve_tensor(const proto::TensorHeader& header, const proto::ServeProgram& serve,
                          const std::vector<dag::RowSpec>& edges) {
  if (header.edge >= edges.size()) return refuse(name_of(header) + ": no such edge comes here");
  const dag::RowSpec& edge = edges[header.edge];
  const int64_t least = header.edge == 0 ? 1 : 0;
  const int64_t most = header.edge == 0 ? kServePiecesMax : int64_t{serve.rows_max};
  const dag::Shape& shape = header.spec.shape;
  if (header.spec.dtype != edge.dtype || shape.size() != 2 || shape[1] != edge.width || shape[0] < least ||
      shape[0] > most)
    return refuse(name_of(header) + ": it is " + dag::to_string(header.spec) + ", expected at most " +
                  dag::to_string(dag::TensorSpec{edge.dtype, {most, edge.width}}));
  if (header.codec.kind != compress::Kind::Dense || header.direction != proto::Direction::Forward)
    return refuse(name_of(header) + ": it comes as " + compress::name(header.codec) + ", or backward");
  return {};
}

// ---- the ring

plan::Seat ServeScript::before(const proto::AssignStage& assignment) {
  return {(assignment.seat.stage + assignment.stage_count - 1) % assignment.stage_count, 0};
}

plan::Seat ServeScript::behind(const proto::AssignStage& assignment) {
  return {(assignment.seat.stage + 1) % assignment.stage_count, 0};
}

Status ServeScript::check(const proto::AssignStage& assignment) {
  const uint32_t count = assignment.stage_count;
  if (count == 0 || assignment.seat.stage >= count || assignment.seat.replica != 0)
    return refuse("a stage that has no place in a ring");
  const size_t ranges = assignment.seat.stage == 0 && count > 1 ? 2 : 1;
  if (assignment.serve->ranges.size() != ranges)
    return refuse(std::to_string(assignment.serve->ranges.size()) + " ranges of parts, expected " +
                  std::to_string(ranges));
  for (const plan::Seat& seat : {before(assignment), behind(assignment)})
    if (count > 1 && std::none_of(assignment.links.begin(), assignment.links.end(),
                                  [&](const proto::LinkRoute& link) { return link.seat == seat; }))
      return refuse("no link to " + plan::to_string(seat) + ", which is a neighbour in the ring");
  return {};
}

ServeScript::ServeScript(std::shared_ptr<const proto::AssignStage> assignment, const Options& options)
    : assignment_(std::move(assignment)), options_(options) {
  if (assignment_->seat.stage == 0) requests_.emplace(*assignment_);
}

// ---- what comes

Status ServeScript::check_number(const proto::TensorHeader& header) const {
  const uint64_t pass = header.step;
  if (pass <= last_) return refuse(name_of(header) + ": the pass has come before, or one behind it");
  if (header.microbatch == 0 || header.microbatch > pass - last_)
    return refuse(name_of(header) + ": the pass cannot be " + std::to_string(header.microbatch) +
                  " behind the one before it");
  const auto partial = partial_.find(pass);
  if (partial == partial_.end()) return check_room(header);
  if (partial->second.behind != header.microbatch)
    return refuse(name_of(header) + ": two edges say different things of the pass before it");
  if (partial->second.edges.contains(header.edge)) return refuse(name_of(header) + " came twice");
  return {};
}

Status ServeScript::check_room(const proto::TensorHeader& header) const {
  const proto::ServeProgram& serve = *assignment_->serve;
  const bool is_history = header.step < kServeHistoryPasses;
  const auto is_alike = [&](uint64_t pass) { return (pass < kServeHistoryPasses) == is_history; };
  const auto waiting = static_cast<uint64_t>(
      std::count_if(whole_.begin(), whole_.end(), is_alike) +
      std::count_if(partial_.begin(), partial_.end(), [&](const auto& one) { return is_alike(one.first); }));
  const uint64_t most = is_history ? serve.positions_max / std::max(serve.rows_max, 1u) : serve.passes_max;
  if (waiting <= most) return {};
  return refuse(name_of(header) + ": " + std::to_string(waiting) + " passes wait here already, and " +
                std::to_string(most) + " may be under way");
}

Status ServeScript::on_tensor(const plan::Seat& from, const proto::TensorHeader& header) {
  if (header.program != ProgramKind::Serve) return refuse("a tensor of no pass");
  if (!edges_) return refuse("a pass before the stage was ready");
  if (assignment_->stage_count == 1 || from != before(*assignment_))
    return refuse("a pass from a stage that is not before this one");
  WEFT_TRY_STATUS(check_serve_tensor(header, *assignment_->serve, *edges_));
  WEFT_TRY_STATUS(check_number(header));
  PartialPass& partial = partial_[header.step];
  partial.behind = header.microbatch;
  partial.edges.insert(header.edge);
  line_up();
  return {};
}

void ServeScript::line_up() {
  for (auto first = partial_.begin(); first != partial_.end(); first = partial_.erase(first)) {
    const auto& [pass, partial] = *first;
    if (pass - partial.behind != last_ || partial.edges.size() < edges_->size()) return;
    whole_.push_back(pass);
    last_ = pass;
  }
}

Result<bool> ServeScript::on_request(Instant now, const proto::ServeRequest& request) {
  if (!requests_) return refuse("a request to a stage that is not the entry");
  if (request.tokens.empty()) return refuse("a request without a token to start from");
  if (request.tokens_max == 0) return on_cancel({request.run, request.plan_version, request.request});
  const bool is_new = requests_->add(now, request);
  begins_ = std::exchange(goes_on_, false) || begins_ || is_new;
  return is_new;
}

void ServeScript::take_over(std::optional<ServeRequests> requests) {
  requests_ = std::move(requests);
  goes_on_ = requests_.has_value();
  if (requests_) requests_->take_over(*assignment_);
}

void ServeScript::on_earlier_task(Instant now, const TaskOutcome& outcome) {
  for (const proto::ServeProgress& progress : outcome.served)
    if (requests_) requests_->on_progress(now, progress);
  if (requests_) requests_->on_load(outcome.load);
}

std::vector<uint64_t> ServeScript::take_unwanted(Instant now) {
  std::vector<uint64_t> unwanted = requests_ ? requests_->take_unwanted(now) : std::vector<uint64_t>{};
  begins_ = begins_ || !unwanted.empty();
  return unwanted;
}

Result<bool> ServeScript::on_cancel(const proto::CancelRequest& cancel) {
  if (!requests_) return refuse("a request to a stage that is not the entry");
  const bool is_open = requests_->is_open(cancel.request);
  begins_ = std::exchange(goes_on_, false) || begins_ || is_open;
  return is_open;
}

Status ServeScript::on_tick(Instant now) {
  if (requests_) requests_->on_tick(now);
  if (!round_since_ || now - *round_since_ < options_.round_deadline) return {};
  return fail(ErrorCode::Timeout, "no pass has come round for " +
                                      std::to_string(static_cast<int64_t>(seconds(now - *round_since_))) +
                                      " s");
}

void ServeScript::on_resumed() {
  if (requests_) requests_->tell_all();
}

// ---- tasks

std::optional<Task> ServeScript::next_task() {
  if (tasks_.size() >= options_.tasks_ahead) return std::nullopt;
  Task task{.kind = TaskKind::Pass, .key = {ProgramKind::Serve, 0, 0}};
  if (!whole_.empty()) {
    task.key.step = whole_.front();
    whole_.pop_front();
  } else if (std::exchange(begins_, false)) {
    task.kind = TaskKind::Begin;
  } else {
    return std::nullopt;
  }
  tasks_.push_back(task);
  return task;
}

void ServeScript::on_task_done(Instant now, const Task& task, const TaskOutcome& outcome) {
  WEFT_CHECK(!tasks_.empty() && tasks_.front().kind == task.kind && tasks_.front().key == task.key);
  tasks_.pop_front();
  begins_ = begins_ || outcome.more;
  if (outcome.under_way == 0)
    round_since_.reset();
  else if (task.kind == TaskKind::Pass || !round_since_)
    round_since_ = now;
  on_earlier_task(now, outcome);
}

std::vector<proto::ServeProgress> ServeScript::take_progress() {
  return requests_ ? requests_->take() : std::vector<proto::ServeProgress>{};
}

}  // namespace weft::peer
