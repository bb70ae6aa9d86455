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
  // What it learnt stays: where its newest copy is at the broker and is not durable, it ends a moment later.
  void end(Job& job, proto::JobState state, std::string reason);
  void on_kept(const BlobsKept& event);
  // The copy of a job that waits shall survive the broker, too, for it may wait for long.
  void keep_copies();

 private:
  std::string drop_direct(Job& job);
  void keep(Job& job);
  void ask_to_keep(const Job& job);
  void finish(Job& job, proto::JobState state, std::string reason);

  const BrokerOptions& options_;
  Step& step_;
  Pool& pool_;
  JobBook& book_;
};

}  // namespace weft::broker
