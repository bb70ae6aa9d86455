// A wire that can be cut: forwards bytes between whoever connects to it and a port behind it, with threads of
// its own, until somebody cuts it or lets it swallow everything.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <thread>

#include "net/endpoint.h"

namespace weft::peer::test {

class Wire {
 public:
  explicit Wire(net::Endpoint behind);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  net::Endpoint endpoint() const { return endpoint_; }
  // Any thread. Connections that are open now end, for both sides; new ones work.
  void cut();
  // Connections that are open now carry nothing more, and nobody is told.
  void swallow();
  // No connection is accepted from now on; those that are open stay.
  void unplug();
  int accepted() const { return accepted_; }

 private:
  struct Pair {
    int sockets[2] = {-1, -1};
    std::atomic<bool> swallows{false};
    std::thread threads[2];
  };
  void accept_all();
  static void forward(Pair& pair, int from, int to);

  const net::Endpoint behind_;
  net::Endpoint endpoint_;
  int listener_;
  std::mutex mutex_;
  std::list<Pair> pairs_;  // guarded by mutex_
  std::atomic<int> accepted_{0};
  std::thread thread_;
};

}  // namespace weft::peer::test
