// Large messages pass the broker's core as they are: nobody copies a submission, and nobody encodes again
// what was encoded when it came or was made.
#include "proto/encoded.h"

#include <gtest/gtest.h>

#include "proto/codec/codec.h"
#include "tests/broker/world.h"

namespace weft::broker {
namespace {

using proto::AssignStage;
using proto::Encoded;
using proto::SubmitJob;

constexpr ConnectionId kUser = 100;

void introduce_user(World& world) {
  proto::Hello hello;
  hello.role = proto::Role::Submitter;
  world.step(Introduced{kUser, test::key(200), "test", hello, TokenVerdict::Valid});
}

// The same memory, not the same content.
template <typename T>
void expect_same(const Encoded<T>& a, const Encoded<T>& b) {
  EXPECT_EQ(a.get(), b.get());
  EXPECT_EQ(a.bytes().bytes.data(), b.bytes().bytes.data());
  EXPECT_FALSE(a.bytes().bytes.empty());
}

TEST(Encoded, BytesAreMadeOnce) {
  const Encoded<SubmitJob> bare = SubmitJob{.name = "a.yaml", .job = "model: a.onnx"};
  EXPECT_FALSE(bare.bytes());
  const Encoded<SubmitJob> encoded = proto::with_bytes(bare);
  EXPECT_EQ(encoded.get(), bare.get());
  expect_same(encoded, proto::with_bytes(encoded));
  const auto bytes = proto::bytes_of(encoded).bytes;
  EXPECT_EQ(bytes.data(), encoded.bytes().bytes.data());
  EXPECT_EQ(std::vector<std::byte>(bytes.begin(), bytes.end()),
            proto::encode(proto::Message(SubmitJob{.name = "a.yaml", .job = "model: a.onnx"})));
}

TEST(Encoded, ASubmissionIsCheckedAsItCame) {
  World world;
  introduce_user(world);
  const auto message = std::make_shared<const proto::Message>(SubmitJob{.name = "a.yaml"});
  const proto::EncodedBytes bytes = proto::share(proto::encode(*message));
  world.step(Received{.connection = kUser, .message = message, .bytes = bytes});
  ASSERT_EQ(world.checks.size(), 1u);
  EXPECT_EQ(world.checks[0].submission.get(), &std::get<SubmitJob>(*message));
  EXPECT_EQ(world.checks[0].submission.bytes().bytes.data(), bytes.bytes.data());
}

TEST(Encoded, ASubmissionIsStoredAndPlannedAsItWasChecked) {
  World world;
  world.join(1, 1);
  introduce_user(world);
  const Encoded<SubmitJob> checked =
      proto::with_bytes(Encoded<SubmitJob>(SubmitJob{.name = "a.yaml", .stages = 1}));
  const Effects effects = world.step(SubmissionChecked{kUser, checked, {}});
  size_t recorded = 0;
  for (const Record& record : effects.records)
    if (const auto* submitted = std::get_if<JobSubmitted>(&record)) {
      expect_same(submitted->submission, checked);
      ++recorded;
    }
  EXPECT_EQ(recorded, 1u);
  ASSERT_EQ(world.plannings.size(), 1u);
  expect_same(world.plannings[0].submission, checked);
}

TEST(Encoded, AnAssignmentIsRecordedAndSentAsItWasPlanned) {
  World world;
  world.join(1, 1);
  world.submit(kUser, 1);
  ASSERT_EQ(world.plannings.size(), 1u);
  const auto plan = plan_for(world.plannings[0], 1, 100);
  plan->stages[0].assignment = proto::with_bytes(plan->stages[0].assignment);
  const Encoded<AssignStage> planned = plan->stages[0].assignment;
  const StartPlanning request = world.plannings[0];
  Effects effects = world.step(PlanningDone{request.job, request.plan_version, plan});
  size_t sent = 0;
  for (const Effect& effect : effects.effects)
    if (const auto* send = std::get_if<Send>(&effect);
        send != nullptr && std::holds_alternative<AssignStage>(*send->message)) {
      EXPECT_EQ(send->bytes.bytes.data(), planned.bytes().bytes.data());
      ++sent;
    }
  EXPECT_EQ(sent, 1u);
  world.receive(1, proto::StageReady{.run = request.job, .plan_version = request.plan_version});
  size_t recorded = 0;
  for (const Record& record : world.records)
    if (const auto* started = std::get_if<RunStarted>(&record)) {
      expect_same(started->plan->stages[0].assignment, planned);
      ++recorded;
    }
  EXPECT_EQ(recorded, 1u);
}

}  // namespace
}  // namespace weft::broker
