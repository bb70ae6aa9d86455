// What must be true whatever happens, looked at after every event that could change it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "broker/records.h"
#include "sim/disk.h"
#include "sim/model.h"
#include "sim/plain_laws.h"
#include "sim/replica_laws.h"
#include "sim/runner.h"
#include "sim/sent_stages.h"
#include "sim/world.h"

namespace weft::sim {

class Checkers {
 public:
  // `specs` outlives this; a submission's job text is the index of its spec.
  Checkers(World& world, const SimStore& store, const SimBlobs& blobs, const std::vector<JobSpec>& specs,
           size_t script_max);

  const JobSpec* spec_of(proto::JobNumber job) const;

  // The broker's records have become durable.
  void on_durable(std::span<const broker::Record> records);
  // A message is on its way from the broker to a peer's connection (a number never used again).
  void on_sent(const PeerId& peer, uint64_t connection, const proto::Message& message);
  void on_connection_ended(uint64_t connection) { sent_.on_connection_ended(connection); }
  void on_broker_started();
  // A user has been told.
  void on_accepted(proto::JobNumber job);
  void on_peers_published(const proto::PeerList& peers, Duration lease);
  // A job's stage was made ready from these tensors at a peer.
  void on_stage_loaded(const proto::AssignStage& assignment);
  void on_tensor_used(const proto::AssignStage& assignment, const proto::TensorHeader& header);
  // A peer says how a step's time went.
  void on_step_report(const proto::StepReport& report);
  void on_peer_memory(size_t blobs);
  // A stage of a replica has agreed with those of the others.
  void on_agreed(const proto::AssignStage& assignment, uint64_t step, const HashRunner& runner);
  // A peer said so. Who refuses to add up what a replica sent: one of that is a liar, or it is one itself.
  void on_heard(const PeerId& peer, const proto::Message& message);
  // Until then broker restarts are the only faults: no run may lose its plan.
  void expect_only_restarts(bool only);
  // No run may lose more by liars than what was done since its last checkpoint, their means included.
  void expect_liars(std::set<PeerId> liars, std::set<std::string> names, bool of_means) {
    lie_about_means_ = of_means;
    liars_ = std::move(liars);
    liar_names_ = std::move(names);
  }

  struct Counts {
    uint64_t steps = 0, redone = 0, plans = 0, recoveries = 0, checkpoints = 0, resumed = 0, waits = 0,
             refused = 0, differences_refused = 0;
  };
  const Counts& counts() const { return counts_; }
  ReplicaLaws::Counts replica_counts() const;  // of all jobs
  // Committed so far.
  uint64_t step_of(proto::JobNumber job) const;
  bool only_restarts() const { return only_restarts_; }

 private:
  struct Job {
    uint32_t spec = 0;
    std::unique_ptr<PlainLaws> plain;
    std::unique_ptr<ReplicaLaws> replicas;  // in place of those, where it has some
    uint64_t last_event = 0, committed = 0, evaluated = 0, checkpointed = 0;
    std::map<proto::PlanVersion, std::map<plan::Seat, PeerId>> owners;
    proto::PlanVersion plan = 0, command_plan = 0;
    uint64_t command = 0;  // sequence of the last durable one
    bool accepted = false, ended = false;
    bool for_speed = false;  // it gets a new plan because something is slow: with restarts alone, too
    std::set<uint32_t> predicted;
  };

  void on_event(const proto::JobEvent& event);
  void on_changed(const broker::JobChanged& r);
  void on_prediction(const broker::PredictionCommitted& r);
  void on_run(const broker::RunStarted& r);
  void on_command(const broker::CommandIssued& r);
  void on_checkpoint(const broker::CheckpointCommitted& checkpoint);
  void on_result(proto::JobNumber number, const proto::JobResult& result);
  void check_tensors(proto::JobNumber number, uint64_t step, std::span<const proto::TensorReference> tensors,
                     const char* where);
  void on_training_step(Job& job, const proto::JobEvent& event);
  void on_evaluation(Job& job, const proto::JobEvent& event);
  void on_assigned(const PeerId& peer, uint64_t connection, const proto::AssignStage& m);
  void check_command_sent(uint64_t connection, const proto::Command& m);
  void fail(proto::JobNumber job, const std::string& what);
  void fail_if(proto::JobNumber job, const ReplicaLaws::Complaint& complaint) {
    if (complaint) fail(job, *complaint);
  }

  size_t script_max_;
  World& world_;
  const SimStore& store_;
  const SimBlobs& blobs_;
  const std::vector<JobSpec>& specs_;
  std::map<proto::JobNumber, Job> jobs_;
  SentStages sent_;
  Counts counts_;
  bool only_restarts_ = false;
  std::set<PeerId> liars_;
  std::set<std::string> liar_names_;  // as notices have them
  bool lie_about_means_ = false;
  size_t peer_blobs_max_ = 0;
};

}  // namespace weft::sim
