// What replicas agree about, and how long each of it is as it travels.
#pragma once

#include <vector>

#include "compress/codec.h"
#include "plan/replicas.h"

namespace weft::plan {

// Of the request's graph, by number, as `codec` writes it; nobody has been dealt any of it. Running
// statistics are dense. Where gradients are added up, so is what the codec makes no shorter
// (replicas/gradient_codec.h).
std::vector<AgreedWeight> agreed_weights(const ReplicasRequest& request, const compress::Codec& codec);

}  // namespace weft::plan
