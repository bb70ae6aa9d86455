// One client's connection: reads requests, one at a time, and sends their answers. Belongs to the loop.
// Internal to web/.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "net/census.h"
#include "net/loop.h"
#include "net/transport.h"
#include "web/exchange.h"
#include "web/request_parser.h"
#include "web/server.h"

namespace weft::web {

class HttpConnection;

// What the connections of a server share.
struct Hub {
  explicit Hub(const ServerLimits& limits) : limits(limits), scratch(16 << 10) {}

  const ServerLimits limits;
  std::shared_ptr<net::Loop> loop = std::make_shared<net::Loop>();
  std::shared_ptr<Handler> handler;
  std::shared_ptr<UnsentTotal> unsent = std::make_shared<UnsentTotal>();
  std::vector<std::shared_ptr<HttpConnection>> connections;  // the oldest first
  std::vector<std::byte> scratch;                            // what is read goes through here
  size_t body_bytes = 0;                                     // of requests that are being read
  bool is_stopping = false;
  std::function<void()> on_empty;  // stopping, and the last connection has gone

  void count(uint64_t ServerStats::*counter, uint64_t amount = 1) {
    const MutexLock lock(mutex_);
    stats_.*counter += amount;
  }
  void count_down(uint64_t ServerStats::*gauge) {
    const MutexLock lock(mutex_);
    --(stats_.*gauge);
  }
  ServerStats current_stats() const {
    const MutexLock lock(mutex_);
    return stats_;
  }

 private:
  mutable Mutex mutex_;
  ServerStats stats_ WEFT_GUARDED_BY(mutex_);
};

class HttpConnection final : public std::enable_shared_from_this<HttpConnection>, net::Transport::Events {
 public:
  // `token` counts the connection, until it is closed.
  HttpConnection(std::shared_ptr<Hub> hub, net::TransportPtr transport, const net::AddressKey& from,
                 std::shared_ptr<void> token);
  ~HttpConnection();

  void begin();
  void pump();     // there is something to send
  void wind_up();  // the server stops: closed now, or once its answer is sent
  void close();    // at once
  // Between requests, and long enough without a sign of one that its place may be given away.
  bool is_idle(Instant now) const;

  const net::AddressKey from;

 private:
  enum class Phase : uint8_t { Reading, Answering, Lingering, Closed };
  enum class Deadline : uint8_t { None, Head, Idle, Body, Stall, Ping, Linger };

  void on_readable() override;
  void on_writable() override;
  void read_some();
  void take_in(std::string_view bytes);
  void parse();
  size_t feed(std::string_view bytes);
  void on_progress();  // of the parser
  bool admit_head();
  bool reserve_body();
  void answer();
  void refuse(int status, const std::string& message);
  void refuse(const Response& response);

  void fill_out();
  bool flush();
  void end_answer();
  void linger();
  void leave(uint64_t ServerStats::*counter);

  void set_deadline(Deadline kind, Duration after);
  void arm_timer();
  void on_timer();
  void on_deadline();
  void ping();

  const std::shared_ptr<Hub> hub_;
  net::TransportPtr transport_;
  std::shared_ptr<void> token_;
  Phase phase_ = Phase::Reading;
  const Instant began_;
  Instant heard_;  // when the first byte of the request came, or the last response ended

  std::optional<RequestParser> parser_;
  std::string input_;  // what the parser has not taken
  bool is_head_admitted_ = false;
  size_t body_reserved_ = 0;

  std::shared_ptr<Exchange> exchange_;
  bool keeps_alive_ = false;
  std::string out_;
  size_t out_begin_ = 0;
  bool is_last_taken_ = false;  // of the answer: out_ has all that is to come
  bool is_cut_ = false, is_stream_ = false;
  Instant sent_{};

  Deadline deadline_ = Deadline::None;
  Instant due_{}, armed_for_{};
  std::unique_ptr<net::Loop::Timer> timer_;
};

}  // namespace weft::web
