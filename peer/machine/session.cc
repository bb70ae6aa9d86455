#include "peer/machine/session.h"

#include <algorithm>
#include <cstdio>

namespace weft::peer {

Session::Session(SessionOptions options) : options_(std::move(options)), jitter_(options_.seed, 0x5e55) {}

SessionEffects Session::start(Instant now) {
  if (state_ != State::Offline) return {};
  state_ = State::Connecting;
  since_ = now;
  retry_at_.reset();
  return {ConnectToBroker{}};
}

SessionEffects Session::on_connected(Instant now, std::vector<proto::StageHeld> holding) {
  if (state_ != State::Connecting) return {DropBroker{}};
  state_ = State::Greeting;
  since_ = last_heard_ = now;
  proto::Hello hello = options_.hello;
  hello.holding = std::move(holding);
  return {TellBroker{std::move(hello)}};
}

SessionEffects Session::on_connect_failed(Instant now, const Error& error) {
  if (state_ != State::Connecting) return {};
  SessionEffects effects;
  go_offline(now, error.message, effects);
  return effects;
}

SessionEffects Session::on_lost(Instant now, const Error& error) {
  if (state_ != State::Greeting && !is_admitted()) return {};
  SessionEffects effects;
  go_offline(now, "the connection to the broker ended: " + error.message, effects);
  return effects;
}

// Back-off doubles from the first to the longest wait; the jitter takes up to half of it away.
void Session::go_offline(Instant now, const std::string& why, SessionEffects& effects) {
  Duration wait = options_.retry_first;
  if (is_admitted()) {
    lost_at_ = now;
    failures_ = 0;
    wait = options_.retry_lost;
  } else if (lost_at_ && now - *lost_at_ < options_.restart) {
    failures_ = 0;
  } else {
    for (uint32_t i = 0; i < failures_ && wait < options_.retry_max; ++i) wait *= 2;
    wait = std::min(wait, options_.retry_max);
    ++failures_;
  }
  state_ = State::Offline;
  wait -= Duration(static_cast<Duration::rep>(jitter_.below(static_cast<uint64_t>(wait.count() / 2) + 1)));
  retry_at_ = now + wait;
  effects.emplace_back(BrokerWent{why});
  say_unreachable(now, why, wait, effects);
}

// However often it is tried, it is said once, and again after a while.
void Session::say_unreachable(Instant now, const std::string& why, Duration wait, SessionEffects& effects) {
  if (why != last_problem_) tries_ = 0;
  ++tries_;
  if (why == last_problem_ && now - said_at_ < options_.say_again) return;
  last_problem_ = why;
  said_at_ = now;
  char again[96];
  std::snprintf(again, sizeof again, " tries=%u again_in=%.1fs and_then_every=%.0fs", tries_, seconds(wait),
                seconds(options_.retry_max));
  effects.emplace_back(Say{"warning broker_unreachable reason=\"" + why + "\"" + again});
}

SessionEffects Session::drop(Instant now, const std::string& why) {
  SessionEffects effects;
  effects.emplace_back(DropBroker{});
  go_offline(now, why, effects);
  return effects;
}

SessionEffects Session::on_message(Instant now, const proto::Message& message) {
  if (state_ != State::Greeting && !is_admitted()) return {};
  last_heard_ = now;
  if (const auto* refusal = std::get_if<proto::Refusal>(&message)) {
    if (refusal->retry || refusal->code == ErrorCode::Unavailable ||
        refusal->code == ErrorCode::ResourceExhausted)
      return drop(now, refusal->message);
    state_ = State::Left;
    SessionEffects effects;
    effects.emplace_back(DropBroker{});
    effects.emplace_back(Leave{fail(refusal->code, "the broker refused this peer: " + refusal->message)});
    return effects;
  }
  if (is_admitted()) return {};
  const auto* ack = std::get_if<proto::HelloAck>(&message);
  if (ack == nullptr) return drop(now, "the broker did not answer with HelloAck");
  state_ = State::Joined;
  broker_minor_ = ack->minor;
  failures_ = 0;
  lost_at_.reset();
  last_problem_.clear();
  last_heartbeat_ = now;
  heartbeat_interval_ =
      std::clamp<Duration>(ack->heartbeat_interval, std::chrono::milliseconds(50), std::chrono::seconds(60));
  lease_ = std::clamp<Duration>(ack->lease, 2 * heartbeat_interval_, std::chrono::seconds(600));
  SessionEffects effects;
  effects.emplace_back(Say{"info joined name=" + ack->name + " broker_software=" + ack->software});
  effects.emplace_back(BrokerCame{});
  return effects;
}

SessionEffects Session::on_tick(Instant now, Bytes memory_free, const std::optional<proto::StageWork>& work,
                                const std::optional<proto::StageSaving>& saving) {
  switch (state_) {
    case State::Offline:
      if (retry_at_ && now >= *retry_at_) return start(now);
      break;
    case State::Connecting:
      break;  // the attempt has its own deadline
    case State::Greeting:
      if (now - since_ > options_.greeting_deadline) return drop(now, "the broker does not answer");
      break;
    case State::Joined:
    case State::Draining:
      if (now - last_heard_ > lease_) return drop(now, "nothing heard from the broker for a lease");
      if (now - last_heartbeat_ >= heartbeat_interval_) {
        last_heartbeat_ = now;
        return {TellBroker{proto::Heartbeat{++sequence_, memory_free, work, saving}}};
      }
      break;
    case State::Left:
      break;
  }
  return {};
}

SessionEffects Session::drain(bool holds_stage) {
  if (!holds_stage) return leave({});
  draining_ = true;
  if (state_ != State::Joined) return {};
  state_ = State::Draining;
  SessionEffects effects;
  effects.emplace_back(TellBroker{goodbye_});
  effects.emplace_back(Say{"info draining"});
  return effects;
}

SessionEffects Session::leave(Status why) {
  draining_ = true;
  if (state_ == State::Left) return {};
  if (!why) goodbye_ = {.reason = why.error().message};
  SessionEffects effects;
  if (state_ == State::Joined) effects.emplace_back(TellBroker{goodbye_});
  state_ = State::Left;
  effects.emplace_back(Leave{std::move(why)});
  return effects;
}

SessionEffects Session::step_away(const std::string& why) {
  if (state_ == State::Left) return {};
  SessionEffects effects;
  if (state_ == State::Joined) effects.emplace_back(TellBroker{proto::Drain{.reason = why, .returns = true}});
  effects.emplace_back(DropBroker{.linger = std::chrono::seconds(1)});
  state_ = State::Offline;
  retry_at_.reset();
  effects.emplace_back(BrokerWent{why});
  return effects;
}

std::optional<Instant> Session::next_deadline() const {
  const Duration just_after{1};
  switch (state_) {
    case State::Offline:
      return retry_at_;
    case State::Greeting:
      return since_ + options_.greeting_deadline + just_after;
    case State::Joined:
    case State::Draining:
      return std::min(last_heard_ + lease_ + just_after, last_heartbeat_ + heartbeat_interval_);
    case State::Connecting:
    case State::Left:
      break;
  }
  return std::nullopt;
}

}  // namespace weft::peer
