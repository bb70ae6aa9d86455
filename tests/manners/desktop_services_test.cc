// What logind and GameMode say, over a bus that is played here; and the thread that looks at it all.
#include "peer/desktop/desktop_services.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "peer/desktop/machine_watch.h"
#include "tests/manners/fake_bus.h"
#include "tests/support/scratch.h"

namespace weft::peer {
namespace {
namespace fs = std::filesystem;
using std::chrono::seconds;

class DesktopServicesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::FakeBus::is_there()) GTEST_SKIP() << "skipped: there is no libsystemd.so.0";
    ::setenv("DBUS_SYSTEM_BUS_ADDRESS", system_.address().c_str(), 1);
    ::setenv("DBUS_SESSION_BUS_ADDRESS", user_.address().c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("DBUS_SYSTEM_BUS_ADDRESS");
    ::unsetenv("DBUS_SESSION_BUS_ADDRESS");
  }
  // A socket's address is short, and a test's folder may not be.
  struct Short {
    Short() {
      char name[] = "/tmp/weft-bus-XXXXXX";
      folder = ::mkdtemp(name);
    }
    ~Short() {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
    }
    fs::path folder;
  };
  const Short place_;
  test::FakeBus system_{place_.folder / "system"}, user_{place_.folder / "user"};
};

TEST_F(DesktopServicesTest, LogindSaysSinceWhenTheMachineIsIdle) {
  DesktopServices services;
  EXPECT_EQ(services.idle(seconds(100)), Duration{}) << "somebody is there";
  system_.idle = true;
  system_.idle_since = 40'000'000;
  EXPECT_EQ(services.idle(seconds(100)), seconds(60));
  EXPECT_EQ(services.idle(seconds(30)), Duration{}) << "not before it began";
  system_.idle_since = UINT64_MAX;
  EXPECT_EQ(services.idle(seconds(100)), Duration{});
  system_.has_logind = false;
  EXPECT_EQ(services.idle(seconds(100)), std::nullopt);
  EXPECT_FALSE(system_.started_a_service);
}

TEST_F(DesktopServicesTest, GameModeSaysWhetherAGameRuns) {
  DesktopServices services;
  EXPECT_FALSE(services.game_runs()) << "it does not run itself";
  user_.games = 0;
  EXPECT_FALSE(services.game_runs());
  user_.games = 2;
  EXPECT_TRUE(services.game_runs());
  EXPECT_FALSE(user_.started_a_service) << "to ask it is no reason to start it";
}

TEST_F(DesktopServicesTest, SleepIsPutOffUntilTheWorkIsHandedOver) {
  DesktopServices services;
  EXPECT_FALSE(services.about_to_sleep());
  EXPECT_TRUE(system_.is_delayed());
  system_.about_to_sleep = true;
  EXPECT_TRUE(services.about_to_sleep());
  EXPECT_TRUE(system_.is_delayed()) << "until the work is handed over";
  services.let_it_sleep();
  EXPECT_TRUE(services.about_to_sleep());
  EXPECT_FALSE(system_.is_delayed()) << "nobody holds it up any more";
  system_.about_to_sleep = false;
  EXPECT_FALSE(services.about_to_sleep());
  EXPECT_TRUE(system_.is_delayed()) << "the next time, too";
  EXPECT_EQ(system_.delays_asked, 2);
}

TEST_F(DesktopServicesTest, WhoIsRefusedAsksOnce) {
  system_.refuses_delays = true;
  DesktopServices services;
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(services.about_to_sleep());
  EXPECT_EQ(system_.delays_asked, 1);
}

TEST_F(DesktopServicesTest, WithoutABusNothingIsKnown) {
  ::setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent", 1);
  ::setenv("DBUS_SESSION_BUS_ADDRESS", "nonsense", 1);
  DesktopServices services;
  EXPECT_EQ(services.idle(seconds(1)), std::nullopt);
  EXPECT_FALSE(services.game_runs());
  EXPECT_FALSE(services.about_to_sleep());
  EXPECT_EQ(Bus::open(Bus::Kind::System, "libweft-no-such-library.so.0"), nullptr);
}

TEST_F(DesktopServicesTest, ABusThatComesLaterIsFound) {
  int asked = 0;
  DesktopServices services([&](Bus::Kind kind) { return ++asked < 2 ? nullptr : Bus::open(kind); });
  user_.games = 1;
  int looks = 1;
  while (!services.game_runs()) ASSERT_LT(++looks, 100);
  EXPECT_EQ(asked, 2) << "in " << looks << " looks";
}

TEST_F(DesktopServicesTest, TheWatchSeesWhatItsRulesAreAbout) {
  const test::Scratch scratch;
  const fs::path root = scratch.folder();
  fs::create_directories(root / "sys/class/power_supply/BAT0");
  scratch.write("sys/class/power_supply/BAT0/type", "Battery\n");
  scratch.write("sys/class/power_supply/BAT0/status", "Discharging\n");
  user_.games = 1;
  system_.idle = true;
  MannersRules rules;
  rules.pause_for_games = true;
  rules.idle = seconds(60);
  rules.on_battery = false;
  rules.celsius_max = 80;
  {
    const MachineWatch watch({.rules = rules, .root = root});
    const MannersReadings seen = watch.latest();
    EXPECT_TRUE(seen.on_battery);
    EXPECT_TRUE(seen.game);
    EXPECT_GT(seen.idle.value_or(Duration{}), Duration{});
    EXPECT_FALSE(seen.hottest);
  }
  const MachineWatch watch({.rules = {}, .root = root});
  EXPECT_FALSE(watch.latest().on_battery) << "nobody wants to know";
  EXPECT_FALSE(watch.latest().game);
}

TEST_F(DesktopServicesTest, TheWatchLetsTheMachineSleepWhenItIsTold) {
  MachineWatch watch({.rules = {}, .look_every = std::chrono::milliseconds(1)});
  ASSERT_TRUE(system_.is_delayed());
  system_.about_to_sleep = true;
  while (!watch.latest().about_to_sleep) std::this_thread::yield();
  EXPECT_TRUE(system_.is_delayed());
  watch.let_it_sleep();
  while (system_.is_delayed()) std::this_thread::yield();
  system_.about_to_sleep = false;
  while (!system_.is_delayed() || watch.latest().about_to_sleep) std::this_thread::yield();
}

}  // namespace
}  // namespace weft::peer
