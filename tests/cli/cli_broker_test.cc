// Commands for brokers and peers as their user meets them: tokens, joining, caps and hours.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/cli.h"

namespace weft {
namespace {
namespace fs = std::filesystem;

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

TEST_F(Cli, HoursDiskAndJobsOfAPeerAreSaidRight) {
  const std::string folder = scratch_.folder().string();
  const std::string token = nlohmann::json::parse(
      run({"token", "create", "--role", "peer", "--data-dir", folder + "/broker", "--format", "json"})
          .out)["token"];
  for (const auto& [option, value] :
       std::vector<std::pair<std::string, std::string>>{{"--schedule", "25:00-26:00"},
                                                        {"--schedule", "always"},
                                                        {"--disk", "1KiB"},
                                                        {"--disk", "much"},
                                                        {"--jobs", "0"},
                                                        {"--jobs", "3"}}) {
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
  const Finished nobody = pause({"2h"});
  EXPECT_EQ(nobody.status, 3) << nobody.err;
  EXPECT_NE(nobody.err.find("no `weft join`"), std::string::npos) << nobody.err;
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

}  // namespace
}  // namespace weft
