// What a job says of its replicas: copies of the model that learn side by side.
#pragma once

#include <cstdint>

#include "compress/codec.h"

namespace weft::replicas {

inline constexpr uint32_t kReplicasMax = 1024;

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
  // So many steps each replica makes alone before all agree; 0: they add each step's gradients, exactly.
  uint64_t every = 0;
  // How a replica's difference is written, and their mean; what is lost is made up for later. Of local steps.
  compress::Codec codec{};
  OuterSpec outer{};  // of local steps

  bool are_local() const { return every > 0; }
  bool operator==(const ReplicaTerms&) const = default;
};

}  // namespace weft::replicas
