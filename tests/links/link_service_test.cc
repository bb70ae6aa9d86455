// The links of two peers on threads of their own, told to owners on one loop.
#include "peer/service/link_service.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "dag/op_table.h"
#include "peer/service/bulk.h"
#include "peer/service/encoding.h"
#include "security/identity.h"

namespace weft::peer::test {
namespace {

constexpr uint64_t kUntakenMax = 8 << 20;
constexpr uint64_t kSeed = 11;
constexpr Duration kPatience = std::chrono::seconds(120);  // only a hang reaches it

dag::Tensor numbered_tensor(int64_t size, uint64_t number) {
  dag::Tensor tensor({dag::DType::F32, {size}});
  for (float& value : tensor.mutable_as<float>()) value = static_cast<float>(number);
  return tensor;
}

struct Owner {
  explicit Owner(net::Loop& loop, std::optional<net::Shape> accepted_shape = {}) {
    identity = std::move(*security::Identity::generate());
    LinkService::Options options;
    options.identity = identity.get();
    options.listen = net::Endpoint{"127.0.0.1", 0};
    options.accepted_shape = std::move(accepted_shape);
    options.untaken_bytes_max = kUntakenMax;
    options.streams = 1;  // over several tensors come in any order; a slow machine seems far enough for them
    auto started = LinkService::start(
        loop, std::move(options),
        {.on_all_up = [this](uint64_t generation) { up.push_back(generation); },
         .on_down = [this](uint64_t, const plan::Seat&, const Error& error) { downs.push_back(error); },
         .on_tensor =
             [this](uint64_t generation, const plan::Seat&, const proto::TensorHeader& header,
                    dag::Tensor tensor) {
               ++received;
               steps.push_back(header.step);
               is_in_order = is_in_order && header.step == received &&
                             tensor.as<float>()[0] == static_cast<float>(header.step);
               last_generation = generation;
               bytes += tensor.bytes().size();
             },
         .on_not_finite =
             [this](uint64_t, const plan::Seat& from, const proto::TensorHeader& header) {
               not_finite.push_back(peer::not_finite(header, from));
             }});
    EXPECT_TRUE(started.has_value());
    service = std::move(*started);
  }
  void open(uint64_t generation, uint32_t stage, const Owner& other, proto::StageProgram program = {},
            proto::JobNumber run = 1) {
    const auto assignment = std::make_shared<proto::AssignStage>();
    assignment->training.seed = kSeed;
    assignment->training.on_divergence = on_divergence;
    if (program.graph) assignment->programs.push_back(std::move(program));
    assignment->run = run;
    assignment->plan_version = 1;
    assignment->seat = {stage};
    assignment->links = {{.seat = {1 - stage},
                          .peer = other.identity->id(),
                          .dials = stage == 0,
                          .addresses = {net::to_string(*other.service->endpoint())}}};
    service->open(generation, assignment);
  }
  void send(uint64_t generation, uint32_t stage, const dag::Tensor& tensor) {
    service->send(generation, {stage}, {.run = 1, .plan_version = 1, .step = ++sent, .spec = tensor.spec()},
                  tensor);
  }

  std::unique_ptr<security::Identity> identity;
  std::unique_ptr<LinkService> service;
  dag::OnDivergence on_divergence = dag::OnDivergence::Stop;  // of the job
  std::vector<uint64_t> up, steps;
  std::vector<Error> downs, not_finite;
  uint64_t sent = 0, received = 0, bytes = 0, last_generation = 0;
  bool is_in_order = true;
};

class LinkServiceTest : public ::testing::Test {
 protected:
  bool run_until(const std::function<bool()>& done) {
    return loop_.run_until(kPatience, [&] { return done() || !a_.downs.empty() || !b_.downs.empty(); }) &&
           done();
  }
  void open_both() {
    a_.open(7, 0, b_);
    b_.open(9, 1, a_);
    ASSERT_TRUE(run_until([&] { return !a_.up.empty() && !b_.up.empty(); }));
    EXPECT_EQ(a_.up, std::vector<uint64_t>{7});
    EXPECT_EQ(b_.up, std::vector<uint64_t>{9});
  }

  net::Loop loop_;
  std::unique_ptr<net::Loop::Timer> timer_;
  Owner a_{loop_}, b_{loop_};
};

TEST_F(LinkServiceTest, CarriesTensorsBothWaysInOrder) {
  open_both();
  uint64_t bytes = 0;
  for (uint64_t number = 1; number <= 50; ++number) {
    const dag::Tensor tensor = numbered_tensor(static_cast<int64_t>(number * number * 10), number);
    bytes += tensor.bytes().size();
    a_.send(7, 1, tensor);
    b_.send(9, 0, tensor);
  }
  ASSERT_TRUE(run_until([&] { return a_.received == 50 && b_.received == 50; }));
  EXPECT_TRUE(a_.is_in_order && b_.is_in_order);
  EXPECT_EQ(a_.last_generation, 7u);
  EXPECT_EQ(b_.last_generation, 9u);
  EXPECT_EQ(b_.bytes, bytes);
  uint64_t told = 0;  // all of it, sooner or later
  const std::function<void()> ask = [&] {
    for (const proto::LinkUse& use : a_.service->take_use(7)) told += use.bytes_sent;
    timer_ = loop_.after(std::chrono::milliseconds(10), ask);
  };
  ask();
  ASSERT_TRUE(run_until([&] { return told > bytes; }));
}

// ---- what comes encoded

constexpr int64_t kCount = 3000;
proto::StageProgram receives_as(const compress::Codec& codec) {
  dag::GraphBuilder b(dag::op_table());
  const dag::ValueId x = b.input("x", {dag::DType::F32, {kCount}});
  b.output("y", b.add(dag::OpKind::Relu, {x}), dag::OutputRole::Prediction);
  proto::StageProgram program;
  program.graph = std::make_shared<const dag::Graph>(b.finish());
  program.receives = {{.edge = 0, .value = x, .stage = 0, .codec = codec}};
  return program;
}
proto::TensorHeader header_of(uint64_t step, const compress::Codec& codec) {
  return {.run = 1, .plan_version = 1, .step = step, .spec = {dag::DType::F32, {kCount}}, .codec = codec};
}

TEST_F(LinkServiceTest, WhatComesEncodedIsToldDecodedAndInOrder) {
  const compress::Codec codec = *compress::parse("fp16");
  a_.open(7, 0, b_);
  b_.open(9, 1, a_, receives_as(codec));
  ASSERT_TRUE(run_until([&] { return !a_.up.empty() && !b_.up.empty(); }));
  compress::Scratch scratch;
  for (uint64_t step = 1; step <= 60; ++step) {
    // Every third is not finite, and so comes dense.
    dag::Tensor tensor = numbered_tensor(kCount, step);
    if (step % 3 == 0) tensor.mutable_as<float>().back() = -std::numeric_limits<float>::infinity();
    proto::TensorHeader header = header_of(step, codec);
    const dag::Tensor payload = encode_tensor(header, tensor, kSeed, scratch);
    EXPECT_EQ(header.codec == codec, step % 3 != 0);
    a_.service->send(7, {1}, header, payload);
  }
  ASSERT_TRUE(run_until([&] { return b_.received == 60; }));
  EXPECT_TRUE(b_.is_in_order);
  EXPECT_EQ(b_.bytes, 60u * kCount * sizeof(float));
}

TEST_F(LinkServiceTest, WhatACodecSavedIsPartOfALinksUse) {
  open_both();
  a_.service->count(7, {1}, {4000, 1000, 0.25});
  a_.service->count(7, {1}, {4000, 1000, {}});
  a_.service->count(6, {1}, {1, 1, {}});  // of a stage before
  const auto uses = a_.service->take_use(7);
  ASSERT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].bytes_dense, 8000u);
  EXPECT_EQ(uses[0].bytes_encoded, 2000u);
  EXPECT_EQ(uses[0].errors, 1u);
  EXPECT_EQ(uses[0].error_sum, 0.25);
  for (const proto::LinkUse& use : a_.service->take_use(7)) EXPECT_EQ(use.bytes_encoded, 0u);
}

TEST_F(LinkServiceTest, APayloadThatCannotBeDecodedEndsTheLink) {
  const compress::Codec codec = *compress::parse("fp16");
  a_.open(7, 0, b_);
  b_.open(9, 1, a_, receives_as(codec));
  ASSERT_TRUE(run_until([&] { return !a_.up.empty() && !b_.up.empty(); }));
  dag::Tensor payload(payload_spec(kCount * 2));
  for (std::byte& byte : payload.mutable_bytes()) byte = std::byte{0x7C};  // fp16: a NaN
  a_.service->send(7, {1}, header_of(1, codec), payload);
  EXPECT_FALSE(run_until([&] { return b_.received == 1; }));
  ASSERT_EQ(b_.downs.size(), 1u);
  EXPECT_EQ(b_.downs.front().code, ErrorCode::Corrupted);
}

TEST_F(LinkServiceTest, ACodecThatWasNotAssignedEndsTheLink) {
  a_.open(7, 0, b_);
  b_.open(9, 1, a_, receives_as(*compress::parse("fp16")));
  ASSERT_TRUE(run_until([&] { return !a_.up.empty() && !b_.up.empty(); }));
  a_.service->send(7, {1}, header_of(1, *compress::parse("bf16")), dag::Tensor(payload_spec(kCount * 2)));
  EXPECT_FALSE(run_until([&] { return b_.received == 1; }));
  ASSERT_EQ(b_.downs.size(), 1u);
  EXPECT_NE(b_.downs.front().message.find("expected fp16"), std::string::npos) << b_.downs.front().message;
}

// ---- what is not finite

// A peer that lies or has diverged: what it sends is stopped here, and the link and its order stay as they
// are.
TEST_F(LinkServiceTest, NoNaNAndNoInfinityIsHandedOverForTraining) {
  open_both();
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  constexpr int64_t kSmall = 1000, kLarge = 300'000;  // checked here, and on the thread that decodes
  size_t bad = 0;
  for (const int64_t size : {kSmall, kLarge})
    for (const float value : {nan, -nan, infinity})
      for (const int64_t at : {int64_t{1}, size / 2, size - 1}) {
        dag::Tensor tensor = numbered_tensor(size, 1);
        tensor.mutable_as<float>()[static_cast<size_t>(at)] = value;
        a_.service->send(7, {1},
                         {.run = 1,
                          .plan_version = 1,
                          .step = 5,
                          .microbatch = 3,
                          .edge = 8,
                          .direction = proto::Direction::Backward,
                          .spec = tensor.spec()},
                         tensor);
        ++bad;
      }
  // Masked scores, large and small ones, large before small.
  for (uint64_t number = 1; number <= 20; ++number) {
    dag::Tensor tensor = numbered_tensor(number % 2 == 1 ? kLarge : kSmall, number);
    tensor.mutable_as<float>()[7] = -infinity;
    a_.send(7, 1, tensor);
  }
  ASSERT_TRUE(run_until([&] { return b_.received == 20; }));
  EXPECT_TRUE(b_.is_in_order);
  ASSERT_EQ(b_.not_finite.size(), bad);
  for (const Error& error : b_.not_finite) {
    EXPECT_EQ(error.code, ErrorCode::OutOfRange);
    EXPECT_EQ(error.message, "a NaN or an infinity came from stage 1: edge 8, step 5, microbatch 3");
  }
  EXPECT_TRUE(b_.downs.empty());
}

// It shows in the step's loss, gradients or statistics, and then all stages skip the step.
TEST_F(LinkServiceTest, WhereStepsMayBeSkippedWhatIsNotFiniteIsHandedOver) {
  b_.on_divergence = dag::OnDivergence::Skip;
  open_both();
  for (const int64_t size : {int64_t{1000}, int64_t{300'000}}) {
    dag::Tensor tensor = numbered_tensor(size, a_.sent + 1);
    tensor.mutable_as<float>()[9] = std::numeric_limits<float>::quiet_NaN();
    a_.send(7, 1, tensor);
  }
  ASSERT_TRUE(run_until([&] { return b_.received == 2; }));
  EXPECT_TRUE(b_.not_finite.empty());
}

// Nothing is learnt from an evaluation or prediction: a model may mean what it says.
TEST_F(LinkServiceTest, EvaluationsAndPredictionsMayHaveNaN) {
  open_both();
  uint64_t step = 0;
  for (const proto::ProgramKind program : {proto::ProgramKind::Evaluate, proto::ProgramKind::Predict}) {
    dag::Tensor tensor = numbered_tensor(300'000, ++step);
    tensor.mutable_as<float>()[9] = std::numeric_limits<float>::quiet_NaN();
    a_.service->send(7, {1},
                     {.run = 1, .plan_version = 1, .step = step, .program = program, .spec = tensor.spec()},
                     tensor);
  }
  ASSERT_TRUE(run_until([&] { return b_.received == 2; }));
  EXPECT_TRUE(b_.not_finite.empty());
}

// Whoever dialled: what a peer sends passes its own uplink, what it receives its own downlink.
TEST(LinkService, WhatWasDialledByOthersPassesTheUplinkToo) {
  net::Loop loop;
  const auto uplink = net::AccessLine::make(10e6), downlink = net::AccessLine::make(20e6);
  Owner a(loop), b(loop, net::Shape{.uplink = uplink, .downlink = downlink});
  a.open(7, 0, b);
  b.open(9, 1, a);
  const auto run_until = [&](const std::function<bool()>& done) { return loop.run_until(kPatience, done); };
  ASSERT_TRUE(run_until([&] { return !a.up.empty() && !b.up.empty(); }));
  const Instant start = loop.now();
  b.send(9, 0, numbered_tensor(500'000, 1));  // 2 MB: 200 ms
  ASSERT_TRUE(run_until([&] { return a.received == 1; }));
  EXPECT_GE(loop.now() - start, std::chrono::milliseconds(199));
  const Instant again = loop.now();
  a.send(7, 1, numbered_tensor(500'000, 1));
  ASSERT_TRUE(run_until([&] { return b.received == 1; }));
  EXPECT_GE(loop.now() - again, std::chrono::milliseconds(99));
}

// Over a slow line: what the receiver needs next passes the large tensor that it needs later.
TEST(LinkService, AnUrgentTensorOvertakesALargeOneThatIsUnderWay) {
  net::Loop loop;
  const auto uplink = net::AccessLine::make(1e6);
  Owner a(loop), b(loop, net::Shape{.uplink = uplink});
  a.open(7, 0, b);
  b.open(9, 1, a);
  const auto run_until = [&](const std::function<bool()>& done) { return loop.run_until(kPatience, done); };
  ASSERT_TRUE(run_until([&] { return !a.up.empty() && !b.up.empty(); }));
  const auto send = [&](uint64_t step, int64_t size) {
    const dag::Tensor tensor = numbered_tensor(size, step);
    b.service->send(9, {0}, {.run = 1, .plan_version = 1, .step = step, .spec = tensor.spec()}, tensor);
  };
  const Instant start = loop.now();
  send(9, 500'000);  // 2 MB: two seconds
  send(3, 1000);
  send(2, 50'000);
  ASSERT_TRUE(run_until([&] { return a.received == 1; }));
  EXPECT_LT(loop.now() - start, std::chrono::milliseconds(1500));
  ASSERT_TRUE(run_until([&] { return a.received == 3; }));
  EXPECT_EQ(a.steps.back(), 9u);
}

// The side that dials may be there long before the other side has its stage.
TEST_F(LinkServiceTest, WhoComesEarlyWaits) {
  a_.open(7, 0, b_);
  a_.send(7, 1, numbered_tensor(100, 1));
  bool later = false;
  const auto timer = loop_.after(std::chrono::milliseconds(50), [&] { later = true; });
  ASSERT_TRUE(run_until([&] { return later; }));
  EXPECT_TRUE(a_.up.empty());
  b_.open(9, 1, a_);
  ASSERT_TRUE(run_until([&] { return b_.received == 1; }));
}

// Two stages, of different runs, between the same two peers.
TEST_F(LinkServiceTest, LinksOfSeveralStagesAreApart) {
  open_both();
  a_.open(8, 0, b_, {}, /*run=*/2);
  b_.open(10, 1, a_, {}, /*run=*/2);
  ASSERT_TRUE(run_until([&] { return a_.up.size() == 2 && b_.up.size() == 2; }));
  a_.send(7, 1, numbered_tensor(10, 1));
  ASSERT_TRUE(run_until([&] { return b_.received == 1; }));
  EXPECT_EQ(b_.last_generation, 9u);
  const dag::Tensor tensor = numbered_tensor(10, 2);
  a_.service->send(8, {1}, {.run = 2, .plan_version = 1, .step = 2, .spec = tensor.spec()}, tensor);
  ASSERT_TRUE(run_until([&] { return b_.received == 2; }));
  EXPECT_EQ(b_.last_generation, 10u);
  a_.service->close(7);
  b_.service->close(9);
  a_.service->send(8, {1}, {.run = 2, .plan_version = 1, .step = 3, .spec = tensor.spec()}, tensor);
  ASSERT_TRUE(run_until([&] { return b_.received == 3; }));
  EXPECT_TRUE(a_.downs.empty() && b_.downs.empty());
  a_.service->count(8, {1}, {100, 10, {}});
  for (const proto::LinkUse& use : a_.service->take_use(8)) EXPECT_EQ(use.bytes_encoded, 10u);
  EXPECT_TRUE(a_.service->take_use(7).empty());
}

TEST_F(LinkServiceTest, WhatIsForAnotherStageGoesNowhere) {
  open_both();
  a_.send(6, 1, numbered_tensor(10, 1));
  a_.sent = 0;
  a_.send(7, 1, numbered_tensor(10, 1));
  ASSERT_TRUE(run_until([&] { return b_.received == 1; }));
  a_.service->close(7);
  a_.send(7, 1, numbered_tensor(10, 2));
  EXPECT_TRUE(a_.service->take_use(7).size() <= 1);
  EXPECT_TRUE(b_.is_in_order);
}

// For an owner that takes nothing what waits is bounded; all of it comes once it does.
TEST_F(LinkServiceTest, AnOwnerThatIsBehindSlowsTheSenderDown) {
  open_both();
  constexpr uint64_t kCount = 128;
  const dag::Tensor tensor = numbered_tensor(256 << 10, 1);  // 1 MiB
  for (uint64_t i = 0; i < kCount; ++i) a_.send(7, 1, tensor);
  // Nobody runs the owner's loop here: until nothing moves any more.
  net::Loop idle;
  uint64_t moved = 0;
  for (bool moves = true; moves;) {
    idle.run_until(std::chrono::milliseconds(300), [] { return false; });
    const uint64_t before = moved;
    for (const proto::LinkUse& use : a_.service->take_use(7)) moved += use.bytes_sent;
    moves = moved != before || moved == 0;
  }
  EXPECT_GT(moved, kUntakenMax);
  EXPECT_LT(moved, kUntakenMax + (48 << 20)) << "more than the sockets between the two can hold";
  ASSERT_TRUE(run_until([&] { return b_.received == kCount; }));
}

}  // namespace
}  // namespace weft::peer::test
