// A device that is gone, or does not answer: what becomes of the stage and of the peer.
#include <algorithm>

#include "peer/machine/peer_state.h"

namespace weft::peer {

void Peer::State::give(const HeldStage& stage, const Task& task) {
  constexpr double kSecondsMax = 1e6;  // whatever a plan says
  const double predicted = std::min(stage.assignment->microbatch_seconds, kSecondsMax);
  watch.begin(stage.generation, DeviceWatch::work_of(task),
              std::chrono::duration_cast<Duration>(std::chrono::duration<double>(predicted)));
  out.push_back(RunTask{stage.generation, task});
}

void Peer::State::lose_device(const Error& error) {
  overdue.reset();
  watch = {};  // it is not asked any more
  for (auto& [number, stage] : stages) fail_stage(stage, {ErrorCode::DeviceLost, error.message});
  say("error device_lost reason=\"" + error.message + "\"");
  apply(session.leave(fail(ErrorCode::DeviceLost,
                           error.message + "; start weft join again once the device is back: nothing more "
                                           "can come of it in this process")));
}

// A hang is noticed also when the broker, which sees no progress, takes the stage away first.
void Peer::State::let_device_finish(const HeldStage& stage) {
  if (watch.drop(stage.generation)) out.push_back(AskDevice{});
}

void Peer::State::check_device() {
  if (overdue && watch.awake() >= overdue->until)
    lose_device({ErrorCode::DeviceLost, overdue->error.message + ", and did not answer later"});
  else if (const auto late = overdue ? std::nullopt : watch.overdue())
    step_away(*late);
}

// Whoever wanted to leave anyway does not wait for it.
void Peer::State::step_away(const Error& late) {
  if (session.is_to_leave()) return lose_device(late);
  for (auto& [number, stage] : stages) fail_stage(stage, late);  // asks the device, unless that was done
  say("warning device_overdue reason=\"" + late.message + "\" joins_again=\"when it answers\"");
  drop_stages();
  overdue = Overdue{late, watch.awake() + options.device_patience};
  apply(session.step_away(late.message));
}

void Peer::State::on_device(const Status& answered) {
  watch.answered();
  if (!answered) return lose_device(answered.error());
  if (!overdue) return;
  overdue.reset();
  say("info device_answers joins_again=true");
  apply(session.start(now));
}

}  // namespace weft::peer
