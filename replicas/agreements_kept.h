// For how many agreements a stage keeps what it may be asked to show of them (replicas/mean_check.h).
#pragma once

#include <cstdint>

#include "replicas/terms.h"

namespace weft::replicas {

// Where rounds overlap, of the last three. Else of the last one alone, and only until its next round begins.
inline uint64_t agreements_kept(const ReplicaTerms& terms) { return terms.overlap() ? 3 : 1; }

}  // namespace weft::replicas
