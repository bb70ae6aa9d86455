// The script of a run by itself: numbers, what is settled, how it goes on.
#include "broker/run/run_script.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::broker {
namespace {

using proto::Command;
using proto::CommandKind;

Script script_of(uint64_t commands) {
  Script script(7, 3);
  for (uint64_t step = 1; step <= commands; ++step)
    script.write({.kind = CommandKind::Advance, .step = step});
  return script;
}

// Those up to a step.
auto up_to(uint64_t step) {
  return [step](const Command& command) { return command.step <= step; };
}

TEST(Script, CommandsAreNumberedAndSayWhatIsSettled) {
  Script script = script_of(3);
  script.trim(up_to(2));
  const Command command = script.write({.kind = CommandKind::Checkpoint, .step = 3});
  EXPECT_EQ(command.run, 7u);
  EXPECT_EQ(command.plan_version, 3u);
  EXPECT_EQ(command.sequence, 4u);
  EXPECT_EQ(command.settled, 2u);
  script.trim(up_to(3));
  EXPECT_EQ(script.write({.kind = CommandKind::Advance, .step = 4}).settled, 4u) << "all of them";
  EXPECT_TRUE(script.check().has_value());
}

TEST(Script, IsTrimmedFromTheFrontAlone) {
  Script script = script_of(3);
  script.trim([](const Command& command) { return command.step != 2; });
  ASSERT_EQ(script.commands().size(), 2u) << "the third waits for the second";
  EXPECT_FALSE(script.has(1));
  EXPECT_TRUE(script.has(2) && script.has(3));
  EXPECT_FALSE(script.has(4));
}

TEST(Script, GoesOnWithWhatItsRecordsDoNotSettle) {
  Script before = script_of(2);
  before.trim(up_to(1));
  before.write({.kind = CommandKind::Advance, .step = 3});
  Script whole = script_of(2);
  std::vector<Command> recorded(whole.commands().begin(), whole.commands().end());
  recorded.push_back(before.commands().back());
  Script after(7, 3);
  after.resume(recorded);
  ASSERT_EQ(after.commands().size(), 2u);
  EXPECT_EQ(after.commands().front().sequence, 2u);
  EXPECT_EQ(after.next_sequence(), 4u);
  EXPECT_TRUE(after.check().has_value());
}

TEST(Script, AStageGoesOnWithTheCommandsThatItWasGivenAndNoOthers) {
  Script script = script_of(5);
  script.trim(up_to(2));
  EXPECT_TRUE(script.check_resumed(2).has_value()) << "it has all that is settled";
  EXPECT_TRUE(script.check_resumed(5).has_value());
  EXPECT_TRUE(script.check_resumed(1).has_value()) << "nobody waits for the second any more";
  const std::vector<Command> after = script.commands_after(1);
  ASSERT_EQ(after.size(), 3u);
  EXPECT_EQ(after.front().sequence, 3u);
  EXPECT_EQ(after.front().settled, 2u) << "though it was not when it was written";
  EXPECT_FALSE(script.check_resumed(6).has_value()) << "it was never written";
  EXPECT_FALSE(Script(7, 3).check_resumed(1).has_value());
}

TEST(Script, ACheckFindsACommandThatIsMissing) {
  const Script whole = script_of(3);
  const std::vector<Command> recorded = {whole.commands()[0], whole.commands()[2]};
  Script script(7, 3);
  script.resume(recorded);
  EXPECT_FALSE(script.check().has_value());
}

}  // namespace
}  // namespace weft::broker
