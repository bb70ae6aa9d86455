// What a peer is at work on, and how much it has done: for the people whose machine it is, and for whoever
// watches. Counted from what it tells its broker.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "peer/machine/peer.h"
#include "proto/messages.h"

namespace weft::peer {

struct WorkAtHand {
  proto::JobNumber job = 0;
  std::string job_name{}, submitter{};  // as the broker says; empty: a broker before minor version 13
  plan::Seat seat{};
  uint32_t stage_count = 0;
  bool serves = false;
  bool is_ready = false;  // else it loads
  uint64_t step = 0;      // the last that it has done
};

// Since the peer was started.
struct WorkDone {
  uint64_t stages = 0;  // that it was given and had ready
  uint64_t steps = 0, tokens = 0;
  double seconds_busy = 0;  // computing steps
  uint64_t bytes_sent = 0;  // of tensors, to other peers
};

struct PeerActivity {
  bool is_joined = false;
  std::vector<WorkAtHand> work{};
  WorkDone done{};
};

class WorkCounter {
 public:
  void count(const proto::Message& told);
  // Of what the peer has no more the step is forgotten.
  PeerActivity activity(const Peer& peer);

 private:
  WorkDone done_{};
  std::map<proto::JobNumber, uint64_t> steps_;
};

}  // namespace weft::peer
