// Every message is, after encode and decode, what it was before.
#include <gtest/gtest.h>

#include <cstring>

#include "proto/codec/bounds.h"
#include "proto/codec/codec.h"
#include "proto/codec/report_head.h"
#include "tests/proto/samples.h"

namespace weft::proto {
namespace {

constexpr size_t kKinds = std::variant_size_v<AnyMessage>;

TEST(Codec, EveryMessageComesBackAsItWas) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0xC0DEC);
    for (size_t kind = 0; kind < kKinds; ++kind) {
      const Message message = test::random_message(kind, rng);
      SCOPED_TRACE(name_of(message));
      const auto bytes = encode(message);
      const auto decoded = decode(bytes);
      ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
      EXPECT_EQ(decoded->index(), kind);
      EXPECT_EQ(encode(*decoded), bytes);
    }
  }
}

TEST(Codec, WhoseReportItIsCanBeSeenWithoutDecoding) {
  size_t reports = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0x4EAD);
    for (size_t kind = 0; kind < kKinds; ++kind) {
      const Message message = test::random_message(kind, rng);
      SCOPED_TRACE(name_of(message));
      const auto bytes = encode(message);
      const auto head = head_of(message), seen = peek_report(bytes);
      EXPECT_EQ(seen.has_value() ? seen : head, head);
      const bool is_plain = head && head->run != 0 && head->plan_version != 0;
      EXPECT_TRUE(seen || !is_plain);
      reports += seen.has_value();
      for (size_t size = 0; size < std::min<size_t>(bytes.size(), 24); ++size)
        (void)peek_report(std::span(bytes).first(size));
    }
  }
  EXPECT_GT(reports, 100u);
}

// Encoding again shows that nothing is lost on the way in; that nothing is lost on the way out is told by the
// bytes that one changed field changes.
TEST(Codec, EveryFieldReachesTheWire) {
  const auto differ = [](auto a, const auto& change) {
    auto b = a;
    change(b);
    EXPECT_NE(encode(a), encode(b));
  };
  differ(StepReport{}, [](StepReport& m) { m.seconds_busy = 1; });
  differ(StepReport{}, [](StepReport& m) { m.updated = true; });
  differ(EvaluationReport{}, [](EvaluationReport& m) { m.counted = {1}; });
  differ(EvaluationReport{}, [](EvaluationReport& m) { m.first_microbatch = 1; });
  differ(SubmitJob{}, [](SubmitJob& m) { m.stages = 1; });
  differ(SubmitJob{}, [](SubmitJob& m) { m.excluded = {"attic"}; });
  differ(SubmitJob{}, [](SubmitJob& m) { m.compresses = true; });
  differ(SubmitJob{}, [](SubmitJob& m) { m.arithmetic = dag::Arithmetic::TF32; });
  differ(JobEvent{}, [](JobEvent& m) { m.metrics["a"] = 0; });
  differ(JobEvent{}, [](JobEvent& m) { m.diverged = true; });
  differ(StageFailed{}, [](StageFailed& m) { m.diverged = true; });
  differ(StageFailed{}, [](StageFailed& m) { m.step = 1; });
  differ(JobEvent{}, [](JobEvent& m) { m.skipped = true; });
  differ(SubmitJob{}, [](SubmitJob& m) { m.skips_steps = true; });
  differ(SubmitJob{}, [](SubmitJob& m) { m.serves = "model"; });
  const BlobRecipe recipe{.sha256 = {}, .recipe = {.source_size = 64, .cut = dag::Recipe::Cut{.size = 8}}};
  differ(SubmitJob{}, [&](SubmitJob& m) { m.recipes = {recipe}; });
  differ(HaveBlobs{}, [&](HaveBlobs& m) { m.recipes = {recipe}; });
  differ(AssignStage{}, [&](AssignStage& m) { m.recipes = {recipe}; });
  differ(GradientNorm{}, [](GradientNorm& m) { m.skip = true; });
  differ(StepReport{}, [](StepReport& m) { m.statistics_diverged = true; });
  differ(CheckpointReport{}, [](CheckpointReport& m) { m.skipped_steps = 1; });
  differ(AssignStage{}, [](AssignStage& m) { m.skipped_steps = 1; });
  differ(AssignStage{}, [](AssignStage& m) { m.training.on_divergence = dag::OnDivergence::Skip; });
  differ(RunPlan{}, [](RunPlan& m) { m.diverged_at = 1; });
  differ(AssignStage{}, [](AssignStage& m) { m.training.optimizer.beta2 = 0.5; });
  differ(AssignStage{}, [](AssignStage& m) { m.links.emplace_back().region = "a"; });
  differ(AssignStage{}, [](AssignStage& m) { m.arithmetic = dag::Arithmetic::BF16; });
  differ(AssignStage{}, [](AssignStage& m) { m.microbatch_seconds = 1; });
  differ(Hello{.device = DeviceReport{}},
         [](Hello& m) { m.device->arithmetic.push_back(dag::Arithmetic::TF32); });
  differ(StageFailed{}, [](StageFailed& m) { m.error.code = ErrorCode::DeviceLost; });
  differ(JobStatus{}, [](JobStatus& m) { m.equal_bits = false; });
  differ(JobStatus{}, [](JobStatus& m) { m.saving.step = 1; });
  differ(JobStatus{}, [](JobStatus& m) { m.saving.bytes = {1}; });
  differ(JobStatus{.saving = {.bytes = {1}}}, [](JobStatus& m) { m.saving.saved = {1}; });
  differ(Heartbeat{}, [](Heartbeat& m) { m.saving.emplace(); });
  differ(Heartbeat{.saving = StageSaving{}}, [](Heartbeat& m) { m.saving->saved = {1}; });
  differ(HelloAck{}, [](HelloAck& m) { m.lease = Duration(1); });
  differ(HelloAck{}, [](HelloAck& m) { m.unix_ms = -1; });
  differ(HelloAck{}, [](HelloAck& m) { m.address = "[::1]:7"; });
  differ(ProbeLink{}, [](ProbeLink& m) { m.time_max = Duration(1); });
  differ(ProbeReport{}, [](ProbeReport& m) { m.relayed = true; });
  differ(LinkList{}, [](LinkList& m) { m.ends.emplace_back(); });
}

TEST(Codec, ADeviceThatSaysNothingOfItsArithmeticHasFloat32) {
  Hello hello;
  hello.device.emplace().arithmetic.clear();
  const auto decoded = decode(encode(hello));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(std::get<Hello>(*decoded).device->arithmetic, std::vector<dag::Arithmetic>{dag::Arithmetic::F32});
}

TEST(Codec, TextForPeopleIsCutAtItsBound) {
  const auto decoded = decode(encode(Refusal{ErrorCode::Internal, std::string(100'000, 'x'), false}));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(std::get<Refusal>(*decoded).message.size(), kTextMax);
}

// What others say reaches logs and terminals.
TEST(Codec, TextForPeopleIsCleanedAndTextForProgramsIsNot) {
  Hello hello{.software = "1\x1b[2J", .name = "a\nerror disk_full"};
  hello.device =
      DeviceReport{.device = "cpu:1\r", .memory = {1}, .fingerprint = "f\n", .addresses = {"h\n:1"}};
  const auto decoded = decode(encode(hello));
  ASSERT_TRUE(decoded) << decoded.error().message;
  const Hello& got = std::get<Hello>(*decoded);
  EXPECT_EQ(got.software, "1?[2J");
  EXPECT_EQ(got.name, "a?error disk_full");
  EXPECT_EQ(got.device->device, "cpu:1?");
  EXPECT_EQ(got.device->addresses, std::vector<std::string>{"h?:1"});
  EXPECT_EQ(got.device->fingerprint, "f\n");
  const auto refusal = decode(encode(Refusal{.message = "two\nlines\x1b[31m"}));
  EXPECT_EQ(std::get<Refusal>(*refusal).message, "two\nlines?[31m");
}

TEST(Codec, AHelloOfAnotherMajorVersionStillNamesItself) {
  Hello hello;
  hello.major = kProtocolMajor + 1;
  hello.minor = 7;
  hello.software = "9.1";
  hello.role = Role{200};  // nothing that this version knows
  hello.name = std::string(1000, 'x');
  const auto decoded = decode(encode(hello));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(std::get<Hello>(*decoded).major, kProtocolMajor + 1);
  EXPECT_EQ(std::get<Hello>(*decoded).software, "9.1");
}

TEST(TensorHeaders, ComeBackAsTheyWere) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    TensorHeader header{rng.next_u64(),
                        rng.next_u32(),
                        rng.next_u64(),
                        rng.next_u32(),
                        rng.next_u32(),
                        static_cast<ProgramKind>(rng.below(3)),
                        static_cast<Direction>(rng.below(2)),
                        static_cast<uint16_t>(rng.below(65536)),
                        {}};
    header.spec.dtype = static_cast<dag::DType>(rng.below(13));
    for (uint64_t d = rng.below(7); d > 0; --d)
      header.spec.shape.push_back(static_cast<int64_t>(rng.below(4)));
    auto frame = encode_header(header);
    EXPECT_LE(frame.size(), kTensorHeaderSizeMax);
    const size_t head = frame.size();
    frame.resize(head + static_cast<size_t>(header.spec.bytes().value), std::byte{7});
    const auto decoded = decode_tensor(frame);
    ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
    EXPECT_EQ(decoded->header, header);
    EXPECT_EQ(decoded->bytes.data(), frame.data() + head);
    EXPECT_EQ(decoded->bytes.size(), frame.size() - head);
  }
}

TEST(TensorHeaders, OfPayloadsThatACodecMadeComeBackToo) {
  for (const char* name : {"fp16", "bf16", "int8", "int6", "int4", "int3", "int4z", "topk:0.01:fp32",
                           "topk:0.123456:int8+int4", "randomk:1:int4"}) {
    SCOPED_TRACE(name);
    TensorHeader header{
        1, 2, 3, 4, 5, ProgramKind::Train, Direction::Backward, 0, {dag::DType::F32, {7, 100}}};
    header.codec = *compress::parse(name);
    auto frame = encode_header(header);
    EXPECT_LE(frame.size(), kTensorHeaderSizeMax);
    EXPECT_EQ(static_cast<int>(frame[4]), 2);
    const size_t head = frame.size();
    frame.resize(head + static_cast<size_t>(payload_bytes(header.spec, header.codec).value), std::byte{7});
    const auto decoded = decode_tensor(frame);
    ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
    EXPECT_EQ(decoded->header, header);
    EXPECT_EQ(decoded->bytes.size(), frame.size() - head);
    frame.push_back({});
    EXPECT_FALSE(decode_tensor(frame).has_value()) << "longer than the codec makes it";
    frame.resize(frame.size() - 2);
    EXPECT_EQ(decode_tensor(frame).has_value(), !compress::is_fixed_size(header.codec));
  }
}

TEST(Chunks, ComeBackAsTheyWere) {
  auto frame = encode_chunk_head(0x0123456789ABCDEF);
  frame.resize(frame.size() + 5, std::byte{9});
  const auto decoded = decode_chunk(frame);
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(decoded->request, 0x0123456789ABCDEFu);
  EXPECT_EQ(decoded->bytes.size(), 5u);
}

}  // namespace
}  // namespace weft::proto
