// A peer at work: the loop around its state machines. Keeps the control connection, fetches tensors and data,
// opens links, runs tasks on the compute thread.
//
// Threads: `loop` (the caller of run(): network and machines), `compute` (owns the backend), `upload` (hashes
// what a checkpoint copied).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "net/connection.h"
#include "net/listener.h"
#include "net/loop.h"
#include "net/worker.h"
#include "peer/backend/backend.h"
#include "peer/machine/session.h"
#include "peer/machine/stage.h"
#include "peer/service/bulk.h"
#include "peer/service/links.h"
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
  struct Arrival;  // an accepted connection that has not said which link it is

  Status open();
  void carry_out(SessionEffects effects);
  void connect_control();
  void on_control_frame(const net::InFrame& frame);
  void on_control_message(const proto::Message& message);
  void tell(const proto::Message& message);
  void log(const std::string& line) { options_.log(line); }
  void tick();

  void open_bulk();
  void close_bulk(const Error& error);
  void on_bulk_frame(const net::InFrame& frame);

  void on_accepted(net::ConnectionPtr connection);
  void on_arrival_frame(const std::shared_ptr<Arrival>& arrival, net::InFrame frame);
  void match_arrivals();
  void drop_arrival(const std::shared_ptr<Arrival>& arrival);

  void load_stage(std::shared_ptr<const proto::AssignStage> assignment);
  void drop_stage(const std::string& reason);
  void fetch_tensors();
  void make_runner();
  void report_ready();
  void fail_stage(const Error& error, std::optional<uint32_t> unreachable = {}, bool permanent = false);
  void on_stage_message(const proto::Message& message);
  void on_tensor(uint32_t from_stage, const proto::TensorFrame& tensor);
  void pump();
  void fetch_data(const MicrobatchKey& key);
  void run_task(const Task& task);
  void on_task_done(const Task& task, Result<StageRunner::Output> output);
  void upload(const Task& task, std::vector<StageRunner::Output::Named> tensors, bool prediction);

  // Runs `work` on the loop if the stage of now is still there then.
  std::function<void(std::function<void()>)> on_loop_for_stage();

  net::Loop& loop_;
  PeerServiceOptions options_;
  Session session_;
  std::unique_ptr<net::Listener> listener_;
  std::unique_ptr<net::Attempt> control_attempt_, bulk_attempt_;
  net::ConnectionPtr control_, bulk_;
  std::unique_ptr<BulkTransfers> transfers_;
  bool bulk_ready_ = false;
  std::deque<net::OutFrame> bulk_waiting_;  // until the broker has said hello
  std::vector<std::shared_ptr<Arrival>> arrivals_;
  std::unique_ptr<Stage> stage_;
  uint64_t generation_ = 0;  // of stages
  std::unique_ptr<net::Loop::Timer> timer_;
  Status result_;

  // Last, so that their threads end before what their work refers to.
  std::unique_ptr<Backend> backend_;  // made, used and destroyed on compute_
  std::unique_ptr<net::Worker> compute_, upload_;
};

}  // namespace weft::peer
