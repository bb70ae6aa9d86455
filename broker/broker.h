// The broker's core: who is there, which jobs wait, which runs go on, and what to do when somebody is gone. A
// state machine without I/O: the same object serves in the broker's process, in simulation and in replay.
//
// Specification, with what a peer can achieve at most by breaking it:
// - A connection is nobody until its Hello was granted; anything else before that closes it.
// - A peer serves one run at a time, under one plan version. What it reports for another is dropped and
// counted.
// - A peer whose connection ends, or from which nothing was heard for a lease, is lost to its run at once:
//   the run goes back to its last snapshot, and other peers take the stages that were lost (recovery.cc,
//   placement.h). A hostile peer can so cost a run at most what was done since the last snapshot, each time
//   it is admitted to one, or, by saying that a snapshot cannot be had, since the one before; a job that
//   makes no step over `failures_max` such losses ends.
// - A copy that went straight to who stands by is with peers alone (direct_copies.cc). Who says that it has
//   one and has not costs the run what was done since the copy that the broker has, once.
// - A broker that was restarted goes on with the runs that it finds in its records, as soon as their peers
//   come back (restart.cc). Until a stage has resumed what its peer says about it is dropped.
// - Peers that have nothing to do hold the tensors of stages that they may have to take (stand_by.cc), and
//   measure the links between them in rounds, of each of which a peer is in one pair (probes.cc). A report
//   counts for the pair and round that were asked; by lying a peer makes its own links look better or worse,
//   and by silence it costs a round and is left alone for a while.
// - A run that goes on is planned anew now and then, under what is believed by now, and moves after a
//   snapshot where that pays (replan.cc, drift.h).
// - Jobs are served in the order in which they came, as far as there are peers for them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "broker/drift.h"
#include "broker/events.h"
#include "broker/guard.h"
#include "broker/link_book.h"
#include "broker/placement.h"
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
  // After a restart, for the peers of a run to come back; then the run goes back to its recovery point.
  Duration return_deadline = std::chrono::seconds(10);
  // What snapshots and stand-bys may take of one peer's link, bytes a second; 0: no limit.
  uint64_t replication_rate = 12'500'000;
  bool replicates = true;  // false: a lost peer takes its run back to the last checkpoint
  // Copies of states that no commit waits for go from the stages straight to the peers that stand by.
  bool copies_go_direct = true;
  // A stage that needs `slow_factor` times what was promised, and as many times what the others need of
  // theirs, over at least `slow_after` of computing, is given to another peer. Stages of which less than
  // `slow_promise_min` seconds a microbatch was promised are not judged: they are mostly overhead.
  double slow_factor = 10;
  Duration slow_after = std::chrono::seconds(5);
  // A job that waits for peers for so long tries those again that failed it.
  Duration forgive_after = std::chrono::seconds(60);
  double slow_promise_min = 0.5e-3;
  // false: links are taken as the regions' names suggest.
  bool measures_links = false;
  Duration measuring_max = std::chrono::seconds(20);  // how long a job waits for that
  std::function<proto::Secret()> draw_secret{};       // where links are measured: for the relay
  size_t jobs_max = 1000;                             // queued and running
  size_t clients_max = 256;
  RunOptions run{};
  DriftOptions drift{};
};

class Broker {
 public:
  Broker(BrokerOptions options, const StoredState& state);

  // REQUIRES: now never goes backwards. Ticks come about twice a second.
  Effects step(Now now, const Event& event);

  struct Counters {
    uint64_t stale_dropped = 0;    // messages of a plan that is no more, or of a stage that has not resumed
    uint64_t repeats_dropped = 0;  // reports that a stage which came back made before
    uint64_t protocol_errors = 0;  // connections closed for them
    uint64_t evicted = 0;          // leases that ran out
    uint64_t substitutions = 0;    // recoveries in which only peers changed
  };
  const Counters& counters() const { return counters_; }

  // What the core still speaks of: blobs of submissions that may be planned again or fetched, of checkpoints,
  // results and predictions. Others may go. The initial values of a job that goes on are not among them: they
  // are made anew.
  std::set<Digest> referenced_blobs() const;
  // Jobs that go on: their unpacked files are needed.
  std::set<proto::JobNumber> open_jobs() const;
  proto::JobStatus status(proto::JobNumber job) const { return status_of(jobs_.at(job)); }

 private:
  // What a peer of the pool was told to hold of a run.
  struct Standing {
    uint64_t step = 0;
    uint64_t list = 0;  // its number
    std::vector<uint32_t> stages;
    bool is_direct = false;            // it fetches from the stages themselves
    std::optional<uint64_t> complete;  // all tensors of this step are there
    bool holds(uint32_t stage, uint64_t of_step) const {
      return complete == of_step && std::find(stages.begin(), stages.end(), stage) != stages.end();
    }
  };
  struct Peer {
    PeerId id;
    std::string name;
    std::string software;
    proto::DeviceReport device;
    std::optional<ConnectionId> connection;  // nothing: gone
    uint64_t instance = 0;
    uint32_t minor = 0;  // of the protocol
    std::string address;
    Instant last_heard;
    bool draining = false;
    bool device_lost = false;  // it said so: it goes, and with it what it holds
    bool other_version = false;
    std::optional<proto::JobNumber> serving;
    std::map<proto::JobNumber, Standing> standing;
    std::optional<double> times{};  // its tasks took so many times what its rates promise
    std::optional<Instant> said_at{};  // a line of its own went into the log
  };
  // A stage of the plan that a job has.
  struct Seat {
    bool ready = false;
    bool here = true;    // false: its peer has to resume it first
    int64_t memory = 0;  // what it takes on a device, as its peer said
    // What was computed until the window began, and until now (recovery.cc).
    uint64_t segments_before = 0, segments = 0;
    double busy_before = 0, busy = 0;
    double slowness = 0;  // of the last whole window: times what was promised
    double times = 1;     // as it was planned with
    bool work_said = false, slowness_said = false;
    std::set<proto::Secret> relays_waiting;  // somebody waits for it there; it is told when it is back
  };
  struct Job {
    JobSubmitted submitted;
    proto::JobState state = proto::JobState::Queued;
    std::string reason;
    proto::PlanVersion plan_version = 0;
    proto::PlanVersion recorded_version = 0;  // of the last JobChanged
    uint64_t steps = 0, step = 0;
    uint32_t microbatch_size = 0;                  // of the first run that started; every other keeps it
    std::vector<CheckpointCommitted> checkpoints;  // newest last
    std::optional<CheckpointCommitted> round;      // newer than those; does not survive the broker
    bool round_is_direct = false;                  // the broker has it not: peers do
    // Once its run has ended, who has each blob of a direct round.
    std::map<Digest, std::set<PeerId>> holders;
    bool copies_go_direct = false;                       // every stage has somebody who can fetch its copies
    bool direct_said = false;                            // that they do
    std::optional<CheckpointCommitted> round_at_broker;  // the last one, before direct ones
    std::set<Digest> round_before;                     // blobs of the round before: somebody may be fetching
    std::vector<proto::PredictionReport> predictions;  // each stage's of each microbatch once
    std::optional<proto::JobResult> result;
    uint64_t last_event = 0;
    uint64_t recorded_step = 0, evaluated_step = 0;  // of the event log
    std::map<std::string, double> metrics;           // of the last evaluation
    std::map<uint64_t, double> losses;               // of recorded steps that may have to be done again
    // While it has peers:
    std::shared_ptr<const PlannedRun> plan;
    std::vector<Seat> seats;           // by stage
    std::vector<int64_t> stage_bytes;  // by stage, of its state
    std::unique_ptr<Run> run;
    std::optional<Instant> away_since;  // stages have to resume
    bool restarted = false;             // because the broker was
    // The broker ended while the job was planned, and nothing of it was planned since: perhaps it was the
    // planning that ended it. And that for the second time.
    bool was_being_planned = false, ends_brokers = false;
    // The plan before, for which peers are sought.
    std::shared_ptr<const PlannedRun> previous;
    std::vector<int64_t> previous_memory;  // by stage
    bool placing_again = false;            // the planning under way is of it
    uint64_t unplaceable_with = 0;         // the pool for which the planner refused to place it again
    Instant since;                         // of the state
    bool stop_requested = false;           // by its user
    bool moving = false;                   // stops after a snapshot to go on with other peers
    std::vector<PeerId> move_to;           // with these, planned anew; empty: because one leaves
    Drift drift;
    Guard guard;
    uint32_t gentler = 0;  // links, because of what the guard said
    Duration loading_took{};
    uint64_t recoveries = 0;
    std::optional<Instant> lost_at;  // until the first step after a loss
    uint32_t failures = 0;           // since the last step or checkpoint
    uint64_t failures_at_step = 0;
    uint32_t stalls = 0;                         // times that it made no progress within its deadline
    std::set<PeerId> excluded;                   // could not take a stage of this job
    std::optional<Instant> forgive_at;           // while it waits: when they may try again
    std::optional<Instant> measuring_since;      // while it waits for links
    uint64_t infeasible_with = 0;                // the pool for which there was no plan
    std::optional<std::string> equal_bits_with;  // the fingerprint so far
    bool equal_bits = true;
    bool upload_failure_said = false, difference_said = false, harm_said = false;
    bool diverged = false;
    bool judged_alone = false;  // a peer was replaced for being slow, with nothing to compare it with
    bool status_dirty = true;
    std::optional<proto::JobState> published;

    bool excludes(const std::string& peer) const;  // by its user's wish
    bool may_send(const Peer& peer) const;         // it reads what the job's links carry
    bool suits(const Peer& peer) const;            // and its device computes as the job wants
  };
  class Sink;
  // Two peers that measure the link between them.
  struct PairProbe {
    PeerId dials, accepts;
    proto::Secret ticket{};
    bool dialler_said = false, acceptor_said = false, measured = false;
  };
  struct ProbeRound {
    uint64_t number = 0;
    Instant deadline;
    std::vector<PairProbe> probes;
  };

  // Peers (membership.cc)
  void on_introduced(const Introduced& event);
  void refuse(ConnectionId connection, ErrorCode code, std::string message, bool retry = false);
  void admit_peer(const Introduced& event);
  std::string free_name(const std::string& wanted, const PeerId& id) const;
  void on_disconnected(const Disconnected& event);
  void lose_peer(Peer& peer, const std::string& why);
  void check_leases();
  void publish_peers();
  proto::PeerStatus status_of(const Peer& peer) const;
  // Who is free for the job; with `own`, also who serves it now.
  std::vector<Candidate> candidates(const Job& job, bool own = false) const;
  std::optional<std::string> why_not(const Peer& peer, const Job& job, bool own) const;
  std::string describe_others(const Job& job) const;

  // Messages
  void on_received(const Received& event);
  void on_peer_message(Peer& peer, const proto::Message& message);
  Status on_report(Peer& peer, const proto::Message& message);
  void on_client_message(ConnectionId client, const proto::Message& message);
  void on_drain(Peer& peer);
  void protocol_error(Peer& peer, const std::string& what);
  // The job and stage that a report is about; nothing when it is of a plan that is no more, or not the
  // peer's.
  Job* job_of(const Peer& peer, proto::JobNumber run, proto::PlanVersion version, uint32_t& stage);
  void on_relay_waiting(const proto::Secret& ticket);

  // Jobs (jobs.cc)
  void on_submission(const SubmissionChecked& event);
  void on_planned(const PlanningDone& event);
  void set_plan(Job& job, std::shared_ptr<const PlannedRun> plan);
  void assign(Job& job, bool again);
  void on_stage_ready(Job& job, uint32_t stage, const proto::StageReady& ready);
  void schedule_jobs();
  void forgive(Job& job);
  void start_planning(Job& job, std::vector<Candidate> free, bool again);
  void release_peers(Job& job, const std::string& reason);
  void end_job(Job& job, proto::JobState state, const std::string& reason);
  void end_diverged(Job& job, const std::string& what);
  void stop_job(Job& job);
  void set_state(Job& job, proto::JobState state, std::string reason);
  void notice(Job& job, std::string text);
  void note_unknown_peers(Job& job);
  void note_old_peers(Job& job);
  void emit(Job& job, proto::JobEvent event);

  // What clients see (status.cc)
  proto::JobStatus status_of(const Job& job) const;
  proto::JobResult result_of(const Job& job) const;
  static uint32_t predicted_microbatches(const Job& job, const PlannedRun& plan);

  // Loss (recovery.cc)
  // `counts`: among the losses without a step between them that end a job.
  void recover(Job& job, const std::string& reason, bool counts = true);
  void on_stage_failed(Job& job, uint32_t stage, Peer& peer, const proto::StageFailed& failed);
  static const CheckpointCommitted* recovery_point(const Job& job);
  std::string describe_recovery_point(const Job& job) const;
  void drop_recovery_point(Job& job);
  RunBegin begin_of(const Job& job, const PlannedRun& plan) const;
  proto::DeviceClass class_of(const PlannedRun& plan, size_t stage) const;
  std::optional<std::vector<uint32_t>> place_previous(const Job& job, const PlannedRun& plan,
                                                      const std::vector<int64_t>& memory,
                                                      const std::vector<Candidate>& candidates,
                                                      bool by_pace) const;
  bool can_do_without(const Job& job, const PeerId& peer) const;
  static std::vector<int64_t> memory_of(const Job& job);
  void check_progress();
  void on_work(Peer& peer, const proto::StageWork& work);
  double slowness(const Job& job, uint32_t stage) const;
  Duration transfer_time(const PlannedRun& plan) const;
  Duration stall_deadline(const Job& job) const;

  // Planning again while a run goes on (replan.cc)
  std::map<std::string, double> usual_times() const;
  static double times_of(const Peer& peer, const std::map<std::string, double>& usual);
  void learn_times(Peer& peer, double times);
  Belief belief() const;
  std::vector<Candidate> candidates_to_move(const Job& job) const;
  void look_at_runs();
  void look_at(Job& job);
  void guard(Job& job, const proto::LinkComparison& comparison);
  double cost_of_move(const Job& job) const;
  void on_reconsidered(const Reconsidered& event);
  std::optional<std::vector<Candidate>> peers_to_move_to(const Job& job,
                                                         const std::vector<Candidate>& free) const;

  // After a restart (restart.cc)
  void load_job(const StoredJob& stored);
  void go_on(const StoredState& state);
  void first_step();
  // Whether it is the peer's stage of a run that goes on.
  Job* job_held(const PeerId& peer, const std::optional<proto::StageHeld>& held);
  void ask_to_resume(Job& job, Peer& peer);
  Status on_stage_resumed(Peer& peer, const proto::StageResumed& resumed);
  static bool all_here(const Job& job);

  // Tensors at hand (stand_by.cc)
  void update_stand_bys();
  struct Point {  // what peers stand by with
    const CheckpointCommitted* snapshot = nullptr;
    bool is_direct = false;
  };
  void tell_stand_by(Peer& peer, Job& job, const std::vector<uint32_t>& stages, const Point& point);
  std::vector<Holder> holders_for(const Job& job, const std::map<PeerId, int64_t>& free,
                                  std::vector<PeerId>& ids) const;
  void keep_transient();

  // Copies that peers have and the broker has not (direct_copies.cc)
  static bool may_give(const Peer& peer);
  static proto::BlobSource source_of(const Peer& peer);
  void drop_direct_copies(Job& job);
  void find_holders(Job& job);
  bool lose_holders(Job& job);
  bool find_sources(const Job& job, std::vector<proto::AssignStage>& stages) const;
  void on_standing_by(Peer& peer, const proto::StandingBy& message);

  // Links (probes.cc)
  bool may_probe(const Peer& peer) const;
  std::vector<PeerId> idle_peers() const;
  void update_probes();
  void start_round(const std::vector<LinkBook::Pair>& pairs);
  void tell_probe(const PairProbe& probe, const PeerId& to, const PeerId& other);
  PairProbe* probe_of(const PeerId& peer);
  void on_probe_report(Peer& peer, const proto::ProbeReport& report);
  void on_measured(const LinkSample& sample);
  void on_probe_failed(PairProbe& probe, const Peer& peer, const Error& error);
  void drop_probe(const PeerId& peer);
  void end_probe();
  void end_round();
  void invite_to_probe(const proto::Secret& ticket);
  void observe_links(const Peer& peer, const proto::StepReport& report);
  bool waits_for_links(Job& job, const std::vector<Candidate>& free);
  plan::ClusterView cluster_of(const std::vector<Candidate>& candidates) const;
  proto::LinkList list_links() const;
  void list_pairs(const plan::ClusterView& cluster, proto::LinkList& list) const;

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
  bool stand_bys_dirty_ = false;
  bool transient_dirty_ = false;
  bool probes_dirty_ = false;  // other peers are idle, or other links are wanted
  bool jobs_dirty_ = false;    // some may be planned that could not
  bool stepped_ = false;
  uint64_t ticks_ = 0;
  LinkBook links_;
  uint64_t devices_version_ = 0;     // another one whenever a device is not as fast as it was believed to be
  std::optional<ProbeRound> round_;  // under way
  uint64_t rounds_ = 0;
  uint64_t lists_ = 0;                 // of tensors to stand by with
  std::map<PeerId, Instant> resting_;  // until when they are not asked to measure
  uint64_t pool_version_ = 1;          // one more whenever somebody may be free who was not
  Now now_;
  Effects* out_ = nullptr;  // of the step under way
};

}  // namespace weft::broker
