#include "tests/broker/cluster.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "proto/codec/codec.h"
#include "tests/broker/programs.h"

namespace weft::test {

using namespace broker;  // NOLINT: its events and effects
using proto::CommandKind;
using proto::JobEventKind;
using proto::JobState;
using proto::Message;

namespace {

constexpr uint32_t kMicrobatches = 2, kBatch = 8;

std::string encoded(const Message& message) {
  std::string text;
  for (const std::byte byte : proto::encode(message)) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<size_t>(byte) >> 4];
    text += kDigits[static_cast<size_t>(byte) & 15];
  }
  return text;
}

std::string describe(const Record& record) {
  std::string text = "r" + std::to_string(record.index()) + " ";
  if (const auto* event = std::get_if<proto::JobEvent>(&record)) return text + encoded(*event);
  if (const auto* issued = std::get_if<CommandIssued>(&record)) return text + encoded(issued->command);
  if (const auto* changed = std::get_if<JobChanged>(&record))
    return text + std::to_string(static_cast<int>(changed->state)) + changed->reason + " " +
           std::to_string(changed->plan_version) + " " + std::to_string(changed->step);
  return text;
}

std::string describe(const Effect& effect) {
  std::string text = "e" + std::to_string(effect.index()) + " ";
  if (const auto* send = std::get_if<Send>(&effect))
    return text + std::to_string(send->connection) + " " + encoded(*send->message);
  if (const auto* forget = std::get_if<ForgetJob>(&effect)) return text + std::to_string(forget->job);
  if (const auto* peers = std::get_if<PublishPeers>(&effect)) return text + encoded(peers->peers);
  if (const auto* line = std::get_if<Log>(&effect)) return text + line->line;
  if (const auto* planning = std::get_if<StartPlanning>(&effect)) {
    for (const Candidate& candidate : planning->candidates) text += candidate.name + " ";
    return text + std::to_string(planning->plan_version);
  }
  if (const auto* keep = std::get_if<KeepTransient>(&effect))
    for (const Digest& blob : keep->blobs) text += to_hex(blob);
  return text;
}

double loss_of(uint64_t step) { return 1.0 / static_cast<double>(step); }

}  // namespace

std::string describe(const Effects& effects) {
  std::string text;
  for (const Record& record : effects.records) text += describe(record) + ";";
  for (const Effect& effect : effects.effects) text += describe(effect) + ";";
  return text;
}

Digest Cluster::digest(uint32_t stage, uint64_t step) const {
  Digest digest;
  digest.bytes[0] = 0xb0;
  digest.bytes[1] = static_cast<uint8_t>(stage);
  std::memcpy(&digest.bytes[8], &step, sizeof step);
  return digest;
}

Cluster::Cluster(ClusterOptions options, uint64_t seed) : options_(options), rng_(seed, 5) {
  broker_ = std::make_unique<Broker>(broker_options(), StoredState{});
  for (uint32_t s = 0; s < 16; ++s) durable_.insert(digest(s, 0));
}

// ---- the broker

void Cluster::feed(const Event& event) {
  if (down_) return;
  const Effects effects = broker_->step({now_, 1000}, event);
  const Status checked = broker_->check();
  EXPECT_TRUE(checked.has_value()) << checked.error().message;
  if (tracing) {
    trace.push_back(event);
    trace_times.push_back(now_ - Instant{});
    described += describe(effects) + "\n";
  }
  if (!effects.records.empty()) {
    const bool crash = crash_at_ != 0 && --crash_at_ == 0;
    if (!crash || crash_durable_) {
      const Status appended = store_.append(effects.records);
      ASSERT_TRUE(appended.has_value()) << appended.error().message;
      for (const Record& record : effects.records) {
        if (const auto* started = std::get_if<RunStarted>(&record)) commands[started->job].clear();
        if (const auto* issued = std::get_if<CommandIssued>(&record))
          commands[issued->job].push_back(issued->command);
      }
    }
    if (crash) {
      ++crashes_;
      down_ = true;
      queues_["~crash"].push_back([this] { crash_broker(); });
      return;
    }
  }
  carry_out(effects);
}

void Cluster::carry_out(const Effects& effects) {
  for (const Effect& effect : effects.effects) {
    if (const auto* send = std::get_if<Send>(&effect)) {
      const auto at = peer_of_.find(send->connection);
      if (at == peer_of_.end()) continue;
      queues_["to " + std::to_string(send->connection)].push_back(
          [this, number = at->second, connection = send->connection, message = send->message] {
            FakePeer& peer = peers_.at(number);
            if (peer.connection == connection) receive(peer, *message);
          });
    } else if (const auto* close = std::get_if<Close>(&effect)) {
      const auto at = peer_of_.find(close->connection);
      if (at == peer_of_.end()) continue;
      queues_["to " + std::to_string(close->connection)].push_back(
          [this, number = at->second, connection = close->connection] {
            FakePeer& peer = peers_.at(number);
            if (peer.connection == connection) disconnect(peer, "closed by the broker");
          });
    } else if (const auto* planning = std::get_if<StartPlanning>(&effect)) {
      queues_["planner"].push_back([this, request = *planning] { plan(request); });
    } else if (const auto* look = std::get_if<Reconsider>(&effect)) {
      queues_["planner"].push_back([this, look = *look] {
        if (!down_ && options_.reconsider)
          feed(Reconsidered{look.request.job, look.request.plan_version, options_.reconsider(look)});
      });
    } else if (const auto* verify = std::get_if<VerifyBlobs>(&effect)) {
      queues_["disk"].push_back([this, verify = *verify] {
        const auto bad = std::count_if(verify.blobs.begin(), verify.blobs.end(),
                                       [&](const Digest& blob) { return !broker_has(blob); });
        feed(BlobsVerified{verify.job, verify.step, static_cast<size_t>(bad)});
      });
    } else if (const auto* copy = std::get_if<KeepBlobs>(&effect)) {
      queues_["disk"].push_back([this, copy = *copy] {
        Status all;
        for (const Digest& blob : copy.blobs)
          if (broker_has(blob))
            durable_.insert(blob);
          else
            all = fail(ErrorCode::NotFound, "a blob is not here any more");
        feed(BlobsKept{copy.job, copy.step, all});
      });
    } else if (const auto* keep = std::get_if<KeepTransient>(&effect)) {
      kept = {keep->blobs.begin(), keep->blobs.end()};
      // What is younger than all that is kept may not have been named yet.
      const auto step_of = [](const Digest& blob) {
        uint64_t step = 0;
        std::memcpy(&step, &blob.bytes[8], sizeof step);
        return step;
      };
      uint64_t oldest = keep->blobs.empty() ? 0 : ~uint64_t{0};
      for (const Digest& blob : keep->blobs) oldest = std::min(oldest, step_of(blob));
      std::erase_if(transient_, [&](const Digest& blob) { return step_of(blob) < oldest; });
    }
  }
}

// One tensor a stage, whose name is the stage's number and whose hash is that number and the step.
void Cluster::plan(const StartPlanning& request) {
  if (down_) return;
  auto plan = std::make_shared<PlannedRun>();
  uint32_t stages = options_.submitted_stages;
  if (stages == 0)
    stages = std::min<uint32_t>(options_.stages, static_cast<uint32_t>(request.candidates.size()));
  if (request.previous) stages = static_cast<uint32_t>(request.previous->stages.size());
  plan->training.steps = options_.steps;
  plan->training.batch_size = kBatch;
  plan->microbatches = kMicrobatches;
  plan->training.microbatch_size = kBatch / kMicrobatches;
  plan->parameter_count = stages;
  plan->training.clip_norm = options_.clip_norm;
  if (!options_.skips.empty()) plan->training.on_divergence = dag::OnDivergence::Skip;
  plan->borders.checkpoint.steps = options_.checkpoint_steps;
  plan->borders.evaluate_every = options_.evaluate_every;
  plan->forward_microbatches = options_.forward_microbatches;
  plan->forward_samples = uint64_t{options_.forward_microbatches} * plan->training.microbatch_size;
  plan->fingerprint = "f";
  plan->predicted_step = options_.step_time;
  if (options_.compresses) plan->gentler = request.gentler;
  for (uint32_t s = 0; s < stages; ++s) {
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = request.job;
    assignment->plan_version = request.plan_version;
    assignment->seat = {s};
    assignment->stage_count = stages;
    assignment->after_step = request.checkpoint ? request.checkpoint->step : 0;
    assignment->skipped_steps = request.checkpoint ? request.checkpoint->skipped_steps : 0;
    assignment->training.clip_norm = options_.clip_norm;
    assignment->training.on_divergence = plan->training.on_divergence;
    // A state is that of the whole model: with another number of stages its parts lie elsewhere.
    for (uint32_t part = s; part < options_.stages; part += stages) {
      proto::TensorReference tensor{.key = {.name = std::to_string(part)}, .spec = {}};
      tensor.spec = {dag::DType::F32, dag::Shape({options_.stage_bytes / 4})};
      tensor.sha256 = digest(part, 0);
      if (request.checkpoint) {
        const auto& saved = request.checkpoint->tensors;
        const auto at =
            std::find_if(saved.begin(), saved.end(), [&](const auto& t) { return t.key == tensor.key; });
        ASSERT_NE(at, saved.end()) << "the snapshot of step " << request.checkpoint->step << " has no part "
                                   << part;
        tensor.sha256 = at->sha256;
      }
      assignment->tensors.push_back(std::move(tensor));
    }
    const bool is_last = s + 1 == stages;
    ProgramParts parts{.trained = assignment->tensors, .losses = is_last ? size_t{1} : 0};
    if (options_.compresses)
      parts.codec = request.gentler == 0 ? "int3" : request.gentler < 6 ? "int8" : "fp16";
    assignment->programs.push_back(make_program(proto::ProgramKind::Train, parts));
    assignment->programs.push_back(
        make_program(proto::ProgramKind::Evaluate, {.losses = is_last ? size_t{1} : 0}));
    const uint32_t candidate = request.previous ? request.placed.at(s) : s;
    plan->stages.push_back({{request.candidates.at(candidate).peer, {s}, 0.001}, assignment});
  }
  feed(PlanningDone{request.job, request.plan_version, plan});
}

BrokerOptions Cluster::broker_options() const {
  BrokerOptions options{.software = "0.1.0"};
  options.drift = options_.drift;
  options.pool.gone_max = 1;  // whoever is needed must not be forgotten
  return options;
}

void Cluster::crash_broker() {
  down_ = true;
  for (auto& [number, peer] : peers_)
    if (peer.connection) disconnect(peer, "");
  queues_.clear();
  trace.clear();
  trace_times.clear();
  described.clear();
  transient_.clear();
  peer_of_.clear();
  down_ = false;
  now_ += std::chrono::milliseconds(500);
  broker_ = std::make_unique<Broker>(broker_options(), *store_.load());
}

void Cluster::submit() {
  client_ = next_connection_++;
  proto::Hello hello;
  hello.role = proto::Role::Submitter;
  feed(Introduced{client_, key(250), "client", hello, TokenVerdict::Valid});
  feed(SubmissionChecked{
      client_,
      proto::SubmitJob{.name = "job", .job = "", .stages = options_.submitted_stages, .files = {}},
      {}});
}

void Cluster::stop_job() {
  client_ = next_connection_++;
  proto::Hello hello;
  hello.role = proto::Role::Submitter;
  feed(Introduced{client_, key(250), "client", hello, TokenVerdict::Valid});
  feed(Received{client_, std::make_shared<const Message>(proto::StopJob{1})});
}

void Cluster::wait(Duration duration) {
  now_ += duration;
  for (auto& [number, peer] : peers_)
    if (peer.alive && !peer.connection && !peer.left) connect(peer);
  for (auto& [number, peer] : peers_)
    if (peer.admitted) feed(Received{*peer.connection, std::make_shared<const Message>(proto::Heartbeat{})});
  feed(Tick{});
}

void Cluster::turn() {
  std::vector<std::deque<std::function<void()>>*> ready;
  for (auto& [name, queue] : queues_)
    if (!queue.empty()) ready.push_back(&queue);
  if (const auto crash = queues_.find("~crash"); crash != queues_.end() && !crash->second.empty())
    return crash_broker();
  if (ready.empty() || rng_.below(50) == 0) return wait(std::chrono::milliseconds(500));
  auto& queue = *ready[rng_.below(ready.size())];
  const auto deliver = std::move(queue.front());
  queue.pop_front();
  now_ += std::chrono::milliseconds(2);
  deliver();
}

bool Cluster::play(int turns) {
  for (int i = 0; i < turns && !testing::Test::HasFailure(); ++i) {
    if (state() >= JobState::Finished) return true;
    turn();
  }
  return state() >= JobState::Finished;
}

JobState Cluster::state() const {
  const auto at = store_.state().jobs.find(1);
  return at == store_.state().jobs.end() ? JobState::Queued : at->second.last.state;
}

std::vector<proto::JobEvent> Cluster::events() { return *store_.events(1, 1, 1'000'000); }

std::vector<std::string> Cluster::notices() {
  std::vector<std::string> notices;
  for (const proto::JobEvent& event : events())
    if (event.kind == JobEventKind::Notice) notices.push_back(event.text);
  return notices;
}

uint8_t Cluster::peer_of_stage(uint32_t stage) const {
  for (const auto& [number, peer] : peers_)
    if (peer.alive && peer.stage && peer.stage->assignment->seat.stage == stage) return number;
  return 0;
}

void Cluster::check_log() {
  uint64_t step = 0, sequence = 0;
  std::set<uint64_t> evaluated;
  for (const proto::JobEvent& event : events()) {
    ASSERT_EQ(event.sequence, ++sequence);
    if (event.kind == JobEventKind::Evaluation) {
      EXPECT_TRUE(evaluated.insert(event.step).second) << "evaluated twice after step " << event.step;
    }
    if (event.kind != JobEventKind::Step) continue;
    ASSERT_EQ(event.step, ++step) << "committed steps are 1, 2, 3, ...";
    EXPECT_EQ(event.skipped, options_.skips.contains(step));
    if (event.skipped) {
      EXPECT_TRUE(std::isnan(event.loss));
    } else {
      EXPECT_DOUBLE_EQ(event.loss, loss_of(step));
    }
    EXPECT_EQ(event.samples, step * kBatch);
  }
}

void Cluster::check_script() const {
  for (const auto& [job, issued] : commands) {
    uint64_t sequence = 0, granted = 0;
    std::set<uint64_t> snapshots;
    proto::Command before;
    for (const proto::Command& command : issued) {
      ASSERT_EQ(command.sequence, ++sequence);
      EXPECT_GE(command.committed, before.committed);
      EXPECT_GE(command.settled, before.settled);
      EXPECT_GE(command.keep_from, before.keep_from);
      EXPECT_LT(command.settled, command.sequence);
      if (command.kind == CommandKind::Advance) {
        EXPECT_GT(command.step, granted);
        granted = command.step;
      } else if (granted != 0) {
        EXPECT_EQ(command.step, granted);
      }
      if (command.kind == CommandKind::CopyState) {
        EXPECT_TRUE(snapshots.insert(command.step).second) << "two snapshots of step " << command.step;
      }
      before = command;
    }
  }
}

}  // namespace weft::test
