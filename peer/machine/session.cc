#include "peer/machine/session.h"

#include <algorithm>

namespace weft::peer {

Session::Session(SessionOptions options) : options_(std::move(options)), jitter_(options_.seed, 0x5e55) {}

SessionEffects Session::start(Instant now) {
  state_ = State::Connecting;
  since_ = now;
  return {ConnectToBroker{}};
}

SessionEffects Session::on_connected(Instant now) {
  state_ = State::Greeting;
  since_ = last_heard_ = now;
  return {TellBroker{options_.hello}};
}

SessionEffects Session::on_connect_failed(Instant now, const Error& error) {
  return go_offline(now, error.message);
}

SessionEffects Session::on_lost(Instant now, const Error& error) {
  return go_offline(now, "the connection to the broker ended: " + error.message);
}

// Back-off doubles from the first to the longest wait; the jitter takes up to half of it away.
SessionEffects Session::go_offline(Instant now, const std::string& why) {
  SessionEffects effects;
  if (state_ == State::Left) return effects;
  if (assignment_) {
    effects.push_back(DropStage{why});
    assignment_.reset();
  }
  if (draining_) {
    state_ = State::Left;
    effects.push_back(Leave{});
    return effects;
  }
  state_ = State::Offline;
  Duration wait = options_.retry_first;
  for (uint32_t i = 0; i < failures_ && wait < options_.retry_max; ++i) wait *= 2;
  wait = std::min(wait, options_.retry_max);
  ++failures_;
  wait -= Duration(static_cast<Duration::rep>(jitter_.uniform() * 0.5 * static_cast<double>(wait.count())));
  retry_at_ = now + wait;
  if (why != last_problem_) {  // said once, however often it is tried
    last_problem_ = why;
    effects.push_back(Say{"warning broker_unreachable reason=\"" + why + "\""});
  }
  return effects;
}

void Session::refused(Instant now, const proto::Refusal& refusal, SessionEffects& effects) {
  effects.push_back(DropBroker{});
  if (refusal.retry || refusal.code == ErrorCode::Unavailable ||
      refusal.code == ErrorCode::ResourceExhausted) {
    for (auto& effect : go_offline(now, refusal.message)) effects.push_back(std::move(effect));
    return;
  }
  if (assignment_) effects.push_back(DropStage{refusal.message});
  assignment_.reset();
  state_ = State::Left;
  effects.push_back(Leave{fail(refusal.code, "the broker refused this peer: " + refusal.message)});
}

SessionEffects Session::on_message(Instant now, const proto::Message& message) {
  SessionEffects effects;
  last_heard_ = now;
  if (const auto* refusal = std::get_if<proto::Refusal>(&message)) {
    refused(now, *refusal, effects);
    return effects;
  }
  if (state_ == State::Greeting) {
    const auto* ack = std::get_if<proto::HelloAck>(&message);
    if (ack == nullptr) {
      effects.push_back(DropBroker{});
      for (auto& effect : go_offline(now, "the broker did not answer with HelloAck"))
        effects.push_back(std::move(effect));
      return effects;
    }
    state_ = State::Joined;
    failures_ = 0;
    last_problem_.clear();
    last_heartbeat_ = now;
    heartbeat_interval_ = std::clamp<Duration>(ack->heartbeat_interval, std::chrono::milliseconds(50),
                                               std::chrono::seconds(60));
    lease_ = std::clamp<Duration>(ack->lease, 2 * heartbeat_interval_, std::chrono::seconds(600));
    effects.push_back(Say{"info joined name=" + ack->name + " broker_software=" + ack->software});
    if (draining_) return request_drain(now);
    return effects;
  }
  if (const auto* assign = std::get_if<proto::AssignStage>(&message)) {
    if (assignment_) effects.push_back(DropStage{"another stage is assigned"});
    assignment_ = std::make_shared<const proto::AssignStage>(*assign);
    effects.push_back(
        Say{"info stage_assigned run=" + std::to_string(assign->run) +
            " plan=" + std::to_string(assign->plan_version) + " stage=" + std::to_string(assign->stage + 1) +
            "/" + std::to_string(assign->stage_count) + " after_step=" + std::to_string(assign->after_step)});
    effects.push_back(LoadStage{assignment_});
  } else if (const auto* release = std::get_if<proto::ReleaseStage>(&message)) {
    if (assignment_ && assignment_->run == release->run &&
        assignment_->plan_version <= release->plan_version) {
      effects.push_back(DropStage{release->reason});
      assignment_.reset();
      effects.push_back(Say{"info stage_released run=" + std::to_string(release->run) + " reason=\"" +
                            release->reason + "\""});
    }
    if (draining_ && !assignment_) {
      state_ = State::Left;
      effects.push_back(Leave{});
    }
  }
  return effects;
}

SessionEffects Session::on_tick(Instant now, Bytes memory_free) {
  switch (state_) {
    case State::Offline:
      if (retry_at_ && now >= *retry_at_) {
        retry_at_.reset();
        return start(now);
      }
      break;
    case State::Connecting:
      break;  // the attempt has its own deadline
    case State::Greeting:
      if (now - since_ > options_.greeting_deadline) {
        SessionEffects effects = go_offline(now, "the broker does not answer");
        effects.insert(effects.begin(), DropBroker{});
        return effects;
      }
      break;
    case State::Joined:
    case State::Draining:
      if (now - last_heard_ > lease_) {
        SessionEffects effects = go_offline(now, "nothing heard from the broker for a lease");
        effects.insert(effects.begin(), DropBroker{});
        return effects;
      }
      if (now - last_heartbeat_ >= heartbeat_interval_) {
        last_heartbeat_ = now;
        return {TellBroker{proto::Heartbeat{++sequence_, memory_free}}};
      }
      break;
    case State::Left:
      break;
  }
  return {};
}

SessionEffects Session::request_drain(Instant) {
  SessionEffects effects;
  draining_ = true;
  if (state_ == State::Joined && assignment_) {
    state_ = State::Draining;
    effects.push_back(TellBroker{proto::Drain{}});
    effects.push_back(Say{"info draining run=" + std::to_string(assignment_->run)});
    return effects;
  }
  if (state_ == State::Joined) effects.push_back(TellBroker{proto::Drain{}});
  if (state_ != State::Draining) {
    state_ = State::Left;
    effects.push_back(Leave{});
  }
  return effects;
}

}  // namespace weft::peer
