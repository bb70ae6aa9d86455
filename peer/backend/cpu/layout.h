// Where a value's elements lie: plain [N, C, S] or blocked [N, C/b, S, b], and the ways between.
#pragma once

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

// Unsupported, naming the value, when its shape has no such layout: blocks need a channel dim that they
// divide and at least one dim behind it.
Status need_layout(const dag::TensorSpec& spec, dag::Layout layout);

// REQUIRES: need_layout holds for both. Elements of 1, 2, 4 and 8 bytes, any two layouts.
void convert_layout(const Team& team, const LoopTable& loops, const dag::TensorSpec& spec, dag::Layout from,
                    const void* source, dag::Layout to, void* target);

}  // namespace weft::peer::cpu
