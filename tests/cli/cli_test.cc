// The program as its user meets it: real processes, real files, what they print and return.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/process.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft {
namespace {
namespace fs = std::filesystem;
using test::Finished;
using test::Process;

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
    EXPECT_EQ(finished.out, "") << output;
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
  EXPECT_EQ(small.out, "");
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

TEST_F(Cli, AMadeTokenStandsAloneOnStandardOutputAndLastsThirtyDays) {
  const std::string folder = (scratch_.folder() / "broker").string();
  const auto create = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"token", "create", "--role", "admin", "--data-dir", folder});
    return run(more);
  };
  const Finished made = create({"--label", "ann, of the lab"});
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(made.out.rfind("weft1-", 0), 0u);
  EXPECT_EQ(made.out.find('\n'), made.out.size() - 1) << made.out;
  const auto listed =
      nlohmann::json::parse(run({"token", "list", "--data-dir", folder, "--format", "json"}).out);
  EXPECT_NE(made.err.find(listed["id"].get<std::string>()), std::string::npos) << made.err;
  EXPECT_EQ(listed["label"], "ann, of the lab");
  EXPECT_EQ(listed["role"], "admin");
  EXPECT_TRUE(listed["uses_max"].is_null());
  EXPECT_EQ(listed["expires_unix_ms"].get<int64_t>() - listed["created_unix_ms"].get<int64_t>(),
            int64_t{30} * 24 * 3600 * 1000);
  EXPECT_NE(run({"token", "list", "--data-dir", folder}).out.find("ann, of the lab"), std::string::npos);
  const auto json = nlohmann::json::parse(create({"--ttl", "never", "--format", "json"}).out);
  EXPECT_EQ(json["id"].get<std::string>().size(), 16u);
  EXPECT_EQ(create({"--label", "two\nlines"}).status, 2);
  EXPECT_EQ(create({"--label", std::string(65, 'x')}).status, 2);
}

TEST_F(Cli, ABrokerPrintsOneJoinLineAtEveryStartUntilItIsRevoked) {
  const std::string folder = (scratch_.folder() / "broker").string();
  const auto start = [&](const std::string& also) {
    Process broker(
        {"broker", "--data-dir", folder, "--listen", "127.0.0.1:0", "--advertise", "broker.example.org:7700"},
        scratch_.folder() / "stderr");
    const std::string line = broker.line().value_or("");
    if (!also.empty()) {
      EXPECT_EQ(broker.line().value_or("").rfind(also, 0), 0u);
    }
    broker.signal(SIGTERM);
    EXPECT_EQ(broker.finish().status, 0);
    return line;
  };
  const auto join_line = [&] { return run({"token", "join-line", "--data-dir", folder}); };
  EXPECT_EQ(join_line().status, 3) << "no broker was there yet";
  const std::string first = start("submitter token: ");
  EXPECT_EQ(first.rfind("weft join broker.example.org:7700 --token weft1-", 0), 0u) << first;
  EXPECT_EQ(start(""), first);
  EXPECT_EQ(join_line().out, first + "\n");
  const auto peers = [&] {
    std::istringstream lines(run({"token", "list", "--data-dir", folder, "--format", "json"}).out);
    std::vector<nlohmann::json> found;
    for (std::string line; std::getline(lines, line);) found.push_back(nlohmann::json::parse(line));
    std::erase_if(found, [](const auto& token) { return token["role"] != "peer"; });
    return found;
  };
  ASSERT_EQ(peers().size(), 1u) << "however often it starts";
  EXPECT_TRUE(peers()[0]["expires_unix_ms"].is_null());
  EXPECT_TRUE(peers()[0]["uses_max"].is_null());
  ASSERT_EQ(run({"token", "revoke", peers()[0]["id"], "--data-dir", folder}).status, 0);
  const std::string second = start("");
  EXPECT_NE(second, first);
  EXPECT_EQ(start(""), second);
  EXPECT_EQ(peers().size(), 2u);
  EXPECT_EQ(join_line().out, second + "\n");
}

TEST_F(Cli, NoTokenGoesIntoSystemdsJournal) {
  const std::string folder = (scratch_.folder() / "broker").string();
  const auto start = [&](const std::string& journal) {
    Process broker({"-c", journal + "exec " WEFT_PROGRAM " broker --listen 127.0.0.1:0 --data-dir " + folder},
                   scratch_.folder() / "stderr", {}, "/bin/sh");
    const std::string line = broker.line().value_or("");
    broker.signal(SIGTERM);
    const Finished finished = broker.finish();
    EXPECT_EQ(finished.status, 0) << finished.err;
    return line + "\n" + finished.out + finished.err;
  };
  for (const std::string stream : {"1", "2"}) {
    const std::string said = start("export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/$$/fd/" + stream + "); ");
    EXPECT_EQ(said.find("weft1-"), std::string::npos) << said;
    EXPECT_NE(said.find("weft token join-line --data-dir " + folder), std::string::npos) << said;
  }
  // A terminal of a user's session inherits the variable, and is another stream.
  const std::string elsewhere = start("export JOURNAL_STREAM=1:1; ");
  EXPECT_NE(elsewhere.find("weft join 127.0.0.1:"), std::string::npos) << elsewhere;
  EXPECT_NE(elsewhere.find("submitter token: weft1-"), std::string::npos) << "made when it can be shown";
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

TEST_F(Cli, HoursAndDiskOfAPeerAreSaidRight) {
  const std::string folder = scratch_.folder().string();
  const std::string token = nlohmann::json::parse(
      run({"token", "create", "--role", "peer", "--data-dir", folder + "/broker", "--format", "json"})
          .out)["token"];
  for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{
           {"--schedule", "25:00-26:00"}, {"--schedule", "always"}, {"--disk", "1KiB"}, {"--disk", "much"}}) {
    const Finished finished =
        run({"join", "127.0.0.1:1", "--token", token, "--data-dir", folder + "/peer", option, value});
    EXPECT_EQ(finished.status, 2) << value << ": " << finished.err;
    EXPECT_NE(finished.err.find(option + ": '" + value + "'"), std::string::npos) << finished.err;
  }
}

TEST_F(Cli, PauseSaysWhereNobodyIs) {
  const std::vector<std::string> elsewhere = {"XDG_RUNTIME_DIR=" + (scratch_.folder() / "run").string(),
                                              "XDG_STATE_HOME=" + (scratch_.folder() / "state").string()};
  const auto pause = [&](std::vector<std::string> more) {
    more.insert(more.begin(), "pause");
    return Process(more, scratch_.folder() / "stderr", elsewhere).finish();
  };
  if (!fs::exists("/run/user/" + std::to_string(geteuid()) + "/weft")) {
    const Finished nobody = pause({"2h"});
    EXPECT_EQ(nobody.status, 3) << nobody.err;
    EXPECT_NE(nobody.err.find("no `weft join`"), std::string::npos) << nobody.err;
  }
  EXPECT_EQ(pause({"soon"}).status, 2);
  EXPECT_EQ(pause({"2h", "--off"}).status, 2);
  EXPECT_EQ(pause({"--off", "--status"}).status, 2);
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
