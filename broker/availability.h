// Who may be had for a job: whom it asks, whom it cannot have and why, and whether it could do without one.
// Looks at the pool, and decides nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "broker/jobs/job_book.h"
#include "broker/links/probes.h"
#include "broker/place/stand_bys.h"
#include "broker/pool/candidates.h"
#include "broker/pool/pool.h"

namespace weft::broker {

class Availability {
 public:
  Availability(const Pool& pool, const StandBys& stand_bys, const Probes& probes)
      : pool_(pool), stand_bys_(stand_bys), probes_(probes) {}

  // Why a peer cannot be had for a job; nothing: it can. With `own`, also one that works on it now. One that
  // works on another job can be had if one of the two serves and the other does not, and the peer holds
  // several stages (proto::DeviceReport::stages) and has said what the other takes.
  std::optional<std::string> why_not(const Peer& peer, const Job& job, bool own) const;
  // Those that can, as the planner sees them: with the memory that other jobs leave, and slower by them.
  std::vector<Candidate> of(const Job& job, bool own = false) const;
  std::vector<Candidate> to_move(const Job& job) const;
  std::string describe_others(const Job& job) const;

  std::optional<std::vector<uint32_t>> place_previous(const Job& job, const PlannedRun& plan,
                                                      const std::vector<int64_t>& memory,
                                                      const std::vector<Candidate>& candidates,
                                                      bool by_pace) const;
  bool can_do_without(const Job& job, const PeerId& peer) const;

 private:
  const Pool& pool_;
  const StandBys& stand_bys_;
  const Probes& probes_;
};

}  // namespace weft::broker
