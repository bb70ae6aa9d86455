#include "peer/backend/cpu/layout.h"

#include <cstring>

namespace weft::peer::cpu {

void convert_layout(const Team& team, const LoopTable& loops, const dag::TensorSpec& spec, dag::Layout from,
                    const void* source, dag::Layout to, void* target) {
  if (from == to) {
    const auto* s = static_cast<const std::byte*>(source);
    auto* t = static_cast<std::byte*>(target);
    team.ranges(spec.bytes().value, kGrain * 4, [&](int64_t begin, int64_t end) {
      std::memcpy(t + begin, s + begin, static_cast<size_t>(end - begin));
    });
    return;
  }
  WEFT_CHECK(dag::element_size(spec.dtype) == 4);
  const bool blocking = from == dag::Layout::Plain;
  WEFT_CHECK(blocking || to == dag::Layout::Plain);
  const int64_t lanes = lanes_of(blocking ? to : from);
  const int64_t positions = product(spec.shape, 2, spec.shape.size());
  const int64_t blocks = spec.shape[0] * spec.shape[1] / lanes;
  const auto* s = static_cast<const float*>(source);
  auto* t = static_cast<float*>(target);
  team.ranges(blocks, rows_grain(positions * lanes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* block = s + i * positions * lanes;
      float* result = t + i * positions * lanes;
      if (blocking) {
        loops.transpose(block, positions, result, lanes, lanes, positions);
      } else {
        loops.transpose(block, lanes, result, positions, positions, lanes);
      }
    }
  });
}

}  // namespace weft::peer::cpu
