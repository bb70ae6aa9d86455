#include "peer/service/work_done.h"

#include <algorithm>

namespace weft::peer {

void WorkCounter::count(const proto::Message& told) {
  if (const auto* step = std::get_if<proto::StepReport>(&told); step != nullptr && step->updated) {
    ++done_.steps;
    done_.seconds_busy += step->seconds_busy;
    for (const proto::LinkUse& link : step->links) done_.bytes_sent += link.bytes_sent;
    steps_[step->run] = step->step;
  } else if (const auto* served = std::get_if<proto::ServeProgress>(&told)) {
    done_.tokens += served->tokens.size();
  } else if (const auto* ready = std::get_if<proto::StageReady>(&told); ready != nullptr && !ready->follows) {
    ++done_.stages;
  }
}

PeerActivity WorkCounter::activity(const Peer& peer) {
  const Session::State state = peer.state();
  PeerActivity activity{.is_joined = state == Session::State::Joined || state == Session::State::Draining,
                        .done = done_};
  for (const Peer::Held& stage : peer.at_work()) {
    const proto::AssignStage& assigned = *stage.assignment;
    const auto step = steps_.find(assigned.run);
    activity.work.push_back({.job = assigned.run,
                             .job_name = assigned.job_name,
                             .submitter = assigned.submitter,
                             .seat = assigned.seat,
                             .stage_count = assigned.stage_count,
                             .serves = assigned.serve.has_value(),
                             .is_ready = stage.ready,
                             .step = step == steps_.end() ? assigned.after_step : step->second});
  }
  std::erase_if(steps_, [&](const auto& entry) {
    return std::ranges::none_of(activity.work, [&](const WorkAtHand& at) { return at.job == entry.first; });
  });
  return activity;
}

}  // namespace weft::peer
