// Dropout: the draw of an element is a function of its place in the batch, so that cutting a batch into
// microbatches does not change it.
#include <algorithm>

#include "base/rng.h"
#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {

void run_random(const Call& call) {
  WEFT_CHECK(call.kind == OpKind::Dropout);
  const double ratio = call.attributes.get_double(Attr::Ratio);
  const auto key = static_cast<uint32_t>(call.attributes.get_int(Attr::Key));
  const auto threshold = static_cast<uint32_t>(ratio * 4294967296.0);  // ratio < 1
  const StepContext& context = call.context;
  const auto count = static_cast<uint64_t>(call.in(0).count());
  const auto samples = static_cast<uint64_t>(std::max<int64_t>(1, context.microbatch_size));
  const uint64_t first = static_cast<uint64_t>(context.sample_position) * (count / samples);
  const PhiloxKey seed{static_cast<uint32_t>(context.seed), static_cast<uint32_t>(context.seed >> 32)};
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t place = first + i, block = place / 4;
    const PhiloxBlock draws = philox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                      static_cast<uint32_t>(context.step), key},
                                     seed);
    call.out().reals[i] = draws[place % 4] >= threshold ? call.reals(0)[i] / (1 - ratio) : 0;
  }
}

}  // namespace weft::peer::reference
