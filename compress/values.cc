#include "compress/values.h"

#include <cstring>

namespace weft::compress {
namespace {

int bits_of(Values values) { return values == Values::I8 ? 8 : 4; }

size_t group_bytes(Values values, size_t count) {
  return 4 + (values == Values::I8 ? count : (count + 1) / 2);
}

bool read_group(Values values, const uint8_t* from, std::span<float> numbers) {
  const auto count = static_cast<int64_t>(numbers.size());
  switch (values) {
    case Values::F32:
      std::memcpy(numbers.data(), from, numbers.size_bytes());
      return loops().all_finite(numbers.data(), count);
    case Values::F16:
      return loops().from_half(from, numbers.data(), count);
    case Values::I8:
    case Values::I4:
      return loops().decode_values(bits_of(values), from, count, numbers.data());
  }
  return false;
}

}  // namespace

size_t values_bytes(Values values, size_t count) {
  const size_t rest = count % kBlock;
  switch (values) {
    case Values::F32:
      return count * 4;
    case Values::F16:
      return count * 2;
    case Values::I8:
    case Values::I4:
      return count / kBlock * group_bytes(values, kBlock) + (rest == 0 ? 0 : group_bytes(values, rest));
  }
  return 0;
}

void write_values(Values values, std::span<const float> numbers, const Draw& draw, std::span<std::byte> out) {
  const auto count = static_cast<int64_t>(numbers.size());
  switch (values) {
    case Values::F32:
      std::memcpy(out.data(), numbers.data(), numbers.size_bytes());
      return;
    case Values::F16:
      loops().to_half(numbers.data(), octets(out), count);
      return;
    case Values::I8:
    case Values::I4:
      loops().encode_values(bits_of(values), numbers.data(), count, stream_of(draw, Purpose::Values),
                            octets(out));
      return;
  }
}

Status read_values(Values values, std::span<const std::byte> bytes, size_t at, std::span<float> numbers) {
  if (read_group(values, octets(bytes.subspan(values_bytes(values, at))), numbers)) return {};
  return fail(ErrorCode::Corrupted, "a value that is not finite, or a range of values that is none");
}

}  // namespace weft::compress
