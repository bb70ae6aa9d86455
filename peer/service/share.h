// Tensors that the seats of several replicas send each other.
#pragma once

#include <cstdint>

#include "dag/tensor.h"
#include "plan/seat.h"
#include "proto/messages.h"

namespace weft::peer {

// A difference or a mean, or a sum of gradients, as read, of the tensor of that number (proto::AgreedTensor).
struct AgreedShare {
  uint32_t number = 0;
  uint32_t replica = 0;  // the sender's
  dag::Tensor tensor;
  uint32_t range = 0;  // of a sum of gradients: which range's
};
// The same as it goes to another seat: encoded as its header says.
struct SentShare {
  plan::Seat to{};
  proto::TensorHeader header{};
  dag::Tensor payload;
};

}  // namespace weft::peer
