// What clients are told about jobs, and which blobs they may still ask for.
#include <algorithm>

#include "broker/broker.h"

namespace weft::broker {

using proto::JobState;

// From the first on, whose outputs are all there.
uint32_t Broker::predicted_microbatches(const Job& job, const PlannedRun& plan) {
  std::map<uint32_t, uint32_t> reports;
  for (const auto& report : job.predictions) ++reports[report.microbatch];
  uint32_t count = 0;
  while (reports.contains(count) && reports[count] >= plan.prediction_stages) ++count;
  return count;
}

proto::JobResult Broker::result_of(const Job& job) const {
  proto::JobResult result;
  if (job.result) {
    result = *job.result;
  } else {  // not finished: as far as it is safe
    result.job = job.submitted.job;
    result.step = job.checkpoints.back().step;
    for (const auto& tensor : job.checkpoints.back().tensors)
      if (is_weight(tensor.key.slot)) result.tensors.push_back(tensor);
  }
  for (const proto::PackedFile& file : job.submitted.submission.files)
    if (file.path.rfind("model/", 0) == 0) result.model.push_back(file);
  result.predictions = job.predictions;
  return result;
}

std::set<Digest> Broker::referenced_blobs() const {
  std::set<Digest> blobs;
  const auto add = [&](const std::vector<proto::TensorReference>& tensors) {
    for (const auto& tensor : tensors) blobs.insert(tensor.sha256);
  };
  for (const auto& [number, job] : jobs_) {
    // Of a job that has ended, the model is kept for who fetches it; its data is not.
    for (const proto::PackedFile& file : job.submitted.submission.files)
      if (job.state < JobState::Finished || file.path.rfind("model/", 0) == 0)
        for (const proto::FilePiece& piece : file.pieces)
          if (piece.sha256) blobs.insert(*piece.sha256);
    for (const CheckpointCommitted& checkpoint : job.checkpoints) add(checkpoint.tensors);
    if (job.result) add(job.result->tensors);
    for (const auto& report : job.predictions) add(report.outputs);
    for (const auto& plan : {job.plan, job.previous})
      if (plan)
        for (const PlannedStage& stage : plan->stages) add(stage.assignment->tensors);
  }
  return blobs;
}

std::set<proto::JobNumber> Broker::open_jobs() const {
  std::set<proto::JobNumber> open;
  for (const auto& [number, job] : jobs_)
    if (job.state < JobState::Finished) open.insert(number);
  return open;
}

proto::JobStatus Broker::status_of(const Job& job) const {
  proto::JobStatus status;
  status.job = job.submitted.job;
  status.name = job.submitted.submission.name;
  status.state = job.state;
  status.reason = job.reason;
  status.plan_version = job.plan_version;
  status.step = job.step;
  status.steps = job.steps;
  status.checkpoint_step = job.checkpoints.empty() ? 0 : job.checkpoints.back().step;
  if (const CheckpointCommitted* point = recovery_point(job)) status.recovery_step = point->step;
  status.recoveries = job.recoveries;
  status.equal_bits = job.equal_bits;
  if (job.plan) status.plan = job.plan->explanation;
  if (job.run) {
    status.loss = job.run->last_loss();
    status.samples_per_second = job.run->samples_per_second();
    if (status.samples_per_second > 0)
      status.seconds_left =
          static_cast<double>((job.steps - job.step) * job.plan->batch_size) / status.samples_per_second;
    status.stages = job.run->stages();
    status.comparison = job.run->compared();
    for (proto::StageStatus& stage : status.stages) {
      const Peer& peer = peers_.at(stage.peer);
      stage.peer_name = peer.name;
      stage.region = peer.device.region;
    }
  }
  return status;
}

}  // namespace weft::broker
