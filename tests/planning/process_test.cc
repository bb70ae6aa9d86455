// A process that plans: it makes the plan that this process would make, and whatever becomes of it is a
// failure with words.
#include "broker/service/plan_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>

#include "broker/service/planner.h"
#include "broker/store/run_plan.h"
#include "proto/codec/codec.h"
#include "tests/planning/submitted.h"
#include "tests/support/sanitized.h"

namespace weft::broker {
namespace {

using Process = std::unique_ptr<PlanProcess>;

constexpr Duration kPatience = std::chrono::seconds(60);
constexpr PlanTaskAt kPlan{proto::PlanTask::Plan, true}, kCheck{proto::PlanTask::Check, false};

class Watch {
 public:
  double ms() const { return 1e3 * seconds(monotonic_now() - begin_); }

 private:
  Instant begin_ = monotonic_now();
};

// All of a plan but what was drawn at random, as bytes.
std::vector<std::vector<std::byte>> bytes_of(const PlannedRun& run) {
  proto::RunPlan plan = to_message(run);
  plan.terms.data_key = {};
  for (proto::Secret& ticket : plan.terms.relay_tickets) ticket = {};
  std::vector<std::vector<std::byte>> bytes = {proto::encode(plan)};
  for (const PlannedStage& stage : run.stages) {
    proto::AssignStage assignment = *stage.assignment;
    assignment.data_key = {};
    for (proto::LinkRoute& link : assignment.links) link.relay_ticket = {};
    bytes.push_back(proto::encode(assignment));
  }
  return bytes;
}

Process start(const PlanProcessOptions& options) {
  auto process = PlanProcess::start(options);
  EXPECT_TRUE(process.has_value()) << (process ? "" : process.error().message);
  return process ? std::move(*process) : nullptr;
}

// What the limit counts, rounded up.
int64_t data_mebibytes(const PlanProcess& process) {
  std::ifstream file("/proc/" + std::to_string(process.id()) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmData:")) return (std::stoll(line.substr(7)) >> 10) + 1;
  ADD_FAILURE() << "the process is gone";
  return 0;
}

void expect_same_plan(const std::string& name, const std::vector<std::string>& sets) {
  test::SubmittedJobs jobs;
  const StartPlanning request = test::request_for(7, jobs.submit(name, sets));
  JobPlanner planner(jobs.folder() / "here", jobs.blobs(), uint64_t{12'500'000});
  Watch here_took;
  const auto here = planner.plan(request, true);
  ASSERT_TRUE(here.has_value()) << here.error().message;
  std::printf("  %s: in this process %.0f ms\n", name.c_str(), here_took.ms());

  PlanProcessOptions options = jobs.process_options();
  options.copy_rate = 12'500'000;
  Watch took;
  const Process process = start(options);
  for (const bool is_first : {true, false}) {  // the second time without an import
    const auto there = process->ask(request, {proto::PlanTask::Plan, is_first}, kPatience);
    ASSERT_TRUE(there.has_value()) << there.error().message;
    ASSERT_NE(there->run, nullptr);
    std::printf("  %s: in one of its own %.0f ms%s, which takes %.0f MiB\n", name.c_str(), took.ms(),
                is_first ? ", started for it" : " once more",
                static_cast<double>(process->resident().value) / (1 << 20));
    took = Watch();
    if (is_first) {
      EXPECT_EQ(bytes_of(**here), bytes_of(*there->run));
    }
    ASSERT_TRUE(there->feed.has_value());
    EXPECT_EQ(there->feed->initial.size(), planner.feed().initial.size());
    EXPECT_EQ(there->feed->programs.size(), planner.feed().programs.size());
    EXPECT_EQ(there->feed->programs.at(0).data.path, planner.feed().programs.at(0).data.path);
  }
  EXPECT_GT((*here)->stages.size(), 1u);
}

TEST(PlanProcess, PlansAConvolutionalNetAsThisProcessDoes) {
  expect_same_plan("resnet18w16", {"placement.stages=4"});
}

TEST(PlanProcess, PlansATransformerOverCompressedLinksAsThisProcessDoes) {
  expect_same_plan("gpt3", {"placement.stages=3", "compression.policy=auto"});
}

TEST(PlanProcess, SaysWhatIsWrongAndLivesOn) {
  test::SubmittedJobs jobs;
  proto::SubmitJob submission = jobs.submit("gpt3");
  const Process process = start(jobs.process_options());
  proto::SubmitJob wrong = submission;
  wrong.job += "\nlearning_rat: 1\n";
  const auto refused = process->ask({.submission = wrong}, kCheck, kPatience);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument) << refused.error().message;
  EXPECT_TRUE(process->is_alive());
  EXPECT_TRUE(process->ask({.submission = submission}, kCheck, kPatience).has_value());
}

TEST(PlanProcess, ThatTakesTooLongIsEnded) {
  test::SubmittedJobs jobs;
  PlanProcessOptions options = jobs.process_options();
  const StartPlanning request = test::request_for(1, jobs.submit("gpt3"));
  const Process process = start(options);
  ASSERT_EQ(::kill(process->id(), SIGSTOP), 0);
  const auto planned = process->ask(request, kPlan, std::chrono::milliseconds(20));
  ASSERT_FALSE(planned.has_value());
  EXPECT_EQ(planned.error().code, ErrorCode::Timeout);
  EXPECT_NE(planned.error().message.find("planning was ended after 20 ms"), std::string::npos)
      << planned.error().message;
  EXPECT_FALSE(process->is_alive());
}

TEST(PlanProcess, ThatWantsTooMuchMemoryIsEnded) {
  if (weft::test::kIsSanitized) GTEST_SKIP() << "a sanitizer's own memory cannot be limited";
  test::SubmittedJobs jobs;
  PlanProcessOptions options = jobs.process_options();
  const StartPlanning request = test::request_for(1, jobs.submit("resnet18w16"));
  {  // what looking at it takes, and too little for a model
    const Process looks = start(options);
    ASSERT_TRUE(looks->ask({.submission = request.submission}, kCheck, kPatience).has_value());
    options.memory_max = Bytes{(data_mebibytes(*looks) + 1) << 20};
  }
  const Process process = start(options);
  const auto planned = process->ask(request, kPlan, kPatience);
  ASSERT_FALSE(planned.has_value());
  EXPECT_EQ(planned.error().code, ErrorCode::ResourceExhausted) << planned.error().message;
  EXPECT_NE(planned.error().message.find("planning took more than " +
                                         std::to_string(options.memory_max.value >> 20) + " MiB"),
            std::string::npos)
      << planned.error().message;
  EXPECT_FALSE(process->is_alive());
}

TEST(PlanProcess, ThatDiesIsAFailureWithItsSignal) {
  test::SubmittedJobs jobs;
  const StartPlanning request = test::request_for(1, jobs.submit("gpt3"));
  for (const auto& [signal, words] :
       {std::pair{SIGSEGV, "planning ended by signal 11"}, std::pair{SIGKILL, "planning was killed"}}) {
    const Process process = start(jobs.process_options());
    ASSERT_EQ(::kill(process->id(), signal), 0);
    const auto planned = process->ask(request, kPlan, kPatience);
    ASSERT_FALSE(planned.has_value());
    EXPECT_NE(planned.error().message.find(words), std::string::npos) << planned.error().message;
    EXPECT_FALSE(process->is_alive());
  }
}

TEST(PlanProcess, IsTakenForBrokenWhenItSaysSomethingElse) {
  test::SubmittedJobs jobs;
  PlanProcessOptions options = jobs.process_options();
  const auto script = jobs.folder() / "liar";
  std::ofstream(script) << "#!/bin/sh\nhead -c 65536 /dev/zero | tr '\\0' '\\377' >&3\nexec sleep 100\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  options.program = script;
  const Process process = start(options);
  const auto planned = process->ask({}, kPlan, kPatience);
  ASSERT_FALSE(planned.has_value());
  EXPECT_EQ(planned.error().code, ErrorCode::Internal);
  EXPECT_NE(planned.error().message.find("it said what it may not"), std::string::npos)
      << planned.error().message;
  EXPECT_FALSE(process->is_alive());
}

TEST(PlanProcess, ThatCannotBeStartedIsSaid) {
  const auto process = PlanProcess::start({.program = "/nowhere/weft"});
  ASSERT_FALSE(process.has_value());
  EXPECT_EQ(process.error().code, ErrorCode::Unavailable);
  EXPECT_NE(process.error().message.find("/nowhere/weft"), std::string::npos) << process.error().message;
}

}  // namespace
}  // namespace weft::broker
