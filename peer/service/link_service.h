// Links on a loop and thread of their own, with whoever dials in: encryption and sockets never delay the
// thread that hands out tasks; what comes encoded is decoded on a third. What happens is told on the owner's
// loop. What came and was not taken there yet is bounded: then nothing more is read. Between stages, links
// are measured there when the broker asks. Who dials in may ask for blobs, too (blob_server.h).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "net/listener.h"
#include "net/loop.h"
#include "net/worker.h"
#include "peer/service/blob_server.h"
#include "peer/service/link_arrivals.h"
#include "peer/service/links.h"
#include "peer/service/prober.h"
#include "peer/service/urgent_sends.h"

namespace weft::peer {

class LinkService {
 public:
  struct Options {
    const security::Identity* identity = nullptr;
    net::Endpoint relay;                                                          // the broker's public port
    std::function<std::optional<net::Shape>(const std::string& region)> shape{};  // called on the thread
    std::optional<net::Shape> accepted_shape{};
    std::optional<net::Endpoint> listen{};
    uint64_t untaken_bytes_max = 256 << 20;  // told to the owner, who has not got to it yet
    uint32_t streams = LinkOptions{}.streams;
    std::shared_ptr<UrgentSends> urgent{};  // is told whether tensors wait to leave
    MayDial may_dial{};                     // of addresses that the broker names
  };
  // On the owner's loop, in order; also a moment after the stage was closed, which the generation tells.
  struct Handlers {
    std::function<void(uint64_t generation)> on_all_up;
    std::function<void(uint64_t generation, plan::Seat seat, const Error&)> on_down;
    std::function<void(uint64_t generation, plan::Seat seat, const proto::TensorHeader&, dag::Tensor)>
        on_tensor;
    // Instead of on_tensor: what the stage would learn from is not finite (encoding.h).
    std::function<void(uint64_t generation, plan::Seat seat, const proto::TensorHeader&)> on_not_finite{};
    std::function<void(const proto::ProbeReport&)> on_probed{};
    // What the owner holds of what another peer asks for, and of the base that it names. Missing: nothing.
    std::function<HeldBlob(const proto::GetBlob&)> on_get_blob{};
    std::function<void(const Digest& sha256, bool whole)> on_giving{};  // another peer (blob_server.h)
  };
  // Errors: what the listener says.
  static Result<std::unique_ptr<LinkService>> start(net::Loop& owner, Options options, Handlers handlers);
  ~LinkService();  // on the owner's thread; nothing is told afterwards

  std::optional<net::Endpoint> endpoint() const { return endpoint_; }  // as bound

  // Any thread. Each stage's links by its generation; what is sent for one that is not open goes nowhere.
  void open(uint64_t generation, std::shared_ptr<const proto::AssignStage> assignment);
  void close(uint64_t generation);
  // What comes on each edge of a pass (Links::expect).
  void expect(uint64_t generation, std::vector<dag::RowSpec> edges);
  void invite(const proto::Secret& ticket);
  // As if each connection of a stage were lost (Links::lose_connections).
  void lose_connections(const Error& error);
  // Measures a link; a stage that is opened ends it.
  void probe(const proto::ProbeLink& probe);
  void send(uint64_t generation, plan::Seat seat, const proto::TensorHeader& header, dag::Tensor payload);
  // Of an open stage, since the last call; what was sent a moment ago may be in the next one.
  std::vector<proto::LinkUse> take_use(uint64_t generation);
  // Any thread. What a codec made of a tensor, and what it cost where somebody looked: part of the use.
  struct Encoded {
    uint64_t bytes_dense = 0, bytes_encoded = 0;
    std::optional<double> relative_error{};
  };
  void count(uint64_t generation, plan::Seat seat, const Encoded& encoded);

 private:
  LinkService(net::Loop& owner, Options options, Handlers handlers)
      : owner_(owner),
        options_(std::move(options)),
        handlers_(std::make_shared<Handlers>(std::move(handlers))) {}
  void run();

  // What a tensor is decoded and judged by.
  struct OfRun {
    uint64_t seed = 0;
    bool takes_any = false;  // its steps are skipped where they are not finite: that is found out later
  };
  struct Open {  // a stage's
    OfRun run;
    uint64_t copy_rate = 0;
    std::unique_ptr<Links> links;
  };
  // On the thread.
  Links* links_of(uint64_t generation) const;
  bool anything_unsent() const;
  void pause_reading(bool paused);
  void set_blob_rate();
  LinkArrivals::Takers takers();
  void look_up(const proto::GetBlob& request, const BlobServer::Found& found);
  void open_now(uint64_t generation, std::shared_ptr<const proto::AssignStage> assignment);
  void close_now(uint64_t generation);
  LinkOptions link_options();
  void tick();
  void tell(std::function<void(const Handlers&)> what);
  void hand_over(uint64_t generation, plan::Seat seat, const proto::TensorHeader& header,
                 dag::Tensor payload);
  // On the thread that decodes, or on this one.
  void decode(uint64_t generation, const OfRun& run, plan::Seat seat, const proto::TensorHeader& header,
              const dag::Tensor& payload);
  void pass_on(uint64_t generation, plan::Seat seat, const proto::TensorHeader& header, dag::Tensor tensor);
  bool is_decoded_here(const OfRun& run, const proto::TensorHeader& header) const;
  void on_taken(uint64_t bytes);
  void publish_use();
  void publish_urgent();

  net::Loop& owner_;
  const Options options_;
  const std::shared_ptr<const Handlers> handlers_;  // the owner's loop holds it weakly
  std::optional<net::Endpoint> endpoint_;

  // The thread's.
  net::Loop loop_;
  std::unique_ptr<net::Listener> listener_;
  LinkArrivals arrivals_{loop_, takers()};
  std::unique_ptr<net::Loop::Timer> timer_, urgent_timer_;
  std::map<uint64_t, Open> stages_;  // by generation
  std::unique_ptr<Prober> prober_;
  std::unique_ptr<BlobServer> blobs_;
  std::atomic<uint32_t> decoding_ = 0;  // tensors that the thread which decodes has yet to pass on
  uint64_t untaken_ = 0;                // bytes of tensors
  bool is_paused_ = false;

  Mutex mutex_;
  using Use = std::map<plan::Seat, proto::LinkUse>;
  std::map<uint64_t, Use> use_ WEFT_GUARDED_BY(mutex_);  // of the stages that are open

  std::thread thread_;                    // it begins when the rest is there
  std::unique_ptr<net::Worker> decoder_;  // when a stage first needs one
};

}  // namespace weft::peer
