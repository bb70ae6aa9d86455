// A peer's second connection to its broker, on a loop and thread of its own: blobs and microbatches of data,
// whose encryption never delays the thread that hands out tasks. The connection is opened with the first
// request, and anew with the next one after it was lost. Beside it those to other peers that have blobs which
// the broker does not (blob_sources.h).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "net/connection.h"
#include "net/loop.h"
#include "peer/service/blob_sources.h"
#include "peer/service/bulk.h"
#include "peer/service/pacer.h"
#include "peer/service/urgent_sends.h"
#include "security/identity.h"

namespace weft::peer {

class BulkService {
 public:
  struct Options {
    const security::Identity* identity = nullptr;
    net::Endpoint broker;
    PeerId broker_key;
    std::function<std::optional<net::Shape>(const std::string& region)> shape{};  // called on the thread
    proto::Hello hello;                                                           // of the control connection
    std::shared_ptr<const UrgentSends> urgent{};                                  // what copies give way to
    MayDial may_dial{};  // of addresses that the broker names: sources of blobs
  };
  template <typename T>
  using Done = std::function<void(Result<T>)>;

  BulkService(net::Loop& owner, Options options);
  ~BulkService();  // on the owner's thread; nothing is told afterwards

  // On the owner's thread. Answers come on its loop, each once, but none after reset() or the end.
  struct Wanted {
    Digest sha256{};
    uint64_t size = 0;  // bytes: what is longer is not taken
    // Bytes a second; 0: at once. Of the broker in the mean over all that have one; a source keeps to it.
    uint64_t rate = 0;
    std::shared_ptr<const proto::BlobSource> source{};  // null: the broker
    std::optional<BulkTransfers::Base> base{};          // of a source: what this side has already
  };
  // Asked for again without a rate, the request to the broker that waits for its turn is dropped. Errors: of
  // a source as BlobSources has them, of the broker as it says.
  void get(Wanted wanted, Done<net::SharedBytes> done);
  void missing(std::vector<Digest> blobs, bool durable, Done<std::vector<Digest>> done);
  // `on_sent` is told about once a second.
  void put(const Digest& sha256, net::SharedBytes bytes, BulkTransfers::PutOptions options,
           std::function<void(Status)> done);
  void cancel_puts(uint64_t owner);  // those that have not begun
  // `specs`: as in BulkTransfers.
  void get_microbatch(proto::GetMicrobatch request, std::vector<dag::TensorSpec> specs,
                      Done<BulkTransfers::MicrobatchData> done);
  // The broker was lost: all connections are closed, what was asked for is not wanted.
  void reset();

 private:
  struct Paced {
    Wanted wanted;
    Done<net::SharedBytes> done;
  };
  // Takes what comes on the thread to the owner's loop.
  template <typename T>
  Done<T> on_owner(Done<T> done) const;

  // On the thread.
  BulkTransfers& transfers();      // opens the connection when it is not there
  void close(const Error& error);  // the connection to the broker
  void abandon(const Error& error);
  void on_frame(const net::InFrame& frame);
  void get_now(const Wanted& wanted, Done<net::SharedBytes> done);
  void get_paced();
  void tick();
  void tell_sent();

  net::Loop& owner_;
  const Options options_;
  std::shared_ptr<uint64_t> epoch_ =
      std::make_shared<uint64_t>(0);  // the owner's: one more with each reset()

  // The thread's.
  net::Loop loop_;
  std::unique_ptr<net::Attempt> attempt_;
  net::ConnectionPtr connection_;
  std::shared_ptr<BulkTransfers> transfers_;
  uint64_t number_ = 0;  // of connections: what an older one's attempt gives is not wanted
  bool is_ready_ = false;
  std::deque<net::OutFrame> waiting_;  // until the broker has said hello
  std::deque<Paced> paced_;
  Pacer pacer_;
  std::unique_ptr<net::Loop::Timer> timer_, tick_timer_, sent_timer_;
  BlobSources sources_;

  std::thread thread_;  // last: it begins when the rest is there
};

}  // namespace weft::peer
