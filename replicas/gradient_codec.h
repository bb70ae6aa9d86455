// How replicas that add up each step's gradients may write the sums that they send each other. Such a sum is
// of one step: what a codec leaves out of it is nobody's to make up for later, as the residues of local steps
// do (agreement.h). So nothing may be left out, and the error has to be zero on average.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "compress/codec.h"

namespace weft::replicas {

// InvalidArgument, saying why, for any but dense and the codecs that write all numbers in a few bits, rounded
// by chance (compress::Kind::Blocks). REQUIRES: a codec that passed compress::check().
Status check_gradient_codec(const compress::Codec& codec);

// How a tensor of so many numbers then travels: dense where the codec makes it no shorter, for a block has a
// scale beside its numbers. Sender and receiver both go by this.
compress::Codec gradient_codec(const compress::Codec& codec, size_t count);

}  // namespace weft::replicas
