// A peer at work: the shell around peer/machine/peer.h, which decides. Keeps the control connection, the
// bytes of blobs and what has come for the stage, and carries out what the machine wants done with three
// parts that have threads of their own: links to other peers (link_service.h), the second connection to the
// broker (bulk_service.h), the backend (compute_service.h). All of its own runs on the loop of run()'s
// caller.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "net/connection.h"
#include "net/loop.h"
#include "peer/backend/backend.h"
#include "peer/machine/peer.h"
#include "peer/service/blob_fetcher.h"
#include "peer/service/blobs_in_memory.h"
#include "peer/service/bulk_service.h"
#include "peer/service/compute_service.h"
#include "peer/service/control_connection.h"
#include "peer/service/dial_guard.h"
#include "peer/service/inbox.h"
#include "peer/service/link_service.h"
#include "peer/service/work_done.h"
#include "security/identity.h"

namespace weft::peer {

struct PeerServiceOptions {
  net::Endpoint broker;
  PeerId broker_key;
  const security::Identity* identity = nullptr;
  proto::Hello hello;  // its device's report too: measured before
  std::optional<net::Endpoint> listen;
  std::string advertise;  // "host:port"; empty with `listen`: the address that was bound
  std::function<std::optional<net::Shape>(const std::string& region)> shape{};  // emulated links
  std::optional<net::Shape> accepted_shape{};  // of those that others dial: what they do not emulate
  // ComputeService::Options.
  std::function<Result<std::unique_ptr<Backend>>()> make_backend;
  std::function<void(const std::string& line)> log;
  std::function<Bytes()> memory_free;
  bool dials_private = false;  // addresses of private networks also where the broker is elsewhere
  Duration orphan_deadline = std::chrono::minutes(10);  // PeerOptions
  // Tensors that lie in files of this machine, and are not fetched; null: none.
  std::shared_ptr<const weights::WeightIndex> weights{};
  std::function<void(const Task&, Instant began, Instant ended)> on_task{};
};

class PeerService {
 public:
  PeerService(net::Loop& loop, PeerServiceOptions options);
  ~PeerService();

  // Until the peer has left: on request, or because the broker refused it for good (the error).
  Status run();
  // Any thread. The first asks the broker to take the work away; stop() ends at once.
  void request_drain(proto::Drain goodbye = {});
  void stop();
  PeerActivity activity() { return peer_ ? work_.activity(*peer_) : PeerActivity{}; }  // on run()'s loop
  // The machine slept, and this process with it: nobody knows what became of its connections. They are
  // dropped and made anew, the broker's first, which says whether the stages go on.
  void woke(Duration slept);
  // After run(): whether the device lets go of its threads within that time. If not, this cannot be
  // destroyed: the process ends as it is (ComputeService::rest).
  bool rest(Duration within);

 private:
  // The machine (peer_service.cc). Effects are carried out in order, also those that come while others are.
  Status open();
  Status start_links();
  void start_compute();
  void carry_out(PeerEffects effects);
  void carry_out_one(PeerEffect& effect);
  void tick();
  void arm_timer();
  void log(const std::string& line) { options_.log(line); }
  // The control connection (peer_service.cc)
  ControlConnection::Handlers control_handlers();
  void drop_control(Duration linger = {});
  void learn_reach(const std::string& broker);
  MayDial may_dial() const;
  void tell(proto::Message message);

  // What the machine wants done
  void open_links(const OpenLinks& open);
  void close_links(uint64_t generation);
  void make_runner(const MakeRunner& make);
  void drop_runner(uint64_t generation);
  void run_task(const RunTask& run);
  void fetch_data(const FetchData& fetch);
  void offer(const OfferBlobs& offer);
  void put(const UploadBlob& upload);
  void on_hashed(uint64_t generation, const Task& task, std::vector<ComputeService::Hashed> hashed);

  // What the peer holds for a stage that it was assigned.
  struct Stage {
    std::shared_ptr<const proto::AssignStage> assignment;
    Inbox inbox;
  };
  bool is_held(uint64_t generation) const { return stages_.contains(generation); }

  net::Loop& loop_;
  PeerServiceOptions options_;
  std::optional<Peer> peer_;  // from open() on
  std::deque<PeerEffect> effects_;
  bool carrying_out_ = false;
  ControlConnection control_;
  BlobsInMemory blobs_;
  BlobFetcher fetcher_;
  std::map<uint64_t, Stage> stages_;  // by the machine's generation
  WorkCounter work_;
  std::unique_ptr<net::Loop::Timer> timer_;
  Instant timer_at_{};
  Status result_;

  const std::shared_ptr<DialGuard> dials_;

  // Last, so that their threads end before what their work refers to.
  const std::shared_ptr<UrgentSends> urgent_ = std::make_shared<UrgentSends>();
  std::unique_ptr<LinkService> links_;
  std::unique_ptr<BulkService> bulk_;
  std::unique_ptr<ComputeService> compute_;
};

}  // namespace weft::peer
