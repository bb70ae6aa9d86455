// What codecs add to tensors on their way through the stages, and how much of it a plan may gather. Pure.
#pragma once

#include <span>

#include "plan/compression.h"

namespace weft::plan {

// The square of the relative error on normal numbers (compress/blocks.cc, docs/RESULTS.md); 1 of what keeps a
// part of the numbers alone, whose error has another meaning.
double noise_of(const compress::Codec& codec);

// Squares add up: each stage passes on what came, and the most of what its own links add. An overestimate
// where what comes over a link is added to what does not.
struct Noise {
  double forward = 0, backward = 0;  // gathered by activations, by cotangents
};
Noise noise_of(std::span<const LinkCodec> codecs);

// Of Auto. Activations: four cuts at 4 bits, which cost the GPT example half a percent of its loss
// (docs/RESULTS.md); of cotangents, whose errors average out over microbatches and steps, twice that.
Noise noise_bound(const Compression& compression);
bool is_within(const Noise& noise, const Noise& bound);

}  // namespace weft::plan
