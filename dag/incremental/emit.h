// Internal to dag/incremental: the graph of a part, for some rows and a capacity.
#pragma once

#include "dag/incremental/incremental.h"
#include "dag/incremental/parts.h"
#include "dag/op_table.h"

namespace weft::dag::incremental {

std::string row_name(ValueId value);
std::string cache_name(ValueId value);
RowSpec row_spec(const Analysis& analysis, ValueId value);
CacheSpec cache_spec(const Analysis& analysis, ValueId value);

// `lengths.keys`: the capacity; of a row part it means nothing.
Graph emit_part(const Analysis& analysis, const Parts& parts, uint32_t part, const Lengths& lengths,
                const OpTable& table);

}  // namespace weft::dag::incremental
