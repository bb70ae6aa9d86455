// `weft plan` as its user meets it: what it prints, writes and returns.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft {
namespace {
namespace fs = std::filesystem;

class PlanCommand : public testing::Test {
 protected:
  struct Finished {
    int status = -1;
    std::string out, err;
  };
  Finished run(const std::string& arguments) const {
    const fs::path errors = scratch_.folder() / "stderr";
    FILE* pipe =
        popen((std::string(WEFT_PROGRAM) + " plan " + arguments + " 2>" + errors.string()).c_str(), "r");
    Finished finished;
    for (int c = 0; (c = fgetc(pipe)) != EOF;) finished.out += static_cast<char>(c);
    const int status = pclose(pipe);
    finished.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    finished.err = test::read_file(errors);
    return finished;
  }
  // A job whose data are gone, and a model beside it.
  std::string job() const {
    const fs::path path = test::unpack_case("gpt3", scratch_.folder());
    fs::remove(scratch_.folder() / "data.npz");
    return path.string();
  }
  const std::string world_ = " --cluster " WEFT_SOURCE_DIR "/examples/plans/campus-48.yaml";
  test::Scratch scratch_;
};

TEST_F(PlanCommand, ShowsATableAndThePrediction) {
  const Finished finished = run(job() + world_);
  ASSERT_EQ(finished.status, 0) << finished.err;
  for (const char* part :
       {"STAGE", "PARAMETERS", "BUSY", "predicted: a step of 8 samples (2 x 4)", "samples/s"})
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << " in " << finished.out;
}

TEST_F(PlanCommand, JsonIsOneLine) {
  const std::string file = job();
  for (const std::string more : {"", " --compare"}) {
    const Finished finished = run(file + world_ + " --format json --set batch_size=16" + more);
    ASSERT_EQ(finished.status, 0) << finished.err;
    EXPECT_EQ(std::count(finished.out.begin(), finished.out.end(), '\n'), 1);
    EXPECT_EQ(nlohmann::json::parse(finished.out)["event"], more.empty() ? "plan" : "comparison");
  }
}

TEST_F(PlanCommand, TheStrategyOfTheJobIsTaken) {
  const std::string file = job();
  const auto stages = [&](const std::string& more) {
    const Finished finished = run(file + world_ + " --format json" + more);
    EXPECT_EQ(finished.status, 0) << finished.err;
    return nlohmann::json::parse(finished.out)["stages"];
  };
  const auto wanted = stages(" --strategy equal-ops-joining");
  EXPECT_NE(wanted, stages(""));
  EXPECT_EQ(wanted, stages(" --set placement.strategy=equal-ops-joining"));
  EXPECT_EQ(stages(""), stages(" --set placement.strategy=equal-ops-joining --strategy auto"));
}

// Each of them by itself, and what all reach together.
TEST_F(PlanCommand, ShowsReplicasThatMakeLocalSteps) {
  const std::string file = job();
  const std::string sync = " --set replicas=3 --set sync.every=20 --set sync.codec=int8";
  const Finished finished = run(file + world_ + sync);
  ASSERT_EQ(finished.status, 0) << finished.err;
  for (const char* part :
       {"3 replicas over ", " times one pipeline; an agreement of ", " every 20 steps takes ",
        "replica 3: a step takes ", "REPLICA", "predicted: a step of each of 3 replicas"})
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << " in " << finished.out;
  const auto json = nlohmann::json::parse(run(file + world_ + sync + " --format json").out);
  EXPECT_EQ(json["event"], "plan");
  std::set<std::string> devices;
  std::set<int> replicas;
  for (const auto& stage : json["stages"]) {
    EXPECT_TRUE(devices.insert(stage["device"].get<std::string>()).second) << "a device has two stages";
    replicas.insert(stage["replica"].get<int>());
  }
  EXPECT_EQ(replicas, (std::set<int>{0, 1, 2}));
  EXPECT_NEAR(
      json["predicted_samples_per_second"].get<double>() * json["predicted_step_seconds"].get<double>(),
      3 * 8, 1e-6);
  const Finished pinned = run(file + world_ + sync + " --set \"placement.pin=[{ops: inputs, peer: a}]\"");
  EXPECT_NE(pinned.status, 0);
  EXPECT_NE(pinned.err.find("a pin names one"), std::string::npos) << pinned.err;
}

// What other numbers of them would make, and one pipeline.
TEST_F(PlanCommand, ComparesNumbersOfReplicas) {
  const std::string file = job();
  const std::string four = " --cluster " WEFT_SOURCE_DIR "/examples/plans/h100x4.yaml";
  const std::string sync = " --set replicas=2 --set sync.every=20 --set sync.codec=int8";
  const fs::path report = scratch_.folder() / "replicas.html";
  const Finished finished = run(file + four + sync + " --compare --html " + report.string());
  ASSERT_EQ(finished.status, 0) << finished.err;
  for (const char* part : {"OF ONE PIPELINE", "what the job takes", "the fastest", "one exact pipeline over"})
    EXPECT_NE(finished.out.find(part), std::string::npos) << part << " in " << finished.out;
  const std::string page = test::read_file(report);
  for (const char* part :
       {"Numbers of replicas compared", "Replica 2: a step", "2, the job&#39;s", "</html>"})
    EXPECT_NE(page.find(part), std::string::npos) << part;

  const auto rows = nlohmann::json::parse(run(file + four + sync + " --compare --format json").out);
  EXPECT_EQ(rows["event"], "replicas_comparison");
  EXPECT_EQ(rows["job_takes"], 2);
  double best = 0;
  int fastest = 0, count = 0;
  for (const auto& row : rows["replicas"]) {
    EXPECT_EQ(row["replicas"], ++count) << "each number once, ascending";
    const double rate = row["predicted_samples_per_second"];
    // As a job that asks for that number is planned.
    const auto alone =
        nlohmann::json::parse(run(file + four + " --set replicas=" + std::to_string(count) +
                                  " --set sync.every=20 " + "--set sync.codec=int8 --format json")
                                  .out);
    EXPECT_NEAR(rate, alone["predicted_samples_per_second"].get<double>(), 1e-6 * rate) << count;
    if (rate > best) best = rate, fastest = count;
  }
  EXPECT_EQ(count, 4) << "a device each";
  EXPECT_EQ(rows["fastest"], fastest);
  EXPECT_GT(rows["one_pipeline_samples_per_second"].get<double>(), 0);
}

TEST_F(PlanCommand, WritesAReport) {
  const fs::path report = scratch_.folder() / "report.html";
  const std::string model = (fs::path(job()).parent_path() / "model.onnx").string();
  const Finished finished =
      run(model + world_ + " --add h100@campus --set batch_size=8 --compare --html " + report.string());
  ASSERT_EQ(finished.status, 0) << finished.err;
  EXPECT_NE(test::read_file(report).find("</html>"), std::string::npos);
}

TEST_F(PlanCommand, SaysWhatIsWrong) {
  const std::string file = job();
  struct Case {
    std::string arguments;
    int status;
    const char* says;
  };
  const std::vector<Case> cases = {
      {file, 2, "--cluster"},
      {"nowhere.onnx" + world_, 3, "nowhere.onnx"},
      {file + " --cluster nowhere.yaml", 3, "nowhere.yaml: no such file; check the path (NotFound)"},
      {file + world_ + " --strategy none-such", 2, "there are:"},
      {file + world_ + " --html " + (scratch_.folder() / "none" / "report.html").string(), 3, "no folder"},
      {file + world_ + " --add rtx9999@campus", 3, "rtx9999"},
      {file + world_ + " --set batch_size=0", 2, "batch_size"},
      {file + world_ + " --set 'placement.exclude=[attic]'", 3, "there is no peer 'attic'"},
      {file + " --cluster " +
           scratch_
               .write("small.yaml",
                      std::string_view("devices: [{name: tiny, peak_flops: {fp32: 1e9}, memory: 64KiB, "
                                       "memory_bandwidth: 1e9}]\n"))
               .string(),
       2, "does not fit"},
  };
  for (const Case& one : cases) {
    const Finished finished = run(one.arguments);
    EXPECT_EQ(finished.status, one.status) << one.arguments << ": " << finished.err;
    EXPECT_NE(finished.err.find(one.says), std::string::npos) << one.arguments << ": " << finished.err;
  }
}

TEST_F(PlanCommand, ShowsTheRingOfAJobThatServes) {
  fs::copy_file(WEFT_SOURCE_DIR "/examples/gpt/model.onnx", scratch_.folder() / "model.onnx");
  const fs::path file = scratch_.folder() / "serve.yaml";
  std::ofstream(file) << "model: model.onnx\ntask: serve\nserve: {name: gpt, sequences_max: 8}\n";
  const Finished text = run(file.string() + world_ + " --set placement.stages=3");
  ASSERT_EQ(text.status, 0) << text.err;
  for (const char* part : {"3 stages in a ring on ", "CACHE A POSITION", "predicted: ", " a token, ",
                           " tokens/s of one sequence", " tokens/s of 8"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part << " in " << text.out;
  const Finished json = run(file.string() + world_ + " --set placement.stages=3 --format json");
  ASSERT_EQ(json.status, 0) << json.err;
  EXPECT_EQ(std::count(json.out.begin(), json.out.end(), '\n'), 1);
  const auto plan = nlohmann::json::parse(json.out);
  EXPECT_EQ(plan["event"], "plan");
  ASSERT_EQ(plan["stages"].size(), 3u);
  EXPECT_EQ(plan["stages"][0]["parts"].size(), 2u);
  double round = 0;
  for (const auto& stage : plan["stages"])
    round += stage["row_seconds"].get<double>() + stage["hop_seconds"].get<double>();
  EXPECT_NEAR(plan["seconds_a_token"].get<double>(), round, 1e-9);
  const Finished alone = run(file.string() + world_ + " --format json");
  ASSERT_EQ(alone.status, 0) << alone.err;
  EXPECT_EQ(nlohmann::json::parse(alone.out)["stages"].size(), 1u);
  const Finished compared = run(file.string() + world_ + " --compare");
  EXPECT_EQ(compared.status, 4) << compared.err;
  const Finished excluded = run(file.string() + world_ + " --set 'placement={exclude: [attic]}'");
  EXPECT_EQ(excluded.status, 3) << excluded.err;
}

}  // namespace
}  // namespace weft
