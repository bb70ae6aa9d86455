#include <string>

#include "tests/fuzz/codec_payload.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void codecs(std::span<const std::byte> bytes) {
  Input input(bytes);
  const auto what = input.byte();
  if (what == 0xFF) {
    const auto codec = compress::parse(as_text(input.rest()));
    if (!codec) return;
    WEFT_CHECK(compress::check(*codec).has_value());
    const auto again = compress::parse(compress::name(*codec));
    WEFT_CHECK(again.has_value() && *again == *codec);
    return;
  }
  compress::Codec codec;
  codec.kind = static_cast<compress::Kind>(what);
  codec.bits = input.byte();
  codec.masks_zeros = input.byte() % 2 == 1;
  codec.values = static_cast<compress::Values>(input.byte());
  codec.floor_bits = input.byte();
  codec.per_million = static_cast<uint32_t>(input.number(4));
  const auto count = static_cast<size_t>(input.number(2));
  if (compress::check(codec)) decode_payload(codec, input.rest(), count);
}

}  // namespace weft::fuzz
