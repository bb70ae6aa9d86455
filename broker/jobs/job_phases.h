// How a job comes to wait, and to its end: its peers are let go, and what was theirs alone with them.
#pragma once

#include <string>

#include "broker/jobs/job_book.h"
#include "broker/options.h"
#include "broker/pool/pool.h"
#include "broker/step.h"

namespace weft::broker {

class JobPhases {
 public:
  JobPhases(const BrokerOptions& options, Step& step, Pool& pool, JobBook& book)
      : options_(options), step_(step), pool_(pool), book_(book) {}

  // REQUIRES: it has no peers.
  void wait(Job& job, std::string reason, phase::Waiting phase = {});
  // `served`: for how long it stood, of one that serves.
  void wait_after_loss(Job& job, const std::string& reason, Duration served = {});
  // Its run is no more, and its peers are free. `reason`: what they are told.
  void release(Job& job, const std::string& reason);
  void end(Job& job, proto::JobState state, const std::string& reason);

 private:
  const BrokerOptions& options_;
  Step& step_;
  Pool& pool_;
  JobBook& book_;
};

}  // namespace weft::broker
