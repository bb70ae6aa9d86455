// A broker at work: its public port, its core, its disk, and the processes that plan for it.
//
//   peers, clients == TLS ==> gate --(ZeroMQ ROUTER/DEALER)--> core --(append)--> store
//                              ^------(ZeroMQ PUB/SUB: events, status)--'  '--(pipes)--> weft plan-worker
//
//   callers ===== HTTP ====> door (served models) <--> gate <==> the peer of a model's entry stage
//
// Threads: `gate` (connections, relay; one for now), `core` (the state machine and the store), those of
// planning.h, `files` and `feeder` (blobs and microbatches of data), `disk`. They share nothing but the bus,
// the blob store, and immutable values.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "broker/options.h"
#include "broker/service/blob_leases.h"
#include "net/listener.h"
#include "security/token.h"

namespace weft::broker {

struct BrokerServiceOptions {
  std::filesystem::path data_dir;  // made where it is missing, mode 0700
  net::Endpoint listen{"0.0.0.0", 7700};
  net::ListenLimits limits{};
  std::string advertise;  // "host:port" that tokens' users are told; empty: the bound address
  std::function<void(const std::string& line)> log;
  // Of the core. Heartbeats and the time to come back follow from the lease.
  BrokerOptions broker{.measures_links = true};
  uint64_t egress = 0;  // bytes a second of blobs for peers that stand by, in all; 0: no limit
  BlobQuota quota{};    // of each key, for blobs that no job uses
  // A folder of checkpoints: what of them is submitted is taken from there; empty: none.
  std::filesystem::path weights{};
  // Where there is none yet; false: who starts it cannot show it to anybody.
  bool makes_submitter_token = true;
  // weft, which checks submissions and plans jobs in processes of their own; empty: it cannot.
  std::filesystem::path program{};
  Bytes plan_memory{int64_t{4} << 30};            // that planning a job may take; 0: no limit
  Duration plan_time = std::chrono::seconds(60);  // likewise
  // Where served models are asked (door.h); nothing: nowhere. PEM files, both or neither: an address that
  // others reach needs them.
  std::optional<net::Endpoint> http{};
  std::filesystem::path http_certificate{}, http_key{};
  // Where Prometheus reads what the broker counts; nothing: nowhere. Without TLS and token.
  std::optional<net::Endpoint> metrics{};
  // How long what ended jobs left is kept; nothing: for ever.
  std::optional<Duration> keep{};
};

class BrokerService {
 public:
  // Opens everything and starts the threads; the port is open when it returns. Errors: Unavailable when
  // another broker holds the data directory or the port is in use; what identity, store and disk say.
  static Result<std::unique_ptr<BrokerService>> start(BrokerServiceOptions options);
  ~BrokerService();

  net::Endpoint endpoint() const;  // as bound
  std::optional<net::Endpoint> http_endpoint() const;
  std::optional<net::Endpoint> metrics_endpoint() const;
  std::string advertised() const;  // for the join line
  // What is printed at the start: the lasting peer token, without limits and the same each time until it is
  // revoked; where nobody may submit yet a submitter token as well, shown this once.
  const std::string& peer_token() const;
  const std::optional<std::string>& submitter_token() const;

  // Blocks until stop() or a fatal error (a store that cannot be trusted any more).
  Status wait();
  void stop();  // any thread

 private:
  struct Parts;
  explicit BrokerService(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// Tokens without a running broker, or beside one: they are rows of its database. `data_dir` must be a
// broker's, or new: the identity is made then.
struct NewToken {
  security::Role role = security::Role::Peer;
  std::optional<Duration> ttl{};
  std::optional<uint32_t> uses{};
  std::string label{};  // a line of at most kTokenLabelMax bytes
};
inline constexpr size_t kTokenLabelMax = 64;
struct MadeToken {
  std::string text;
  uint64_t id = 0;
};
Result<MadeToken> create_token(const std::filesystem::path& data_dir, const NewToken& token);
// The lasting peer token, made where it is not there yet or was revoked. Nothing of it is kept but what
// recognises it: it is derived from the broker's key.
Result<MadeToken> lasting_peer_token(const std::filesystem::path& data_dir);
// Where peers find the broker, as it was started last. NotFound: it never was.
Status keep_address(const std::filesystem::path& data_dir, const std::string& address);
Result<std::string> kept_address(const std::filesystem::path& data_dir);
struct TokenLine {
  uint64_t id = 0;
  security::Role role = security::Role::Peer;
  int64_t created_unix_ms = 0;
  std::optional<int64_t> expires_unix_ms;
  std::optional<uint32_t> uses_max;
  uint32_t uses = 0;
  bool revoked = false;
  std::string label;
};
Result<std::vector<TokenLine>> list_tokens(const std::filesystem::path& data_dir);
Status revoke_token(const std::filesystem::path& data_dir, uint64_t id);

}  // namespace weft::broker
