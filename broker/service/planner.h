// From a job and the peers at hand to a run that can be assigned: lowers for each class of device, plans,
// cuts the graphs, names tensors, routes and tickets. Runs on the planner's thread; takes what is random from
// the system.
#pragma once

#include <filesystem>
#include <optional>

#include "broker/events.h"
#include "broker/service/job_context.h"
#include "dag/lower.h"
#include "plan/microbatch.h"
#include "plan/plan.h"

namespace weft::broker {

class Planner {
 public:
  // `folder`: where jobs are unpacked, one folder each. Both outlive this. `replication_rate`: nothing when
  // state is not copied while steps are made.
  Planner(std::filesystem::path folder, storage::BlobStore& blobs, JobContexts& contexts,
          std::optional<uint64_t> replication_rate)
      : folder_(std::move(folder)), blobs_(blobs), contexts_(contexts), replication_rate_(replication_rate) {}

  // Errors: Infeasible when these candidates cannot run it (others may), anything else when nobody can.
  Result<std::shared_ptr<const PlannedRun>> plan(const StartPlanning& request);
  // Nothing is written, and no assignment is of use: how a run that goes on compares with what would be
  // planned. Errors: as of plan, and Unavailable when the job is not at hand.
  Result<Reconsidered::Other> reconsider(const Reconsider& request);
  // Whether it is a job, and then what of it decides which peers suit it.
  struct Wanted {
    bool compresses = false;  // its links may have codecs
    dag::Arithmetic arithmetic = dag::Arithmetic::F32;
    bool skips_steps = false;  // that diverge
  };
  Result<Wanted> check(const proto::SubmitJob& submission);
  // The job's data for a run that goes on after a restart of the broker, with the microbatches that it had;
  // nothing is planned.
  Status open_data(proto::JobNumber job, const proto::SubmitJob& submission, uint32_t microbatch_size);

 private:
  Result<std::shared_ptr<const PlannedRun>> place_again(const StartPlanning& request);
  // Reads the job unless it is at hand; where it leaves the size of a microbatch open, chooses.
  Result<std::shared_ptr<const JobContext>> context_for(const StartPlanning& request);
  Result<plan::MicrobatchChoice> choose_microbatch(const StartPlanning& request,
                                                   const OpenedJob& opened) const;
  Result<plan::Plan> make_plan(const StartPlanning& request, const configs::Job& job, const dag::Graph& graph,
                               const std::vector<std::shared_ptr<const dag::Lowered>>& lowered) const;
  Result<std::shared_ptr<const PlannedRun>> plan_anew(const StartPlanning& request,
                                                      const JobContext& context) const;

  std::filesystem::path folder_;
  storage::BlobStore& blobs_;
  JobContexts& contexts_;
  std::optional<uint64_t> replication_rate_;
};

}  // namespace weft::broker
