// Who comes and goes: introductions, leases, loss, what is revoked. A connection is nobody until it is
// introduced here; a peer that is lost here is lost to its runs and links in the same step.
#pragma once

#include <string>
#include <vector>

#include "broker/admission.h"
#include "broker/clients.h"
#include "broker/events.h"
#include "broker/jobs/job_book.h"
#include "broker/jobs/runs.h"
#include "broker/links/probes.h"
#include "broker/options.h"
#include "broker/place/stand_bys.h"
#include "broker/pool/pool.h"
#include "broker/recovery.h"

namespace weft::broker {

class Membership {
 public:
  // What it acts on.
  struct Rooms {
    Step& step;
    Pool& pool;
    JobBook& book;
    Runs& runs;
    StandBys& stand_bys;
    Probes& probes;
  };
  Membership(const BrokerOptions& options, const Rooms& rooms, Recovery& recovery, Clients& clients,
             Admission& admission);

  void on_introduced(const Introduced& event);
  void on_disconnected(const Disconnected& event);
  void on_tokens_revoked(const TokensRevoked& event);

  // Its connection is told why and closed, and it is lost. Nothing where it has none.
  void disconnect(Peer& peer, ErrorCode code, const std::string& why);

  // Loses whoever was not heard for a lease. `until`: what came later may not have been told yet.
  void check_leases(Instant until);
  // Peers that are gone for long, and that no job needs.
  void forget_gone();

 private:
  void admit_peer(const Introduced& event);
  void greet(const Introduced& event, const std::string& name);
  void resume_stages(Peer& peer, const std::vector<Job*>& held, const std::vector<proto::StageHeld>& said);
  void lose_peer(Peer& peer, const std::string& why);

  const BrokerOptions& options_;
  Step& step_;
  Pool& pool_;
  JobBook& book_;
  Runs& runs_;
  StandBys& stand_bys_;
  Probes& probes_;
  Recovery& recovery_;
  Clients& clients_;
  Admission& admission_;
};

}  // namespace weft::broker
