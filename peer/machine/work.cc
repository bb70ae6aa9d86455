// The stage at work: what comes for it, and what it does next.
#include "peer/machine/peer_state.h"

namespace weft::peer {

namespace {
// The data itself is wrong, for every peer.
bool is_permanent(ErrorCode code) { return code == ErrorCode::OutOfRange || code == ErrorCode::Corrupted; }
// A pass that is none, which only shows in what its tensors hold.
bool is_of_sender(const Task& task, ErrorCode code) {
  return task.kind == TaskKind::Pass && (code == ErrorCode::InvalidArgument || is_permanent(code));
}
}  // namespace

void Peer::State::on_command(const proto::Command& command) {
  HeldStage* stage = find_of(command);
  if (stage == nullptr || stage->failed) return;
  const Status status = stage->ready
                            ? stage->machine.on_command(command)
                            : fail(ErrorCode::InvalidArgument, "a command before the stage was ready");
  if (!status) return fail_stage(*stage, status.error().within("the broker breaks the protocol"));
  for (proto::Message& message : stage->machine.take_reports()) {  // of what is carried out at once
    report(*stage, command.sequence, std::move(message));
    if (stage->failed) return;
  }
  if (!is_followed(*stage->assignment)) end_lending(*stage);
  stage->reports.trim(stage->machine.committed(), stage->machine.settled());
  stage->uploads.drop_snapshots(stage->machine.settled());
  snapshots_of(command.run).forget(stage->machine.keep_from());
  work(*stage);
}

void Peer::State::on_norm(const proto::GradientNorm& norm) {
  HeldStage* stage = find_of(norm);
  if (stage == nullptr || stage->failed) return;
  const Status status = stage->machine.on_norm(norm);
  if (!status) return fail_stage(*stage, status.error().within("the broker breaks the protocol"));
  work(*stage);
}

bool Peer::State::on_tensor(HeldStage& stage, const plan::Seat& from, const proto::TensorHeader& header) {
  if (!stage.is_of(header) || stage.machine.passes_over(from, header)) return false;
  const Status status = stage.machine.on_tensor(from, header);
  if (!status) {
    fail_stage(stage, status.error().within(plan::to_string(from) + " breaks the protocol"),
               {.unreachable = from});
    return false;
  }
  if (stage.assignment->serve) end_lending(stage);
  work(stage);
  return true;
}

void Peer::State::ask_data() {
  if (!pauses.is_over(now)) return;
  for (auto& [number, stage] : stages) {
    if (stage.failed || !stage.is_heard) continue;
    for (auto& [key, data] : stage.data)
      if (!std::exchange(data.asked, true)) out.push_back(FetchData{stage.generation, key});
  }
}

void Peer::State::on_data(HeldStage& stage, const MicrobatchKey& key,
                          const Result<uint64_t>& sample_position) {
  const auto at = stage.data.find(key);
  if (at == stage.data.end()) return;
  if (sample_position) {
    stage.data.erase(at);
    stage.machine.on_data(key, *sample_position);
    return work(stage);
  }
  if (!stage.is_heard || !at->second.asked) return;  // asked for again once the broker is back
  const Error& error = sample_position.error();
  if (pauses.try_again(now, ++at->second.attempts, error.code))
    at->second.asked = false;
  else
    fail_stage(stage, error.within("data of step " + std::to_string(key.step)),
               {.permanent = is_permanent(error.code)});
}

void Peer::State::on_task_done(uint64_t of_generation, const Task& task, const Result<TaskOutcome>& outcome) {
  if (find(of_generation) != nullptr) watch.end(of_generation);
  HeldStage* stage = find_at_work(of_generation);
  if (stage == nullptr) return on_earlier_task(of_generation, outcome);
  stage->is_spoilt = !outcome;
  if (!outcome && is_of_sender(task, outcome.error().code)) {
    const plan::Seat from = ServeScript::before(*stage->assignment);
    return fail_stage(*stage, outcome.error().within(plan::to_string(from) + " breaks the protocol"),
                      {.unreachable = from});
  }
  if (!outcome) return fail_stage(*stage, outcome.error());
  stage->machine.on_task_done(now, task, *outcome);
  tell_served(*stage);
  if (task.kind == TaskKind::Snapshot) stage->uploads.expect_hashes();
  for (proto::Message& message : stage->machine.take_reports()) {
    report(*stage, task.sequence, std::move(message));
    if (stage->failed) return;
  }
  work(*stage);
}

void Peer::State::work(HeldStage& stage) {
  if (!stage.ready || stage.failed) return;
  for (const MicrobatchKey& key : stage.machine.fetches()) stage.data[key] = {};
  ask_data();
  if (auto finished = stage.machine.take_finished(); !finished.empty())
    out.push_back(DropMicrobatches{stage.generation, std::move(finished)});
  while (!uploads_are_full(stage)) {
    if (stage.machine.copies_next()) {
      make_room_for_copy(stage);
      shelf.forget_unnamed(out);
    }
    const auto task = stage.machine.next_task(now, has_room_for_copy(stage));
    // Of steps that have no task: a replica with a small share makes none of its own.
    for (proto::Message& message : stage.machine.take_reports()) {
      report(stage, stage.machine.last_sequence(), std::move(message));
      if (stage.failed) return;
    }
    if (!task) return;
    give(stage, *task);
  }
}

}  // namespace weft::peer
