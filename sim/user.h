// Somebody who submits a job, waits for it, and asks again when the broker has gone meanwhile.
#pragma once

#include <optional>
#include <vector>

#include "sim/broker_host.h"

namespace weft::sim {

class User {
 public:
  User(World& world, Network& network, BrokerHost& broker, Checkers& checkers, NodeId node, uint32_t spec,
       const JobSpec& job, uint64_t seed);

  void start();
  // Its job is accepted, has ended, and its result was fetched.
  bool is_done() const { return done_; }
  std::optional<proto::JobNumber> job() const { return job_; }
  proto::JobState state() const { return state_; }

 private:
  void connect();
  void on_message(const proto::Message& message);
  void send(proto::Message message);
  void ask();
  void again(Duration delay);

  World& world_;
  Network& network_;
  BrokerHost& broker_;
  Checkers& checkers_;
  NodeId node_;
  uint32_t spec_;
  const JobSpec& spec_of_job_;
  Draw draw_;
  Line line_;
  uint64_t connection_ = 0;
  Instant asked_{};
  std::optional<proto::JobNumber> job_;
  proto::JobState state_ = proto::JobState::Queued;
  uint64_t step_ = 0;
  bool stop_sent_ = false, done_ = false;
};

}  // namespace weft::sim
