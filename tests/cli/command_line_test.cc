// What is said of a command line that names no command.
#include "cli/command_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/typing_distance.h"
#include "cli/exit_codes.h"
#include "cli/suggestions.h"

namespace weft::cli {
namespace {

struct Said {
  std::optional<int> exit;
  std::string error;
  bool chosen = false;
};

// weft {run [--count N] | token {create}}
Said said(std::vector<std::string> arguments) {
  Program program("");
  program.line().needs_subcommand();
  Command chosen;
  uint32_t count = 0;
  const CommandLine run = program.line().subcommand("run", "");
  run.option("--count", count);
  run.runs(chosen, [] { return Result<int>(0); });
  const CommandLine token = program.line().subcommand("token", "");
  token.needs_subcommand();
  token.subcommand("create", "").runs(chosen, [] { return Result<int>(0); });
  arguments.insert(arguments.begin(), "weft");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  testing::internal::CaptureStderr();
  const auto exit = program.parse(static_cast<int>(pointers.size()), pointers.data());
  return {exit, testing::internal::GetCapturedStderr(), chosen != nullptr};
}

TEST(CommandLine, ACommandThatIsNoneIsNamed) {
  EXPECT_TRUE(said({"run", "--count", "3"}).chosen);
  EXPECT_TRUE(said({"token", "create"}).chosen);
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"rnu", "x"}, "there is no command 'rnu' of weft; did you mean `weft run`?"},
      {{"train", "x"}, "`weft local JOB` trains on this machine"},
      {{"token", "creat"}, "there is no command 'creat' of weft token; there are create"},
      {{"--verbsoe"}, "weft has no option '--verbsoe'"},
      {{"token"}, "weft token is several commands; say which: create"},
      {{}, "weft is several commands; say which: run, token"},
      {{"run", "--count", "many"}, "--count"},
      {{"run", "--cuont", "3"}, "weft run has no option '--cuont'; did you mean --count?"},
      {{"run", "fast"}, "weft run takes no 'fast'"},
  };
  for (const auto& [arguments, words] : cases) {
    const Said one = said(arguments);
    EXPECT_EQ(one.exit, kExitUsage) << words;
    EXPECT_NE(one.error.find(words), std::string::npos) << one.error;
    EXPECT_FALSE(one.chosen) << words;
  }
}

TEST(CommandLine, WhoAskedForJsonIsToldInJson) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(said({"run", "--count", "many", "--format", "json"}).exit, kExitUsage);
  const auto event = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  EXPECT_EQ(event["event"], "error");
  EXPECT_EQ(event["code"], "InvalidArgument");
  EXPECT_EQ(event["exit_code"], kExitUsage);
  EXPECT_NE(event["message"].get<std::string>().find("--count"), std::string::npos);
}

// By the definition: what is reached in so many changes of one letter or of two neighbours' places.
size_t naive_distance(std::string_view a, std::string_view b) {
  if (a.empty() || b.empty()) return a.size() + b.size();
  size_t least = naive_distance(a.substr(1), b.substr(1)) + (a[0] == b[0] ? 0 : 1);
  least = std::min({least, naive_distance(a.substr(1), b) + 1, naive_distance(a, b.substr(1)) + 1});
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0])
    least = std::min(least, naive_distance(a.substr(2), b.substr(2)) + 1);
  return least;
}

TEST(Suggestions, TheDistanceIsThatOfItsDefinition) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto word = [&] {
    std::string text(random() % 7, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int i = 0; i < 300; ++i) {
    const std::string a = word(), b = word();
    ASSERT_EQ(typing_distance(a, b), naive_distance(a, b)) << a << " " << b;
  }
}

TEST(Suggestions, WhatIsNearIsNamedAndWhatIsNotIsNot) {
  const std::vector<std::string> known{"jobs", "join", "status", "stop", "submit", "logs"};
  EXPECT_EQ(nearest("job", known), std::vector<std::string>{"jobs"});
  EXPECT_EQ(nearest("sumbit", known), std::vector<std::string>{"submit"});
  EXPECT_EQ(nearest("stat", known), (std::vector<std::string>{"status", "stop"}));
  EXPECT_TRUE(nearest("zebra", known).empty());
  EXPECT_TRUE(nearest("", known).empty());
  EXPECT_TRUE(nearest(std::string(100'000, 'j'), known).empty());
  EXPECT_EQ(advice_on_command("zebra", known), "");
}

}  // namespace
}  // namespace weft::cli
