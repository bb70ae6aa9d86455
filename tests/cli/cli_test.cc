// The program as its user meets it: real processes, real files, what they print and return.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft {
namespace {
namespace fs = std::filesystem;

struct Finished {
  int status = -1;
  std::string out, err;
};

// A child process whose standard output comes through a pipe and whose standard error goes to a file.
class Process {
 public:
  Process(const std::vector<std::string>& arguments, const fs::path& error_file) : error_file_(error_file) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      if (std::freopen(error_file.c_str(), "w", stderr) == nullptr) _exit(126);
      close(ends[0]);
      close(ends[1]);
      std::vector<char*> argv{const_cast<char*>(WEFT_PROGRAM)};
      for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      execv(WEFT_PROGRAM, argv.data());
      _exit(127);
    }
    close(ends[1]);
    out_ = fdopen(ends[0], "r");
  }
  ~Process() {
    if (out_ != nullptr) fclose(out_);
  }
  // The next line, or nothing at the end.
  std::optional<std::string> line() {
    std::string text;
    for (int c = 0; (c = fgetc(out_)) != EOF && c != '\n';) text += static_cast<char>(c);
    if (text.empty() && feof(out_)) return std::nullopt;
    return text;
  }
  void signal(int number) const { kill(pid_, number); }
  Finished finish() {
    Finished finished;
    for (int c = 0; (c = fgetc(out_)) != EOF;) finished.out += static_cast<char>(c);
    int status = 0;
    waitpid(pid_, &status, 0);
    finished.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    finished.err = test::read_file(error_file_);
    return finished;
  }

 private:
  pid_t pid_ = -1;
  FILE* out_ = nullptr;
  fs::path error_file_;
};

class Cli : public testing::Test {
 protected:
  Finished run(const std::vector<std::string>& arguments) {
    return Process(arguments, scratch_.folder() / "stderr").finish();
  }
  std::string job(const std::string& name) { return test::unpack_case(name, scratch_.folder()).string(); }
  test::Scratch scratch_;
};

TEST_F(Cli, JsonOutputIsLinesOfEventsWithTheResultLast) {
  const Finished finished =
      run({"local", job("gpt3"), "--set", "steps=3", "--format", "json", "--threads", "1"});
  ASSERT_EQ(finished.status, 0) << finished.err;
  std::istringstream lines(finished.out);
  std::vector<nlohmann::json> events;
  for (std::string line; std::getline(lines, line);) events.push_back(nlohmann::json::parse(line));
  uint64_t steps = 0;
  for (const auto& event : events) {
    ASSERT_TRUE(event.contains("event"));
    if (event["event"] == "step") {
      EXPECT_EQ(event["step"], ++steps);
      for (const char* key : {"loss", "learning_rate", "seconds", "samples_per_second", "gradient_norm"})
        EXPECT_TRUE(event[key].is_number()) << key;
    } else {
      EXPECT_FALSE(event.contains("loss")) << "only step lines have a loss: " << event;
    }
  }
  EXPECT_EQ(steps, 3u);
  EXPECT_EQ(events.back()["event"], "result");
  EXPECT_TRUE(fs::exists(events.back()["output"].get<std::string>()));
  EXPECT_TRUE(fs::exists(events.back()["inference"].get<std::string>()));
}

TEST_F(Cli, InterruptSavesACheckpointAndSaysHowToGoOn) {
  const std::string file = job("gpt3");
  Process process({"local", file, "--set", "steps=100000", "--format", "json", "--threads", "1"},
                  scratch_.folder() / "stderr");
  // Interrupted once training is seen to be under way; no waiting on a clock.
  for (auto line = process.line(); line; line = process.line())
    if (line->find("\"step\"") != std::string::npos) break;
  process.signal(SIGINT);
  const Finished stopped = process.finish();
  EXPECT_EQ(stopped.status, 130) << stopped.err;
  const auto last =
      nlohmann::json::parse(stopped.out.substr(stopped.out.rfind('\n', stopped.out.size() - 2) + 1));
  ASSERT_EQ(last["event"], "result");
  EXPECT_EQ(last["status"], "stopped");
  const uint64_t done = last["steps"];
  const Finished resumed = run({"local", file, "--set", "steps=" + std::to_string(done + 2), "--format",
                                "json", "--threads", "1", "--resume", last["checkpoint"]});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.out.find("\"first_step\":" + std::to_string(done + 1)), std::string::npos) << resumed.out;
}

TEST_F(Cli, WrongJobFilesGiveTheLineAndExitCodeTwo) {
  job("gpt3");
  const auto file = scratch_.write(
      "wrong.yaml", "model: model.onnx\ntask: train\ninputs: {tokens: tokens}\nlos: {type: mse}\n");
  const Finished finished = run({"local", file.string()});
  EXPECT_EQ(finished.status, 2) << finished.err;
  EXPECT_NE(finished.err.find("wrong.yaml:4"), std::string::npos) << finished.err;
  EXPECT_NE(finished.err.find("loss"), std::string::npos) << finished.err;
  EXPECT_TRUE(finished.out.empty());
}

// Before the data are read: there are none.
TEST_F(Cli, APrecisionThatTheDeviceLacksGivesExitCodeFour) {
  const std::string file = job("gpt3");
  fs::remove(fs::path(file).parent_path() / "data.npz");
  scratch_.write("data.npz", "");
  for (const std::string precision : {"tf32", "bf16"}) {
    const Finished finished = run({"local", file, "--set", "precision=" + precision});
    EXPECT_EQ(finished.status, 4) << finished.err;
    EXPECT_NE(finished.err.find("cpu backend: no arithmetic in " + precision + ", only in f32"),
              std::string::npos)
        << finished.err;
    EXPECT_NE(finished.err.find("precision: fp32"), std::string::npos) << finished.err;
  }
}

TEST_F(Cli, MissingFilesGiveExitCodeThree) {
  EXPECT_EQ(run({"local", (scratch_.folder() / "no.yaml").string()}).status, 3);
  const Finished finished = run({"inspect", (scratch_.folder() / "no.onnx").string()});
  EXPECT_EQ(finished.status, 3);
  EXPECT_NE(finished.err.find("no.onnx"), std::string::npos) << finished.err;
}

TEST_F(Cli, GarbageIsNoModel) {
  const auto file =
      scratch_.write("garbage.onnx", "this is not a model at all, only some text that goes on for a while");
  const Finished finished = run({"inspect", file.string()});
  EXPECT_EQ(finished.status, 5) << finished.err;
  EXPECT_NE(finished.err.find("garbage.onnx"), std::string::npos) << finished.err;
}

TEST_F(Cli, UnknownOptionsGiveUsage) {
  const Finished finished = run({"local", "--no-such-option"});
  EXPECT_EQ(finished.status, 2);
  EXPECT_FALSE(finished.err.empty());
}

TEST_F(Cli, WhatIsWrongWithASubmittedJobIsSaidBeforeABrokerIsLookedFor) {
  job("gpt3");
  const auto file = scratch_.write("wrong.yaml",
                                   "model: model.onnx\ntask: train\ninputs: {tokens: nothing}\n"
                                   "loss: {type: cross_entropy, logits: logits, labels: targets}\n"
                                   "data: {train: {type: npz, path: data.npz}}\nbatch_size: 4\nsteps: 1\n"
                                   "optimizer: {type: adam}\n");
  const Finished finished = run({"submit", file.string(), "--broker", "127.0.0.1:1"});
  EXPECT_EQ(finished.status, 3) << finished.err;
  EXPECT_NE(finished.err.find("wrong.yaml:3"), std::string::npos) << finished.err;
  EXPECT_TRUE(finished.out.empty());
}

TEST_F(Cli, CommandsForABrokerSayHowToNameOne) {
  setenv("XDG_CONFIG_HOME", (scratch_.folder() / "config").c_str(), 1);
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"jobs"},
                                             {"peers"},
                                             {"status", "1"},
                                             {"logs", "1"},
                                             {"stop", "1"},
                                             {"fetch", "1", "-o", "x.onnx"}}) {
    const Finished finished = run(arguments);
    EXPECT_EQ(finished.status, 2) << arguments[0];
    EXPECT_NE(finished.err.find("--broker HOST:PORT"), std::string::npos) << finished.err;
  }
  unsetenv("XDG_CONFIG_HOME");
}

TEST_F(Cli, TokensAreMadeListedAndRevokedWithoutABroker) {
  const std::string folder = (scratch_.folder() / "broker").string();
  const Finished made = run({"token", "create", "--role", "peer", "--ttl", "24h", "--uses", "3", "--data-dir",
                             folder, "--format", "json"});
  ASSERT_EQ(made.status, 0) << made.err;
  const std::string token = nlohmann::json::parse(made.out)["token"];
  EXPECT_EQ(token.rfind("weft1-", 0), 0u) << token;
  const auto listed = [&] {
    return nlohmann::json::parse(run({"token", "list", "--data-dir", folder, "--format", "json"}).out);
  };
  EXPECT_EQ(listed()["role"], "peer");
  EXPECT_EQ(listed()["uses_max"], 3);
  EXPECT_EQ(listed()["state"], "valid");
  const std::string id = listed()["id"];
  EXPECT_EQ(run({"token", "revoke", id, "--data-dir", folder}).status, 0);
  EXPECT_EQ(listed()["state"], "revoked");
  EXPECT_EQ(run({"token", "revoke", "0123456789abcdef", "--data-dir", folder}).status, 3);
  // The wrong role for what it is given to.
  const Finished refused = run({"jobs", "--broker", "127.0.0.1:1", "--token", token});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("submitter"), std::string::npos) << refused.err;
  for (const auto& text : {run({"token", "list", "--data-dir", folder}).out, refused.err})
    EXPECT_EQ(text.find(token.substr(20)), std::string::npos) << "a secret is shown once";
}

TEST_F(Cli, JoinRefusesWhatCannotWork) {
  const std::string folder = (scratch_.folder() / "peer").string();
  EXPECT_EQ(run({"join", "127.0.0.1:1"}).status, 2) << "no token";
  EXPECT_EQ(run({"join", "127.0.0.1:1", "--token", "nonsense", "--data-dir", folder}).status, 2);
  EXPECT_EQ(run({"join", "127.0.0.1:1", "--token", "@" + folder + "/none", "--data-dir", folder}).status, 3);
}

TEST_F(Cli, CapsOfAPeerAreRates) {
  const std::string folder = scratch_.folder().string();
  const std::string token = nlohmann::json::parse(
      run({"token", "create", "--role", "peer", "--data-dir", folder + "/broker", "--format", "json"})
          .out)["token"];
  for (const std::string option : {"--upload", "--download"})
    for (const auto& [rate, says] :
         std::vector<std::pair<std::string, std::string>>{{"0", "is no rate"},
                                                          {"0Mbit", "is no rate"},
                                                          {"-10Mbit", "is no rate"},
                                                          {"10", "is no rate"},
                                                          {"10MB", "is no rate"},
                                                          {"fast", "is no rate"},
                                                          {"1e9Tbit", "is no rate"},
                                                          {"1bit", "at least 64kbit"},
                                                          {"63.9kbit", "at least 64kbit"}}) {
      const Finished finished =
          run({"join", "127.0.0.1:1", "--token", token, "--data-dir", folder + "/peer", option + "=" + rate});
      EXPECT_EQ(finished.status, 2) << rate << ": " << finished.err;
      EXPECT_NE(finished.err.find(option + ": "), std::string::npos) << finished.err;
      EXPECT_NE(finished.err.find(says), std::string::npos) << rate << ": " << finished.err;
    }
}

TEST_F(Cli, WhoIsEmulatedMustBeThere) {
  const std::string folder = scratch_.folder().string();
  const std::string token = nlohmann::json::parse(
      run({"token", "create", "--role", "peer", "--data-dir", folder + "/broker", "--format", "json"})
          .out)["token"];
  scratch_.write("cluster.yaml", R"(devices:
  - {name: desk, type: rtx3080, region: oregon}
  - {name: lab, type: t4, region: tokyo, uplink: 20Mbit}
regions:
  within: {round_trip_ms: 1, bandwidth: 1Gbit}
  between: [{from: oregon, to: tokyo, round_trip_ms: 92, bandwidth: 262Mbit}]
)");
  const auto refused = [&](std::vector<std::string> options, int status, const std::string& says) {
    std::vector<std::string> arguments = {"join", "127.0.0.1:1", "--token",
                                          token,  "--data-dir",  folder + "/peer"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Finished finished = run(arguments);
    EXPECT_EQ(finished.status, status) << finished.err;
    EXPECT_NE(finished.err.find(says), std::string::npos) << finished.err;
  };
  const std::string cluster = folder + "/cluster.yaml";
  refused({"--as", "lab"}, 2, "needs --emulate");
  refused({"--emulate", cluster, "--as", "lab"}, 2, "needs --region");
  refused({"--emulate", cluster, "--region", "tokio"}, 3, "no region 'tokio'");
  refused({"--emulate", cluster, "--region", "oregon", "--as", "lab"}, 2, "there is desk");
  refused({"--emulate", cluster, "--region", "tokyo", "--as", "desc"}, 3, "no device 'desc'");
  refused({"--emulate", cluster, "--region", "tokyo", "--as", "desc"}, 3, "there is lab");
}

TEST_F(Cli, InspectListsParametersAndBuffers) {
  job("gpt3");
  const std::string model = (scratch_.folder() / "model.onnx").string();
  const Finished text = run({"inspect", model, "--freeze", "mask"});
  EXPECT_EQ(text.status, 0) << text.err << text.out;
  EXPECT_NE(text.out.find("wte.weight"), std::string::npos) << text.out;
  const Finished json = run({"inspect", model, "--format", "json"});
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_GT(parsed["parameters"].size(), 10u);
  EXPECT_EQ(parsed["inputs"][0]["name"], "tokens");
}

TEST_F(Cli, GradcheckAgreesOnATransformer) {
  job("gpt3");
  const Finished finished = run({"gradcheck", (scratch_.folder() / "model.onnx").string(), "--batch", "1",
                                 "--directions", "1", "--freeze", "mask"});
  EXPECT_EQ(finished.status, 0) << finished.out << finished.err;
}

TEST_F(Cli, GradcheckAgreesOnABiasThatBatchNormSwallows) {
  job("resnet_small");
  const Finished finished = run({"gradcheck", (scratch_.folder() / "model.onnx").string()});
  EXPECT_EQ(finished.status, 0) << finished.out << finished.err;
  EXPECT_NE(finished.out.find("(1 as zero), 0 do not"), std::string::npos) << finished.out;
}

TEST_F(Cli, AFreezePatternThatMatchesNothingIsAnError) {
  job("gpt3");
  const std::string model = (scratch_.folder() / "model.onnx").string();
  for (const char* command : {"inspect", "gradcheck"}) {
    SCOPED_TRACE(command);
    const Finished finished = run({command, model, "--freeze", "mask", "--freeze", "ln_g*"});
    EXPECT_NE(finished.status, 0);
    EXPECT_NE(finished.err.find("nothing is frozen by 'ln_g*'"), std::string::npos) << finished.err;
    EXPECT_NE(finished.err.find("'ln_f.bias'"), std::string::npos) << finished.err;
  }
}

TEST_F(Cli, InspectWarnsOfWhatALossDoesNotReach) {
  job("two_heads");
  const std::string model = (scratch_.folder() / "model.onnx").string();
  const Finished both = run({"inspect", model, "--loss", "fine", "--loss", "coarse"});
  EXPECT_EQ(both.status, 0) << both.err;
  EXPECT_EQ(both.out.find("warning"), std::string::npos) << both.out;
  const Finished one = run({"inspect", model, "--loss", "fine"});
  EXPECT_NE(one.out.find("warning: the loss does not reach 'coarse.weight', 'coarse.bias': not trained"),
            std::string::npos)
      << one.out;
  EXPECT_NE(one.out.find("warning: the loss does not read the model's output 'coarse'"), std::string::npos);
  const Finished none = run({"inspect", model, "--loss", "corse"});
  EXPECT_NE(none.status, 0);
  EXPECT_NE(none.err.find("its outputs are 'fine', 'coarse'"), std::string::npos) << none.err;
}

TEST_F(Cli, ProfileNamesFamilies) {
  const Finished finished = run({"profile", job("gpt3"), "--microbatches", "1", "--threads", "1"});
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_NE(finished.out.find("matmul"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("peak of the process"), std::string::npos);
}

TEST_F(Cli, OpsPageIsUpToDate) {
  const Finished finished = run({"ops"});
  EXPECT_EQ(finished.status, 0);
  EXPECT_EQ(finished.out, test::read_file(fs::path(WEFT_SOURCE_DIR) / "docs/OPS.md")) << "run ./dev docs";
}

TEST_F(Cli, ConformanceOnOnnxsOwnCasesHasNoFailure) {
  const char* data = "/usr/share/libonnx-testdata/data";
  if (!fs::exists(data)) GTEST_SKIP() << "libonnx-testdata is not installed";
  const Finished finished = run({"conformance", data});
  EXPECT_EQ(finished.status, 0) << finished.out.substr(0, 4000);
  const std::string last = finished.out.substr(finished.out.rfind('\n', finished.out.size() - 2) + 1);
  int passed = 0, failed = -1, unsupported = 0;
  ASSERT_EQ(std::sscanf(last.c_str(), "%d passed, %d failed, %d unsupported", &passed, &failed, &unsupported),
            3)
      << last;
  EXPECT_EQ(failed, 0);
  EXPECT_GT(passed, 500) << last;
}

}  // namespace
}  // namespace weft
