// What a run says and makes, kept in its job and in the broker's records: losses and metrics, snapshots,
// predictions, the result. What people should know of it is said in the job's events. Nothing is sent to a
// stage from here, and nothing decided about the run.
#pragma once

#include <cstdint>

#include "broker/jobs/job_book.h"
#include "broker/run/run_effects.h"
#include "broker/step.h"

namespace weft::broker {

class RunRecords {
 public:
  RunRecords(Step& step, JobBook& book) : step_(step), book_(book) {}

  // REQUIRES of each: the job runs.
  void add_event(Job& job, proto::JobEvent event);
  // A step that was done again. Said, the first time, where its bits differ and should not.
  void add_repeated(Job& job, const RepeatedStep& repeated);
  void add_snapshot(Job& job, WholeSnapshot whole);
  // Said once, until a snapshot is whole again.
  void add_upload_failure(Job& job, const UploadFailed& failed);
  void add_prediction(Job& job, proto::PredictionReport report);
  // The run is done after that step: the weights of its last checkpoint, or how many samples were predicted.
  void add_result(Job& job, uint64_t step);

 private:
  Step& step_;
  JobBook& book_;
};

}  // namespace weft::broker
