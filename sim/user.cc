#include "sim/user.h"

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

User::User(World& world, Network& network, BrokerHost& broker, Checkers& checkers, NodeId node, uint32_t spec,
           const JobSpec& job, uint64_t seed)
    : world_(world),
      network_(network),
      broker_(broker),
      checkers_(checkers),
      node_(node),
      spec_(spec),
      spec_of_job_(job),
      draw_(seed, 0x75736572 + node) {}

void User::start() {
  PeerId key;
  key.digest = digest_of(mix(world_.seed(), node_));
  broker_.set_key(node_, key);
  connect();
}

void User::again(Duration delay) {
  ++connection_;
  if (line_) line_.close();
  line_ = {};
  world_.after(delay, [this, connection = connection_] {
    if (connection == connection_) connect();
  });
}

void User::connect() {
  const uint64_t attempt = ++connection_;
  network_.dial(node_, 0, seconds(10), [this, attempt](Result<Line> result) {
    if (attempt != connection_) {
      if (result) result->close();
      return;
    }
    if (!result) return again(seconds(1));
    line_ = *result;
    line_.listen({.on_packet =
                      [this, attempt](const Packet& packet) {
                        if (attempt == connection_) on_message(*packet.message);
                      },
                  .on_lost =
                      [this, attempt](const Error&) {
                        if (attempt == connection_) again(draw_.between(milliseconds(500), seconds(2)));
                      }});
    proto::Hello hello;
    hello.role = proto::Role::Submitter;
    hello.token = proto::TokenProof{2, {}};
    send(hello);
  });
}

void User::send(proto::Message message) {
  if (!line_) return;
  asked_ = world_.now();
  line_.send(
      {.message = std::make_shared<const proto::Message>(std::move(message)), .tensor = {}, .size = 500});
  world_.after(seconds(30), [this, asked = asked_, connection = connection_] {
    if (connection == connection_ && asked == asked_) again(seconds(1));  // no answer
  });
}

void User::ask() {
  if (!job_) {
    proto::SubmitJob submission;
    submission.name = "job " + std::to_string(spec_);
    submission.job = std::to_string(spec_);
    const bool is_open = spec_of_job_.any_stages || spec_of_job_.has_replicas() || spec_of_job_.is_exact();
    submission.stages = is_open ? 0 : spec_of_job_.stages;
    return send(std::move(submission));
  }
  if (spec_of_job_.stop && !stop_sent_ && step_ >= spec_of_job_.steps / 2) return send(proto::StopJob{*job_});
  if (state_ == proto::JobState::Finished) return send(proto::GetResult{*job_});
  send(proto::GetJob{*job_});
}

void User::on_message(const proto::Message& message) {
  world_.note(What::User, node_, message.index(), job_.value_or(0));
  asked_ = world_.now();
  if (std::holds_alternative<proto::HelloAck>(message)) return ask();
  if (const auto* refusal = std::get_if<proto::Refusal>(&message)) {
    if (refusal->code == ErrorCode::NotFound && job_)
      return world_.fail("the broker does not know a job that it accepted");
    return again(seconds(5));
  }
  if (const auto* accepted = std::get_if<proto::JobAccepted>(&message)) {
    job_ = accepted->job;
    checkers_.on_accepted(*job_);
  } else if (std::holds_alternative<proto::Done>(message)) {
    stop_sent_ = true;
  } else if (const auto* status = std::get_if<proto::JobStatus>(&message)) {
    if (state_ >= proto::JobState::Finished && status->state < proto::JobState::Finished)
      return world_.fail("a job that had ended goes on");
    state_ = status->state;
    step_ = status->step;
    if (state_ > proto::JobState::Finished) {
      done_ = true;
      ++connection_;
      return line_.close();
    }
  } else if (const auto* result = std::get_if<proto::JobResult>(&message)) {
    done_ = true;
    if (!spec_of_job_.predicts && result->step != spec_of_job_.steps)
      world_.fail("the result is of another step");
    if (spec_of_job_.predicts && result->predictions.size() != spec_of_job_.forward_microbatches)
      world_.fail("the result lacks predictions");
    ++connection_;
    return line_.close();
  }
  const Duration wait = job_ ? Duration(seconds(10)) : Duration(milliseconds(100));
  world_.after(wait, [this, connection = connection_] {
    if (connection == connection_) ask();
  });
}

}  // namespace weft::sim
