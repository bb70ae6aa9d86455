// What `weft join` says of a peer's work: lines of its log when it begins, goes on and ends, a line for
// whoever asks (weft pause --status), and figures for Prometheus. Pure: time is handed in.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "base/units.h"
#include "peer/service/work_done.h"

namespace weft::cli {

// "idle: no job needs this peer now", "training stage 2 of 4 of job 7 (resnet) for alice, step 120; so far
// 120 steps in 3m 20s of computing, 1.2 GiB sent"
std::string describe(const peer::PeerActivity& activity);

class PeerWork {
 public:
  static constexpr Duration kEvery = std::chrono::minutes(1);  // of work that goes on

  // The log's lines, if there is something new to say.
  std::vector<std::string> lines(const peer::PeerActivity& activity, Instant now);
  // A visit to the broker begins, or has ended: the next peer counts from nothing.
  void begin_visit();
  // Of all visits.
  peer::WorkDone done() const;

 private:
  std::string totals() const;

  peer::PeerActivity last_{};
  peer::WorkDone before_{};  // of earlier visits
  bool idle_said_ = false;
  Instant since_{};  // when what it does now began, or was said last
  Instant idle_since_{};
};

Metrics peer_metrics(const peer::PeerActivity& activity, const peer::WorkDone& done, bool is_away);

}  // namespace weft::cli
