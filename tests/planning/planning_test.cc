// Who waits for whom when jobs are planned, and what is left of a job that is over.
#include "broker/service/planning.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <optional>

#include "tests/planning/submitted.h"
#include "tests/support/sanitized.h"

namespace weft::broker {
namespace {

namespace fs = std::filesystem;
using Planned = Result<std::shared_ptr<const PlannedRun>>;

constexpr auto kPatience = std::chrono::seconds(120);

// What another thread will say, once.
template <typename T>
class Answer {
 public:
  void say(T value) {
    const std::lock_guard lock(mutex_);
    value_ = std::move(value);
    changed_.notify_all();
  }
  T wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return value_.has_value(); })) << "no answer";
    return value_ ? *value_ : T(fail(ErrorCode::Timeout, "no answer"));
  }
  bool is_there() {
    const std::lock_guard lock(mutex_);
    return value_.has_value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<T> value_;
};

class PlanningOfJobs : public ::testing::Test {
 protected:
  void start(PlanningOptions options = {}) {
    options.process = jobs_.process_options();
    if (!program_.empty()) options.process.program = program_;
    if (weft::test::kIsSanitized) {
      options.plan_time_max *= 10;
      options.check_time_max *= 10;
    }
    planning_ = std::make_unique<Planning>(options, jobs_.blobs(), feeds_);
  }
  // Processes that take questions and never answer.
  void start_with_processes_that_hang(PlanningOptions options = {}) {
    program_ = jobs_.folder() / "hangs";
    std::ofstream(program_) << "#!/bin/sh\necho >> '" << started().string() << "'\nexec sleep 1000\n";
    fs::permissions(program_, fs::perms::owner_all);
    start(options);
  }
  fs::path started() const { return jobs_.folder() / "started"; }
  size_t count_started() const {
    std::ifstream file(started());
    size_t lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  void wait_for_processes(size_t count) const {
    for (const auto end = std::chrono::steady_clock::now() + kPatience;
         count_started() < count && std::chrono::steady_clock::now() < end;)
      std::this_thread::yield();
    EXPECT_EQ(count_started(), count);
  }
  std::shared_ptr<Answer<Planned>> plan(StartPlanning request) {
    auto answer = std::make_shared<Answer<Planned>>();
    planning_->plan(std::move(request), [answer](Planned planned) { answer->say(std::move(planned)); });
    return answer;
  }
  std::shared_ptr<Answer<Result<PlanReply>>> check(proto::SubmitJob submission, ConnectionId from = 1) {
    auto answer = std::make_shared<Answer<Result<PlanReply>>>();
    planning_->check({from, std::move(submission)},
                     [answer](const CheckSubmission&, Result<PlanReply> reply) { answer->say(reply); });
    return answer;
  }

  test::SubmittedJobs jobs_;
  JobFeeds feeds_;
  fs::path program_;
  std::unique_ptr<Planning> planning_;
};

TEST_F(PlanningOfJobs, PlansAndKnowsHowToFeedAndForgetsWhatIsOver) {
  start();
  const proto::SubmitJob submission = jobs_.submit("gpt3");
  const auto checked = check(submission)->wait();
  ASSERT_TRUE(checked.has_value()) << checked.error().message;
  EXPECT_TRUE(fs::is_empty(jobs_.jobs()));
  const auto planned = plan(test::request_for(3, submission))->wait();
  ASSERT_TRUE(planned.has_value()) << planned.error().message;
  const auto feed = feeds_.find(3);
  ASSERT_NE(feed, nullptr);
  EXPECT_EQ(feed->batch_size, (*planned)->training.batch_size);
  EXPECT_TRUE(fs::exists(jobs_.jobs() / "3" / "data"));
  planning_->end(3);
  EXPECT_EQ(feeds_.find(3), nullptr);
  for (const auto end = std::chrono::steady_clock::now() + kPatience;
       fs::exists(jobs_.jobs() / "3") && std::chrono::steady_clock::now() < end;)
    std::this_thread::yield();
  EXPECT_FALSE(fs::exists(jobs_.jobs() / "3"));
}

// Every process that plans hangs, and every one that checks.
TEST_F(PlanningOfJobs, ARecoveryWaitsForNobody) {
  const proto::SubmitJob submission = jobs_.submit("gpt3", {"placement.stages=2"});
  start();
  StartPlanning request = test::request_for(1, submission);
  const auto first = plan(request)->wait();
  ASSERT_TRUE(first.has_value()) << first.error().message;
  planning_.reset();

  start_with_processes_that_hang();
  const auto hanging = plan(test::request_for(2, submission)), too = plan(test::request_for(4, submission)),
             last = plan(test::request_for(5, submission));
  const auto checking = check(submission);
  request.previous = *first;
  request.plan_version = 2;
  request.placed = {3, 2};
  const auto again = plan(request)->wait();
  ASSERT_TRUE(again.has_value()) << again.error().message;
  ASSERT_EQ((*again)->stages.size(), 2u);
  EXPECT_EQ((*again)->stages[0].peer, request.candidates[3].peer);
  EXPECT_EQ((*again)->stages[0].assignment->plan_version, 2u);
  EXPECT_EQ((*again)->stages[0].assignment->tensors.size(), (*first)->stages[0].assignment->tensors.size());
  EXPECT_FALSE(hanging->is_there() || too->is_there() || last->is_there() || checking->is_there());
}

// Of a run whose stages have to be made anew.
TEST_F(PlanningOfJobs, ARunThatGoesOnIsPlannedBesideJobsThatWereNot) {
  start_with_processes_that_hang({.working_max = 1});
  const proto::SubmitJob submission = jobs_.submit("gpt3");
  const auto first = plan(test::request_for(1, submission)), second = plan(test::request_for(2, submission));
  wait_for_processes(1);
  StartPlanning request = test::request_for(3, submission);
  request.checkpoint = CheckpointCommitted{.job = 3, .step = 5};
  const auto third = plan(request);
  wait_for_processes(2);
  EXPECT_FALSE(first->is_there() || second->is_there() || third->is_there());
}

TEST_F(PlanningOfJobs, AJobThatIsOverMakesRoomAtOnce) {
  start_with_processes_that_hang({.working_max = 1});
  const proto::SubmitJob submission = jobs_.submit("gpt3");
  const auto first = plan(test::request_for(1, submission));
  wait_for_processes(1);
  const auto second = plan(test::request_for(2, submission));
  EXPECT_EQ(count_started(), 1u);  // one at a time
  planning_->end(1);
  const auto ended = first->wait();
  ASSERT_FALSE(ended.has_value());
  wait_for_processes(2);
  EXPECT_FALSE(second->is_there());
}

TEST_F(PlanningOfJobs, NoPlanLastsLongerThanItMay) {
  start_with_processes_that_hang({.plan_time_max = std::chrono::milliseconds(50)});
  const auto planned = plan(test::request_for(1, jobs_.submit("gpt3")))->wait();
  ASSERT_FALSE(planned.has_value());
  EXPECT_EQ(planned.error().code, ErrorCode::Timeout) << planned.error().message;
}

TEST_F(PlanningOfJobs, SubmissionsThatWaitAreBounded) {
  start_with_processes_that_hang();
  const proto::SubmitJob submission = jobs_.submit("gpt3");
  std::vector<std::shared_ptr<Answer<Result<PlanReply>>>> waiting;
  for (int i = 0; i < 4; ++i) waiting.push_back(check(submission, 1));
  const auto refused = check(submission, 1)->wait();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::ResourceExhausted) << refused.error().message;
  const auto of_another = check(submission, 2);
  EXPECT_FALSE(of_another->is_there());
}

TEST_F(PlanningOfJobs, OnlyPeersThatKeepSlotsInEightBitsSuitAJobThatHasThem) {
  start();
  const auto checked = check(jobs_.submit("gpt3", {"optimizer.slots=int8"}))->wait();
  ASSERT_TRUE(checked.has_value()) << checked.error().message;
  EXPECT_EQ(checked->peer_minor, proto::kProtocolMinorOfCodedSlots);
}

TEST_F(PlanningOfJobs, NoPeersIsNoReasonToStartAProcess) {
  start_with_processes_that_hang();
  StartPlanning request = test::request_for(1, jobs_.submit("gpt3"));
  request.candidates.clear();
  const auto planned = plan(request)->wait();
  ASSERT_FALSE(planned.has_value());
  EXPECT_EQ(planned.error().code, ErrorCode::Infeasible);
  EXPECT_EQ(count_started(), 0u);
}

}  // namespace
}  // namespace weft::broker
