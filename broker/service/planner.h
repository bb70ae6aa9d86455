// From a job and the peers at hand to a run that can be assigned: lowers for each class of device, plans,
// cuts the graphs, names tensors, routes and tickets. Runs in a process of its own (plan_worker.h), for it
// reads what strangers wrote; takes what is random from the system.
#pragma once

#include <filesystem>
#include <optional>

#include "broker/events.h"
#include "broker/service/job_context.h"
#include "dag/lower.h"
#include "plan/microbatch.h"
#include "plan/replicas.h"

namespace weft::broker {

class Assembly;

// Of one job, once it was asked for one. One thread.
class JobPlanner {
 public:
  // `folder`: where jobs have their files, a folder each. `blobs` outlives this. `copy_rate`: nothing
  // when state is not copied while steps are made.
  JobPlanner(std::filesystem::path folder, storage::BlobStore& blobs, std::optional<uint64_t> copy_rate)
      : folder_(std::move(folder)), blobs_(blobs), copy_rate_(copy_rate) {}

  // Whether it is a job, and then what of it decides which peers suit it.
  struct Wanted {
    bool compresses = false;  // its links may have codecs
    dag::Arithmetic arithmetic = dag::Arithmetic::F32;
    bool skips_steps = false;  // that diverge
    uint32_t peer_minor = 0;   // of the oldest protocol whose peers can serve it
    std::string serves{};      // under which name; empty: it does not
  };
  Result<Wanted> check(const proto::SubmitJob& submission) const;
  // Made anew, whatever ran before. `is_first`: nothing did, and people are told what else there is to
  // choose. Errors: Infeasible when these candidates cannot run it (others may), anything else when nobody
  // can.
  Result<std::shared_ptr<const PlannedRun>> plan(const StartPlanning& request, bool is_first);
  // Reads the job for a run that goes on, with the microbatches that it had; nothing is planned.
  Status open(proto::JobNumber job, const proto::SubmitJob& submission, uint32_t microbatch_size);
  // What feeds the job that was planned or opened. REQUIRES: one was.
  proto::JobFeed feed() const;

 private:
  Result<Wanted> check_served(const proto::SubmitJob& submission, const configs::Job& job) const;
  // Reads the job unless it is at hand; where it leaves the size of a microbatch open, chooses.
  Status read_job(const StartPlanning& request);
  Result<plan::MicrobatchChoice> choose_microbatch(const StartPlanning& request,
                                                   const OpenedJob& opened) const;
  using Classes = std::vector<std::shared_ptr<const dag::Lowered>>;
  // `compares`: people are told what there is to gain.
  Result<plan::ReplicasPlan> make_plan(const StartPlanning& request, const configs::Job& job,
                                       const dag::Graph& graph, const Classes& lowered,
                                       bool compares = false) const;
  // Of a job that does not serve.
  Result<std::shared_ptr<const PlannedRun>> plan_run(const StartPlanning& request, bool is_first) const;
  Status add_evaluation(const StartPlanning& request, const plan::Plan& plan, Assembly& assembly) const;
  std::filesystem::path folder_of(proto::JobNumber job) const { return folder_ / std::to_string(job); }

  std::filesystem::path folder_;
  storage::BlobStore& blobs_;
  std::optional<uint64_t> copy_rate_;
  std::shared_ptr<const JobContext> context_;
};

}  // namespace weft::broker
