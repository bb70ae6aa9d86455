// What is said of a command line that names no command.
#include "cli/command_line.h"

#include <gtest/gtest.h>

#include "cli/exit_codes.h"

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
      {{"rnu", "x"}, "there is no command 'rnu'"},
      {{"token", "creat"}, "there is no command 'creat'"},
      {{"--verbsoe"}, "there is no option '--verbsoe'"},
      {{"token"}, "A subcommand is required"},
      {{}, "A subcommand is required"},
      {{"run", "--count", "many"}, "--count"},
  };
  for (const auto& [arguments, words] : cases) {
    const Said one = said(arguments);
    EXPECT_EQ(one.exit, kExitUsage) << words;
    EXPECT_NE(one.error.find(words), std::string::npos) << one.error;
    EXPECT_FALSE(one.chosen) << words;
  }
}

}  // namespace
}  // namespace weft::cli
