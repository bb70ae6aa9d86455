// Replicas: which devices each has for itself, how it is cut over them, and what it takes all of them to
// agree, now and then about what local steps have come to, or in each step about its gradients. Pure: same
// request, same plan.
#pragma once

#include <cstdint>
#include <optional>
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
  // Steps that each makes alone before all agree; with `every_max` the least and the most of them, and the
  // planner takes the least that is nearly as fast as the most.
  uint64_t every = 1;
  uint64_t every_max = 0;
  compress::Codec codec{};  // of what they tell each other
  // Of local steps, the gentlest first: the planner takes one of these instead, a later one where it is
  // enough faster (kWorthCoarser).
  std::vector<compress::Codec> codecs{};
  // By replica: of these, how many it makes (replicas::ReplicaTerms); empty: all of them.
  std::vector<uint64_t> shares{};
  // An agreement travels while the next round is made, but for every so many of them; 1: none does.
  uint64_t settle_every = 1;
  uint32_t fragments = 1;        // of the model, which are agreed about in turn (replicas/fragments.h)
  bool by_speed = false;         // where there are none: as many as each makes in the time of the fastest
  uint64_t share_ratio_max = 8;  // so many times the smallest share may the largest be
  // Of local steps: large tensors have an owner for each of their parts (replicas/parts.h).
  bool divides_tensors = true;
  // They add each step's gradients instead: its microbatches are dealt to so many ranges, of which each
  // replica computes some that are neighbours (dag/gradient_order.h). There are at most so many replicas, and
  // all are of devices of one kind, for their weights must not come apart. 0: local steps.
  uint32_t ranges = 0;
  // Of these: a parameter's owner alone has the optimizer's slots of it.
  bool shares_slots = false;
  // By device, of local steps: the replica in which it had a part, of a run that goes on, and whose state it
  // holds; empty: it begins. A replica keeps its number where it can.
  std::vector<std::optional<uint32_t>> before{};
  // Who needs long to be given that state follows the others until then (ReplicasPlan::followers).
  bool may_follow = false;
  bool compares = false;    // with one pipeline over all devices, for the explanation
  bool only_alone = false;  // looks at replicas of one device each alone, which is quick
};

// A trained weight, a part of one, or a running statistic.
struct AgreedWeight {
  std::string name{};
  uint32_t number = 0;             // replicas/parts.h
  uint64_t elements = 0;           // of a part; 0: it is whole
  uint32_t fragment = 0;
  Bytes bytes{};                   // of a difference, or a sum of gradients, as it is written; and back
  uint32_t owner = 0;              // the replica that takes the mean, or adds up
  Bytes slots{};                   // the optimizer's of it, as they lie on a device
  std::vector<uint32_t> stages{};  // by replica: which of its stages has it
};

struct ReplicasPlan {
  std::vector<Plan> replicas{};        // their devices are the request's
  std::vector<AgreedWeight> agreed{};  // of the whole graph, in the order of dag::trained_state, part by part
  uint64_t every = 1;                  // of local steps: the request's, or as it was chosen
  uint32_t fragments = 1;              // the request's
  compress::Codec codec{};             // likewise
  std::vector<uint64_t> shares{};      // by replica; empty: all make as many steps
  std::vector<uint32_t> ranges{};      // of replicas that add gradients, by replica; empty: one pipeline
  bool shares_slots = false;           // of these: slots lie with owners alone
  // Ascending, never all: replicas that make no step yet, for what the others have is still on its way to
  // them, which takes longer than a moment.
  std::vector<uint32_t> followers{};
  Duration agreement{};  // what one takes
  Duration round{};      // in which the slowest makes its steps between two; or one step
  // In which they make one step each, on average, with its part of an agreement; or one step together.
  Duration predicted_step{};
  std::vector<std::string> explanation{};

  // Steps of batch_size samples that are made in the time of a predicted step.
  size_t steps_at_once() const { return ranges.empty() ? replicas.size() : 1; }
};
// A pipeline that has nobody to agree with.
ReplicasPlan alone(Plan plan);

// Every replica is whole, on devices that no other one has. Of the groupings that are looked at - the fastest
// devices alone, neighbours together, fast ones with slow ones - that with the most steps a second; of
// numbers of replicas, where they may be chosen, the same. Of shares that are given the larger ones go to the
// faster replicas. Errors: Infeasible, saying what lacks (peers: how many; memory); InvalidArgument for pins,
// which only one of several replicas could keep; else those of make_plan.
Result<ReplicasPlan> make_replicas_plan(const ReplicasRequest& request);

}  // namespace weft::plan
