// What goes between a broker and the processes that plan for it comes back as it was, and bytes that are none
// of it are refused.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rng.h"
#include "broker/service/plan_worker.h"
#include "proto/codec/planning.h"
#include "tests/planning/submitted.h"

namespace weft::broker {
namespace {

proto::PlanQuestion question_of(Rng& rng) {
  proto::PlanQuestion question{.task = proto::PlanTask::Plan,
                               .job = rng.below(1000),
                               .plan_version = static_cast<uint32_t>(rng.below(1000)),
                               .microbatch_size = static_cast<uint32_t>(rng.below(64)),
                               .chosen = {rng.below(50), {}, {3, 1 + rng.below(3)}},
                               .gentler = static_cast<uint32_t>(rng.below(3)),
                               .is_first = rng.below(2) == 0,
                               .has_checkpoint = rng.below(2) == 0,
                               .may_follow = rng.below(2) == 0};
  if (rng.below(2) == 0) question.chosen.codec = compress::parse("topk:0.02:int4").value();
  std::vector<plan::DeviceView> devices;
  for (const Candidate& candidate : test::candidates(1 + rng.below(9))) {
    question.candidates.push_back({candidate.peer, candidate.name, candidate.device});
    if (rng.below(2) == 0) question.candidates.back().replica = static_cast<uint32_t>(rng.below(9));
    plan::DeviceView& device = devices.emplace_back();
    device = {.name = candidate.name,
              .region = candidate.device.region,
              .owner = "owner-" + std::to_string(rng.below(3)),
              .rates = candidate.device.rates,
              .memory = {static_cast<int64_t>(rng.below(1 << 30))},
              .host_memory = {static_cast<int64_t>(rng.below(1 << 30))},
              .fingerprint = candidate.device.fingerprint,
              .threads = static_cast<uint32_t>(rng.below(8))};
    // Slower than any device may say that it is.
    for (plan::UnitRates& unit : device.rates.units) unit.flops_per_second = rng.uniform() * 1e-3;
    if (rng.below(2) == 0) device.uplink = 1e6 * (1 + rng.uniform());
  }
  for (plan::DeviceView& device : devices) {
    device.site = static_cast<uint32_t>(rng.below(devices.size()));
    device.device_class = static_cast<uint32_t>(rng.below(devices.size()));
  }
  const size_t count = devices.size();
  question.cluster = plan::ClusterView(std::move(devices));
  const auto link = [&] {
    return plan::LinkView{rng.below(4) == 0 ? plan::kUnlimited : 1e6 * (1 + rng.uniform()),
                          Duration(rng.below(1'000'000)), rng.below(2) == 0};
  };
  for (uint32_t a = 0; a < question.cluster.site_count(); ++a)
    for (uint32_t b = 0; b < question.cluster.site_count(); ++b) question.cluster.set_between(a, b, link());
  for (size_t i = rng.below(4); i > 0; --i)
    question.cluster.set_link(rng.below(count), rng.below(count), link());
  return question;
}

proto::PlanAnswer answer_of(Rng& rng) {
  proto::PlanAnswer answer{.compresses = rng.below(2) == 0, .skips_steps = rng.below(2) == 0};
  proto::JobFeed& feed = answer.feed.emplace();
  feed = {.steps = rng.below(1000),
          .batch_size = 8,
          .microbatch_size = 4,
          .shuffle = false,
          .seed = rng.below(9)};
  proto::ProgramFeed& program = feed.programs.emplace_back();
  program.program = proto::ProgramKind::Evaluate;
  program.data = {.format = proto::DataFormat::Text,
                  .path = "data/test/text",
                  .sequence_length = 128,
                  .token_bytes = 4,
                  .validation = 0.25,
                  .is_validation = true,
                  .columns = {"image", "label"},
                  .transforms = {{"image", 0.25, {1, 2, 3}, {0.5}, true, 7}}};
  program.inputs = {{"x", 0}, {"y", 1, dag::TensorSpec{dag::DType::I64, {2, 3}}}};
  program.bounds = {{"x", -3, 5, std::nullopt}, {"y", 0, 255, -100}};
  return answer;
}

TEST(PlanMessages, ComeBackAsTheyWere) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    const auto question = proto::encode_question(question_of(rng));
    const auto asked = proto::decode_question(question);
    ASSERT_TRUE(asked.has_value()) << asked.error().message;
    EXPECT_EQ(proto::encode_question(*asked), question);
    const auto answer = proto::encode_answer(answer_of(rng));
    const auto answered = proto::decode_answer(answer);
    ASSERT_TRUE(answered.has_value()) << answered.error().message;
    EXPECT_EQ(proto::encode_answer(*answered), answer);
  }
}

TEST(PlanMessages, DamagedOnesAreRefusedOrAreOthers) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    for (auto bytes : {proto::encode_question(question_of(rng)), proto::encode_answer(answer_of(rng))}) {
      for (uint64_t changes = 1 + rng.below(4); changes > 0; --changes)
        bytes[rng.below(bytes.size())] = static_cast<std::byte>(rng.below(256));
      if (rng.below(3) == 0) bytes.resize(rng.below(bytes.size()));
      (void)proto::decode_question(bytes);
      (void)proto::decode_answer(bytes);
    }
  }
}

// A pipe whose other end says `bytes` and hangs up.
Result<std::vector<std::byte>> received(std::span<const std::byte> bytes, size_t size_max) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  EXPECT_EQ(::write(ends[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ::close(ends[1]);
  FramePipe pipe(ends[0]);
  auto frame = pipe.receive(size_max);
  ::close(ends[0]);
  return frame;
}

TEST(FramePipe, RefusesAFrameBeforeItTakesMemoryForIt) {
  std::vector<std::byte> head(8, std::byte{0xff});
  const auto frame = received(head, 1 << 20);
  ASSERT_FALSE(frame.has_value());
  EXPECT_EQ(frame.error().code, ErrorCode::OutOfRange);
}

TEST(FramePipe, SaysThatTheOtherEndIsGone) {
  std::vector<std::byte> cut(12, std::byte{0});
  cut[0] = std::byte{100};
  for (const size_t size : {size_t{0}, size_t{3}, cut.size()}) {
    const auto frame = received(std::span(cut).first(size), 1 << 20);
    ASSERT_FALSE(frame.has_value());
    EXPECT_EQ(frame.error().code, ErrorCode::Unavailable);
  }
}

}  // namespace
}  // namespace weft::broker
