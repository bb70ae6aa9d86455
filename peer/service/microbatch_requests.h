// Microbatches of data that were asked for: each is answered, and then its tensors come, one microbatch after
// the other. What is not what was asked for is an error, and ends the connection.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"
#include "net/frame.h"
#include "proto/messages.h"

namespace weft::peer {

// What came: the payload is the frame's body where one was placed, which then has the size that the header
// says.
struct ReceivedTensor {
  proto::TensorHeader header;
  dag::Tensor payload;
};

struct MicrobatchData {
  uint64_t sample_position = 0;
  uint32_t valid_count = 0;
  std::map<std::string, dag::Tensor> tensors;
};

class MicrobatchRequests {
 public:
  // As `request.request` names it. `specs`: of each input, in order, whose numbers may come as shorter ones
  // (dag/narrow.h); empty: as the other side says.
  // `done` is called exactly once, unless this is destroyed first.
  void ask(proto::GetMicrobatch request, std::vector<dag::TensorSpec> specs,
           std::function<void(Result<MicrobatchData>)> done);
  Status on_answer(const proto::MicrobatchAnswer& answer);
  Status on_tensor(ReceivedTensor tensor);
  // Where the tensor goes that comes next.
  Result<net::PayloadPlace> place(size_t payload_size, std::span<const std::byte> head);
  void fail_all(const Error& error);
  size_t count() const { return pending_.size(); }

 private:
  struct Pending {
    proto::GetMicrobatch request;
    std::vector<dag::TensorSpec> specs;
    MicrobatchData result;
    std::function<void(Result<MicrobatchData>)> done;
  };
  std::map<uint64_t, Pending> pending_;
  uint64_t receiving_ = 0;  // the one whose tensors come now
};

}  // namespace weft::peer
