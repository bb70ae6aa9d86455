#include "dag/finite.h"

#include <cstdint>
#include <cstring>

namespace weft::dag {
namespace {

// By their bits; `infinity` is +Inf.
template <typename Bits>
bool are_below_infinity(std::span<const std::byte> bytes, Bits infinity) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  for (size_t i = 0; i + sizeof(Bits) <= bytes.size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    if ((bits & kMagnitude) > infinity || bits == infinity) return false;
  }
  return true;
}

}  // namespace

bool is_below_infinity(const Tensor& tensor) {
  switch (tensor.spec().dtype) {
    case DType::F32:
      return are_below_infinity<uint32_t>(tensor.bytes(), 0x7f800000);
    case DType::F64:
      return are_below_infinity<uint64_t>(tensor.bytes(), uint64_t{0x7ff} << 52);
    case DType::F16:
      return are_below_infinity<uint16_t>(tensor.bytes(), 0x7c00);
    case DType::BF16:
      return are_below_infinity<uint16_t>(tensor.bytes(), 0x7f80);
    case DType::I8:
    case DType::U8:
    case DType::I16:
    case DType::U16:
    case DType::I32:
    case DType::U32:
    case DType::I64:
    case DType::U64:
    case DType::Bool:
      break;
  }
  return true;
}

}  // namespace weft::dag
