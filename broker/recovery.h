// What becomes of runs. When a peer is lost, fails, or is too slow: back to the last snapshot, with somebody
// else for its stage.
#pragma once

#include <string>

#include "broker/availability.h"
#include "broker/events.h"
#include "broker/jobs/job_phases.h"
#include "broker/jobs/runs.h"
#include "broker/place/stand_bys.h"

namespace weft::broker {

class Recovery {
 public:
  Recovery(Step& step, Pool& pool, JobBook& book, StandBys& stand_bys, const Availability& availability,
           Runs& runs, JobPhases& phases)
      : step_(step),
        pool_(pool),
        book_(book),
        stand_bys_(stand_bys),
        availability_(availability),
        runs_(runs),
        phases_(phases) {}

  void settle(const Verdict& verdict);
  // `counts`: among the losses without a step between them.
  void recover(Job& job, const std::string& reason, bool counts = true);
  // Where the others of its replicas go on without that of the peer until they agree: then it is planned
  // anew.
  bool leave_out(Job& job, const Peer& peer, const std::string& reason);
  void on_stage_failed(Job& job, uint32_t stage, Peer& peer, const proto::StageFailed& failed);
  // InvalidArgument: the stage breaks the protocol.
  Status on_difference_refused(Job& job, uint32_t stage, const Peer& peer,
                               const proto::DifferenceRefused& refused);
  void on_blobs_verified(const BlobsVerified& event);
  void on_slow(const SlowStage& slow, Peer& peer);

 private:
  void on_stalled(Job& job, const std::string& what);
  void on_late(Job& job);
  bool leave_out_silent(Job& job, const std::string& what);
  bool is_refused_by_all(Job& job, const Peer& peer);
  bool is_hopeless(Job& job, const PeerId& peer);

  // Numbers that are not finite (divergence.cc)
  void on_diverged(Job& job, const Divergence& divergence);
  void on_edge_diverged(Job& job, const std::string& what, const proto::StageFailed& failed);
  void end_diverged(Job& job, const std::string& what);

  Step& step_;
  Pool& pool_;
  JobBook& book_;
  StandBys& stand_bys_;
  const Availability& availability_;
  Runs& runs_;
  JobPhases& phases_;
};

}  // namespace weft::broker
