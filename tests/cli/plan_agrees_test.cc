// What `weft plan` says of a job is what a broker makes of it: the same stages on the same devices, the same
// predicted step, in the same words.
#include <gtest/gtest.h>

#include <fstream>

#include "broker/pool/candidates.h"
#include "broker/service/planner.h"
#include "cli/plan_job.h"
#include "plan/plan.h"
#include "tests/planning/submitted.h"
#include "tests/train/reference_files.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;
using Sets = std::vector<std::string>;

constexpr uint64_t kRate = 12'500'000;  // of copies, as a broker allows unless it is told another

// Four peers of two classes of devices, behind lines that copies of the state take a part of.
broker::StartPlanning request_for(proto::SubmitJob submission) {
  broker::StartPlanning request = test::request_for(1, std::move(submission));
  for (size_t i = 0; i < request.candidates.size(); ++i) request.cluster.set_lines(i, 3e6, 1e7);
  return request;
}

class PlanAgrees : public testing::Test {
 protected:
  std::shared_ptr<const broker::PlannedRun> plan_of_broker(const proto::SubmitJob& submission) {
    broker::JobPlanner planner(jobs_.folder() / "here", jobs_.blobs(), kRate);
    auto run = planner.plan(request_for(submission), /*is_first=*/false);
    EXPECT_TRUE(run.has_value()) << (run ? "" : run.error().message);
    return run ? *run : nullptr;
  }
  void expect_agrees(const broker::PlannedRun& run, const fs::path& file, const Sets& sets) {
    const broker::StartPlanning asked = request_for({});
    const auto job = open_planned_job(file, sets, {}, 0, broker::classes_of(asked.candidates));
    ASSERT_TRUE(job.has_value()) << job.error().message;
    plan::PlanRequest request = job->request();
    request.cluster = asked.cluster;
    const auto plan = plan::make_plan(request);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    EXPECT_EQ(plan->predicted_step, run.predicted_step);
    ASSERT_EQ(plan->stages.size(), run.stages.size());
    for (size_t s = 0; s < plan->stages.size(); ++s)
      EXPECT_EQ(asked.candidates[plan->stages[s].devices.front()].peer, run.stages[s].peer) << "stage " << s;
    EXPECT_EQ(plan->explanation, run.explanation);
  }
  // With its data, and without them.
  void expect_agrees_on_case(const std::string& name, const Sets& sets) {
    SCOPED_TRACE(name);
    const auto run = plan_of_broker(jobs_.submit(name, sets));
    ASSERT_NE(run, nullptr);
    const fs::path folder = jobs_.folder() / ("case-" + name);
    expect_agrees(*run, folder / "job.yaml", sets);
    fs::remove(folder / "data.npz");
    expect_agrees(*run, folder / "job.yaml", sets);
  }

  test::SubmittedJobs jobs_;
};

TEST_F(PlanAgrees, OnImages) { expect_agrees_on_case("resnet18w16", {"placement.stages=3"}); }
TEST_F(PlanAgrees, OnTokens) { expect_agrees_on_case("gpt3", {"placement.stages=2"}); }
TEST_F(PlanAgrees, OnAsManyStagesAsPay) { expect_agrees_on_case("unet", {}); }
TEST_F(PlanAgrees, OnSeveralLosses) { expect_agrees_on_case("two_heads", {"placement.stages=2"}); }
TEST_F(PlanAgrees, OnRecurrentNets) { expect_agrees_on_case("gru", {}); }
TEST_F(PlanAgrees, OnWhatIsFrozen) { expect_agrees_on_case("frozen_norms", {"placement.stages=2"}); }
TEST_F(PlanAgrees, OnCompressedLinks) {
  expect_agrees_on_case("llama", {"placement.stages=2", "compression.policy=auto"});
}

// Which the submitter rounds before it sends the model, and whoever plans does not.
TEST_F(PlanAgrees, OnABaseInFewerBits) {
  std::map<std::string, std::vector<Bytes>> memory;
  for (const std::string store : {"as_is", "bf16", "int8", "int4"}) {
    const Sets sets = {"placement.stages=2", "base={store: " + store + ", block: 32}"};
    expect_agrees_on_case("llama_lora", sets);
    const broker::StartPlanning asked = request_for({});
    const auto job = open_planned_job(jobs_.folder() / "case-llama_lora/job.yaml", sets, {}, 0,
                                      broker::classes_of(asked.candidates));
    ASSERT_TRUE(job.has_value()) << job.error().message;
    plan::PlanRequest request = job->request();
    request.cluster = asked.cluster;
    const auto plan = plan::make_plan(request);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    for (const auto& stage : plan->stages) memory[store].push_back(stage.memory);
    const bool is_told = std::any_of(job->notes.begin(), job->notes.end(),
                                     [](const std::string& note) { return note.rfind("base: ", 0) == 0; });
    EXPECT_EQ(is_told, store != "as_is");
    fs::remove_all(jobs_.folder() / "case-llama_lora");
  }
  for (const auto& [more, less] : {std::pair("as_is", "bf16"), {"bf16", "int8"}, {"int8", "int4"}})
    EXPECT_GT(memory[more][0], memory[less][0]) << more << " and " << less;
}

TEST_F(PlanAgrees, OnTheTextExample) {
  const fs::path corpus = jobs_.folder() / "corpus.txt";
  std::ofstream out(corpus);
  for (int i = 0; i < 4000; ++i) out << "a line of text, number " << i % 97 << '\n';
  out.close();
  const Sets sets = {"data.train.path=" + corpus.string()};
  const fs::path job = fs::path(WEFT_SOURCE_DIR) / "examples/gpt/job.yaml";
  const auto run = plan_of_broker(jobs_.submit_file(job, sets));
  ASSERT_NE(run, nullptr);
  expect_agrees(*run, job, sets);
  fs::remove(corpus);
  expect_agrees(*run, job, sets);
}

TEST_F(PlanAgrees, OnTheImageExample) {
  const fs::path job = fs::path(WEFT_SOURCE_DIR) / "examples/fashion-mnist/job.yaml";
  if (!fs::exists("/usr/share/datasets/fashion-mnist")) GTEST_SKIP() << "dataset-fashion-mnist is not there";
  const auto run = plan_of_broker(jobs_.submit_file(job));
  ASSERT_NE(run, nullptr);
  expect_agrees(*run, job, {});
}

}  // namespace
}  // namespace weft::cli
