// Tensors that the seats of several replicas send each other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"
#include "peer/backend/download.h"
#include "plan/seat.h"
#include "proto/messages.h"

namespace weft::peer {

// A difference or a mean, a sum of gradients, or an updated weight, as read, of the tensor of that number
// (proto::AgreedTensor).
struct AgreedShare {
  uint32_t number = 0;
  uint32_t replica = 0;  // the sender's
  dag::Tensor tensor;
  // Of a sum of gradients: which range's; of a running statistic the share's first. Of an agreement: the
  // attempt.
  uint32_t range = 0;
};
// The same as it goes to another seat: encoded as its header says.
struct SentShare {
  plan::Seat to{};
  proto::TensorHeader header{};
  dag::Tensor payload;
};
// One on its way from the device: the share's payload is not there yet, and is encoded once it is.
struct SendingShare {
  SentShare share{};
  std::unique_ptr<Download> payload{};
  uint64_t seed = 0;  // of what is drawn at random for that
};
// Waits for each and encodes it as its header says. Errors: of the device.
Status take_encoded(std::vector<SendingShare>& sending, std::vector<SentShare>& to);
// Of a tensor of exact terms, dense and without its payload: a sum of a range, or `is_sum` what its owner
// sends, for a replica's seat.
SentShare sum_share(const proto::AssignStage& assign, const proto::AgreedTensor& tensor, dag::TensorSpec spec,
                    uint64_t step, uint32_t range, bool is_sum, uint32_t to);

}  // namespace weft::peer
