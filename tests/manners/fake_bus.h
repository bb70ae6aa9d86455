// A bus of the desktop that is none: its clients' other end, which plays the bus, logind and GameMode. By
// sd-bus, as they are; on a thread for each.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace weft::test {

class FakeBus {
 public:
  // Listens at that path. REQUIRES: is_there().
  explicit FakeBus(const std::filesystem::path& socket);
  ~FakeBus();
  FakeBus(const FakeBus&) = delete;
  FakeBus& operator=(const FakeBus&) = delete;
  static bool is_there();  // libsystemd is

  std::string address() const;

  // What the services say.
  std::atomic<bool> idle = false, about_to_sleep = false, has_logind = true, refuses_delays = false;
  std::atomic<uint64_t> idle_since = 0;  // microseconds
  std::atomic<int> games = -1;           // below 0: GameMode does not run
  // Whether somebody keeps the machine awake for a moment, and how often that was asked for.
  bool is_delayed() const;
  std::atomic<int> delays_asked = 0;
  std::atomic<bool> started_a_service = false;  // was asked to

  struct Server;  // one connection's

 private:
  void run();
  void serve(int client);
  const std::filesystem::path socket_;
  int listening_ = -1;
  mutable Mutex mutex_;
  std::vector<int> delays_ WEFT_GUARDED_BY(mutex_);  // an end of a pipe, whose other one a client has
  std::atomic<bool> ends_ = false;
  std::vector<std::thread> clients_;  // the listening thread's
  std::thread thread_;
};

}  // namespace weft::test
