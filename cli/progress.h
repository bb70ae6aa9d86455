// What a command says of itself on standard error while it has nothing else to say.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace weft::cli {

// Bytes on their way, "fetching 40.0 MiB of 128 MiB": a line of a terminal that is rewritten, and gone at the
// end. In a file nothing is said.
class TransferLine {
 public:
  TransferLine(std::string verb, uint64_t total);
  ~TransferLine();
  TransferLine(const TransferLine&) = delete;
  TransferLine& operator=(const TransferLine&) = delete;
  void add(uint64_t bytes);
  uint64_t total() const { return total_; }

 private:
  using Clock = std::chrono::steady_clock;
  const std::string verb_;
  const uint64_t total_;
  uint64_t done_ = 0;
  const bool terminal_;
  bool shown_ = false;
  Clock::time_point last_shown_ = Clock::now();
};

// What a command is at, once that takes longer than people wait without wondering: after two seconds, and
// then every half minute with how long it has been. Its thread takes no signals.
class Patience {
 public:
  explicit Patience(std::string what);  // "reading the job's files"
  ~Patience() = default;
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  void wait(const std::stop_token& stop);

  const std::string what_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace weft::cli
