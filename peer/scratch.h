// Device memory for what lives within one task: kernels' workspaces, and values that no later task of the
// microbatch reads. A stage's tasks run one after the other, so one is enough for all its programs and all
// microbatches in flight. One thread, that which drives the backend. The backend must outlive it.
#pragma once

#include <memory>

#include "base/result.h"
#include "peer/backend/backend.h"

namespace weft::peer {

class Scratch {
 public:
  explicit Scratch(Backend& backend) : backend_(backend) {}

  // At least so much from now on. What was there is lost: REQUIRES that nothing has run in it yet.
  Status reserve(Bytes size) {
    if (memory_ && memory_->size() >= size) return {};
    memory_.reset();
    WEFT_TRY(memory_, backend_.allocate(size));
    bytes_ = size;
    return {};
  }
  Bytes bytes() const { return bytes_; }
  View at(int64_t offset) const { return {memory_.get(), offset}; }

 private:
  Backend& backend_;
  std::unique_ptr<Memory> memory_;
  Bytes bytes_;
};

}  // namespace weft::peer
