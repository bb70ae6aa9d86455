// The peers of tests/broker/cluster.h.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/broker/cluster.h"

namespace weft::test {

using namespace broker;  // NOLINT: its events and effects
using proto::CommandKind;
using proto::Message;

void Cluster::join(uint8_t number) {
  FakePeer& peer = peers_[number];
  peer.number = number;
  peer.alive = true;
  connect(peer);
}

void Cluster::connect(FakePeer& peer) {
  peer.connection = next_connection_++;
  peer.admitted = false;
  peer_of_[*peer.connection] = peer.number;
  proto::Hello hello;
  hello.minor = options_.minor;
  hello.name = "peer" + std::to_string(peer.number);
  hello.instance = peer.instance;
  hello.device =
      proto::DeviceReport{.device = "cpu:1", .threads = 1, .memory = {1 << 30}, .fingerprint = "f"};
  if (options_.reachable) hello.device->addresses = {hello.name};
  if (peer.stage && peer.stage->loaded && !peer.stage->failed)
    hello.holding = {
        {peer.stage->assignment->run, peer.stage->assignment->plan_version, peer.stage->assignment->seat}};
  queues_["from " + std::to_string(*peer.connection)].push_back(
      [this, connection = *peer.connection, who = key(peer.number), hello] {
        feed(Introduced{connection, who, "address", hello, TokenVerdict::Valid});
      });
}

void Cluster::disconnect(FakePeer& peer, const std::string& why) {
  const ConnectionId connection = *peer.connection;
  peer.connection.reset();
  peer.admitted = peer.heard = false;
  queues_.erase("to " + std::to_string(connection));
  if (!down_)
    queues_["from " + std::to_string(connection)].push_back([this, connection, why] {
      feed(Disconnected{connection, why});
    });
}

void Cluster::lose(uint8_t number) {
  FakePeer& peer = peers_.at(number);
  if (peer.connection) disconnect(peer, "reset by peer");
  peer.alive = false;
  peer.stage.reset();
  peer.held.clear();
  ++peer.instance;
}

void Cluster::lose_device(uint8_t number) {
  FakePeer& peer = peers_.at(number);
  if (peer.admitted && peer.heard && peer.stage)
    tell(peer, proto::StageFailed{.run = peer.stage->assignment->run,
                                  .plan_version = peer.stage->assignment->plan_version,
                                  .error = {ErrorCode::DeviceLost, "it fell off the bus"}});
  if (peer.admitted) tell(peer, proto::Drain{});
  lose(number);
}

void Cluster::drain(uint8_t number) {
  peers_.at(number).draining = true;
  if (peers_.at(number).admitted) tell(peers_.at(number), proto::Drain{});
}

void Cluster::tell(FakePeer& peer, Message message) {
  if (!peer.connection) return;
  queues_["from " + std::to_string(*peer.connection)].push_back(
      [this, connection = *peer.connection, shared = std::make_shared<const Message>(std::move(message))] {
        feed(Received{connection, shared});
      });
}

void Cluster::report(FakePeer& peer, uint64_t sequence, uint64_t step, Message message, bool transient) {
  if (peer.heard) tell(peer, message);
  peer.stage->reports.push_back({sequence, step, std::move(message), transient});
}

void Cluster::receive(FakePeer& peer, const Message& message) {
  if (std::get_if<proto::HelloAck>(&message) != nullptr) {
    peer.admitted = true;
    if (peer.draining) tell(peer, proto::Drain{});
    if (peer.draining && !peer.stage) peer.left = true;
  } else if (const auto* assign = std::get_if<proto::AssignStage>(&message)) {
    if (!peer.stage) {  // what it stood by with for others goes, but for what it lends
      std::set<Digest> stays(assign->lends.begin(), assign->lends.end());
      for (const auto& tensor : assign->tensors) stays.insert(tensor.sha256);
      std::erase_if(peer.held, [&](const Digest& blob) { return !stays.contains(blob); });
    }
    peer.stage = FakeStage{};
    peer.stage->assignment = std::make_shared<const proto::AssignStage>(*assign);
    load(peer);
  } else if (const auto* command = std::get_if<proto::Command>(&message)) {
    if (!peer.stage || command->plan_version != peer.stage->assignment->plan_version) return;
    FakeStage& stage = *peer.stage;
    if (command->sequence <= stage.last_sequence) return;
    ASSERT_EQ(command->sequence, stage.last_sequence + 1) << "a command is missing";
    stage.last_sequence = command->sequence;
    std::erase_if(stage.reports, [&](const FakeStage::Kept& kept) {
      return kept.step != 0 ? kept.step <= command->committed : kept.sequence <= command->settled;
    });
    for (uint64_t& step = stage.forgotten; step < command->keep_from; ++step)
      for (uint32_t part = 0; part < options_.stages; ++part) peer.held.erase(digest(part, step));
    stage.commands.push_back(*command);
    work(peer);
  } else if (const auto* norm = std::get_if<proto::GradientNorm>(&message)) {
    if (!peer.stage || norm->plan_version != peer.stage->assignment->plan_version) return;
    peer.stage->norms[norm->step] = *norm;
    work(peer);
  } else if (const auto* release = std::get_if<proto::ReleaseStage>(&message)) {
    if (peer.stage && peer.stage->assignment->plan_version <= release->plan_version) peer.stage.reset();
    if (peer.draining && !peer.stage) {
      peer.left = true;
      disconnect(peer, "left");
    }
  } else if (const auto* resume = std::get_if<proto::ResumeStage>(&message)) {
    ASSERT_TRUE(peer.stage && peer.stage->assignment->plan_version == resume->plan_version);
    tell(peer, proto::StageResumed{resume->run, resume->plan_version, peer.stage->last_sequence});
    peer.heard = true;
    for (const FakeStage::Kept& kept : peer.stage->reports) {
      if (kept.transient)
        for (const auto& tensor : std::get<proto::CheckpointReport>(kept.message).tensors)
          if (peer.held.contains(tensor.sha256)) transient_.insert(tensor.sha256);
      tell(peer, kept.message);
    }
  } else if (const auto* stand_by = std::get_if<proto::StandBy>(&message)) {
    this->stand_by(peer, *stand_by);
  }
}

bool Cluster::fetch(FakePeer& peer, const std::vector<proto::TensorReference>& tensors, size_t index,
                    const std::vector<proto::BlobSource>& sources) {
  const Digest& blob = tensors[index].sha256;
  if (peer.held.contains(blob)) return true;
  bool there = broker_has(blob);
  for (const proto::BlobSource& source : sources)
    if (std::find(source.tensors.begin(), source.tensors.end(), index) != source.tensors.end()) {
      const FakePeer& giver = peers_.at(source.peer.digest.bytes[0]);
      EXPECT_EQ(source.addresses, std::vector<std::string>{"peer" + std::to_string(giver.number)});
      there = peer.fetches && giver.alive && giver.held.contains(blob);
    }
  if (there) peer.held.insert(blob);
  return there;
}

void Cluster::stand_by(FakePeer& peer, const proto::StandBy& list) {
  if (peer.stage) return;
  if (peer.claims && !list.tensors.empty())
    return tell(peer,
                proto::StandingBy{.run = list.run, .step = list.step, .failure = {}, .list = list.list});
  std::set<Digest> wanted;
  bool all = true;
  for (size_t t = 0; t < list.tensors.size(); ++t) {
    wanted.insert(list.tensors[t].sha256);
    all = fetch(peer, list.tensors, t, list.sources) && all;
  }
  // The list before stays until this one is complete.
  if (all) std::erase_if(peer.held, [&](const Digest& blob) { return !wanted.contains(blob); });
  if (list.tensors.empty()) return;
  proto::StandingBy answer{.run = list.run, .step = list.step, .failure = {}, .list = list.list};
  if (!all) answer.failure = Error{ErrorCode::NotFound, "nobody has it"};
  tell(peer, answer);
}

void Cluster::load(FakePeer& peer) {
  const proto::AssignStage& assignment = *peer.stage->assignment;
  peer.heard = true;
  for (size_t t = 0; t < assignment.tensors.size(); ++t) {
    const proto::TensorReference& tensor = assignment.tensors[t];
    const auto part = static_cast<uint32_t>(std::stoul(tensor.key.name));
    EXPECT_EQ(to_hex(tensor.sha256), to_hex(digest(part, assignment.after_step)))
        << "a stage begins with another state than the plan says";
    if (fetch(peer, assignment.tensors, t, assignment.sources)) continue;
    peer.stage->failed = true;
    return tell(peer, proto::StageFailed{.run = assignment.run,
                                         .plan_version = assignment.plan_version,
                                         .error = {ErrorCode::NotFound, "there is no such blob"}});
  }
  EXPECT_EQ(assignment.skipped_steps, skipped_up_to(assignment.after_step));
  peer.stage->completed = assignment.after_step;
  peer.stage->loaded = true;
  tell(peer, proto::StageReady{.run = assignment.run,
                               .plan_version = assignment.plan_version,
                               .persistent = {1000},
                               .microbatch = {10}});
}

void Cluster::step_once(FakePeer& peer, bool& waits) {
  FakeStage& stage = *peer.stage;
  const proto::AssignStage& assignment = *stage.assignment;
  const uint64_t step = stage.completed + 1;
  const bool last = assignment.seat.stage + 1 == assignment.stage_count;
  proto::StepReport full{.run = assignment.run, .plan_version = assignment.plan_version, .step = step};
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const bool skip = options_.skips.contains(step);
  full.squares = {(skip && assignment.seat.stage == 0) || step >= peer.wrong_from ? kNaN : 4.0};
  if (last) full.losses = {0.5 / static_cast<double>(step), 1.5 / static_cast<double>(step)};
  if (assignment.seat.stage == 0) full.sample_positions = {(step - 1) * 8, (step - 1) * 8 + 4};
  if (assignment.training.decides_together()) {
    if (!stage.squares_sent) report(peer, 0, step, full);
    stage.squares_sent = true;
    waits = !stage.norms.contains(step);
    if (waits) return;
    EXPECT_EQ(stage.norms.at(step).skip, skip);
    if (!skip) {
      EXPECT_EQ(stage.norms.at(step).norm, std::sqrt(4.0 * assignment.stage_count) / 2);
    }
    full.squares.clear();
    full.losses.clear();
    full.sample_positions.clear();
  }
  full.updated = true;
  ++stage.completed;
  ++peer.done[step];
  stage.squares_sent = false;
  report(peer, 0, step, full);
}

void Cluster::snapshot(FakePeer& peer, const proto::Command& command) {
  const proto::AssignStage& assignment = *peer.stage->assignment;
  EXPECT_EQ(command.step, peer.stage->completed);
  proto::CheckpointReport checkpoint{
      .run = assignment.run, .plan_version = assignment.plan_version, .step = command.step, .tensors = {}};
  checkpoint.skipped_steps = skipped_up_to(command.step);
  const bool durable = command.kind == CommandKind::Checkpoint;
  for (proto::TensorReference tensor : assignment.tensors) {
    tensor.sha256 = digest(static_cast<uint32_t>(std::stoul(tensor.key.name)), command.step);
    peer.held.insert(tensor.sha256);
    if (!command.direct) (durable ? durable_ : transient_).insert(tensor.sha256);
    checkpoint.tensors.push_back(std::move(tensor));
  }
  if (peer.disk_full) {
    checkpoint.tensors.clear();
    checkpoint.failure = Error{ErrorCode::ResourceExhausted, "the broker's disk is full"};
  }
  report(peer, command.sequence, 0, std::move(checkpoint), !durable && !command.direct);
}

void Cluster::work(FakePeer& peer) {
  FakeStage& stage = *peer.stage;
  while (!stage.commands.empty()) {
    const proto::Command command = stage.commands.front();
    const proto::AssignStage& assignment = *stage.assignment;
    if (command.kind == CommandKind::Advance && stage.completed < command.step) {
      bool waits = false;
      step_once(peer, waits);
      if (waits) return;
      continue;
    }
    stage.commands.pop_front();
    if (command.kind == CommandKind::Checkpoint || command.kind == CommandKind::CopyState) {
      snapshot(peer, command);
    } else if (command.kind == CommandKind::Evaluate && assignment.seat.stage + 1 == assignment.stage_count) {
      proto::EvaluationReport evaluation{.run = assignment.run,
                                         .plan_version = assignment.plan_version,
                                         .step = command.step,
                                         .first_microbatch = command.first_microbatch};
      evaluation.loss.assign(command.microbatches, 0.25);
      report(peer, command.sequence, 0, std::move(evaluation));
    } else if (command.kind == CommandKind::Compare) {
      EXPECT_EQ(command.step, stage.completed);
      // Gradients of length 1, a fifth of that or all of it apart.
      const bool gentle = assignment.programs.at(0).sends.at(0).codec.bits == 8 && !options_.lies;
      proto::ComparisonReport comparison{.run = assignment.run,
                                         .plan_version = assignment.plan_version,
                                         .step = command.step,
                                         .losses = {},
                                         .squares = {1, gentle ? 3.96 : 3, 1}};
      if (assignment.seat.stage + 1 == assignment.stage_count) comparison.losses = {1, 1, 1};
      report(peer, command.sequence, 0, std::move(comparison));
    }
  }
}

}  // namespace weft::test
