// Recurrent cells over a sequence.
#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {

void run_recurrent(const Call&) { check_failed("an op of the family", __FILE__, __LINE__, ""); }

}  // namespace weft::peer::reference
