// What a broker can make a peer do at most: a real `weft join` against one that lies. After each attack the
// peer is there, answers, has taken no more memory than it offered and 64 MiB, and has dialled nobody whom it
// should not.
#include "tests/attacks/hostile_broker.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "dag/graph.h"
#include "dag/op_table.h"
#include "tests/attacks/peer_process.h"
#include "tests/attacks/siege.h"
#include "tests/support/sanitized.h"

namespace weft::attacks {
namespace {

using dag::DType;
using dag::OutputRole;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Bytes kOffer{64 << 20}, kBeside{64 << 20};
constexpr Duration kPatience = seconds(120);  // of all that should take a moment
constexpr size_t kAhead = 1 << 20;            // bytes that are said before the peer has taken them

Digest digest_of(uint64_t number) {
  Digest digest;
  for (size_t i = 0; i < 8; ++i) digest.bytes[i] = static_cast<uint8_t>(number >> (8 * i));
  return digest;
}

proto::Secret ticket() { return {1, 2, 3}; }

// One program, of one segment: y = -x, of data that the broker has, beside a parameter.
proto::AssignStage stage(proto::JobNumber run, dag::Shape shape, std::optional<dag::Shape> weight = {}) {
  dag::GraphBuilder builder(dag::op_table());
  const dag::ValueId x = builder.input("x", {DType::F32, std::move(shape)});
  builder.output("y", builder.add(dag::OpKind::Neg, {x}), OutputRole::Prediction);
  proto::AssignStage assign{.run = run, .plan_version = 1, .stage_count = 2};
  assign.training = {{.batch_size = 1, .microbatch_size = 1}, 1'000'000};
  if (weight) {
    const dag::TensorSpec spec{DType::F32, *weight};
    const dag::ValueId w = builder.initializer("w", spec, dag::InitializerRole::Parameter);
    builder.output("z", builder.add(dag::OpKind::Neg, {w}), OutputRole::Prediction);
    assign.tensors.push_back({dag::of_initializer("w"), spec, digest_of(run)});
  }
  proto::StageProgram program{.kind = proto::ProgramKind::Predict};
  program.graph = std::make_shared<const dag::Graph>(builder.finish());
  program.segment_of_op.assign(program.graph->ops().size(), 0);
  program.data_inputs = {"x"};
  assign.programs.push_back(std::move(program));
  return assign;
}

// A port below 1024 of this machine, where that may be listened at, that counts who comes.
class Decoy {
 public:
  Decoy() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    for (port_ = 1023; port_ > 900; --port_) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(port_);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      if (::bind(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
          ::listen(descriptor_, 16) == 0)
        return;
    }
    port_ = 22;  // nobody may: then it is only asked what the peer says
  }
  ~Decoy() { ::close(descriptor_); }
  uint16_t port() const { return port_; }
  bool was_dialled() const {
    return port_ > 900 && ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC) >= 0;
  }

 private:
  const int descriptor_;
  uint16_t port_ = 0;
};

// One peer for all attacks, one after the other: it takes some seconds to measure itself.
class HostileBrokerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Of the suite: no test is under way yet.
    folder_ = std::filesystem::path(WEFT_TEST_TMP) / ("HostileBroker." + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    broker_ = std::make_unique<HostileBroker>();
    peer_ = std::make_unique<PeerProcess>(
        folder_, broker_->address(), broker_->token(),
        std::vector<std::string>{"--device", "cpu:1", "--memory", "64MiB", "--name", "victim"});
  }
  // Whatever it went through, it ends when its owner says so.
  static void TearDownTestSuite() {
    if (peer_->is_alive()) {
      peer_->signal(SIGTERM);
      if (!peer_->ends_within(seconds(2))) peer_->signal(SIGTERM);  // a stage that nobody takes away
      EXPECT_TRUE(peer_->ends_within(kPatience));
      EXPECT_TRUE(peer_->exit_status() == 0 || peer_->exit_status() == 130) << peer_->exit_status();
    }
    peer_.reset();
    broker_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  void SetUp() override {
    broker_->on_bulk = broker_->on_control = nullptr;
    ASSERT_TRUE(is_well()) << peer_->log_text();
  }

  // Admitted, and it has sent a heartbeat since it was asked.
  static bool is_well() {
    const uint64_t before = broker_->heartbeats();
    return broker_->wait(kPatience, [&] { return broker_->control() && broker_->heartbeats() > before; });
  }

  // `next` says one thing more each time, as fast as the peer takes it; after it `until` may wait for more.
  static void withstands(
      const std::function<void(uint64_t number)>& next,
      const std::function<bool()>& until = [] { return true; }) {
    peer_->reset_peak();
    const Bytes before = peer_->memory();
    const uint64_t admissions = broker_->admissions();
    uint64_t said = 0;
    const auto end = std::chrono::steady_clock::now() + attack_time() / 2;
    while (std::chrono::steady_clock::now() < end) {
      broker_->wait(milliseconds(1), [] { return false; });
      for (int i = 0; i < 64 && broker_->control() && broker_->unsent() < kAhead; ++i) next(said++);
    }
    EXPECT_TRUE(broker_->wait(kPatience, until));
    EXPECT_TRUE(is_well()) << peer_->log_text();
    ASSERT_TRUE(peer_->is_alive()) << peer_->exit_status() << "\n" << peer_->log_text();
    const int64_t grown = std::max<int64_t>(peer_->memory_peak().value - before.value, 0);
    std::printf("  said: %llu; the peer: +%.1f MiB, %llu times admitted\n",
                static_cast<unsigned long long>(said), static_cast<double>(grown) / (1 << 20),
                static_cast<unsigned long long>(broker_->admissions() - admissions));
    if (!test::kIsSanitized) {
      EXPECT_LE(grown, kOffer.value + kBeside.value);
    }
  }
  // Takes its stage away, so that the next attack finds it in the pool.
  static void release() {
    broker_->say(proto::ReleaseStage{std::numeric_limits<uint32_t>::max(), 1'000'000, "over"});
    for (proto::JobNumber run = 1; run < 40; ++run) broker_->say(proto::ReleaseStage{run, 1'000'000, "over"});
  }

  static std::filesystem::path folder_;
  static std::unique_ptr<HostileBroker> broker_;
  static std::unique_ptr<PeerProcess> peer_;
};
std::filesystem::path HostileBrokerTest::folder_;
std::unique_ptr<HostileBroker> HostileBrokerTest::broker_;
std::unique_ptr<PeerProcess> HostileBrokerTest::peer_;

// Each is refused in words, before memory is taken.
TEST_F(HostileBrokerTest, AbsurdStages) {
  std::vector<ErrorCode> failures;
  broker_->on_control = [&](const proto::Message& message) {
    if (const auto* failed = std::get_if<proto::StageFailed>(&message))
      failures.push_back(failed->error.code);
  };
  constexpr int64_t kTera = int64_t{1} << 38;  // elements: a TiB
  std::vector<proto::AssignStage> stages;
  stages.push_back(stage(1, {kTera}));                    // a microbatch of a TiB
  stages.push_back(stage(2, {4}, dag::Shape{kTera}));     // a parameter of a TiB, which is never fetched
  stages.push_back(stage(3, {4}, dag::Shape{17 << 20}));  // just more than was offered
  size_t said = 0;  // the next one takes the place of the one before, and of its failure
  const auto go_on = [&] {
    if (said < stages.size() && failures.size() == said) broker_->say(stages[said++]);
    return failures.size() == stages.size();
  };
  withstands([&](uint64_t) { go_on(); }, go_on);
  for (const ErrorCode code : failures) EXPECT_EQ(code, ErrorCode::ResourceExhausted);
  release();
}

// 2^30 microbatches a step, 65,536 of them at once.
TEST_F(HostileBrokerTest, MicrobatchesWithoutEnd) {
  proto::AssignStage many = stage(4, {1 << 20});
  many.programs[0].kind = proto::ProgramKind::Train;
  many.microbatches_in_flight = 65'536;
  many.training = {{.batch_size = 1u << 30, .microbatch_size = 1}, UINT64_MAX};
  withstands([&](uint64_t number) {
    if (number == 0) broker_->say(many);
    if (number > 0)
      broker_->say(proto::Command{.run = 4,
                                  .plan_version = 1,
                                  .kind = proto::CommandKind::Advance,
                                  .step = number * 1000,
                                  .sequence = number});
  });
  release();
}

// Nothing of it is decoded to a stage: the connection ends, and the peer comes back.
TEST_F(HostileBrokerTest, WhatIsNoMessage) {
  withstands([&](uint64_t number) {
    std::string bytes(1 + number % 5000, static_cast<char>(number * 7919));
    broker_->control()->send({.kind = static_cast<uint8_t>(number % 7),
                              .head = {reinterpret_cast<const std::byte*>(bytes.data()),
                                       reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size()},
                              .body = {}});
  });
}

TEST_F(HostileBrokerTest, AddressesThatAreNobodysBusiness) {
  const Decoy decoy;
  const std::string low = std::to_string(decoy.port());
  const std::vector<std::string> addresses = {
      "127.0.0.1:" + low, "localhost:" + low, "[::ffff:127.0.0.1]:" + low, "127.0.0.1:22", "127.0.0.1:25",
      "0.0.0.0:7700",     "224.0.0.1:7700",   "255.255.255.255:7700",      "[::]:7700",    "[ff02::1]:7700",
      "8.8.8.8:53",       "nonsense"};
  uint64_t failed_stages = 0, failed_probes = 0, failed_copies = 0;
  std::string words;
  broker_->on_control = [&](const proto::Message& message) {
    if (const auto* failed = std::get_if<proto::StageFailed>(&message)) {
      ++failed_stages;
      words += failed->error.message;
    } else if (const auto* report = std::get_if<proto::ProbeReport>(&message)) {
      ++failed_probes;
      EXPECT_TRUE(report->failure);
      words += report->failure ? report->failure->message : "";
    } else if (const auto* standing = std::get_if<proto::StandingBy>(&message)) {
      ++failed_copies;
      EXPECT_TRUE(standing->failure);
    }
  };
  // The links' own deadline is half a minute: that one is asked for last and not waited for.
  withstands(
      [&](uint64_t number) {
        if (number < 5)
          broker_->say(proto::ProbeLink{.round = number,
                                        .peer = {digest_of(1)},
                                        .dials = true,
                                        .addresses = addresses,
                                        .relay_ticket = ticket(),
                                        .bytes_max = 1 << 20,
                                        .time_max = seconds(1),
                                        .deadline = seconds(3)});
        if (number == 5)
          broker_->say(
              proto::StandBy{.run = 50,
                             .step = 1,
                             .tensors = {{dag::of_initializer("w"), {DType::F32, {4}}, digest_of(50)}},
                             .sources = {{{digest_of(2)}, addresses, "", {0}}},
                             .list = 1});
      },
      [&] { return failed_probes > 0 && failed_copies > 0; });
  proto::AssignStage linked = stage(5, {4});
  linked.links.push_back({{1, 0}, {digest_of(3)}, true, addresses, ticket(), ""});
  broker_->say(linked);
  EXPECT_TRUE(is_well());
  EXPECT_FALSE(decoy.was_dialled());
  EXPECT_NE(words.find("is not dialled"), std::string::npos) << words;
  EXPECT_NE(peer_->log_text().find("warning dial_refused"), std::string::npos);
  release();
}

// A blob that never ends, one of other bytes, frames as large as a connection lets them be.
TEST_F(HostileBrokerTest, BlobsWithoutEnd) {
  const auto large = std::make_shared<const std::vector<std::byte>>(size_t{300} << 20);
  const auto body = std::make_shared<const std::vector<std::byte>>(size_t{1} << 20);
  std::vector<uint64_t> asked;
  broker_->on_bulk = [&](const proto::Message& message) {
    if (const auto* get = std::get_if<proto::GetBlob>(&message)) asked.push_back(get->request);
  };
  proto::JobNumber run = 10;
  withstands([&](uint64_t number) {
    if (number % 512 == 0)
      broker_->say(stage(++run, {4}, number % 1024 == 0 ? dag::Shape{1 << 20} : dag::Shape{0}));
    for (const uint64_t request : std::exchange(asked, {}))
      broker_->answer(proto::BlobAnswer{.request = request,
                                        .size = request % 3 == 0   ? uint64_t{4} << 20
                                                : request % 3 == 1 ? uint64_t{1} << 40
                                                                   : uint64_t{1} << 30});
    for (uint64_t request = number % 8; request < number % 8 + 8; ++request)
      broker_->answer({.kind = static_cast<uint8_t>(proto::FrameKind::Chunk),
                       .head = proto::encode_chunk_head(request),
                       .body = {body, *body}});
    if (number % 64 == 63) {
      const auto kind = number % 128 == 63 ? proto::FrameKind::Message : proto::FrameKind::Tensor;
      broker_->answer({.kind = static_cast<uint8_t>(kind), .head = {}, .body = {large, *large}});
    }
  });
  release();
}

// Its stage asks for 16 bytes of data and is given as much as a tensor may have.
TEST_F(HostileBrokerTest, DataLargerThanItsInput) {
  const auto large = std::make_shared<const std::vector<std::byte>>(size_t{256} << 20);
  bool is_ready = false;
  uint64_t questions = 0, failures = 0;
  broker_->on_control = [&](const proto::Message& message) {
    is_ready = is_ready || std::holds_alternative<proto::StageReady>(message);
    failures += std::holds_alternative<proto::StageFailed>(message);
  };
  broker_->on_bulk = [&](const proto::Message& message) {
    const auto* get = std::get_if<proto::GetMicrobatch>(&message);
    if (get == nullptr) return;
    ++questions;
    broker_->answer(proto::MicrobatchAnswer{.request = get->request, .valid_count = 1});
    proto::TensorHeader header{.spec = {DType::F32, {64 << 20}}};
    broker_->answer({.kind = static_cast<uint8_t>(proto::FrameKind::Tensor),
                     .head = proto::encode_header(header),
                     .body = {large, *large}});
  };
  broker_->say(stage(30, {4}));
  ASSERT_TRUE(broker_->wait(kPatience, [&] { return is_ready; })) << peer_->log_text();
  withstands(
      [&](uint64_t number) {
        if (number == 0)
          broker_->say(proto::Command{.run = 30,
                                      .plan_version = 1,
                                      .kind = proto::CommandKind::Predict,
                                      .microbatches = 4096,
                                      .sequence = 1});
      },
      [&] { return failures > 0; });
  EXPECT_GT(questions, 0u);
  release();
}

// Stages that come and go faster than a device makes anything ready.
TEST_F(HostileBrokerTest, StagesThatComeAndGo) {
  withstands([&](uint64_t number) {
    proto::AssignStage assign = stage(31, {1 << 10});
    assign.plan_version = static_cast<proto::PlanVersion>(number + 1);
    assign.device_class.fingerprint = std::string(4000, 'x');
    broker_->say(assign);
    if (number % 3 == 0) broker_->say(proto::ReleaseStage{31, assign.plan_version, std::string(4000, 'x')});
  });
  release();
}

TEST_F(HostileBrokerTest, ListsToStandByForWithoutEnd) {
  withstands([&](uint64_t number) {
    proto::StandBy list{
        .run = static_cast<proto::JobNumber>(100 + number % 1000), .step = number, .list = number};
    for (uint64_t i = 0; i < 2000; ++i)
      list.tensors.push_back({dag::of_initializer("tensor" + std::to_string(i) + std::string(200, 'x')),
                              {DType::F32, {number % 2 == 0 ? 0 : int64_t{1} << 30}},
                              digest_of(number * 2000 + i)});
    broker_->say(list);
  });
  for (proto::JobNumber run = 100; run < 1100; ++run) broker_->say(proto::StandBy{.run = run});
  EXPECT_TRUE(is_well());
}

// What is said without a reason, as fast as it goes.
TEST_F(HostileBrokerTest, Floods) {
  const std::vector<proto::Message> said = {
      proto::HeartbeatAck{7},
      proto::RelayInvitation{0, 0, ticket()},
      proto::RelayInvitation{1, 1, ticket()},
      proto::Command{.run = 1, .plan_version = 1, .sequence = 1},
      proto::GradientNorm{1, 1, 1, std::numeric_limits<double>::quiet_NaN()},
      proto::ReleaseStage{1, 1, std::string(1000, '\n')},
      proto::ResumeStage{1, 1},
      proto::HelloAck{.name = "other", .heartbeat_interval = {}, .lease = {}},
      proto::JobList{},
  };
  withstands([&](uint64_t number) { broker_->say(said[number % said.size()]); });
}

// Each is answered, and the answers are left unread.
TEST_F(HostileBrokerTest, AnswersThatNobodyReads) {
  withstands(
      [&](uint64_t number) {
        if (number == 0) broker_->control()->pause_reading(true);
        for (int i = 0; i < 100; ++i) broker_->say(proto::ResumeStage{1, 1});
      },
      [&] {
        if (broker_->control()) broker_->control()->pause_reading(false);
        return true;
      });
}

TEST_F(HostileBrokerTest, IntervalsThatCannotBe) {
  for (const Duration interval : {Duration{}, Duration{1}, Duration(int64_t{1} << 60)}) {
    const proto::HelloAck honest = broker_->ack;
    broker_->ack.heartbeat_interval = interval;
    broker_->ack.lease = interval;
    const uint64_t admissions = broker_->admissions();
    broker_->control()->close();
    ASSERT_TRUE(
        broker_->wait(kPatience, [&] { return broker_->admissions() > admissions && broker_->control(); }));
    const uint64_t heartbeats = broker_->heartbeats();
    broker_->wait(seconds(1), [] { return false; });
    EXPECT_LE(broker_->heartbeats() - heartbeats, 25u) << "in a second";
    broker_->ack = honest;
    const uint64_t again = broker_->admissions();
    if (broker_->control()) broker_->control()->close();
    ASSERT_TRUE(broker_->wait(kPatience, [&] { return broker_->admissions() > again; }));
    EXPECT_TRUE(is_well());
  }
}

}  // namespace
}  // namespace weft::attacks
