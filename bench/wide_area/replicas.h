// Replicas with local steps on one network: planned as a job's are, and played round by round on the clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "bench/wide_area/model.h"
#include "compress/codec.h"
#include "plan/request.h"
#include "replicas/terms.h"

namespace weft::bench {

struct ReplicasOptions {
  uint32_t count = 1;
  uint32_t count_max = replicas::kReplicasMax;  // the planner chooses how many there are; 0: just `count`
  uint64_t every = 30;                          // steps of a replica in a round
  bool shares_by_speed = true;                  // of these; false: all make as many
  // A row for each codec with each number of rounds: 1 waits for each agreement, others overlap.
  std::vector<compress::Codec> codecs{};
  std::vector<uint64_t> settle_every{};
  uint32_t fragments = 1;  // of those that overlap; each is met after `every` steps
};

struct ReplicasRow {
  std::string topology{}, model{}, setting{};
  std::string compression{};  // of what travels between the stages of a replica
  compress::Codec codec{};    // of what travels between replicas
  uint64_t every = 1, settle_every = 1;
  uint32_t fragments = 1;
  std::string problem{};  // why there is no plan; empty: there is one
  uint32_t replicas = 0, stages = 0, sites = 0;
  std::vector<uint64_t> shares{};  // by replica; empty: each makes `every` steps
  uint64_t rounds = 0;             // that were played
  double samples_per_second = 0, predicted_samples_per_second = 0;
  Duration agreement{}, predicted_agreement{};  // that is waited for, once
  int64_t bytes_of_agreement = 0;               // of a round, all told
  double planning_seconds = 0, playing_seconds = 0;

  // What it is compared with: samples a second; nothing: nobody reaches any, or it was not asked for.
  std::optional<double> best_pipeline{};  // of the same network and setting,
  std::string best_strategy{}, best_compression{};
  std::optional<double> sites_alone{}, machines_alone{};  // the sum of what each reaches without the others

  bool has_plan() const { return problem.empty(); }
  // Played over predicted, less one.
  double error() const { return samples_per_second / predicted_samples_per_second - 1; }
};

// One row without its names and what it is compared with. `pipeline`: of one replica, with the devices of
// all. Played are two rounds that are waited for, or as many as there are from one that is to the next.
ReplicasRow play_replicas(const Model& model, const plan::PlanRequest& pipeline,
                          const ReplicasOptions& options, const compress::Codec& codec, uint64_t settle_every,
                          uint32_t tasks_ahead);

}  // namespace weft::bench
