#include "peer/backend/cuda/kernels/device_code.h"
#include "tests/cuda/planted.h"

namespace weft::peer::cuda {

__global__ void planted(Planted p) {
  WEFT_SHARED(float, tile, 64);
  const int t = static_cast<int>(threadIdx.x);
  const int64_t at = int64_t{blockIdx.x} * 64 + t;
  if (p.fault != Planted::kUnwrittenShared || t < 32) tile[t] = p.x[at];
  if (p.fault == Planted::kBeyondShared && t == 9) tile[64] = 0;
  if (p.fault == Planted::kTwoWriters && t == 33) tile[34] = 0;
  if (p.fault == Planted::kBarrierNotForAll && t == 3) return;
  if (p.fault == Planted::kDivergentBarrier) {
    if (t < 40)
      __syncthreads();
    else
      __syncthreads();
  } else if (p.fault != Planted::kMissingBarrier) {
    __syncthreads();
  }
  float v = tile[63 - t];
  if (p.fault == Planted::kWriteWhileRead) tile[t] = v;
  if (p.fault == Planted::kGoneBeforeExchange && t == 40) return;
  if (p.fault == Planted::kDivergentExchange) {
    if (t % 2 == 0)
      v += __shfl_xor_sync(0xffffffffu, v, 1);
    else
      v -= __shfl_xor_sync(0xffffffffu, v, 1);
  }
  if (p.fault == Planted::kExchangeInPartOfWarp && t < 16) v += __shfl_xor_sync(0xffffu, v, 1);
  for (int k = 16; k > 0; k /= 2) v += __shfl_xor_sync(0xffffffffu, v, k);
  const bool last = at == p.y.count - 1;
  if (p.fault == Planted::kNegativeGlobal && at == 0)
    p.y[-1] = v;
  else
    p.y[at + (p.fault == Planted::kBeyondGlobal && last ? 1 : 0)] = v;
}
WEFT_KERNEL_ENTRY(planted, Planted)

}  // namespace weft::peer::cuda
