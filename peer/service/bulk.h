// Blobs and microbatches over a connection to the broker: requests with answers, any number under way. For a
// peer's second connection and for a user's client. Belongs to its connection's loop.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"
#include "net/connection.h"
#include "net/loop.h"
#include "peer/service/get_body.h"
#include "peer/service/microbatch_requests.h"
#include "peer/service/pacer.h"
#include "peer/service/put_body.h"
#include "proto/codec/codec.h"
#include "proto/messages.h"
#include "storage/packed.h"

namespace weft::peer {

net::OutFrame message_frame(const proto::Message& message);
// `payload`: the tensor, or what the header's codec made of it (encoding.h).
net::OutFrame tensor_frame(const proto::TensorHeader& header, const dag::Tensor& payload);
Result<ReceivedTensor> tensor_of(const net::InFrame& frame);

class BulkTransfers {
 public:
  using Send = std::function<void(net::OutFrame)>;
  // For puts within a rate.
  struct Pacing {
    net::Loop* loop = nullptr;         // must outlive this
    std::function<size_t()> unsent{};  // bytes that were sent and have not left this machine
    std::function<bool()> yields{};    // something more urgent waits for the same uplink
  };
  explicit BulkTransfers(Send send) : send_(std::move(send)) {}
  BulkTransfers(Send send, Pacing pacing) : send_(std::move(send)), pacing_(std::move(pacing)) {}
  // Requests that are not answered are told so: Cancelled.
  ~BulkTransfers();

  // A blob for packed bytes to be differences to, which both sides have. Used where it has as many bytes as
  // the other one and lives when that one's turn comes, and from then on as long as it is needed.
  struct Base {
    Digest sha256{};
    std::weak_ptr<const void> owner{};
    std::span<const std::byte> bytes{};
  };
  struct GetOptions {
    uint64_t rate = 0;  // bytes a second, for a peer to keep to; 0: at once
    // Of a peer, which may lie: its answer may be packed (storage/packed.h), on a base or without; units that
    // are none, a base that was not named and more than `size_max` are Corrupted, and end the connection.
    bool is_from_peer = false;
    std::optional<Base> base{};
    // Takes the bytes as they come, so that nobody holds them all: `done` then is given none, and says
    // whether they were those of the hash. Not of a peer. An error of its ends the request.
    std::function<Status(std::span<const std::byte>)> sink{};
  };
  // Each callback is called exactly once. The bytes have the hash that was asked for: Corrupted otherwise.
  void get(const Digest& sha256, uint64_t size_max, const GetOptions& options,
           std::function<void(Result<std::vector<std::byte>>)> done);
  void get(const Digest& sha256, uint64_t size_max,
           std::function<void(Result<std::vector<std::byte>>)> done) {
    get(sha256, size_max, GetOptions{}, std::move(done));
  }
  // In order; the next one begins when all of the one before has been sent and little waits for an answer.
  // The bytes are not copied and live until the answer; or, where they `may_lapse`, from their turn on: when
  // nobody else has held them until then they are not put. Cancelled.
  struct PutOptions {
    bool durable = true;
    bool may_lapse = false;
    uint64_t rate = 0;   // bytes a second; 0, or without a loop: no limit
    bool packs = false;  // the other side unpacks (storage/packed.h)
    uint64_t owner = 0;  // for cancel_puts()
    // Is told by tell_sent() how many bytes of the blob have left this machine.
    std::function<void(uint64_t)> on_sent{};
    // Where the other side has it no longer, the blob is put again without.
    using Base = BulkTransfers::Base;
    std::optional<Base> base{};
  };
  void put(const Digest& sha256, net::SharedBytes bytes, PutOptions options,
           std::function<void(Status)> done);
  void put(const Digest& sha256, net::SharedBytes bytes, std::function<void(Status)> done) {
    put(sha256, std::move(bytes), PutOptions{}, std::move(done));
  }
  // The owner's that have not begun: Cancelled.
  void cancel_puts(uint64_t owner);
  // To each large put under way; whether there are puts.
  bool tell_sent();
  // Its number is given to it here.
  void missing(proto::HaveBlobs question, std::function<void(Result<std::vector<Digest>>)> done);

  using MicrobatchData = peer::MicrobatchData;
  // `specs`: of each input, in order; empty: as the other side says. What is of another ends the
  // connection.
  void get_microbatch(proto::GetMicrobatch request, std::vector<dag::TensorSpec> specs,
                      std::function<void(Result<MicrobatchData>)> done);

  // What came: true when it was for this. Errors end the connection.
  Result<bool> on_message(const proto::Message& message);
  Status on_chunk(const proto::ChunkFrame& chunk, size_t placed = 0);  // and so many bytes where place() said
  Status on_tensor(ReceivedTensor tensor) { return microbatches_.on_tensor(std::move(tensor)); }
  // For Connection::Handlers::on_head, or left out: what was asked for goes straight into what is given; of
  // anything else no more is taken than it may have.
  Result<net::PayloadPlace> place(uint8_t kind, size_t payload_size, std::span<const std::byte> head);
  // The connection is gone: everything under way ends with the error.
  void fail_all(const Error& error);
  bool is_getting(uint64_t request) const { return gets_.contains(request); }
  size_t under_way() const { return gets_.size() + puts_.size() + missing_.size() + microbatches_.count(); }

 private:
  struct Get {
    Digest sha256;
    uint64_t size_max = 0;
    std::function<void(Result<std::vector<std::byte>>)> done;
    bool is_from_peer = false;
    GetBody body;
  };
  struct Put {
    uint64_t request = 0;
    Digest sha256;
    PutBody body;  // where it may lapse, without an owner until it has begun
    std::weak_ptr<const void> owner{};
    PutOptions options;
    std::function<void(Status)> done;
    bool begun = false;
    bool has_base = false;  // it was announced
    uint64_t given = 0;     // to the connection, of its bytes as they travel
    bool is_sent() const { return begun && body.is_sent(); }
  };
  void send_puts();
  bool begin_put(Put& put);   // false: its bytes are nobody's any more
  bool send_chunk(Put& put);  // false: not yet
  void put_again(uint64_t request);
  Status on_answer(const proto::BlobAnswer& answer);
  Status begin_get(const proto::BlobAnswer& answer);
  void end_get(uint64_t request, const Error& error);
  Status refuse_get(uint64_t request, const Error& error);
  void finish_get(uint64_t request);
  Result<net::PayloadPlace> place_chunk(size_t payload_size, std::span<const std::byte> head);

  Send send_;
  Pacing pacing_{};
  uint64_t next_request_ = 1;
  std::map<uint64_t, Get> gets_;
  std::deque<Put> puts_;  // at most one is begun and not sent: the first that is not sent
  CopyPacer pacer_;       // of puts with a rate
  storage::Packer packer_;
  std::unique_ptr<net::Loop::Timer> chunk_timer_;
  std::map<uint64_t, std::function<void(Result<std::vector<Digest>>)>> missing_;
  MicrobatchRequests microbatches_;
};

}  // namespace weft::peer
