// What a job says of its replicas: copies of the model that learn side by side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "compress/codec.h"

namespace weft::replicas {

inline constexpr uint32_t kReplicasMax = 1024;
inline constexpr uint64_t kShareMax = uint64_t{1} << 20;  // of steps of a round, where shares are said
// So many times the smallest share may the largest be: nobody runs further ahead of the slowest replica.
inline constexpr uint64_t kShareRatioMax = 8;
inline constexpr uint64_t kSettleEveryMax = 1024;  // rounds
inline constexpr uint32_t kFragmentsMax = 64;

// What becomes of the mean of what the replicas have learnt since they agreed last (replicas/agreement.h).
enum class OuterType : uint8_t {
  Average,   // it is added to the weights
  Nesterov,  // it is a step of SGD with Nesterov's momentum, as in DiLoCo (arXiv 2311.08105)
};
struct OuterSpec {
  OuterType type = OuterType::Nesterov;
  double learning_rate = 0.7;  // of Nesterov
  double momentum = 0.9;       // of Nesterov; below 1
  bool operator==(const OuterSpec&) const = default;
};

struct ReplicaTerms {
  uint32_t count = 1;
  // So many steps each replica makes alone in a round; 0: they add each step's gradients, exactly.
  uint64_t every = 0;
  // Of local steps, where not all replicas are equally fast: by replica, how many of these it makes; each at
  // least 1, the largest is `every` and at most kShareRatioMax times the smallest. Empty: all of them.
  std::vector<uint64_t> shares{};
  // How what they tell each other is written. Of local steps a replica's difference and their mean: what is
  // lost is made up for later. Else the sums of gradients, by one that passed check_gradient_codec
  // (gradient_codec.h).
  compress::Codec codec{};
  OuterSpec outer{};  // of local steps
  // Of local steps. 1: all have the same weights after each round. More: a round's agreement travels while
  // the next round is made (OuterRound::overlaps), and they have the same weights every so many rounds.
  uint64_t settle_every = 1;
  // Of rounds that overlap. 1: each is agreed on about the whole model. More: the model is dealt to so many
  // fragments (replicas/fragments.h), and each round is about the next one; a round that is waited for is
  // about all of them. A job counts otherwise: its `sync.every` has the steps of so many rounds, and they are
  // one round of its `sync.settle_every`.
  uint32_t fragments = 1;
  // Ascending, fewer than there are: replicas that make no step yet. What the others have agreed on is still
  // on its way to them, and they take what these agree on meanwhile. Of local steps.
  std::vector<uint32_t> followers{};

  bool overlap() const { return settle_every > 1; }
  bool are_local() const { return every > 0; }
  bool follows(uint32_t replica) const {
    return std::binary_search(followers.begin(), followers.end(), replica);
  }
  // Those that make steps.
  uint32_t makers() const { return count - static_cast<uint32_t>(followers.size()); }
  uint64_t share(uint32_t replica) const {
    if (follows(replica)) return 0;
    return shares.empty() ? every : shares[replica];
  }
  // Steps of a round that all replicas make.
  uint64_t steps_a_round() const {
    if (shares.empty()) return every * makers();
    uint64_t steps = 0;
    for (uint32_t replica = 0; replica < count; ++replica) steps += share(replica);
    return steps;
  }
  bool operator==(const ReplicaTerms&) const = default;
};

}  // namespace weft::replicas
