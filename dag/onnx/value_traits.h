// What the values of a tensor tell of its meaning, found in one pass over its bytes as they come: nobody has
// to hold them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dag/tensor.h"

namespace weft::onnx {

struct ValueTraits {
  bool low = false;  // a value of -10000 or less: a mask
  // The first axis of more than one element along which all values are equal.
  std::optional<int> constant_axis;
  bool all_equal = false;       // to the first
  bool zeros_and_ones = false;  // nothing else
  std::optional<int64_t> nan;   // the first element that is none
  // Equal for the same bits in any order.
  std::array<uint64_t, 2> content{};
  // The bits at the begin of the last axis, and at that of the first of two.
  std::array<uint64_t, 8> row{}, column{};
};

// Two tensors that hold the same numbers: in the same places, or, of two axes, one transposed.
enum class Likeness : uint8_t { None, Copy, Transposed };
Likeness likeness(const dag::Shape& a, const ValueTraits& of_a, const dag::Shape& b, const ValueTraits& of_b);

// Takes a tensor's bytes in order, little-endian as files and messages have them.
class ValueReader {
 public:
  // REQUIRES: a float type.
  explicit ValueReader(const dag::TensorSpec& spec);
  // REQUIRES: whole elements; no more than the tensor has.
  void add(std::span<const std::byte> bytes);
  // REQUIRES: all bytes were added.
  ValueTraits traits() const;

 private:
  // Along an axis all values are equal when the blocks of elements that follow one another in it are: their
  // hashes are compared, block by block.
  struct Axis {
    int number = 0;
    int64_t block = 1;  // elements of one place along the axis
    int64_t places = 1;
    int64_t left = 0;   // of the block under way
    int64_t place = 0;  // where it stands
    uint64_t hash = 0, before = 0;
  };
  template <typename Bits>
  void add_bits(std::span<const std::byte> bytes);
  template <typename Bits>
  void add_piece(std::span<const Bits> bits);
  template <typename Bits>
  static bool add_to_axis(Axis& axis, std::span<const Bits> bits);

  dag::TensorSpec spec_;
  int64_t position_ = 0;
  int64_t row_size_ = 0, row_count_ = 0;
  std::vector<Axis> axes_;  // that may still be constant
  uint64_t first_ = 0;
  bool only_zeros_and_ones_ = true, all_equal_ = true;
  ValueTraits traits_;
};

// Of a tensor at hand.
ValueTraits traits_of(const dag::Tensor& tensor);

}  // namespace weft::onnx
