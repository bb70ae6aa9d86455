// Recurrent cells over a sequence.
#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

KernelResult make_recurrent(const KernelRequest& request) { return request.decline(); }

}  // namespace weft::peer::cpu
