// Peers that do no more than they should: each joins over TLS with a key of its own, and sends its
// heartbeats. All on one thread of this process; what they see says how those fare whom nobody attacks.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/connection.h"
#include "net/loop.h"
#include "security/token.h"

namespace weft::attacks {

class HonestPeers {
 public:
  HonestPeers(net::Endpoint broker, const security::Token& token, size_t count);
  ~HonestPeers();
  HonestPeers(const HonestPeers&) = delete;
  HonestPeers& operator=(const HonestPeers&) = delete;

  // Until each is admitted. False: not within the deadline.
  bool wait_until_joined(Duration deadline);

  struct Report {
    size_t joined = 0;
    size_t lost = 0;              // of those that had joined
    uint64_t answered = 0;        // heartbeats, since the last report
    Duration worst_round_trip{};  // since the last report; of one without an answer yet: its age
    std::string reason{};         // of the last that was lost
  };
  Report report();  // any thread

 private:
  struct Peer;
  void run();
  void join(Peer& peer);
  void on_frame(Peer& peer, const net::InFrame& frame);
  void tick();

  const net::Endpoint broker_;
  const security::Token token_;
  net::Loop* loop_ = nullptr;  // of the thread
  std::unique_ptr<net::Loop::Timer> timer_;
  std::vector<std::unique_ptr<Peer>> peers_;
  size_t begun_ = 0, done_ = 0;  // of the thread

  std::mutex mutex_;
  Report report_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace weft::attacks
