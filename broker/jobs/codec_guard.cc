#include "broker/jobs/codec_guard.h"

#include <cstdio>
#include <string>
#include <utility>

#include "plan/noise.h"

namespace weft::broker {

namespace {

// What the codecs of its links gather.
plan::Noise noise_of(const PlannedRun& plan) {
  std::vector<plan::LinkCodec> codecs;
  for (uint32_t s = 0; s < plan.stages.size(); ++s)
    for (const proto::StageProgram& program : plan.stages[s].assignment->programs) {
      if (program.kind != proto::ProgramKind::Train) continue;
      for (const proto::EdgeEnd& end : program.sends) {
        const bool backward = program.graph->producer(end.value).phase == dag::Phase::Backward;
        codecs.push_back({plan.stages[s].assignment->seat.stage, end.stage, backward, end.codec});
      }
    }
  return plan::noise_of(codecs);
}

}  // namespace

// What comparisons of compressed links with dense ones came to. Codecs change as stages do: after a snapshot,
// by a new plan, so that whatever is done again is done with the codecs that it began with.
void guard_codecs(Step& step, JobBook& book, Job& job, const proto::LinkComparison& comparison) {
  char text[200];
  std::snprintf(text, sizeof text, "step=%llu loss=%.6g loss_dense=%.6g gradient_error=%.4g cosine=%.4g",
                static_cast<unsigned long long>(comparison.step), comparison.loss, comparison.loss_dense,
                comparison.gradient_error, comparison.gradient_cosine);
  step.log("info compared job=" + job.text() + " " + text);
  const auto too_much = job.guard.judge(comparison);
  phase::Running& at = *job.running();
  if (!too_much || at.moving || job.stop_requested) return;
  job.guard.begin();
  const PlannedRun& plan = *at.crew.plan;
  const plan::Noise noise = noise_of(plan);
  const bool adds_none = noise.forward == 0 && noise.backward == 0;
  if (!plan.gentler || adds_none) {
    if (!std::exchange(job.harm_said, true))
      book.notice(job, *too_much + (adds_none ? "; they add nothing that could be left out"
                                              : "; the job names their codecs itself"));
    return;
  }
  // So much that at least one link has to become gentler: whatever a peer reports, moves come to an end.
  job.gentler = *plan.gentler + 1;
  while (job.gentler < proto::kGentlerMax &&
         plan::is_within(noise, plan::noise_bound({.gentler = job.gentler})))
    ++job.gentler;
  book.notice(job, *too_much + ": planned anew with gentler codecs");
  at.moving = true;
  for (const PlannedStage& stage : plan.stages) job.move_to.push_back(stage.peer);
}

}  // namespace weft::broker
