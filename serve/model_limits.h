// What whoever shares out passes has to know of a model: a decoder on one machine has it, and so has a ring.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace weft::serve {

class ModelLimits {
 public:
  virtual ~ModelLimits() = default;
  virtual int64_t context() const = 0;     // positions of a sequence, at most
  virtual int64_t vocabulary() const = 0;  // numbers in a row of logits
  virtual int64_t rows_max() const = 0;    // positions of a pass, at most
  // What a sequence of so many positions takes of the memory for caches.
  virtual Bytes bytes_of(int64_t positions) const = 0;
};

}  // namespace weft::serve
