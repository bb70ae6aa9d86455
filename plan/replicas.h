// Replicas with local steps: which devices each has for itself, how it is cut over them, and what it takes
// all of them to agree. Pure: same request, same plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "compress/codec.h"
#include "plan/request.h"

namespace weft::plan {

struct ReplicasRequest {
  PlanRequest pipeline{};  // of one replica; its cluster has the devices of all
  uint32_t count = 1;
  // The planner chooses how many there are, from `count` on up to this; 0: just `count`.
  uint32_t count_max = 0;
  uint64_t every = 1;       // steps that each makes alone before all agree
  compress::Codec codec{};  // of what they tell each other
  // By replica: of these, how many it makes (replicas::ReplicaTerms); empty: all of them.
  std::vector<uint64_t> shares{};
  bool by_speed = false;         // where there are none: as many as each makes in the time of the fastest
  uint64_t share_ratio_max = 8;  // so many times the smallest share may the largest be
  bool compares = false;         // with one pipeline over all devices, for the explanation
  bool only_alone = false;       // looks at replicas of one device each alone, which is quick
};

// A trained weight or a running statistic.
struct AgreedWeight {
  std::string name{};
  Bytes bytes{};                   // of a difference as it is written, and of the mean
  uint32_t owner = 0;              // the replica that takes the mean
  std::vector<uint32_t> stages{};  // by replica: which of its stages has it
};

struct ReplicasPlan {
  std::vector<Plan> replicas{};        // their devices are the request's
  std::vector<AgreedWeight> agreed{};  // of the whole graph, in the order of dag::trained_state
  std::vector<uint64_t> shares{};      // by replica; empty: all make as many steps
  Duration agreement{};                // what one takes
  Duration predicted_step{};  // in which they make one step each, on average, with its part of an agreement
  std::vector<std::string> explanation{};
};
// A pipeline that has nobody to agree with.
ReplicasPlan alone(Plan plan);

// Every replica is whole, on devices that no other one has. Of the groupings that are looked at - the fastest
// devices alone, neighbours together, fast ones with slow ones - that with the most steps a second; of numbers
// of replicas, where they may be chosen, the same. Of shares
// that are given the larger ones go to the faster replicas. Errors:
// Infeasible, saying what lacks (peers: how many; memory); InvalidArgument for pins, which only one of
// several replicas could keep; else those of make_plan.
Result<ReplicasPlan> make_replicas_plan(const ReplicasRequest& request);

}  // namespace weft::plan
