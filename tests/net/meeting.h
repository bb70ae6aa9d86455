// Two sides of a connection on one loop, over real sockets of 127.0.0.1, and plain sockets that misbehave.
#pragma once

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "net/connection.h"
#include "net/listener.h"
#include "net/loop.h"

namespace weft::net::test {

// Long enough that only a hang reaches it.
inline constexpr Duration kPatience = std::chrono::seconds(60);

const security::Identity& server_identity();
const security::Identity& client_identity();
const security::Identity& other_identity();

std::vector<std::byte> random_bytes(uint64_t seed, size_t size);
OutFrame make_frame(uint8_t kind, std::vector<std::byte> head, std::vector<std::byte> body = {});
std::vector<std::byte> to_vector(const InFrame& frame);

// What one side has seen.
struct Side {
  ConnectionPtr connection{};
  std::vector<InFrame> frames{};
  std::optional<Error> closed{};
  int closed_count = 0, drained_count = 0;

  void start(const ConnectionLimits& limits = {.frame_size_max = 256 << 20});
};

struct Outcome {
  std::unique_ptr<Attempt> attempt;
  std::optional<Result<ConnectionPtr>> result;
  bool is_done() const { return result.has_value(); }
  bool is_connected() const { return result && *result; }
  ErrorCode code() const { return result && !*result ? result->error().code : ErrorCode::Internal; }
  std::string message() const { return result && !*result ? result->error().message : ""; }
};

class Meeting {
 public:
  explicit Meeting(ListenOptions options = {});

  Loop loop;
  std::unique_ptr<Listener> listener;
  std::vector<ConnectionPtr> accepted;

  ConnectOptions client_options() const;
  std::unique_ptr<Outcome> begin(const ConnectOptions& options);
  std::unique_ptr<Outcome> begin() { return begin(client_options()); }
  // Both sides, started.
  void join(Side& client, Side& server, const ConnectOptions& options);
  void join(Side& client, Side& server) { join(client, server, client_options()); }

  bool run_until(const std::function<bool()>& done) { return loop.run_until(kPatience, done); }
};

// A blocking socket in the test's own hands.
class RawSocket {
 public:
  explicit RawSocket(const Endpoint& endpoint);
  ~RawSocket() { close(); }
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;
  int get() const { return descriptor_; }
  void send(std::span<const std::byte> bytes);
  void close();
  // Whether the other side has closed, after the loop had its turn. Received bytes are kept.
  bool is_closed();
  std::vector<std::byte> received;

 private:
  int descriptor_;
};

}  // namespace weft::net::test
