// Plain [N, C, S] <-> blocked [N, C/b, S, b].
#pragma once

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

// REQUIRES: rank >= 3, channels a multiple of the block, 4-byte elements, and one of the two layouts Plain
// (or both equal).
void convert_layout(const Team& team, const LoopTable& loops, const dag::TensorSpec& spec, dag::Layout from,
                    const void* source, dag::Layout to, void* target);

}  // namespace weft::peer::cpu
