// Blocks without a mask, for the kinds that are made of them (blocks.cc says what they are).
#pragma once

#include "compress/kinds.h"

namespace weft::compress {

size_t blocks_bytes(int bits, size_t count);
// Nothing if x is not finite. REQUIRES: out.size() >= blocks_bytes(bits, x.size()).
std::optional<size_t> encode_blocks(int bits, std::span<const float> x, const Draw& draw,
                                    std::span<std::byte> out);
Status decode_blocks(int bits, const Draw& draw, std::span<const std::byte> payload, std::span<float> out);

}  // namespace weft::compress
