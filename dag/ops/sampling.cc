// Values at places that lie between elements: resizing, grids, boxes, deformed windows.
#include "dag/ops/common.h"

namespace weft::dag {

void add_sampling_ops(OpTable&) {}

}  // namespace weft::dag
