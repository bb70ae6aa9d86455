// Recurrent cells: the host computes them.
#include "peer/backend/cuda/kernel.h"

namespace weft::peer::cuda {

KernelResult make_recurrent(const KernelRequest& request) { return request.decline(); }

}  // namespace weft::peer::cuda
