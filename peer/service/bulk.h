// Blobs and microbatches over a connection to the broker: requests with answers, any number under way. For a
// peer's second connection and for a user's client. Belongs to its connection's loop.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"
#include "net/connection.h"
#include "proto/codec/codec.h"
#include "proto/messages.h"

namespace weft::peer {

net::OutFrame message_frame(const proto::Message& message);
net::OutFrame tensor_frame(const proto::TensorHeader& header, const dag::Tensor& tensor);

class BulkTransfers {
 public:
  using Send = std::function<void(net::OutFrame)>;
  explicit BulkTransfers(Send send) : send_(std::move(send)) {}
  // Requests that are not answered are told so: Cancelled.
  ~BulkTransfers();

  // Each callback is called exactly once. The bytes have the hash that was asked for: Corrupted otherwise.
  void get(const Digest& sha256, uint64_t size_max, std::function<void(Result<std::vector<std::byte>>)> done);
  // In order, one blob at a time; the bytes are not copied and live until the answer.
  void put(const Digest& sha256, net::SharedBytes bytes, std::function<void(Status)> done);
  void missing(std::vector<Digest> blobs, std::function<void(Result<std::vector<Digest>>)> done);

  struct Microbatch {
    uint64_t sample_position = 0;
    uint32_t valid_count = 0;
    std::map<std::string, dag::Tensor> tensors;
  };
  void get_microbatch(proto::GetMicrobatch request, std::function<void(Result<Microbatch>)> done);

  // What came: true when it was for this. Errors end the connection.
  Result<bool> on_message(const proto::Message& message);
  Status on_chunk(const proto::ChunkFrame& chunk);
  Status on_tensor(const proto::TensorFrame& tensor);
  // The connection is gone: everything under way ends with the error.
  void fail_all(const Error& error);
  size_t under_way() const { return gets_.size() + puts_.size() + missing_.size() + microbatches_.size(); }

 private:
  struct Get {
    Digest sha256;
    uint64_t size_max = 0;
    bool answered = false;
    uint64_t size = 0;
    std::vector<std::byte> bytes;
    std::function<void(Result<std::vector<std::byte>>)> done;
  };
  struct Put {
    uint64_t request = 0;
    Digest sha256;
    net::SharedBytes bytes;
    std::function<void(Status)> done;
  };
  struct Pending {
    proto::GetMicrobatch request;
    Microbatch result;
    std::function<void(Result<Microbatch>)> done;
  };
  void send_put();
  void finish_get(uint64_t request);

  Send send_;
  uint64_t next_request_ = 1;
  std::map<uint64_t, Get> gets_;
  std::deque<Put> puts_;  // the first is under way
  std::map<uint64_t, std::function<void(Result<std::vector<Digest>>)>> missing_;
  std::map<uint64_t, Pending> microbatches_;
  uint64_t receiving_ = 0;  // the microbatch whose tensors come now
};

}  // namespace weft::peer
