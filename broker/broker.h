// The broker's core: what to do when somebody comes, speaks or is gone. A state machine without I/O: the same
// object serves in the broker's process, in simulation and in replay.
//
//   Pool       who is here, how fast, who is left out           (pool.h)
//   JobBook    jobs that have not ended, whose, in which phase   (job_book.h, job.h)
//   Runs       what goes on: reports, commands, deadlines        (runs.h, run.h)
//   StandBys   who holds what for whom                           (stand_bys.h)
//   ServedJobs where requests for served models go              (served_jobs.h)
//   Probes     the links between peers, measured                 (probes.h)
//
// The rooms know each other only downwards in this list. What takes several of them is done by classes over
// them, which know each other only downwards, too:
//
//   Availability  who may be had for a job                      (availability.h)
//   JobPhases  how a job comes to wait and to its end            (job_phases.h)
//   Recovery   what follows from a loss                          (recovery.h)
//   Scheduler  giving jobs to peers                              (scheduling.h)
//   Replanning moving a run that goes on                         (replan.h)
//   Clients    answering users                                   (clients.h)
//   Admission  whom a token admits                               (admission.h)
//   Membership who comes and goes                                (membership.h)
//
// Here is what is left: what peers say, and a restart.
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

#include <optional>
#include <set>
#include <string>

#include "broker/admission.h"
#include "broker/availability.h"
#include "broker/clients.h"
#include "broker/events.h"
#include "broker/jobs/job_book.h"
#include "broker/jobs/job_phases.h"
#include "broker/jobs/runs.h"
#include "broker/jobs/served_jobs.h"
#include "broker/links/probes.h"
#include "broker/membership.h"
#include "broker/options.h"
#include "broker/place/stand_bys.h"
#include "broker/pool/pool.h"
#include "broker/recovery.h"
#include "broker/replan.h"
#include "broker/scheduling.h"

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
  // checkpoints, of which parts may be missing still, and of predictions. The initial values of a job that
  // goes on are not among them: they are made anew. What is kept of jobs that have ended the store knows.
  std::set<Digest> referenced_blobs() const { return book_.referenced_blobs(); }
  // Their unpacked files are needed.
  std::set<proto::JobNumber> open_jobs() const { return book_.numbers(); }
  // What it counted, and how things stand; for whoever watches.
  Metrics metrics() const;
  // Nothing: it has ended, or never was.
  std::optional<proto::JobStatus> status(proto::JobNumber job) const;

 private:
  // Messages of peers (broker.cc)
  void on_received(const Received& event);
  void on_heard(const Heard& event);
  void on_beat(Peer& peer, const std::optional<proto::StageWork>& work,
               const std::optional<proto::StageSaving>& saving);
  void on_peer_message(Peer& peer, const Received& event);
  void on_drain(Peer& peer, const proto::Drain& drain);
  void count(const Peer& peer, const proto::StepReport& report);
  void protocol_error(Peer& peer, const std::string& what);

  // Around a restart (restart.cc)
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
  Availability availability_;
  JobPhases phases_;
  Recovery recovery_;
  Scheduler scheduler_;
  Replanning replanning_;
  Clients clients_;
  Admission admission_;
  Membership membership_;
  bool stepped_ = false;
  uint64_t ticks_ = 0;
};

}  // namespace weft::broker
