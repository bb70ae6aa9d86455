// When numbers of a run are not finite, and its steps are not to be skipped. Nobody can tell a liar, or a
// machine that computes wrong, from a model that diverged; so the step is done again, once, with somebody
// else in the place of who made the numbers where somebody is free. If the run does not get past that step,
// it is the model.
#include "broker/recovery.h"

namespace weft::broker {

using proto::JobState;

void Recovery::on_diverged(Job& job, const Divergence& divergence) {
  const bool again = divergence.step <= job.losses.diverged_at;
  if (again) return end_diverged(job, divergence.what + ", again after going back");
  if (!divergence.may_pass) return end_diverged(job, divergence.what);
  job.losses.diverged_at = divergence.step;
  if (divergence.stage)
    if (const PeerId& peer = job.crew()->plan->stages[*divergence.stage].peer;
        availability_.can_do_without(job, peer))
      job.losses.excluded.insert(peer);
  recover(job, "not finite: " + divergence.what + "; tried once more", /*counts=*/false);
}

// What came over a link was not finite, or what a stage was to copy. Where the peer is too old to say of
// which step, or says one that it cannot be at: the last that it may be, or, if the run has gone back
// already, again.
void Recovery::on_edge_diverged(Job& job, const std::string& what, const proto::StageFailed& failed) {
  const Run* run = job.running() != nullptr ? job.running()->run.get() : nullptr;
  const uint64_t last = run != nullptr ? run->granted_step() : job.points.step() + 1;
  const bool is_under_way = run != nullptr && failed.step > run->committed_step() && failed.step <= last + 1;
  const uint64_t unknown = job.losses.diverged_at != 0 ? job.losses.diverged_at : last;
  on_diverged(job, {.step = is_under_way ? failed.step : unknown,
                    .stage = failed.unreachable ? job.crew()->plan->find(*failed.unreachable) : std::nullopt,
                    .what = what});
}

void Recovery::end_diverged(Job& job, const std::string& what) {
  job.diverged = true;
  const CheckpointCommitted* kept = job.points.checkpoint();
  phases_.end(job, JobState::Failed,
              "not finite: " + what + ": the model diverged, or who computed it is at fault; " +
                  (kept == nullptr ? "there was no checkpoint yet"
                                   : "the checkpoint of step " + std::to_string(kept->made()) +
                                         " is kept: weft fetch " + job.text()));
}

}  // namespace weft::broker
