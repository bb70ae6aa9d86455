// A peer as a guest: what its options come to, and what its process leaves to others.
#include "cli/guest.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "cli/attendance.h"
#include "cli/device.h"

namespace weft::cli {
namespace {

JoinOptions guest() {
  JoinOptions options;
  options.guest.is_guest = true;
  return options;
}

TEST(Guest, HasMannersThatOthersAskFor) {
  const auto host = manners_of(JoinOptions{});
  ASSERT_TRUE(host);
  EXPECT_FALSE(has_rules(*host)) << "who does not ask for it works as before";
  const auto rules = manners_of(guest());
  ASSERT_TRUE(rules);
  EXPECT_FALSE(rules->on_battery);
  EXPECT_TRUE(rules->pause_for_games);
  EXPECT_TRUE(rules->pause_for.empty());
  EXPECT_FALSE(rules->idle);
  EXPECT_FALSE(rules->celsius_max);
  JoinOptions rude = guest();
  rude.guest.battery = "yes";
  rude.guest.pause_for = {"none"};
  EXPECT_FALSE(has_rules(manners_of(rude).value()));
  EXPECT_LT(share_of(guest()), share_of(JoinOptions{}));
  EXPECT_EQ(share_of(guest()), 0.5);
}

TEST(Guest, WhatIsWrongIsSaidWithItsOption) {
  const auto wrong = [](const char* option, auto change) {
    JoinOptions options = guest();
    change(options);
    const auto rules = manners_of(options);
    ASSERT_FALSE(rules) << option;
    EXPECT_EQ(rules.error().code, ErrorCode::InvalidArgument);
    EXPECT_TRUE(rules.error().message.starts_with(option)) << rules.error().message;
  };
  for (const char* text : {"maybe", "1", "Yes"})
    wrong("--battery", [&](JoinOptions& options) { options.guest.battery = text; });
  for (const char* text : {"5", "m", "-5m", "0s"}) {
    wrong("--idle", [&](JoinOptions& options) { options.guest.idle = text; });
    wrong("--settle", [&](JoinOptions& options) { options.guest.settle = text; });
  }
  for (const char* text : {"hot", "85C", "29", "121", "nan", "1e9"})
    wrong("--temperature", [&](JoinOptions& options) { options.guest.temperature = text; });
  wrong("--pause-for", [](JoinOptions& options) { options.guest.pause_for = {"/usr/bin/steam"}; });
  wrong("--pause-for", [](JoinOptions& options) { options.guest.pause_for = {""}; });
  wrong("--pause-for", [](JoinOptions& options) { options.guest.pause_for.resize(65, "x"); });
}

TEST(Guest, LeavesAProcessor) {
  const unsigned all = std::max(1u, std::thread::hardware_concurrency());
  EXPECT_EQ(device_with_cpus("cpu", JoinOptions{}).value(), "cpu");
  EXPECT_EQ(device_with_cpus("cpu", guest()).value(), "cpu:" + std::to_string(std::max(1u, all - 1)));
  EXPECT_EQ(device_with_cpus("cpu:7", guest()).value(), "cpu:7") << "who says how many means it";
  EXPECT_EQ(device_with_cpus("cuda:1", guest()).value(), "cuda:1");
  JoinOptions options = guest();
  options.guest.cpus = "3";
  EXPECT_EQ(device_with_cpus("cpu", options).value(), "cpu:3");
  EXPECT_EQ(device_with_cpus("null:rtx3080", options).value(), "null:rtx3080");
  EXPECT_FALSE(device_with_cpus("cpu:2", options)) << "which of the two?";
  for (const char* text : {"0", "-1", "1025", "two", "2x"}) {
    options.guest.cpus = text;
    EXPECT_FALSE(device_with_cpus("cpu", options)) << text;
  }
}

TEST(Guest, GivesWayInItsThreads) {
  std::thread([] {  // of this thread alone, so that the other tests run as they did
    give_way_to_others();
    std::thread([] {
      EXPECT_EQ(::getpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid))), 19);
      EXPECT_EQ(::syscall(SYS_ioprio_get, 1, 0) >> 13, 3) << "the idle class";
    }).join();
  })
      .join();
  std::string score;
  std::ifstream("/proc/self/oom_score_adj") >> score;
  EXPECT_EQ(score, "500");
}

TEST(Attendance, SaysWhyItsMannersKeepItAway) {
  using std::chrono::seconds;
  Attendance attendance({}, manners_of(guest()).value());
  const auto now = [](int second) { return Attendance::Now{Instant(seconds(second)), {}}; };
  EXPECT_TRUE(attendance.is_open(now(0)));
  EXPECT_FALSE(attendance.is_urgent());
  attendance.look({.on_battery = true}, now(1).clock);
  EXPECT_FALSE(attendance.is_open(now(1)));
  EXPECT_TRUE(attendance.is_urgent());
  EXPECT_EQ(attendance.describe(now(1)), "paused: on battery");
  attendance.pause(std::chrono::hours(1), now(2).clock);
  EXPECT_EQ(attendance.describe(now(2)), "paused for 1h 00m more") << "its owner's word comes first";
  EXPECT_TRUE(attendance.resume(now(3).clock));
  EXPECT_FALSE(attendance.is_open(now(3))) << "to go on is not to go on on battery";
  attendance.look({}, now(4).clock);
  EXPECT_EQ(attendance.describe(now(6)), "paused: on battery, goes on in 8s");
  attendance.look({}, now(14).clock);
  EXPECT_EQ(attendance.describe(now(14)), "at work");
}

}  // namespace
}  // namespace weft::cli
