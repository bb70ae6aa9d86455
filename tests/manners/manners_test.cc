// Whether a peer may work, by its owner's rules: each reason, what two of them come to, and the way back.
#include "peer/manners/manners.h"

#include <gtest/gtest.h>

namespace weft::peer {
namespace {
using std::chrono::minutes;
using std::chrono::seconds;

Instant at(int64_t second) { return Instant(seconds(second)); }

TEST(Manners, WithoutRulesNothingPauses) {
  Manners manners{MannersRules{}};
  manners.look({.on_battery = true, .game = true, .hottest = MannersReadings::Heat{150, "coretemp"}}, at(0));
  EXPECT_TRUE(manners.may_work());
}

struct Case {
  const char* name;
  MannersRules rules;
  MannersReadings disturbed, calm;
  const char* reason;
};
std::vector<Case> cases() {
  MannersRules battery, game, programs, idle, heat;
  battery.on_battery = false;
  game.pause_for_games = true;
  programs.pause_for = {"steam"};
  idle.idle = minutes(5);
  heat.celsius_max = 80;
  const auto hot = [](double celsius) {
    return MannersReadings{.hottest = MannersReadings::Heat{celsius, "coretemp"}};
  };
  return {
      {"battery", battery, {.on_battery = true}, {}, "on battery"},
      {"game", game, {.game = true}, {}, "a game runs (GameMode)"},
      {"program", programs, {.program = "steam"}, {}, "steam runs"},
      {"idle",
       idle,
       {.idle = seconds(299)},
       {.idle = minutes(5)},
       "the machine is in use: idle for less than 5 min"},
      {"no logind",
       idle,
       {},
       {.idle = minutes(6)},
       "nobody says whether the machine is in use: there is no logind"},
      {"heat", heat, hot(80.5), hot(75), "too hot: coretemp is at 81 °C"},
      {"no sensor", heat, {}, hot(20), "no temperature can be read"},
  };
}

TEST(Manners, EachReasonPausesAtOnceAndIsOverOnceItHasSettled) {
  for (const Case& one : cases()) {
    Manners manners(one.rules);
    manners.look(one.calm, at(0));
    ASSERT_TRUE(manners.may_work()) << one.name;
    manners.look(one.disturbed, at(1));
    ASSERT_FALSE(manners.may_work()) << one.name;
    EXPECT_EQ(manners.reason(), one.reason);
    EXPECT_FALSE(manners.until()) << one.name;
    manners.look(one.calm, at(20));
    EXPECT_FALSE(manners.may_work()) << one.name << ": it has not settled";
    EXPECT_EQ(manners.until(), at(30)) << one.name;
    manners.look(one.disturbed, at(25));
    manners.look(one.calm, at(30));
    manners.look(one.calm, at(39));
    EXPECT_FALSE(manners.may_work()) << one.name << ": it came again, and settles anew";
    EXPECT_EQ(manners.reason(), one.reason) << "the last one is told meanwhile";
    manners.look(one.calm, at(40));
    EXPECT_TRUE(manners.may_work()) << one.name;
    EXPECT_EQ(manners.reason(), "");
  }
}

TEST(Manners, AReasonThatIsThereAtTheStartHolds) {
  for (const Case& one : cases()) {
    Manners manners(one.rules);
    manners.look(one.disturbed, at(0));
    EXPECT_FALSE(manners.may_work()) << one.name;
  }
}

TEST(Manners, SeveralReasonsAreNamedAndAllHaveToGo) {
  MannersRules rules;
  rules.on_battery = false;
  rules.pause_for = {"steam"};
  Manners manners(rules);
  manners.look({.on_battery = true, .program = "steam"}, at(0));
  EXPECT_EQ(manners.reason(), "on battery; steam runs");
  manners.look({.program = "steam"}, at(100));
  EXPECT_EQ(manners.reason(), "steam runs");
  manners.look({}, at(200));
  manners.look({}, at(209));
  EXPECT_FALSE(manners.may_work());
  manners.look({}, at(210));
  EXPECT_TRUE(manners.may_work());
}

// Work heats what it cools down from: without a distance the peer would come and go at the limit.
TEST(Manners, WhatWasTooHotHasToCoolDown) {
  MannersRules rules;
  rules.celsius_max = 80;
  rules.settle = {};
  Manners manners(rules);
  const auto look = [&](double celsius, int64_t second) {
    manners.look({.hottest = MannersReadings::Heat{celsius, "GPU 0"}}, at(second));
    return manners.may_work();
  };
  EXPECT_TRUE(look(79, 0)) << "on the way up it is not yet too hot";
  EXPECT_TRUE(look(80, 1));
  EXPECT_FALSE(look(81, 2));
  EXPECT_FALSE(look(79, 3));
  EXPECT_EQ(manners.reason(), "cooling: GPU 0 is at 79 °C, and goes on at 75 °C");
  EXPECT_FALSE(look(75.1, 4));
  EXPECT_TRUE(look(75, 5));
  EXPECT_TRUE(look(79, 6));
}

TEST(Manners, ASleepIsOverWhenTheMachineWakes) {
  MannersRules rules;
  rules.on_battery = false;
  Manners manners(rules);
  manners.look({.about_to_sleep = true}, at(0));
  EXPECT_FALSE(manners.may_work());
  EXPECT_EQ(manners.reason(), "the machine is about to sleep");
  manners.look({}, at(1));
  EXPECT_TRUE(manners.may_work());
  manners.look({.about_to_sleep = true}, at(2));
  manners.look({.on_battery = true}, at(3));  // it wakes unplugged
  manners.look({}, at(4));
  EXPECT_FALSE(manners.may_work()) << "the battery has to settle";
  manners.look({}, at(14));
  EXPECT_TRUE(manners.may_work());
}

}  // namespace
}  // namespace weft::peer
