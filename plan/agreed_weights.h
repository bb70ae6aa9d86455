// What replicas agree about, and how long each of it is as it travels.
#pragma once

#include <vector>

#include "compress/codec.h"
#include "plan/replicas.h"

namespace weft::plan {

// Of the request's graph, as ReplicasPlan::agreed has it and as `codec` writes it; nobody has been dealt any
// of it. Running statistics are dense. Where gradients are added up, so is what the codec makes no shorter
// (replicas/gradient_codec.h).
std::vector<AgreedWeight> agreed_weights(const ReplicasRequest& request, const compress::Codec& codec);

// What a newcomer is given of what the others have, of local steps: weights, their momentum, the optimizer's
// slots.
Bytes bytes_to_give(const ReplicasRequest& request);

}  // namespace weft::plan
