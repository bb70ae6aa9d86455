// A peer's standing with its broker: connecting, being admitted, keeping the lease, taking and giving back a
// stage, leaving. Pure: time and chance are handed in.
//
//   Offline --connect--> Greeting --HelloAck--> Joined --Drain--> Draining --ReleaseStage, or nothing held-->
//   Left
//      ^-------- connection lost, refused for now, no answer within the lease -------'
//
// A peer that loses its broker lets its stage go at once: the broker has given it up as well, or will.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/rng.h"
#include "base/units.h"
#include "proto/messages.h"

namespace weft::peer {

struct SessionOptions {
  proto::Hello hello;
  uint64_t seed = 0;  // of the jitter: differs from peer to peer, so that they do not come back all at once
  Duration retry_first = std::chrono::milliseconds(500);
  Duration retry_max = std::chrono::seconds(15);
  Duration greeting_deadline = std::chrono::seconds(10);
};

// Effects
struct ConnectToBroker {};
struct DropBroker {};  // close the connection; what it still brings is not wanted
struct TellBroker {
  proto::Message message;
};
struct LoadStage {
  std::shared_ptr<const proto::AssignStage> assignment;
};
struct DropStage {
  std::string reason;
};
struct Leave {
  Status why;  // an error: refused for good
};
struct Say {
  std::string line;  // for the log: "level event key=value ..."
};
using SessionEffect = std::variant<ConnectToBroker, DropBroker, TellBroker, LoadStage, DropStage, Leave, Say>;
using SessionEffects = std::vector<SessionEffect>;

class Session {
 public:
  enum class State : uint8_t { Offline, Connecting, Greeting, Joined, Draining, Left };

  explicit Session(SessionOptions options);

  SessionEffects start(Instant now);
  SessionEffects on_connected(Instant now);
  SessionEffects on_connect_failed(Instant now, const Error& error);
  SessionEffects on_lost(Instant now, const Error& error);
  // All but what is for the stage (Command, GradientNorm, RelayInvitation), which the caller hands on itself.
  SessionEffects on_message(Instant now, const proto::Message& message);
  SessionEffects on_tick(Instant now, Bytes memory_free);
  SessionEffects request_drain(Instant now);

  State state() const { return state_; }
  // The stage at hand, if any: what carries another run or plan version is stale.
  const std::shared_ptr<const proto::AssignStage>& assignment() const { return assignment_; }
  std::optional<Instant> retry_at() const { return retry_at_; }

 private:
  SessionEffects go_offline(Instant now, const std::string& why);
  void refused(Instant now, const proto::Refusal& refusal, SessionEffects& effects);

  SessionOptions options_;
  Rng jitter_;
  State state_ = State::Offline;
  bool draining_ = false;
  uint32_t failures_ = 0;
  std::optional<Instant> retry_at_;
  Instant since_{}, last_heard_{}, last_heartbeat_{};
  Duration heartbeat_interval_ = std::chrono::seconds(2), lease_ = std::chrono::seconds(10);
  uint64_t sequence_ = 0;
  std::string last_problem_;
  std::shared_ptr<const proto::AssignStage> assignment_;
};

}  // namespace weft::peer
