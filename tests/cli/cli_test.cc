// The program as its user meets it: real processes, real files, what they print and return.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/cli.h"

namespace weft {
namespace {
namespace fs = std::filesystem;

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

// A terminal that goes away may say so more than once.
TEST_F(Cli, AHangupSavesACheckpointAndIsNoHaste) {
  Process process({"local", job("gpt3"), "--set", "steps=100000", "--format", "json", "--threads", "1"},
                  scratch_.folder() / "stderr");
  for (auto line = process.line(); line; line = process.line())
    if (line->find("\"step\"") != std::string::npos) break;
  for (int i = 0; i < 3; ++i) process.signal(SIGHUP);
  const Finished stopped = process.finish();
  EXPECT_EQ(stopped.status, 130) << stopped.err;
  const auto last =
      nlohmann::json::parse(stopped.out.substr(stopped.out.rfind('\n', stopped.out.size() - 2) + 1));
  EXPECT_TRUE(fs::exists(last["checkpoint"].get<std::string>())) << last;
}

// weft by way of a shell, which changes something of the process first.
std::vector<std::string> by_shell(const std::string& first, const std::vector<std::string>& arguments,
                                  const std::string& last = "") {
  std::vector<std::string> all{"-c", first + "exec \"$0\" \"$@\"" + last, WEFT_PROGRAM};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

TEST_F(Cli, UnderNohupAHangupIsNothing) {
  Process process(by_shell("trap '' HUP; ",
                           {"local", job("gpt3"), "--set", "steps=8", "--format", "json", "--threads", "1"}),
                  scratch_.folder() / "stderr", {}, "/bin/sh");
  for (auto line = process.line(); line; line = process.line())
    if (line->find("\"start\"") != std::string::npos) break;
  process.signal(SIGHUP);
  const Finished finished = process.finish();
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_NE(finished.out.find("\"step\":8"), std::string::npos) << finished.out;
}

TEST_F(Cli, ARunGoesOnWhenItsReaderIsGone) {
  const std::string file = job("gpt3");
  for (const char* format : {"json", "text"}) {
    const std::string output = (scratch_.folder() / (std::string(format) + ".onnx")).string();
    Process process({"local", file, "--set", "steps=8", "--set", "output=" + output, "--format", format,
                     "--threads", "1"},
                    scratch_.folder() / "stderr");
    process.line();
    process.stop_reading();
    const Finished finished = process.finish();
    EXPECT_EQ(finished.status, 0) << format << ": " << finished.err;
    EXPECT_TRUE(fs::exists(output)) << format;
  }
}

// Nor does what it prints go into a file that takes the number of a closed output.
TEST_F(Cli, ARunWithClosedOutputsWritesTheSameFile) {
  const std::string file = job("gpt3");
  const auto train_to = [&](const std::string& name, const std::string& outputs) {
    const std::string output = (scratch_.folder() / name).string();
    const Finished finished =
        Process(
            by_shell("", {"local", file, "--set", "steps=2", "--set", "output=" + output, "--threads", "1"},
                     outputs),
            scratch_.folder() / "stderr", {}, "/bin/sh")
            .finish();
    EXPECT_EQ(finished.status, 0) << name << ": " << finished.err;
    return test::read_file(output);
  };
  const std::string usual = train_to("usual.onnx", "");
  EXPECT_FALSE(usual.empty());
  EXPECT_EQ(usual, train_to("closed.onnx", " >&- 2>&-"));
  EXPECT_EQ(usual, train_to("full.onnx", " >/dev/full 2>&1"));
}

TEST_F(Cli, AQueryWhoseReaderIsGoneEndsQuietly) {
  Process process({"ops"}, scratch_.folder() / "stderr");
  process.line();
  process.stop_reading();
  const Finished finished = process.finish();
  EXPECT_EQ(finished.status, 0);
  EXPECT_EQ(finished.err, "");
}

TEST_F(Cli, AnOutputThatCannotBeIsToldBeforeTheFirstStep) {
  const std::string file = job("gpt3");
  fs::create_directory(scratch_.folder() / "folder.onnx");
  const auto local = [&](const std::string& output) {
    return run(
        {"local", file, "--set", "output=" + (scratch_.folder() / output).string(), "--format", "json"});
  };
  for (const char* output : {"folder.onnx", ".", "data.npz", "job.yaml", "model.onnx"}) {
    const Finished finished = local(output);
    EXPECT_EQ(finished.status, 2) << output << ": " << finished.err;
    EXPECT_EQ(nlohmann::json::parse(finished.out)["event"], "error") << output << ": and nothing before it";
    const Finished submitted = run({"submit", file, "--broker", "127.0.0.1:1", "--set",
                                    "output=" + (scratch_.folder() / output).string()});
    EXPECT_EQ(submitted.status, 2) << output << ": " << submitted.err;
    EXPECT_NE(submitted.err.find("output"), std::string::npos) << submitted.err;
  }
  const std::string data = (scratch_.folder() / "data.npz").string();
  EXPECT_EQ(run({"predict", (scratch_.folder() / "model.onnx").string(), data, "-o", data}).status, 2);
  // A process that may not write a file of that size.
  const Finished small = Process(by_shell("ulimit -f 8; ", {"local", file, "--format", "json"}),
                                 scratch_.folder() / "stderr", {}, "/bin/sh")
                             .finish();
  EXPECT_EQ(small.status, 6) << small.err;
  EXPECT_EQ(nlohmann::json::parse(small.out)["event"], "error");
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

// The exporter's way of leaving the batch open needs no option.
TEST_F(Cli, InspectSaysWhatAGpuWouldLeaveToTheHost) {
  for (const char* name : {"two_heads", "resnet_small"}) {
    SCOPED_TRACE(name);
    const auto folder = scratch_.folder() / name;
    std::filesystem::create_directories(folder);
    test::unpack_case(name, folder);
    const std::string model = (folder / "model.onnx").string();
    const Finished text = run({"inspect", model, "--device", "cuda"});
    EXPECT_EQ(text.status, 0) << text.err;
    EXPECT_NE(text.out.find("cuda: every op of training has a kernel"), std::string::npos) << text.out;
    const Finished json = run({"inspect", model, "--device", "cuda", "--format", "json"});
    EXPECT_TRUE(nlohmann::json::parse(json.out)["on_host"].empty()) << json.out;
  }
}

TEST_F(Cli, WithoutItsModuleADeviceIsRefusedWithWhereItWasLookedFor) {
  setenv("WEFT_MODULES", scratch_.folder().c_str(), 1);
  const Finished finished = run({"local", job("two_heads"), "--backend", "cuda"});
  unsetenv("WEFT_MODULES");
  EXPECT_EQ(finished.status, 3) << finished.err;
  EXPECT_NE(finished.err.find("there is no weft_backend_cuda.so in " + scratch_.folder().string()),
            std::string::npos)
      << finished.err;
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

TEST_F(Cli, PageOfTheCommandsIsUpToDate) {
  const Finished finished = run({"reference", "--format", "markdown"});
  EXPECT_EQ(finished.status, 0);
  EXPECT_EQ(finished.out, test::read_file(fs::path(WEFT_SOURCE_DIR) / "docs/CLI.md")) << "run ./dev docs";
}

TEST_F(Cli, PageOfTheJobFileIsUpToDate) {
  const Finished finished = run({"job-keys"});
  EXPECT_EQ(finished.status, 0);
  EXPECT_EQ(finished.out, test::read_file(fs::path(WEFT_SOURCE_DIR) / "docs/JOB.md")) << "run ./dev docs";
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
