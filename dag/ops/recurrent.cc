// Recurrent cells over a sequence.
#include "dag/ops/common.h"

namespace weft::dag {

void add_recurrent_ops(OpTable&) {}

}  // namespace weft::dag
