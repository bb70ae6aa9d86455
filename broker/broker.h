// The broker's core: what to do when somebody comes, speaks or is gone. A state machine without I/O: the same
// object serves in the broker's process, in simulation and in replay.
//
//   Principals whom a token admitted                            (principals.h)
//   Pool       who is here, how fast, who is left out           (pool.h)
//   JobBook    jobs that have not ended, whose, in which phase   (job_book.h, job.h)
//   Runs       what goes on: reports, commands, deadlines        (runs.h, run.h)
//   StandBys   who holds what for whom                           (stand_bys.h)
//   ServedJobs where requests for served models go              (served_jobs.h)
//   Probes     the links between peers, measured                 (probes.h)
//
// The rooms know each other only downwards in this list; what takes several of them is done here: admitting,
// answering users, giving jobs to peers, and what follows from a loss.
//
// Specification, with what a peer can achieve at most by breaking it:
// - A connection is nobody until its Hello was granted; anything else before that closes it. What a token
//   admitted ends when the token is revoked.
// - A peer serves one run at a time, under one plan version. What it reports for another is dropped and
//   counted.
// - A peer whose connection ends, or from which nothing was heard for a lease, is lost to its run at once:
//   the run goes back to its last snapshot, and other peers take the stages that were lost (recovery.cc,
//   placement.h). A hostile peer can so cost a run at most what was done since the last snapshot, each time
//   it is admitted to one; whoever fails one stage after another is left out for longer and longer (pool.h),
//   and a job that loses peers without a step between them waits for longer and longer before it ends.
// - A snapshot is a recovery point when every stage has reported what it was asked for and the broker has
//   seen the blobs. A peer that says that it cannot be had is believed only if the broker finds so, too; of a
//   copy that is with peers alone (stand_bys.cc), once, at the cost of what was done since the one before.
// - A broker that was restarted goes on with the runs that it finds in its records, as soon as their peers
//   come back (restart.cc). Until a stage has resumed what its peer says about it is dropped.
// - A run that goes on is planned anew now and then, under what is believed by now, and moves after a
//   snapshot where that pays (replan.cc, drift.h).
// - Jobs are served in the order in which they came, as far as there are peers for them. While a job is
//   planned its candidates are nobody's: the first plan that is made gets its peers, another one that wanted
//   them is made again.
// - A job that serves goes on until it is stopped. It makes no steps and has no state, so its losses end it
//   never: others get its stages, as soon as there are some. Two jobs do not serve under one name.
// - A job is its submitter's: to anybody else but an admin it does not exist.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "broker/events.h"
#include "broker/jobs/job_book.h"
#include "broker/options.h"
#include "broker/pool/pool.h"
#include "broker/pool/principals.h"
#include "broker/links/probes.h"
#include "broker/jobs/runs.h"
#include "broker/jobs/served_jobs.h"
#include "broker/place/stand_bys.h"

namespace weft::broker {

class Broker {
 public:
  Broker(BrokerOptions options, const StoredState& state);
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  // REQUIRES: now never goes backwards. Ticks come about twice a second.
  Effects step(Now now, const Event& event);

  const Counters& counters() const { return step_.counters; }
  // The invariants of its runs, which hold between any two steps. Internal: which one does not.
  Status check() const;

  // What jobs that have not ended still speak of: blobs of submissions that may be planned again, of
  // checkpoints and predictions. The initial values of a job that goes on are not among them: they are made
  // anew. What is kept of jobs that have ended the store knows.
  std::set<Digest> referenced_blobs() const { return book_.referenced_blobs(); }
  // Their unpacked files are needed.
  std::set<proto::JobNumber> open_jobs() const { return book_.numbers(); }
  // Nothing: it has ended, or never was.
  std::optional<proto::JobStatus> status(proto::JobNumber job) const;

 private:
  struct Client {
    PeerId who{};
    bool is_admin = false;
  };

  // Who comes and goes (introductions.cc)
  void on_introduced(const Introduced& event);
  void refuse(ConnectionId connection, ErrorCode code, std::string message, bool retry = false);
  void admit_peer(const Introduced& event);
  void enter_bulk(const Introduced& event);
  void greet(ConnectionId connection, proto::Role role, const std::string& name);
  void on_disconnected(const Disconnected& event);
  void lose_peer(Peer& peer, const std::string& why);
  void disconnect(Peer& peer, ErrorCode code, const std::string& why);
  void forget_gone();
  void forget_principals(uint64_t token, const PeerId& newcomer);
  void check_leases(Instant until);
  void on_tokens_revoked(const TokensRevoked& event);

  // Messages of peers (broker.cc)
  void on_received(const Received& event);
  void on_heard(const Heard& event);
  void on_peer_message(Peer& peer, const Received& event);
  void on_drain(Peer& peer);
  void protocol_error(Peer& peer, const std::string& what);

  // Users (clients.cc)
  void on_client_message(const Received& event, const Client& client);
  void on_submission(const SubmissionChecked& event);
  void list_jobs(ConnectionId connection, const Client& client, const proto::ListJobs& request);
  void ban(ConnectionId connection, const proto::BanPeer& request);
  void stop_job(Job& job);
  void on_reopened(const JobReopened& event);
  void note_unknown_peers(Job& job);
  void note_old_peers(Job& job);

  // Jobs and peers come together (scheduling.cc)
  void schedule_jobs();
  void forgive(Job& job);
  // Why a peer cannot be had for a job; nothing: it can. With `own`, also one that serves it now.
  std::optional<std::string> why_not(const Peer& peer, const Job& job, bool own) const;
  std::vector<Candidate> candidates(const Job& job, bool own = false) const;
  std::string describe_others(const Job& job) const;
  StartPlanning planning_request(const Job& job, std::vector<Candidate> from) const;
  void start_planning(Job& job, std::vector<Candidate> from, bool again);
  void on_planned(const PlanningDone& event);
  Crew crew_of(std::shared_ptr<const PlannedRun> plan) const;
  void assign(Job& job, std::shared_ptr<const PlannedRun> plan, bool again);
  void send_stage(const Job& job, const PlannedStage& stage, const StateSources& sources);
  void on_stage_ready(Job& job, uint32_t stage, const proto::StageReady& ready);
  void release_peers(Job& job, const std::string& reason);
  void wait(Job& job, std::string reason, phase::Waiting phase = {});
  void wait_after_loss(Job& job, const std::string& reason, Duration served = {});
  void end_job(Job& job, proto::JobState state, const std::string& reason);

  // What becomes of runs, and losses (recovery.cc)
  void settle(const Verdict& verdict);
  // `counts`: among the losses without a step between them.
  void recover(Job& job, const std::string& reason, bool counts = true);
  void on_stage_failed(Job& job, uint32_t stage, Peer& peer, const proto::StageFailed& failed);
  void on_blobs_verified(const BlobsVerified& event);
  void on_stalled(Job& job, const std::string& what);
  void on_slow(const Runs::Slow& slow, Peer& peer);
  std::optional<std::vector<uint32_t>> place_previous(const Job& job, const PlannedRun& plan,
                                                      const std::vector<int64_t>& memory,
                                                      const std::vector<Candidate>& candidates,
                                                      bool by_pace) const;
  bool can_do_without(const Job& job, const PeerId& peer) const;
  bool is_refused_by_all(Job& job, const Peer& peer);
  bool is_hopeless(Job& job, const PeerId& peer);

  // Numbers that are not finite (divergence.cc)
  void on_diverged(Job& job, const Divergence& divergence);
  void on_edge_diverged(Job& job, const std::string& what, const proto::StageFailed& failed);
  void end_diverged(Job& job, const std::string& what);

  // Planning again while a run goes on (replan.cc)
  Belief belief() const;
  std::vector<Candidate> candidates_to_move(const Job& job) const;
  void look_at_runs();
  void look_at(Job& job);
  double cost_of_move(const Job& job) const;
  void on_reconsidered(const Reconsidered& event);
  std::optional<std::vector<Candidate>> peers_to_move_to(const Job& job,
                                                         const std::vector<Candidate>& free) const;

  // After a restart (restart.cc)
  void load_job(const StoredJob& stored, const StoredState& state);
  void first_step();
  void leave();

  BrokerOptions options_;
  Step step_;
  Pool pool_;
  JobBook book_;
  Runs runs_;
  StandBys stand_bys_;
  ServedJobs served_jobs_;
  Probes probes_;
  std::map<ConnectionId, Client> clients_;
  std::map<ConnectionId, PeerId> bulk_;  // peers' second connections
  Principals principals_;
  bool stepped_ = false;
  uint64_t ticks_ = 0;
};

}  // namespace weft::broker
