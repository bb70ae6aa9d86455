// What a job leaves open of its replicas' rounds, from the first plan on: it is chosen once, and every plan
// after it is of the same.
#include <gtest/gtest.h>

#include "broker/service/plan_worker.h"
#include "tests/planning/planned_net.h"

namespace weft::broker {
namespace {

using test::PlannedRunPtr;

constexpr double kFast = 1e10, kSlow = 100;  // bytes a second

class ChosenTerms : public test::PlannedNet {
 protected:
  // Lines of so many bytes a second between `peers` peers.
  StartPlanning request(const proto::SubmitJob& job, uint32_t peers, double line) {
    StartPlanning asked = test::request_for(1, job, peers);
    for (uint32_t a = 0; a < asked.cluster.site_count(); ++a)
      for (uint32_t b = 0; b < asked.cluster.site_count(); ++b)
        asked.cluster.set_between(a, b, {line, std::chrono::milliseconds(1), false});
    return asked;
  }
  const std::vector<std::string> open_{"replicas=2", "sync={every: {min: 2, max: 200}, codec: auto}",
                                       "steps=2000"};
};

TEST_F(ChosenTerms, GoByTheLinesOfTheFirstPlan) {
  const proto::SubmitJob job = submit_net(open_);
  const PlannedRunPtr fast = plan(request(job, 2, kFast)), slow = plan(request(job, 2, kSlow));
  ASSERT_TRUE(fast && slow);
  EXPECT_EQ(fast->local_steps->terms.every, 2u);
  EXPECT_EQ(compress::name(fast->local_steps->terms.codec), "int4");
  EXPECT_GT(slow->local_steps->terms.every, fast->local_steps->terms.every);
  EXPECT_LE(slow->local_steps->terms.every, 200u);
  EXPECT_EQ(compress::name(slow->local_steps->terms.codec), "topk:0.02:int4");
  for (const PlannedStage& stage : slow->stages)
    EXPECT_EQ(stage.assignment->local->steps.terms, slow->local_steps->terms);
  EXPECT_NE(slow->explanation.front().find(" as topk:0.02:int4 every "), std::string::npos)
      << slow->explanation.front();
}

// Also by a process of its own, which is told of them, and with other lines and more peers.
TEST_F(ChosenTerms, AreKeptByEveryPlanAfterIt) {
  std::vector<std::string> sets = open_;
  sets.front() = "replicas={min: 1, max: 3}";
  const proto::SubmitJob job = submit_net(sets);
  const PlannedRunPtr first = plan(request(job, 2, kSlow));
  ASSERT_NE(first, nullptr);
  StartPlanning again = request(job, 3, kFast);
  again.chosen = chosen_by(*first);
  EXPECT_EQ(again.chosen.every, first->local_steps->terms.every);
  const PlannedRunPtr kept = plan(again);
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(chosen_by(*kept), again.chosen);
  const auto process = PlanProcess::start(jobs_.process_options());
  ASSERT_TRUE(process.has_value()) << process.error().message;
  const auto there = (*process)->ask(again, {proto::PlanTask::Plan, true}, std::chrono::seconds(120));
  ASSERT_TRUE(there.has_value()) << there.error().message;
  EXPECT_EQ(chosen_by(*there->run), again.chosen);
}

// Shares of a job that an earlier version began: it had chosen nothing else.
TEST_F(ChosenTerms, SharesAloneAreKeptToo) {
  StartPlanning asked = request(submit_net({"replicas=2", "sync={every: 8, shares: auto}"}), 2, 1e6);
  asked.chosen.shares = {8, 3};
  const PlannedRunPtr run = plan(asked);
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(run->local_steps->terms.shares, asked.chosen.shares);
  EXPECT_EQ(run->local_steps->terms.every, 8u);
}

TEST_F(ChosenTerms, OfOnePlanAreThoseOfAJobThatNamesThem) {
  const PlannedRunPtr open = plan(request(submit_net(open_), 2, kSlow));
  ASSERT_NE(open, nullptr);
  const std::string every = std::to_string(open->local_steps->terms.every);
  const PlannedRunPtr named = plan(request(
      submit_net({"replicas=2", "sync={every: " + every + ", codec: \"topk:0.02:int4\"}", "steps=2000"}), 2,
      kSlow));
  ASSERT_NE(named, nullptr);
  EXPECT_EQ(named->local_steps->terms, open->local_steps->terms);
}

}  // namespace
}  // namespace weft::broker
