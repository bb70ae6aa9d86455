// What is read of power, heat and programs, from files as the kernel has them on machines of several kinds.
#include "peer/desktop/system_files.h"

#include <gtest/gtest.h>

#include "peer/desktop/gpu_heat.h"
#include "tests/support/scratch.h"

namespace weft::peer {
namespace {
namespace fs = std::filesystem;

class SystemFiles : public testing::Test {
 protected:
  void file(const std::string& path, const std::string& text) const {
    fs::create_directories((root() / path).parent_path());
    scratch_.write(path, text);
  }
  void supply(const std::string& name, const std::string& type, const std::string& key,
              const std::string& value) const {
    file("sys/class/power_supply/" + name + "/type", type + "\n");
    file("sys/class/power_supply/" + name + "/" + key, value + "\n");
  }
  void program(int process, const std::string& comm, const std::string& command) const {
    file("proc/" + std::to_string(process) + "/comm", comm + "\n");
    file("proc/" + std::to_string(process) + "/cmdline", command);
  }
  fs::path root() const { return scratch_.folder(); }
  test::Scratch scratch_;
};

TEST_F(SystemFiles, ADesktopIsOnMains) {
  EXPECT_FALSE(is_on_battery(root()));
  fs::create_directories(root() / "sys/class/power_supply");
  EXPECT_FALSE(is_on_battery(root()));
  supply("hidpp_battery_0", "Battery", "scope", "Device");
  supply("hidpp_battery_0", "Battery", "status", "Discharging");
  EXPECT_FALSE(is_on_battery(root())) << "a mouse's";
}

TEST_F(SystemFiles, ALaptopIsOnBatteryWhenNothingElseGivesPower) {
  supply("BAT0", "Battery", "status", "Discharging");
  supply("AC", "Mains", "online", "0");
  EXPECT_TRUE(is_on_battery(root()));
  supply("AC", "Mains", "online", "1");
  EXPECT_FALSE(is_on_battery(root())) << "a weak supply lets the battery discharge, too";
  supply("AC", "Mains", "online", "0");
  supply("BAT0", "Battery", "status", "Not charging");
  EXPECT_TRUE(is_on_battery(root())) << "no mains, whatever the battery says";
  supply("ucsi-source-psy-1", "USB", "online", "1");
  EXPECT_FALSE(is_on_battery(root())) << "by its USB port";
  supply("ucsi-source-psy-1", "USB", "online", "nonsense");
  EXPECT_TRUE(is_on_battery(root()));
  file("sys/class/power_supply/BAT0/present", "0\n");
  EXPECT_FALSE(is_on_battery(root())) << "the battery was taken out";
}

TEST_F(SystemFiles, ABatteryAloneSaysWhetherItGives) {
  supply("BAT1", "Battery", "status", "Charging");
  EXPECT_FALSE(is_on_battery(root()));
  supply("BAT1", "Battery", "status", "Discharging");
  EXPECT_TRUE(is_on_battery(root()));
}

TEST_F(SystemFiles, TheHottestSensorOfTheProcessorCounts) {
  EXPECT_FALSE(hottest_of_processor(root()));
  file("sys/class/hwmon/hwmon0/name", "nvme\n");
  file("sys/class/hwmon/hwmon0/temp1_input", "95000\n");
  EXPECT_FALSE(hottest_of_processor(root())) << "a disk is none";
  file("sys/class/thermal/thermal_zone0/type", "acpitz\n");
  file("sys/class/thermal/thermal_zone0/temp", "27800\n");
  ASSERT_TRUE(hottest_of_processor(root())) << "better than none";
  EXPECT_EQ(hottest_of_processor(root())->where, "acpitz");
  file("sys/class/hwmon/hwmon1/name", "coretemp\n");
  file("sys/class/hwmon/hwmon1/temp1_input", "61000\n");
  file("sys/class/hwmon/hwmon1/temp2_input", "64500\n");
  file("sys/class/hwmon/hwmon1/temp3_input", "255000\n");
  file("sys/class/hwmon/hwmon1/temp4_input", "12 hot\n");
  file("sys/class/hwmon/hwmon1/temp1_max", "100000\n");
  EXPECT_EQ(hottest_of_processor(root())->celsius, 64.5);
  EXPECT_EQ(hottest_of_processor(root())->where, "coretemp");
  file("sys/class/thermal/thermal_zone1/type", "x86_pkg_temp\n");
  file("sys/class/thermal/thermal_zone1/temp", "66000\n");
  EXPECT_EQ(hottest_of_processor(root())->where, "x86_pkg_temp");
}

TEST_F(SystemFiles, ProgramsAreFoundByTheirNames) {
  EXPECT_EQ(program_that_runs({"steam"}, root()), "");
  program(1, "systemd", "/sbin/init");
  program(17, "steamwebhelper", "steamwebhelper");
  file("proc/self/comm", "Steam\n");  // no process of its own
  EXPECT_EQ(program_that_runs({"steam"}, root()), "") << "no name's beginning";
  program(23, "Steam", "/home/a/.steam/steam");
  EXPECT_EQ(program_that_runs({"blender", "steam"}, root()), "steam");
  program(24, "blender", "blender");
  EXPECT_EQ(program_that_runs({"blender", "steam"}, root()), "blender") << "the first of the list";
  program(25, "a-very-long-nam", "/opt/a-very-long-name-of-a-game" + std::string(1, '\0') + "--fullscreen");
  EXPECT_EQ(program_that_runs({"a-very-long-name-of-a-game"}, root()), "a-very-long-name-of-a-game");
  EXPECT_EQ(program_that_runs({"a-very-long-nam"}, root()), "");
  EXPECT_EQ(program_that_runs({}, root()), "");
}

TEST_F(SystemFiles, AsleepIsWhatTheClocksSay) {
  EXPECT_GE(time_asleep(), Duration{});
  EXPECT_EQ(time_asleep(root()), Duration{});
  file("asleep", "90\n");
  EXPECT_EQ(time_asleep(root()), std::chrono::seconds(90));
}

TEST(GpuHeat, IsThatOfTheHottestThatAnswers) {
  const auto gpus = GpuHeat::open(WEFT_FAKE_NVML);
  ASSERT_TRUE(gpus);
  ASSERT_TRUE(gpus->hottest());
  EXPECT_EQ(gpus->hottest()->celsius, 71);
  EXPECT_EQ(gpus->hottest()->where, "GPU 2");
}

TEST(GpuHeat, NoLibraryIsNoGpu) {
  EXPECT_FALSE(GpuHeat::open("libweft-no-such-library.so.1"));
  EXPECT_FALSE(GpuHeat::open("libc.so.6")) << "another library";
}

}  // namespace
}  // namespace weft::peer
