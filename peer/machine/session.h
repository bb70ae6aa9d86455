// A peer's standing with its broker: connecting, being admitted, keeping the lease, leaving. What it holds
// for the broker is above (peer.h). Pure: time and chance are handed in.
//
//   Offline --connect--> Greeting --HelloAck--> Joined --Drain--> Draining --nothing held--> Left
//      ^-------- connection lost, refused for now, no answer within the lease -------'
//
// A broker that was there and goes away is tried again soon and often, for it may only have been restarted;
// after that the waits double.
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
  proto::Hello hello;  // but for `holding`
  uint64_t seed = 0;   // of the jitter: differs from peer to peer, so that they do not come back all at once
  Duration retry_first = std::chrono::milliseconds(500);
  Duration retry_max = std::chrono::seconds(15);
  Duration retry_lost = std::chrono::milliseconds(250);  // the first wait after a broker that was there
  Duration restart = std::chrono::seconds(5);  // for so long after it went no wait is above retry_first
  Duration greeting_deadline = std::chrono::seconds(10);
  Duration say_again = std::chrono::minutes(1);  // that the broker is not there
};

// Effects
struct ConnectToBroker {};
struct DropBroker {   // close the connection; what it still brings is not wanted
  Duration linger{};  // for what was told last to get through
};
struct TellBroker {
  proto::Message message;
};
struct Leave {
  Status why;  // an error: refused for good
};
struct Say {
  std::string line;  // for the log: "level event key=value ..."
};
struct BrokerCame {};  // it has admitted this peer
struct BrokerWent {    // it will be tried again
  std::string why;
};
using SessionEffect =
    std::variant<ConnectToBroker, DropBroker, TellBroker, Leave, Say, BrokerCame, BrokerWent>;
using SessionEffects = std::vector<SessionEffect>;

class Session {
 public:
  enum class State : uint8_t { Offline, Connecting, Greeting, Joined, Draining, Left };

  explicit Session(SessionOptions options);

  // What comes in a state in which it cannot be (of an attempt or connection that was dropped) does nothing.
  SessionEffects start(Instant now);
  SessionEffects on_connected(Instant now, std::vector<proto::StageHeld> holding);
  SessionEffects on_connect_failed(Instant now, const Error& error);
  SessionEffects on_lost(Instant now, const Error& error);
  // Any message: it shows that the broker lives. HelloAck and Refusal are for the session.
  SessionEffects on_message(Instant now, const proto::Message& message);
  SessionEffects on_tick(Instant now, Bytes memory_free, const std::optional<proto::StageWork>& work,
                         const std::optional<proto::StageSaving>& saving = {});
  // To leave: when a stage is held, not before drain() has been called again without one. May be called at
  // any time, and again after the broker came back.
  SessionEffects drain(bool holds_stage);
  // What the broker is told with the next Drain.
  void set_goodbye(proto::Drain goodbye) { goodbye_ = std::move(goodbye); }
  // At once, whatever is held. An error: what the peer cannot go on for.
  SessionEffects leave(Status why);
  // The broker is told as before leaving, and not tried again before start().
  SessionEffects step_away(const std::string& why);
  void mark_to_leave() { draining_ = true; }  // drain() follows when that can be

  State state() const { return state_; }
  bool is_admitted() const { return state_ == State::Joined || state_ == State::Draining; }
  bool is_to_leave() const { return draining_; }
  uint32_t broker_minor() const { return broker_minor_; }  // of the protocol; of who admitted it last
  std::optional<Instant> retry_at() const { return retry_at_; }
  std::optional<Instant> next_deadline() const;

 private:
  void say_unreachable(Instant now, const std::string& why, Duration wait, SessionEffects& effects);
  void go_offline(Instant now, const std::string& why, SessionEffects& effects);
  SessionEffects drop(Instant now, const std::string& why);

  SessionOptions options_;
  Rng jitter_;
  State state_ = State::Offline;
  bool draining_ = false;
  uint32_t failures_ = 0, broker_minor_ = 0;
  std::optional<Instant> retry_at_, lost_at_;
  Instant since_{}, last_heard_{}, last_heartbeat_{};
  Duration heartbeat_interval_ = std::chrono::seconds(2), lease_ = std::chrono::seconds(10);
  uint64_t sequence_ = 0;
  // What was said of a broker that is not there: once, and again every now and then.
  std::string last_problem_;
  Instant said_at_{};
  uint32_t tries_ = 0;  // since it was said first
  proto::Drain goodbye_{};
};

}  // namespace weft::peer
