// weft service, beside a systemctl that only notes what it is asked; and weft join --config.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cli/broker_address.h"
#include "cli/guest.h"
#include "cli/join_options.h"
#include "cli/service_files.h"
#include "tests/cli/process.h"
#include "tests/support/scratch.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

JoinOptions with_config(const fs::path& file) {
  JoinOptions options;
  options.config = file.string();
  return options;
}

class ServiceTest : public testing::Test {
 protected:
  ServiceTest() {
    fs::create_directories(bin());
    systemctl("exit 0");
  }
  fs::path bin() const { return scratch_.folder() / "bin"; }
  fs::path home(const char* name) const { return scratch_.folder() / "config" / name; }
  void systemctl(const std::string& ending) const {
    const fs::path file = scratch_.write("bin/systemctl", "#!/bin/sh\necho \"$@\" >>" + asked_.string() +
                                                              "\necho said-by-systemd\n" + ending + "\n");
    fs::permissions(file, fs::perms::owner_all);
  }
  test::Finished run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "service");
    return test::Process(arguments, scratch_.folder() / "err",
                         {"PATH=" + bin().string() + ":/usr/bin:/bin",
                          "XDG_CONFIG_HOME=" + (scratch_.folder() / "config").string(),
                          "XDG_DATA_HOME=" + (scratch_.folder() / "data").string()})
        .finish();
  }
  test::Finished install() const { return run({"install", "example.org:7700", "--token", token_}); }

  test::Scratch scratch_;
  const fs::path asked_ = scratch_.folder() / "asked";
  const std::string token_ = security::to_text(security::make_token(security::Role::Peer, {}));
};

TEST_F(ServiceTest, InstallWritesWhatJoinReads) {
  const auto done = install();
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(text_of(asked_), "--user daemon-reload\n--user enable --now weft-peer.service\n");
  struct stat status {};
  ASSERT_EQ(::stat(home("weft/peer.token").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  JoinOptions options = with_config(home("weft/peer.yaml"));
  const Status read = read_join_config(options);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(options.broker, "example.org:7700");
  EXPECT_EQ(options.token, "@" + home("weft/peer.token").string());
  EXPECT_EQ(options.devices, std::vector<std::string>{"cpu"});
  EXPECT_TRUE(options.guest.is_guest);
  EXPECT_NE(text_of(home("systemd/user/weft-peer.service")).find("join --config \"" + options.config + "\""),
            std::string::npos);
}

// Each line that begins with "# key:" may be taken in as it stands.
TEST_F(ServiceTest, EveryCommentedSettingIsOneThatJoinKnows) {
  std::string all;
  size_t keys = 0;
  std::istringstream lines(settings_text({"example.org:7700", "peer.token", {"cpu:2", "cuda"}}));
  for (std::string line; std::getline(lines, line);) {
    const bool is_key = line.starts_with("# ") && line.find(": ") != std::string::npos &&
                        line.substr(2, line.find(':') - 2).find(' ') == std::string::npos &&
                        std::islower(static_cast<unsigned char>(line[2])) != 0;
    keys += is_key;
    all += (is_key ? line.substr(2) : line) + "\n";
  }
  EXPECT_EQ(keys, 18u) << all;
  JoinOptions options = with_config(scratch_.write("all.yaml", all));
  const Status read = read_join_config(options);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(options.devices, (std::vector<std::string>{"cpu:2", "cuda"}));
  EXPECT_EQ(options.schedule, "mon-fri 20:00-08:00, sat-sun 00:00-24:00");
  EXPECT_EQ(options.jobs, "1");
  EXPECT_EQ(options.guest.pause_for, (std::vector<std::string>{"steam", "gamemode"}));
  EXPECT_EQ(options.guest.gpu_memory, "6GiB");
  const char* home_folder = std::getenv("HOME");
  EXPECT_EQ(options.weights, home_folder != nullptr ? std::string(home_folder) + "/.cache/huggingface"
                                                    : (scratch_.folder() / "~/.cache/huggingface").string());
  const auto rules = manners_of(options);
  ASSERT_TRUE(rules) << rules.error().message;
  EXPECT_TRUE(rules->on_battery);
  EXPECT_TRUE(rules->pause_for_games);
  EXPECT_EQ(rules->pause_for, std::vector<std::string>{"steam"});
  EXPECT_EQ(rules->idle, std::chrono::minutes(5));
  EXPECT_EQ(rules->settle, std::chrono::seconds(30));
  EXPECT_EQ(rules->celsius_max, 85);
  EXPECT_EQ(options.advertise, "my-desktop.example.org:7701");
}

TEST_F(ServiceTest, SettingsAreKeptUnlessTheyShallBeReplaced) {
  ASSERT_EQ(install().status, 0);
  scratch_.write("config/weft/peer.yaml", "broker: mine:1\n");
  const auto again = install();
  EXPECT_EQ(again.status, 2);
  EXPECT_NE(again.err.find("--replace"), std::string::npos) << again.err;
  EXPECT_EQ(run({"install"}).status, 0);
  EXPECT_EQ(text_of(home("weft/peer.yaml")), "broker: mine:1\n");
  EXPECT_EQ(run({"install", "other:7700", "--token", token_, "--replace", "--device", "cpu:1"}).status, 0);
  EXPECT_NE(text_of(home("weft/peer.yaml")).find("broker: \"other:7700\""), std::string::npos);
}

TEST_F(ServiceTest, WhatIsWrongIsSaidBeforeAnythingIsWritten) {
  const std::pair<std::vector<std::string>, int> cases[] = {
      {{"install"}, 3},
      {{"install", "nonsense", "--token", token_}, 2},
      {{"install", "example.org:7700"}, 2},
      {{"install", "example.org:7700", "--token", "weft1-none"}, 2},
      {{"install", "example.org:7700", "--token", token_, "--device", "abacus"}, 2},
      {{"remove"}, 3},
      {{"status"}, 3},
  };
  for (const auto& [arguments, code] : cases) EXPECT_EQ(run(arguments).status, code) << arguments.front();
  EXPECT_FALSE(fs::exists(scratch_.folder() / "config"));
  EXPECT_FALSE(fs::exists(asked_));
}

TEST_F(ServiceTest, ASystemdThatRefusesIsReported) {
  systemctl("exit 1");
  const auto done = install();
  EXPECT_EQ(done.status, 1);
  EXPECT_NE(done.err.find("said-by-systemd"), std::string::npos) << done.err;
  EXPECT_TRUE(fs::exists(home("systemd/user/weft-peer.service"))) << "it can be started by hand";
  EXPECT_EQ(run({"status"}).status, 1);
}

TEST_F(ServiceTest, RemoveTakesTheUnitAndNamesWhatStays) {
  ASSERT_EQ(run({"install", "example.org:7700", "--token", token_, "--no-start"}).status, 0);
  EXPECT_FALSE(fs::exists(asked_)) << "nothing was to be started";
  const auto status = run({"status"});
  EXPECT_EQ(status.status, 0) << status.err;
  EXPECT_NE(status.out.find("state: said-by-systemd"), std::string::npos) << status.out;
  const auto done = run({"remove"});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_FALSE(fs::exists(home("systemd/user/weft-peer.service")));
  for (const char* kept : {"peer.yaml", "peer.token", "data/weft/peer"})
    EXPECT_NE(done.out.find(kept), std::string::npos) << done.out;
}

TEST(ServiceFiles, PathsStandInAUnitAsTheyAre) {
  const auto unit = unit_text("/opt/a b/weft", "/home/50% $x/\"q\".yaml");
  ASSERT_TRUE(unit);
  EXPECT_NE(unit->find("ExecStart=\"/opt/a b/weft\" join --config \"/home/50%% $$x/\\\"q\\\".yaml\"\n"),
            std::string::npos)
      << *unit;
  EXPECT_FALSE(unit_text("/opt/weft\nExecStartPre=/bin/rm", "/x"));
}

TEST_F(ServiceTest, OptionsWinAndMistakesInTheFileAreNamed) {
  JoinOptions options = with_config(scratch_.write("peer.yaml",
                                                   "broker: of-file:1\ntoken: '@t'\nupload: 10Mbit\n"
                                                   "dial_private: true\ndevice: cpu:3\n"));
  options.broker = "given:2";
  options.devices = {"cpu"};
  ASSERT_TRUE(read_join_config(options));
  EXPECT_EQ(options.broker, "given:2");
  EXPECT_EQ(options.devices, std::vector<std::string>{"cpu"});
  EXPECT_EQ(options.upload, "10Mbit");
  EXPECT_TRUE(options.dials_private);
  EXPECT_EQ(options.token, "@" + (scratch_.folder() / "t").string());

  for (const char* wrong :
       {"brokr: x\n", "device: []\n", "format: 2\n", "upload: [1]\n", "- a\n", "a: [\n"}) {
    JoinOptions one = with_config(scratch_.write("wrong.yaml", wrong));
    const Status read = read_join_config(one);
    ASSERT_FALSE(read) << wrong;
    EXPECT_NE(read.error().message.find("wrong.yaml:"), std::string::npos) << read.error().message;
  }
  JoinOptions none = with_config(scratch_.folder() / "none.yaml");
  EXPECT_EQ(read_join_config(none).error().code, ErrorCode::NotFound);
}

}  // namespace
}  // namespace weft::cli
