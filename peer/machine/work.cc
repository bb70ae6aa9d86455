// The stage at work: what comes for it, and what it does next.
#include "peer/machine/peer_state.h"

namespace weft::peer {

namespace {
// The data itself is wrong, for every peer.
bool is_permanent(ErrorCode code) { return code == ErrorCode::OutOfRange || code == ErrorCode::Corrupted; }
}  // namespace

void Peer::State::on_command(const proto::Command& command) {
  if (!stage || stage->failed || !stage->is_of(command)) return;
  const Status status = stage->ready
                            ? stage->machine.on_command(command)
                            : fail(ErrorCode::InvalidArgument, "a command before the stage was ready");
  if (!status) return fail_stage(status.error().within("the broker breaks the protocol"));
  end_lending();
  stage->reports.trim(stage->machine.committed(), stage->machine.settled());
  uploads.drop_snapshots(stage->machine.settled());
  if (snapshots.run() == command.run) snapshots.forget(stage->machine.keep_from());
  work();
}

void Peer::State::on_norm(const proto::GradientNorm& norm) {
  if (!stage || stage->failed || !stage->is_of(norm)) return;
  const Status status = stage->machine.on_norm(norm);
  if (!status) return fail_stage(status.error().within("the broker breaks the protocol"));
  work();
}

bool Peer::State::on_tensor(const plan::Seat& from, const proto::TensorHeader& header) {
  if (!stage->is_of(header)) return false;
  const Status status = stage->machine.on_tensor(from, header);
  if (!status) {
    fail_stage(status.error().within(plan::to_string(from) + " breaks the protocol"), from);
    return false;
  }
  work();
  return true;
}

void Peer::State::ask_data() {
  if (!stage || stage->failed || !stage->is_heard || !pauses.is_over(now)) return;
  for (auto& [key, data] : stage->data)
    if (!std::exchange(data.asked, true)) out.push_back(FetchData{stage->generation, key});
}

void Peer::State::on_data(const MicrobatchKey& key, const Result<uint64_t>& sample_position) {
  const auto at = stage->data.find(key);
  if (at == stage->data.end()) return;
  if (sample_position) {
    stage->data.erase(at);
    const Status status = stage->machine.on_data(key, *sample_position);
    if (!status) return fail_stage(status.error());
    return work();
  }
  if (!stage->is_heard || !at->second.asked) return;  // asked for again once the broker is back
  const Error& error = sample_position.error();
  if (pauses.try_again(now, ++at->second.attempts, error.code))
    at->second.asked = false;
  else
    fail_stage(error.within("data of step " + std::to_string(key.step)), {}, is_permanent(error.code));
}

void Peer::State::on_task_done(const Task& task, const Result<TaskOutcome>& outcome) {
  if (!outcome) return fail_stage(outcome.error());
  stage->machine.on_task_done(now, task, *outcome);
  if (task.kind == TaskKind::Snapshot) uploads.expect_hashes();
  for (proto::Message& message : stage->machine.take_reports()) {
    report(task.sequence, std::move(message));
    if (stage->failed) return;
  }
  work();
}

void Peer::State::work() {
  if (!stage || !stage->ready || stage->failed) return;
  for (const MicrobatchKey& key : stage->machine.fetches()) stage->data[key] = {};
  ask_data();
  if (auto finished = stage->machine.take_finished(); !finished.empty())
    out.push_back(DropMicrobatches{std::move(finished)});
  while (!uploads_are_full()) {
    if (stage->machine.copies_next()) {
      make_room_for_copy();
      shelf.forget_unnamed(out);
    }
    const auto task = stage->machine.next_task(now, has_room_for_copy());
    if (!task) return;
    give(*task);
  }
}

}  // namespace weft::peer
