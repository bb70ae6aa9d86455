// The broker's core: who is there, which jobs wait, which runs go on, and what to do when somebody is gone. A
// state machine without I/O: the same object serves in the broker's process, in simulation and in replay.
//
// Specification, with what a peer can achieve at most by breaking it:
// - A connection is nobody until its Hello was granted; anything else before that closes it.
// - A peer serves one run at a time, under one plan version. What it reports for another is dropped and
// counted.
// - A peer whose connection ends, or from which nothing was heard for a lease, is lost to its run at once:
// the run goes
//   back to its last checkpoint with peers from the pool. A hostile peer can so cost a run at most what was
//   done since the last checkpoint, each time it is admitted to one; a job that makes no step over
//   `failures_max` such losses ends.
// - Jobs are served in the order in which they came, as far as there are peers for them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "broker/events.h"
#include "broker/run.h"

namespace weft::broker {

struct BrokerOptions {
  std::string name = "broker";
  std::string software;  // version
  Duration heartbeat_interval = std::chrono::seconds(2);
  Duration lease = std::chrono::seconds(10);
  // Deadlines; what has to be sent gets the time it takes at `slowest_bytes_per_second` on top.
  Duration loading_deadline = std::chrono::seconds(300);  // from assignment to every stage ready
  // Of a running run: for the next step (or twenty predicted ones, whatever is longer), for a part of a
  // checkpoint, for each request of an evaluation or prediction.
  Duration stall_deadline = std::chrono::seconds(60);
  double slowest_bytes_per_second = 125e3;
  uint32_t failures_max = 10;  // of a job without a step between them
  size_t jobs_max = 1000;      // queued and running
  size_t clients_max = 256;
  RunOptions run{};
};

class Broker {
 public:
  Broker(BrokerOptions options, const StoredState& state);

  // REQUIRES: now never goes backwards. Ticks come about twice a second.
  Effects step(Now now, const Event& event);

  struct Counters {
    uint64_t stale_dropped = 0;    // messages of a plan that is no more
    uint64_t protocol_errors = 0;  // connections closed for them
    uint64_t evicted = 0;          // leases that ran out
  };
  const Counters& counters() const { return counters_; }

  // What the core still speaks of: blobs of submissions that may be planned again or fetched, of checkpoints,
  // results and predictions. Others may go. The initial values of a job that goes on are not among them: they
  // are made anew.
  std::set<Digest> referenced_blobs() const;
  // Jobs that go on: their unpacked files are needed.
  std::set<proto::JobNumber> open_jobs() const;

 private:
  struct Peer {
    PeerId id;
    std::string name;
    std::string software;
    proto::DeviceReport device;
    std::optional<ConnectionId> connection;  // nothing: gone
    Instant last_heard;
    bool draining = false;
    bool other_version = false;
    std::optional<proto::JobNumber> serving;
  };
  struct Job {
    JobSubmitted submitted;
    proto::JobState state = proto::JobState::Queued;
    std::string reason;
    proto::PlanVersion plan_version = 0;
    uint64_t steps = 0, step = 0;
    std::vector<CheckpointCommitted> checkpoints;
    std::vector<proto::PredictionReport> predictions;  // each stage's of each microbatch once
    std::optional<proto::JobResult> result;
    uint64_t last_event = 0;
    // While it has peers:
    std::shared_ptr<const PlannedRun> plan;
    std::vector<bool> ready;  // by stage
    std::unique_ptr<Run> run;
    Instant since;                // of the state
    bool stop_requested = false;  // by its user
    bool moving = false;          // stops at a checkpoint to go on with other peers
    uint64_t recoveries = 0;
    uint32_t failures = 0;  // since the last step or checkpoint
    uint64_t failures_at_step = 0;
    std::set<PeerId> excluded;                   // could not take a stage of this job
    uint64_t infeasible_with = 0;                // the pool for which there was no plan
    std::optional<std::string> equal_bits_with;  // the fingerprint so far
    bool equal_bits = true;
    bool status_dirty = true;
    std::optional<proto::JobState> published;
  };
  class Sink;

  // Peers (membership.cc)
  void on_introduced(const Introduced& event);
  void refuse(ConnectionId connection, ErrorCode code, std::string message);
  void admit_peer(const Introduced& event);
  std::string free_name(const std::string& wanted, const PeerId& id) const;
  void on_disconnected(const Disconnected& event);
  void lose_peer(Peer& peer, const std::string& why);
  void check_leases();
  void publish_peers();
  proto::PeerStatus status_of(const Peer& peer) const;
  std::vector<Candidate> candidates(const Job& job) const;

  // Messages
  void on_received(const Received& event);
  void on_peer_message(Peer& peer, const proto::Message& message);
  void on_client_message(ConnectionId client, const proto::Message& message);
  void protocol_error(Peer& peer, const std::string& what);
  Job* job_of(Peer& peer, proto::JobNumber run, proto::PlanVersion version, uint32_t& stage);

  // Jobs (jobs.cc)
  void on_submission(const SubmissionChecked& event);
  void on_planned(const PlanningDone& event);
  void on_stage_ready(Job& job, uint32_t stage);
  void on_stage_failed(Job& job, uint32_t stage, Peer& peer, const proto::StageFailed& failed);
  void schedule_jobs();
  void start_planning(Job& job, std::vector<Candidate> free);
  void release_peers(Job& job, const std::string& reason);
  void recover(Job& job, const std::string& reason);
  void end_job(Job& job, proto::JobState state, const std::string& reason);
  void stop_job(Job& job);
  void check_progress();
  Duration transfer_time(const PlannedRun& plan) const;
  Duration stall_deadline(const Run& run) const;
  void set_state(Job& job, proto::JobState state, std::string reason);
  void notice(Job& job, std::string text);
  void emit(Job& job, proto::JobEvent event);
  proto::JobStatus status_of(const Job& job) const;
  proto::JobResult result_of(const Job& job) const;
  static uint32_t predicted_microbatches(const Job& job);

  void send(ConnectionId connection, proto::Message message);
  void send_to_peer(const PeerId& peer, proto::Message message);
  void log(std::string line) { out_->effects.push_back(Log{std::move(line)}); }

  BrokerOptions options_;
  std::map<PeerId, Peer> peers_;
  std::map<ConnectionId, PeerId> peer_of_connection_;
  std::set<ConnectionId> clients_;
  std::map<PeerId, std::set<proto::Role>> known_;  // admitted keys
  std::map<proto::JobNumber, Job> jobs_;
  Counters counters_;
  bool peers_dirty_ = true;
  uint64_t ticks_ = 0;
  uint64_t pool_version_ = 1;  // one more whenever somebody may be free who was not
  Now now_;
  Effects* out_ = nullptr;  // of the step under way
};

}  // namespace weft::broker
