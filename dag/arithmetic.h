// What matrix products and convolutions round their operands to. Their sums, and all other ops, are float32
// or wider. A job asks for one, a device says which it has.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft::dag {

enum class Arithmetic : uint8_t { F32, TF32, BF16 };
inline constexpr Arithmetic kArithmetics[] = {Arithmetic::F32, Arithmetic::TF32, Arithmetic::BF16};

constexpr std::string_view to_string(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::F32:
      return "f32";
    case Arithmetic::TF32:
      return "tf32";
    case Arithmetic::BF16:
      return "bf16";
  }
  return "an unknown format";
}

}  // namespace weft::dag
