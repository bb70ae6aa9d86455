// What stages of a row of positions exchange, by where they begin and end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::plan {

// Bytes that a stage of positions [begin, end) exchanges with the stages before it, a microbatch.
class Crossing {
 public:
  Crossing() = default;
  explicit Crossing(uint32_t positions)
      : size_(positions + 1), received_(size_ * size_, 0), returned_(size_ * size_, 0) {}

  // Values from earlier positions that the stage reads, each once.
  int64_t received(uint32_t begin, uint32_t end) const { return received_[begin * size_ + end]; }
  // Values of the stage that earlier positions read (cotangents), each once.
  int64_t returned(uint32_t begin, uint32_t end) const { return returned_[begin * size_ + end]; }
  // Both, of all that lies from there on.
  int64_t over(uint32_t border) const {
    const auto end = static_cast<uint32_t>(size_ - 1);
    return received(border, end) + returned(border, end);
  }

 private:
  friend class CrossingBuilder;
  size_t size_ = 0;
  std::vector<int64_t> received_, returned_;
};

}  // namespace weft::plan
