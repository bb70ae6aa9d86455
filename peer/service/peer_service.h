// A peer at work: the shell around peer/machine/peer.h, which decides. Keeps the connections to the broker,
// the bytes of blobs, and the tensors of the stage; runs tasks on the compute thread.
//
// Threads: `loop` (the caller of run(): the machine and the broker's connections), `link` (LinkService:
// connections to other peers), `compute` (owns the backend; gives what a task made to `link` itself),
// `upload` (hashes what a snapshot copied).
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
#include "net/worker.h"
#include "peer/backend/backend.h"
#include "peer/machine/peer.h"
#include "peer/service/bulk.h"
#include "peer/service/link_service.h"
#include "peer/service/pacer.h"
#include "peer/service/stage_runner.h"
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
  // Called on the compute thread, once.
  std::function<Result<std::unique_ptr<Backend>>()> make_backend;
  std::function<void(const std::string& line)> log;
  std::function<Bytes()> memory_free;
  Duration orphan_deadline = std::chrono::minutes(10);  // PeerOptions
  // Told of each task that has run, on the compute thread: for measurements.
  std::function<void(const Task&, Instant began, Instant ended)> on_task{};
};

class PeerService {
 public:
  PeerService(net::Loop& loop, PeerServiceOptions options);
  ~PeerService();

  // Until the peer has left: on request, or because the broker refused it for good (the error).
  Status run();
  // Any thread. The first asks the broker to take the work away; stop() ends at once.
  void request_drain();
  void stop();

 private:
  struct Stage;

  // The machine (peer_service.cc). Effects are carried out in order, also those that come while others are.
  Status open();
  Status start_links();
  void carry_out(PeerEffects effects);
  void carry_out_one(PeerEffect& effect);
  void tick();
  void arm_timer();
  void log(const std::string& line) { options_.log(line); }

  // The control connection (peer_service.cc)
  void connect_control();
  void drop_control(const Error& error);
  void on_control_frame(const net::InFrame& frame);
  void tell(proto::Message message);
  void add_bytes_sent(proto::StepReport& step) const;

  // The bulk connection (peer_bulk.cc)
  BulkTransfers& transfers();  // opens it when it is not there
  void close_bulk(const Error& error);
  void on_bulk_frame(const net::InFrame& frame);
  void fetch_blob(const FetchBlob& fetch);
  void forget_blobs(const ForgetBlobs& forget);
  void fetch_paced();
  void get_blob(const FetchBlob& fetch);
  void fetch_data(const FetchData& fetch);
  void offer(const OfferBlobs& offer);
  void put(const UploadBlob& upload);

  // The stage (peer_stage.cc)
  void open_links(const OpenLinks& open);
  void close_links();
  void make_runner(const MakeRunner& make);
  void drop_runner();
  void run_task(const Task& task);
  void on_task_done(const Task& task, Result<StageRunner::Output> output);
  void hash(const Task& task, std::vector<StageRunner::Output::Named> tensors);
  void on_tensor(uint32_t from_stage, const proto::TensorHeader& header, dag::Tensor tensor);
  // Runs `work` on the loop if the stage of now is still there then.
  std::function<void(std::function<void()>)> on_loop_for_stage();

  net::Loop& loop_;
  PeerServiceOptions options_;
  std::optional<Peer> peer_;  // from open() on
  std::deque<PeerEffect> effects_;
  bool carrying_out_ = false;
  std::unique_ptr<net::Attempt> control_attempt_, bulk_attempt_;
  net::ConnectionPtr control_, bulk_;
  std::shared_ptr<BulkTransfers> transfers_;
  uint64_t bulk_number_ = 0;  // of bulk connections: what an older one's attempt gives is not wanted
  bool bulk_ready_ = false;
  std::deque<net::OutFrame> bulk_waiting_;  // until the broker has said hello
  std::map<Digest, net::SharedBytes> blobs_;
  std::deque<FetchBlob> paced_fetches_;
  Pacer fetch_pacer_;
  std::unique_ptr<net::Loop::Timer> fetch_timer_;
  std::shared_ptr<Stage> stage_;
  std::unique_ptr<net::Loop::Timer> timer_;
  Instant timer_at_{};
  Status result_;

  // Last, so that their threads end before what their work refers to.
  std::unique_ptr<LinkService> links_;
  std::unique_ptr<Backend> backend_;  // made, used and destroyed on compute_
  std::unique_ptr<net::Worker> compute_, upload_;
};

}  // namespace weft::peer
