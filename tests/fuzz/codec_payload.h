// A payload of a codec, decoded, and what decode promises of what it accepts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "base/check.h"
#include "compress/codec.h"

namespace weft::fuzz {

// REQUIRES: a codec that passed compress::check.
inline void decode_payload(const compress::Codec& codec, std::span<const std::byte> payload, size_t count) {
  const compress::Draw draw{.seed = 3, .step = 5, .microbatch = 1, .edge = 2};
  std::vector<float> out(count);
  const auto expect_finite = [&] {
    if (codec.kind == compress::Kind::Dense) return;
    for (const float value : out) WEFT_CHECK(std::isfinite(value));
  };
  if (compress::decode(codec, draw, payload, out)) expect_finite();
  if (codec.kind != compress::Kind::TopK) return;
  std::vector<uint32_t> positions(compress::kept(codec, count));
  if (!compress::positions(codec, count, payload, positions)) return;
  for (size_t i = 0; i < positions.size(); ++i)
    WEFT_CHECK(positions[i] < count && (i == 0 || positions[i - 1] < positions[i]));
  // A payload without positions of its own, of the same bytes.
  if (compress::decode_at(codec, positions, draw,
                          payload.first(std::min(payload.size(), compress::wire_bytes_at(codec, count))),
                          out))
    expect_finite();
}

}  // namespace weft::fuzz
