#include "dag/rounding.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace weft::dag {
namespace {

// The integers of one block.
class Block {
 public:
  Block(const Rounding& how, std::span<const float> numbers)
      : numbers_(numbers), middle_(how.bits == 4 ? 8 : 128), scale_(how.scale), step_(step()) {}

  // As it will be read.
  float scale() const { return step_; }
  uint8_t integer(size_t i) const { return rounded_to(step_, numbers_[i]); }

 private:
  float step() const {
    float most = 0;
    for (const float number : numbers_)
      if (std::abs(number) > std::abs(most)) most = number;
    const float even = as_read(std::abs(double{most}) / (middle_ - 1));
    return are_steps(even) ? even : as_read(double{most} / -middle_);
  }
  float as_read(double exact) const {
    const auto number = static_cast<float>(exact);
    if (scale_ == DType::F16) return float_from_f16(f16_from_float(number));
    return scale_ == DType::BF16 ? float_from_bf16(bf16_from_float(number)) : number;
  }
  bool are_steps(float step) const {
    if (step == 0) return false;
    return std::all_of(numbers_.begin(), numbers_.end(), [&](float number) {
      return static_cast<float>(rounded_to(step, number) - middle_) * step == number;
    });
  }
  uint8_t rounded_to(float step, float number) const {
    const auto zero = static_cast<float>(middle_);
    if (step == 0) return static_cast<uint8_t>(zero);
    return static_cast<uint8_t>(std::clamp(std::nearbyint(number / step) + zero, 0.0f, 2.0f * zero - 1));
  }

  const std::span<const float> numbers_;
  const int middle_;
  const DType scale_;
  const float step_;
};

void put_half(uint16_t bits, std::span<std::byte> to) { std::memcpy(to.data(), &bits, sizeof bits); }

void put_scale(DType dtype, float scale, std::span<std::byte> to) {
  if (dtype == DType::F32) std::memcpy(to.data(), &scale, sizeof scale);
  if (dtype == DType::F16) put_half(f16_from_float(scale), to);
  if (dtype == DType::BF16) put_half(bf16_from_float(scale), to);
}

void put_integers(const Block& block, int bits, size_t count, std::span<std::byte> to) {
  for (size_t i = 0; bits == 8 && i < count; ++i) to[i] = std::byte{block.integer(i)};
  for (size_t i = 0; bits == 4 && i < count; i += 2)
    to[i / 2] = static_cast<std::byte>(block.integer(i) | block.integer(i + 1) << 4);
}

}  // namespace

std::optional<uint64_t> rounded_bytes(const Rounding& how, uint64_t count) {
  if (how.part == Rounding::Part::Halves) return count * sizeof(uint16_t);
  const bool has_scale = how.scale == DType::F32 || is_half(how.scale);
  if ((how.bits != 4 && how.bits != 8) || !has_scale) return std::nullopt;
  if (how.block < 16 || how.block > kRoundedBlockMax || how.block % 16 != 0) return std::nullopt;
  const auto block = static_cast<uint64_t>(how.block);
  if (count % block != 0) return std::nullopt;
  if (how.part == Rounding::Part::Numbers) return count / 8 * static_cast<uint64_t>(how.bits);
  return count / block * static_cast<uint64_t>(element_size(how.scale));
}

void round_numbers(const Rounding& how, std::span<const float> numbers, std::span<std::byte> to) {
  WEFT_CHECK(rounded_bytes(how, numbers.size()) == to.size());
  if (how.part == Rounding::Part::Halves) {
    for (size_t i = 0; i < numbers.size(); ++i) put_half(bf16_from_float(numbers[i]), to.subspan(i * 2));
    return;
  }
  const auto size = static_cast<size_t>(how.block);
  const auto each = static_cast<size_t>(*rounded_bytes(how, size));
  for (size_t at = 0; at < numbers.size(); at += size, to = to.subspan(each)) {
    const Block block(how, numbers.subspan(at, size));
    if (how.part == Rounding::Part::Scales)
      put_scale(how.scale, block.scale(), to);
    else
      put_integers(block, how.bits, size, to);
  }
}

}  // namespace weft::dag
