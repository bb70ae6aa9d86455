// What a broker is told: on the command line, in its file, and what is said of what it cannot be told.
#include "cli/broker_options.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/scratch.h"

namespace weft::cli {
namespace {

using broker::BrokerServiceOptions;
using namespace std::chrono_literals;

Result<BrokerServiceOptions> told(const std::vector<std::string>& arguments) {
  Program program("");
  BrokerWords words;
  add_broker_options(program.line(), words);
  std::vector<std::string> line = {"weft"};
  line.insert(line.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : line) pointers.push_back(word.data());
  EXPECT_FALSE(program.parse(static_cast<int>(pointers.size()), pointers.data()).has_value());
  BrokerServiceOptions options;
  WEFT_TRY_STATUS(read_broker_options(words, options));
  return options;
}

class BrokerRows : public ::testing::Test {
 protected:
  std::string file(const std::string& text) {
    const auto path = scratch_.folder() / "broker.yaml";
    std::ofstream(path) << text;
    return path.string();
  }
  test::Scratch scratch_;
};

TEST_F(BrokerRows, WhatNobodySaysIsAsTheBrokerHasIt) {
  const auto options = told({});
  ASSERT_TRUE(options.has_value()) << options.error().message;
  EXPECT_TRUE(options->data_dir.empty());
  EXPECT_EQ(net::to_string(options->listen), "0.0.0.0:7700");
  EXPECT_TRUE(options->broker.measures_links && options->broker.copies_go_direct);
  EXPECT_TRUE(options->broker.run.copies_state);
  EXPECT_FALSE(options->http);
  EXPECT_EQ(options->broker.run.copy_rate, 12'500'000u);
}

// The file says every key, and the command line another value of each.
TEST_F(BrokerRows, EachIsAKeyOfTheFileAndAnOptionWhichWins) {
  const std::string config = file(
      "format: 1\ndata_dir: here\nlisten: 127.0.0.1:1\nadvertise: a.example:2\nlease: 20s\n"
      "copy_rate: 8Mbit\ncopies: broker\negress: 80Mbit\nquota: 1GiB\nlinks: assume\n"
      "replan_after: never\ncompare_share: 0.25\nplan_memory: unlimited\nplan_seconds: 7\n"
      "http: 127.0.0.1:8\nhttp_cert: chain.pem\nhttp_key: /etc/key.pem\n");
  const auto from_file = told({"--config", config});
  ASSERT_TRUE(from_file.has_value()) << from_file.error().message;
  EXPECT_EQ(from_file->data_dir, scratch_.folder() / "here");
  EXPECT_EQ(net::to_string(from_file->listen), "127.0.0.1:1");
  EXPECT_EQ(from_file->advertise, "a.example:2");
  EXPECT_EQ(from_file->broker.lease, Duration(20s));
  EXPECT_EQ(from_file->broker.run.copy_rate, 1'000'000u);
  EXPECT_FALSE(from_file->broker.copies_go_direct);
  EXPECT_EQ(from_file->egress, 10'000'000u);
  EXPECT_EQ(from_file->quota.bytes, uint64_t{1} << 30);
  EXPECT_FALSE(from_file->broker.measures_links);
  EXPECT_EQ(from_file->broker.drift.look_after, Duration{});
  EXPECT_EQ(from_file->broker.run.compare_share, 0.25);
  EXPECT_EQ(from_file->plan_memory.value, 0);
  EXPECT_EQ(from_file->plan_time, Duration(7s));
  EXPECT_EQ(net::to_string(from_file->http.value()), "127.0.0.1:8");
  EXPECT_EQ(from_file->http_certificate, scratch_.folder() / "chain.pem");
  EXPECT_EQ(from_file->http_key, "/etc/key.pem");
  const auto both =
      told({"--config",      config,        "--data-dir",     "there",     "--listen",        "127.0.0.1:3",
            "--advertise",   "b.example:4", "--lease",        "30s",       "--copy-rate",     "none",
            "--copies",      "direct",      "--egress",       "unlimited", "--quota",         "2GiB",
            "--links",       "measure",     "--replan-after", "1m",        "--compare-share", "0",
            "--plan-memory", "64MiB",       "--plan-seconds", "9",         "--http",          "[::1]:9",
            "--http-cert",   "chain.pem",   "--http-key",     "key.pem"});
  ASSERT_TRUE(both.has_value()) << both.error().message;
  EXPECT_EQ(both->data_dir, "there");
  EXPECT_EQ(net::to_string(both->listen), "127.0.0.1:3");
  EXPECT_EQ(both->advertise, "b.example:4");
  EXPECT_EQ(both->broker.lease, Duration(30s));
  EXPECT_FALSE(both->broker.run.copies_state);
  EXPECT_TRUE(both->broker.copies_go_direct);
  EXPECT_EQ(both->egress, 0u);
  EXPECT_EQ(both->quota.bytes, uint64_t{2} << 30);
  EXPECT_TRUE(both->broker.measures_links);
  EXPECT_EQ(both->broker.drift.look_after, Duration(1min));
  EXPECT_EQ(both->broker.run.compare_share, 0);
  EXPECT_EQ(both->plan_memory.value, int64_t{64} << 20);
  EXPECT_EQ(both->plan_time, Duration(9s));
  EXPECT_EQ(net::to_string(both->http.value()), "[::1]:9");
  EXPECT_EQ(both->http_certificate, "chain.pem");
  EXPECT_EQ(both->http_key, "key.pem");
}

TEST_F(BrokerRows, AFormerNameIsTakenWithANotice) {
  testing::internal::CaptureStderr();
  const auto by_option = told({"--replication-rate", "8Mbit"});
  const auto by_file = told({"--config", file("replication_rate: 16Mbit\n")});
  const auto option_wins = told({"--replication-rate", "8Mbit", "--config", file("copy_rate: 16Mbit\n")});
  const auto new_name_wins = told({"--replication-rate", "8Mbit", "--copy-rate", "24Mbit"});
  const std::string said = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(by_option && by_file && option_wins && new_name_wins);
  EXPECT_EQ(by_option->broker.run.copy_rate, 1'000'000u);
  EXPECT_EQ(by_file->broker.run.copy_rate, 2'000'000u);
  EXPECT_EQ(option_wins->broker.run.copy_rate, 1'000'000u);
  EXPECT_EQ(new_name_wins->broker.run.copy_rate, 3'000'000u);
  const std::string notice = "weft: warning: --replication-rate is now called --copy-rate\n";
  EXPECT_EQ(said, notice + notice + notice + notice);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(told({"--copy-rate", "8Mbit"}).has_value());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(BrokerRows, WhatIsWrongIsNamed) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--copy-rate", "0Mbit"}, "--copy-rate: '0Mbit' is no rate"},
      {{"--copy-rate", "fast"}, "--copy-rate: 'fast' is no rate"},
      {{"--copies", "all"}, "--copies: 'all' is neither direct nor broker"},
      {{"--links", "all"}, "--links: 'all' is neither measure nor assume"},
      {{"--quota", "0GiB"}, "--quota: '0GiB' is no amount"},
      {{"--egress", "much"}, "--egress"},
      {{"--compare-share", "0.6"}, "--compare-share: '0.6' is no number from 0 to 0.5"},
      {{"--compare-share", "nan"}, "--compare-share: 'nan'"},
      {{"--plan-memory", "1MiB"}, "--plan-memory: '1MiB' is no amount of at least 64 MiB"},
      {{"--plan-seconds", "90000"}, "--plan-seconds: '90000' is no number of seconds"},
      {{"--http", "8000"}, "8000"},
      {{"--http", "[::1]:9", "--http-cert", "a"}, "--http-cert and --http-key belong together"},
      {{"--http-cert", "a", "--http-key", "b"}, "say where to listen"},
      {{"--plan-seconds", "9x"}, "--plan-seconds: '9x'"},
  };
  for (const auto& [arguments, words] : cases) {
    const auto options = told(arguments);
    ASSERT_FALSE(options.has_value()) << words;
    EXPECT_NE(options.error().message.find(words), std::string::npos) << options.error().message;
  }
  for (const auto& [text, words] : {std::pair{"lesae: 10s\n", "lesae"}, {"format: 2\n", "reads format 1"}}) {
    const auto options = told({"--config", file(text)});
    ASSERT_FALSE(options.has_value()) << words;
    EXPECT_NE(options.error().message.find(words), std::string::npos) << options.error().message;
  }
}

}  // namespace
}  // namespace weft::cli
