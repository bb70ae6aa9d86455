// How long the compute thread of a peer idles between tasks that are ready, while its link carries large
// tensors.
//   ./dev bench task-gap [rounds, default 10] [megabits a second of the link, default as fast as it goes]
// Two peers as they are (peer/service: TLS over 127.0.0.1, a machine and a compute thread each), each with
// one compute thread, and a broker that only says what to do: stage 1 sends tensors of 16 MiB, of which stage
// 2 has no need yet: it carries out an evaluation of many short tasks that read nothing. Gaps are from a
// task's end to the next one's begin, of stage 2 from when the first tensor of a round is sent, and of stage
// 1 while it makes them.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <vector>

#include "base/check.h"
#include "bench/numbers.h"
#include "dag/op_table.h"
#include "net/listener.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/service/peer_service.h"
#include "proto/codec/codec.h"
#include "security/identity.h"

namespace weft::peer {
namespace {

using dag::Attr;
using dag::DType;
using dag::Ints;
using dag::OpKind;
using proto::CommandKind;
using proto::Message;
using proto::ProgramKind;

constexpr uint32_t kTensorsPerRound = 16;  // microbatches of a step
constexpr uint32_t kShortTasks = 400;      // of the evaluation before each step of stage 2
const Ints kLarge{4096, 1024};             // 16 MiB of F32

proto::StageProgram program_of(ProgramKind kind, dag::Graph graph) {
  proto::StageProgram program;
  program.kind = kind;
  program.segment_of_op.assign(graph.ops().size(), 0);
  program.graph = std::make_shared<const dag::Graph>(std::move(graph));
  return program;
}

// Makes a large tensor and sends it.
proto::StageProgram sending_program() {
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId large =
      builder.add(OpKind::Expand, {builder.scalar(DType::F32, 1)}, {{Attr::Shape, kLarge}});
  auto program = program_of(ProgramKind::Train, builder.finish());
  program.sends = {{.edge = 0, .value = large, .stage = 1}};
  return program;
}

proto::StageProgram receiving_program() {
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId large = builder.input("edge.0", {DType::F32, kLarge});
  builder.output("sum",
                 builder.add(OpKind::ReduceSum, {large}, {{Attr::Axes, Ints{0, 1}}, {Attr::KeepDims, 0}}),
                 dag::OutputRole::Loss);
  auto program = program_of(ProgramKind::Train, builder.finish());
  program.receives = {{.edge = 0, .value = large, .stage = 0}};
  return program;
}

// About half a millisecond of arithmetic.
proto::StageProgram short_program() {
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId square =
      builder.add(OpKind::Expand, {builder.scalar(DType::F32, 0.5)}, {{Attr::Shape, Ints{256, 256}}});
  const dag::ValueId product = builder.add(OpKind::MatMul, {square, square});
  builder.output("mean",
                 builder.add(OpKind::ReduceMean, {product}, {{Attr::Axes, Ints{0, 1}}, {Attr::KeepDims, 0}}),
                 dag::OutputRole::Loss);
  return program_of(ProgramKind::Evaluate, builder.finish());
}

struct Ran {
  Task task;
  Instant began{}, ended{};
  int64_t preempted = 0;  // how often the thread has been, up to `ended`
};

int64_t times_preempted() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

// A peer on a loop and thread of its own.
class BenchPeer {
 public:
  BenchPeer(const net::Endpoint& broker, PeerId broker_key, double megabits) {
    PeerServiceOptions options;
    options.broker = broker;
    options.broker_key = broker_key;
    options.identity = identity_.get();
    options.hello.role = proto::Role::Peer;
    options.hello.device.emplace();
    options.listen = net::Endpoint{"127.0.0.1", 0};
    options.make_backend = [] { return make_cpu_backend({.threads = 1, .pin = false}); };
    options.log = [](const std::string&) {};
    options.on_task = [this](const Task& task, Instant began, Instant ended) {
      ran.push_back({task, began, ended, times_preempted()});
    };
    if (megabits > 0)
      options.shape = [megabits](const std::string&) {
        return net::Shape{.send = {.bytes_per_second = megabits * 125e3}, .receive = {}};
      };
    thread_ = std::thread([this, options = std::move(options)]() mutable {
      net::Loop loop;
      PeerService service(loop, std::move(options));
      service_ = &service;
      const Status left = service.run();
      if (!left) std::fprintf(stderr, "a peer left: %s\n", left.error().message.c_str());
    });
  }
  void end() {
    if (thread_.joinable()) service_->stop(), thread_.join();
  }
  PeerId id() const { return identity_->id(); }

  std::vector<Ran> ran;  // by the compute thread; read after end()

 private:
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  PeerService* service_ = nullptr;
  std::thread thread_;
};

// Says what a broker would: a stage for each of two peers, and round by round what to do.
class Conductor {
 public:
  Conductor(uint64_t rounds, double megabits) : rounds_(rounds) {
    net::ListenOptions listen;
    listen.identity = identity_.get();
    auto opened =
        net::Listener::open(loop_, {"127.0.0.1", 0}, listen,
                            [this](const net::ConnectionPtr& connection) { on_connection(connection); });
    WEFT_CHECK(opened.has_value());
    listener_ = std::move(*opened);
    for (auto& peer : peers)
      peer = std::make_unique<BenchPeer>(listener_->endpoint(), identity_->id(), megabits);
  }
  // False when it did not come to its end.
  bool run() {
    const bool done =
        loop_.run_until(std::chrono::minutes(5), [this] { return done_ == rounds_ || failed_; });
    for (auto& peer : peers) peer->end();
    return done && !failed_;
  }
  double seconds_of_rounds() const { return seconds(ended_ - began_); }

  std::unique_ptr<BenchPeer> peers[2];

 private:
  struct Stage {
    net::ConnectionPtr connection;
    std::vector<std::string> addresses;
    bool ready = false;
    uint64_t commands = 0;
  };
  void on_connection(const net::ConnectionPtr& connection) {
    connection->set_limits({.frame_size_max = proto::kMessageSizeMax});
    connections_.push_back(connection);
    connection->start({.on_frame =
                           [this, weak = std::weak_ptr(connection)](const net::InFrame& frame) {
                             const auto here = weak.lock();
                             const auto message = proto::decode(frame.payload.span());
                             WEFT_CHECK(here && message);
                             on_message(here, *message);
                           },
                       .on_closed = [](const Error&) {}});
  }
  static void send(const net::ConnectionPtr& connection, const Message& message) {
    connection->send(message_frame(message));
  }
  void on_message(const net::ConnectionPtr& connection, const Message& message) {
    const uint32_t stage = connection->remote() == peers[0]->id() ? 0 : 1;
    if (const auto* hello = std::get_if<proto::Hello>(&message)) {
      send(connection, proto::HelloAck{.name = "peer",
                                       .heartbeat_interval = std::chrono::seconds(2),
                                       .lease = std::chrono::seconds(60)});
      stages_[stage].connection = connection;
      stages_[stage].addresses = hello->device->addresses;
      if (stages_[0].connection && stages_[1].connection)
        for (const uint32_t each : {0u, 1u}) send(stages_[each].connection, assignment(each));
    } else if (const auto* heartbeat = std::get_if<proto::Heartbeat>(&message)) {
      send(connection, proto::HeartbeatAck{heartbeat->sequence});
    } else if (std::holds_alternative<proto::StageReady>(message)) {
      stages_[stage].ready = true;
      if (stages_[0].ready && stages_[1].ready) begin_round();
    } else if (const auto* report = std::get_if<proto::StepReport>(&message)) {
      if (stage == 1 && report->updated) end_round();
    } else if (const auto* failed = std::get_if<proto::StageFailed>(&message)) {
      std::fprintf(stderr, "stage %u failed: %s\n", stage + 1, failed->error.message.c_str());
      failed_ = true;
    }
  }
  proto::AssignStage assignment(uint32_t stage) const {
    proto::AssignStage assign;
    assign.run = assign.plan_version = 1;
    assign.seat = {stage};
    assign.stage_count = 2;
    assign.training.batch_size = kTensorsPerRound;
    assign.training.microbatch_size = 1;
    assign.training.steps = rounds_;
    if (stage == 0)
      assign.programs = {sending_program()};
    else
      assign.programs = {receiving_program(), short_program()};
    assign.links = {{.seat = {1 - stage},
                     .peer = peers[1 - stage]->id(),
                     .dials = stage == 0,
                     .addresses = stages_[1 - stage].addresses}};
    return assign;
  }
  void command(uint32_t stage, CommandKind kind, uint64_t step, uint32_t microbatches = 0) {
    send(stages_[stage].connection, proto::Command{.run = 1,
                                                   .plan_version = 1,
                                                   .kind = kind,
                                                   .step = step,
                                                   .microbatches = microbatches,
                                                   .sequence = ++stages_[stage].commands,
                                                   .committed = done_});
  }
  void begin_round() {
    if (done_ == 0) began_ = loop_.now();
    command(1, CommandKind::Evaluate, done_, kShortTasks);
    command(1, CommandKind::Advance, done_ + 1);
    command(0, CommandKind::Advance, done_ + 1);
  }
  void end_round() {
    ended_ = loop_.now();
    if (++done_ < rounds_) begin_round();
  }

  const uint64_t rounds_;
  net::Loop loop_;
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  std::unique_ptr<net::Listener> listener_;
  std::vector<net::ConnectionPtr> connections_;
  Stage stages_[2];
  uint64_t done_ = 0;
  bool failed_ = false;
  Instant began_{}, ended_{};
};

struct Gap {
  double seconds = 0;
  bool was_preempted = false;  // in it, or in the task after it
};

void print_gaps(const char* whose, const std::vector<Gap>& gaps) {
  for (const bool all : {true, false}) {
    std::vector<double> lengths;
    for (const Gap& gap : gaps)
      if (all || !gap.was_preempted) lengths.push_back(gap.seconds);
    if (lengths.empty()) continue;
    std::sort(lengths.begin(), lengths.end());
    const auto at = [&](double part) {
      return 1e3 * lengths[static_cast<size_t>(part * static_cast<double>(lengths.size() - 1))];
    };
    std::printf("%s, %s: median %.3f ms, 90%% %.3f ms, 99%% %.3f ms, of %zu\n", whose,
                all ? "every gap between tasks          " : "those where nobody took its core", at(0.5),
                at(0.9), at(0.99), lengths.size());
  }
}

// Of tasks of one kind and round that follow each other; the first of a round had nothing before it.
std::vector<Gap> gaps_of(const std::vector<Ran>& ran, ProgramKind program,
                         const std::map<uint64_t, Instant>& from) {
  std::vector<Gap> gaps;
  for (size_t i = 1; i < ran.size(); ++i) {
    const Ran &before = ran[i - 1], &after = ran[i];
    const auto is_counted = [&](const Ran& one) {
      return one.task.kind == TaskKind::Segment && one.task.key.program == program;
    };
    if (!is_counted(before) || !is_counted(after) || before.task.key.step != after.task.key.step) continue;
    if (const auto at = from.find(before.task.key.step); at != from.end() && before.ended < at->second)
      continue;
    gaps.push_back({seconds(after.began - before.ended), after.preempted != before.preempted});
  }
  return gaps;
}

int measure(uint64_t rounds, double megabits) {
  Conductor conductor(rounds, megabits);
  if (!conductor.run()) return 1;
  const std::vector<Ran>&sender = conductor.peers[0]->ran, &receiver = conductor.peers[1]->ran;
  // The evaluation before step n has the number n - 1.
  std::map<uint64_t, Instant> first_sent;
  for (const Ran& one : sender)
    if (one.task.kind == TaskKind::Segment) first_sent.try_emplace(one.task.key.step - 1, one.ended);
  std::vector<double> lengths;
  for (const Ran& one : receiver)
    if (one.task.key.program == ProgramKind::Evaluate) lengths.push_back(seconds(one.ended - one.began));
  std::sort(lengths.begin(), lengths.end());
  const double bytes = static_cast<double>(rounds * kTensorsPerRound) * (16 << 20);
  std::printf("%.0f MB in tensors of 16 MiB, %.0f MB/s over all; short tasks of %.2f ms\n", bytes / 1e6,
              bytes / 1e6 / conductor.seconds_of_rounds(), 1e3 * lengths[lengths.size() / 2]);
  print_gaps("stage 2, which receives", gaps_of(receiver, ProgramKind::Evaluate, first_sent));
  print_gaps("stage 1, which sends   ", gaps_of(sender, ProgramKind::Train, {}));
  return 0;
}

}  // namespace
}  // namespace weft::peer

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const uint64_t rounds = argc > 1 ? weft::bench::number_of<uint64_t>(argv[1]) : 10;
  return weft::peer::measure(std::max<uint64_t>(rounds, 1),
                             argc > 2 ? weft::bench::number_of<double>(argv[2]) : 0);
}
