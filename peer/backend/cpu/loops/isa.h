// Included only by the files that are compiled once for each instruction set: WEFT_ISA is the namespace (and
// name) of the set being compiled. No standard C++ header may come in here: their inline functions would be
// compiled for a wide set under the name that everyone links to.
#pragma once

#include <stdint.h>

#include "peer/backend/cpu/loops/table.h"

#define WEFT_LOOP_INLINE inline __attribute__((always_inline))
#define WEFT_LOOP_LAMBDA __attribute__((always_inline))
#define WEFT_LOOP_STRING_INNER(x) #x
#define WEFT_LOOP_STRING(x) WEFT_LOOP_STRING_INNER(x)

namespace weft::peer::cpu::WEFT_ISA {
void add_unary_loops(LoopTable& table);
void add_binary_loops(LoopTable& table);
void add_row_loops(LoopTable& table);
void add_plane_loops(LoopTable& table);
void add_pool_loops(LoopTable& table);
void add_update_loops(LoopTable& table);
void add_gemm_loops(LoopTable& table);
void add_few_rows_loops(LoopTable& table);
void add_convolution_loops(LoopTable& table);
void add_recurrent_loops(LoopTable& table);
void add_byte_loops(LoopTable& table);
void add_stored_loops(LoopTable& table);
const LoopTable& table();
}  // namespace weft::peer::cpu::WEFT_ISA
