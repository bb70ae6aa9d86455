// Finds a stage that is far slower than promised and than the others, by what stages say of their work
// (broker/run/slowness.h); and learns from it how fast peers are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "broker/jobs/job.h"
#include "broker/pool/pool.h"
#include "broker/run/slowness.h"
#include "broker/step.h"

namespace weft::broker {

struct SlowStage {
  Job* job = nullptr;
  uint32_t stage = 0;
  bool alone = false;  // with nothing to compare it with
  std::string what{};
};

class SlowStages {
 public:
  SlowStages(const SlowOptions& options, Step& step, Pool& pool)
      : options_(options), step_(step), pool_(pool) {}

  // What a peer says. REQUIRES: the job runs.
  std::optional<SlowStage> on_work(Job& job, Peer& peer, const proto::StageWork& work);

 private:
  double slowness(const Crew& crew, uint32_t stage) const;

  const SlowOptions& options_;
  Step& step_;
  Pool& pool_;
};

}  // namespace weft::broker
