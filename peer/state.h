// The memory of one model at work on a backend: weights, optimizer slots, and what links and sessions carry
// over, by dag::StateKey. Executors and whatever else computes with them borrow it, so that training and
// evaluation read the same bytes. One thread, that which drives the backend. The backend must outlive it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "dag/state.h"
#include "peer/backend/backend.h"

namespace weft::peer {

class State {
 public:
  explicit State(Backend& backend) : backend_(backend) {}

  struct Claim {
    dag::StateKey key;
    dag::TensorSpec spec;
  };
  // Memory for all that is not there yet, in one block, zero until written, but for weights, which hold
  // nothing until they are written; what is there is shared. An initializer's weight is one memory, under
  // either slot that is_weight(). Errors: InvalidArgument when a key is there with another spec;
  // ResourceExhausted; then nothing is taken.
  Status claim(std::span<const Claim> claims);

  struct Entry {
    dag::TensorSpec spec;
    View view;  // plain; good as long as this State
  };
  const Entry* find(const dag::StateKey& key) const;  // nullptr: not claimed
  Bytes bytes() const { return bytes_; }
  // Another number whenever a value may have changed: by write(), or by who has said so.
  uint64_t version() const { return version_; }
  void note_change() { ++version_; }
  Backend& backend() const { return backend_; }

  // Copies to and from the host; begin_read() does not wait for the device. What is F32 here may be written
  // from a half: the weights of a file in half precision. A large tensor is written a piece at a time, and
  // `written` is told of each: its bytes are read again only by a device that still holds the tensor
  // (Tensor::is_shared). Errors: NotFound; InvalidArgument when the spec is another.
  Result<std::unique_ptr<Download>> begin_read(const dag::StateKey& key) const;
  Result<dag::Tensor> read(const dag::StateKey& key) const;
  using Written = std::function<void(std::span<const std::byte>)>;
  Status write(const dag::StateKey& key, const dag::Tensor& tensor, const Written& written = {});

 private:
  Backend& backend_;
  std::vector<std::unique_ptr<Memory>> blocks_;
  std::map<dag::StateKey, Entry> entries_;  // weights under Value
  Bytes bytes_;
  uint64_t version_ = 1;
};

}  // namespace weft::peer
