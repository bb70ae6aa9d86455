// What `weft doctor` says of a machine: each check over files that stand for the system's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "cli/doctor/check.h"
#include "cli/doctor/machine.h"
#include "tests/support/scratch.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

class DoctorMachine : public testing::Test {
 protected:
  const fs::path& root() const { return scratch_.folder(); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root() / path).parent_path());
    scratch_.write(path, text);
  }
  void mask(const std::string& unit) {
    fs::create_directories(root() / "etc/systemd/system");
    fs::create_symlink("/dev/null", root() / "etc/systemd/system" / unit);
  }
  void add_card() {
    write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    write("sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
  }
  test::Scratch scratch_;
};

void expect(const Check& check, CheckState state, const std::string& seen, const std::string& advice) {
  EXPECT_EQ(check.state, state) << check_line(check);
  EXPECT_NE(check.seen.find(seen), std::string::npos) << check_line(check);
  EXPECT_NE(check.advice.find(advice), std::string::npos) << check_line(check);
  EXPECT_EQ(check.advice.empty(), state == CheckState::Ok) << check_line(check);
}

// ---- device and driver

TEST_F(DoctorMachine, ADeviceThatDoesNotOpenStopsWork) {
  const auto works = [] { return Result<std::string>("oneDNN"); };
  const auto fails = []() -> Result<std::string> { return fail(ErrorCode::Unsupported, "no libcudnn.so.9"); };
  expect(check_device("cpu", works), CheckState::Ok, "cpu works: oneDNN", "");
  expect(check_device("cuda:1", fails), CheckState::Stops, "cuda:1 does not work: no libcudnn.so.9",
         "--device cpu");
}

TEST_F(DoctorMachine, WithoutACardOnlyAGpusPeerLacksADriver) {
  expect(check_driver(root(), false), CheckState::Ok, "no NVIDIA card", "");
  expect(check_driver(root(), true), CheckState::Stops, "no NVIDIA card", "--gpus all");
}

TEST_F(DoctorMachine, ACardWithoutADriverIsNamed) {
  add_card();
  expect(check_driver(root(), false), CheckState::Warning, "but no driver", "580 or newer");
  write("sys/module/nouveau/refcnt", "1");
  expect(check_driver(root(), true), CheckState::Stops, "nouveau, which cannot compute", "580 or newer");
}

TEST_F(DoctorMachine, AnotherMakersCardIsNone) {
  write("sys/bus/pci/devices/0000:01:00.0/vendor", "0x1002\n");
  write("sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
  write("sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");  // sound over HDMI
  write("sys/bus/pci/devices/0000:02:00.0/class", "0x040300\n");
  expect(check_driver(root(), false), CheckState::Ok, "no NVIDIA card", "");
}

TEST_F(DoctorMachine, ADriverThatIsTooOldIsNamed) {
  add_card();
  write("proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n");
  expect(check_driver(root(), false), CheckState::Warning, "535.183.01", "580 or newer");
  expect(check_driver(root(), true), CheckState::Stops, "535.183.01", "580 or newer");
  write("sys/module/nvidia/version", "580.65.06\n");
  expect(check_driver(root(), true), CheckState::Ok, "580.65.06", "");
}

// ---- memory, groups, descriptors

TEST_F(DoctorMachine, MemoryIsWhatIsFree) {
  expect(check_memory(root()), CheckState::Warning, "does not say", "--memory");
  write("proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n");
  expect(check_memory(root()), CheckState::Ok, "16.0 GiB are free", "");
  write("proc/meminfo", "MemAvailable: 524288 kB\n");
  expect(check_memory(root()), CheckState::Warning, "512.0 MiB are free", "end other programs");
  write("proc/meminfo", "MemAvailable: 65536 kB\n");
  expect(check_memory(root()), CheckState::Stops, "64.0 MiB are free", "70 MB");
}

TEST_F(DoctorMachine, TheTightestOfTheGroupsCounts) {
  expect(check_groups(root(), 8), CheckState::Ok, "no control group", "");
  write("proc/self/cgroup", "0::/user.slice/weft.scope\n");
  write("sys/fs/cgroup/user.slice/memory.max", "2147483648\n");
  write("sys/fs/cgroup/user.slice/weft.scope/memory.max", "max\n");
  write("sys/fs/cgroup/user.slice/cpu.max", "800000 100000\n");
  expect(check_groups(root(), 8), CheckState::Ok, "memory 2.0 GiB, 8 of 8 processors", "");
  write("sys/fs/cgroup/user.slice/weft.scope/cpu.max", "150000 100000\n");
  expect(check_groups(root(), 8), CheckState::Warning, "1.5 of 8 processors", "--device cpu:1");
  write("sys/fs/cgroup/user.slice/weft.scope/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/user.slice/weft.scope/pids.max", "20\n");
  expect(check_groups(root(), 8), CheckState::Warning, "20 threads", "pids.max");
}

TEST_F(DoctorMachine, AContainersOwnGroupIsTheRoot) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  expect(check_groups(root(), 2), CheckState::Warning, "0.5 of 2 processors", "--device cpu:1");
}

TEST_F(DoctorMachine, AGroupOfNonsenseLimitsNothing) {
  write("proc/self/cgroup", "0::/../../..\n");
  write("sys/fs/cgroup/cpu.max", "all 0\n");
  write("sys/fs/cgroup/pids.max", "-1\n");
  expect(check_groups(root(), 2), CheckState::Ok, "no control group", "");
}

TEST_F(DoctorMachine, FewDescriptorsAreNamed) {
  const auto with = [this](const std::string& soft) {
    write("proc/self/limits",
          "Limit                     Soft Limit           Hard Limit           Units     \n"
          "Max processes             95765                95765                processes \n"
          "Max open files            " +
              soft + "                 524288               files     \n");
    return check_descriptors(root());
  };
  expect(check_descriptors(root() / "none"), CheckState::Warning, "does not say", "");
  expect(with("1024"), CheckState::Ok, "1024 files may be open", "");
  expect(with("unlimited"), CheckState::Ok, "any number", "");
  expect(with("256"), CheckState::Warning, "256 files", "ulimit -n");
  expect(with("64"), CheckState::Stops, "64 files", "LimitNOFILE");
}

// ---- disk

TEST_F(DoctorMachine, AFolderThatIsNotThereYetIsJudgedByTheOneAboveIt) {
  const Check check = check_disk(root() / "not/there/yet");
  EXPECT_NE(check.state, CheckState::Stops) << check_line(check);
  EXPECT_NE(check.seen.find(root().string() + ":"), std::string::npos) << check_line(check);
  EXPECT_TRUE(fs::is_empty(root())) << "nothing is left there";
}

TEST_F(DoctorMachine, AFolderThatTakesNoFilesStopsWork) {
  const Check check = check_disk("/proc/self");
  EXPECT_EQ(check.state, CheckState::Stops) << check_line(check);
  EXPECT_NE(check.seen.find("/proc/self cannot be written"), std::string::npos) << check_line(check);
  EXPECT_NE(check.advice.find("--data-dir"), std::string::npos) << check_line(check);
}

// ---- sleep

TEST_F(DoctorMachine, WhatCannotSleepDoesNot) {
  expect(check_sleep(root()), CheckState::Ok, "cannot sleep", "");
  write("sys/power/state", "freeze mem disk\n");
  write("etc/systemd/logind.conf", "[Login]\nIdleAction=suspend\n");
  expect(check_sleep(root()), CheckState::Warning, "for 30min systemd does: suspend", "IdleAction=ignore");
  write("etc/systemd/sleep.conf.d/never.conf", "[Sleep]\nAllowSuspend=no\n");
  expect(check_sleep(root()), CheckState::Ok, "sleep.conf", "");
  fs::remove(root() / "etc/systemd/sleep.conf.d/never.conf");
  mask("sleep.target");
  expect(check_sleep(root()), CheckState::Ok, "masked", "");
}

TEST_F(DoctorMachine, DropInsWinAndCommentsDoNotCount) {
  write("sys/power/state", "freeze mem\n");
  write("usr/lib/systemd/logind.conf", "[Login]\nIdleAction=suspend\n");
  write("etc/systemd/logind.conf", "#IdleAction=hibernate\n; IdleAction=poweroff\n");
  write("etc/systemd/logind.conf.d/10-weft.conf", "[Login]\n IdleAction = ignore \n");
  expect(check_sleep(root()), CheckState::Ok, "nothing of systemd's settings", "");
  write("etc/systemd/logind.conf.d/20-again.conf", "IdleAction=hybrid-sleep\nIdleActionSec=5min\n");
  expect(check_sleep(root()), CheckState::Warning, "for 5min systemd does: hybrid-sleep", "systemd-inhibit");
}

TEST_F(DoctorMachine, ALaptopIsToldOfItsLidAndItsBattery) {
  write("sys/power/state", "mem\n");
  write("proc/acpi/button/lid/LID0/state", "state: open\n");
  expect(check_sleep(root()), CheckState::Warning, "when its lid is closed systemd does: suspend",
         "leave it open");
  write("etc/systemd/logind.conf", "HandleLidSwitch=ignore\n");
  expect(check_sleep(root()), CheckState::Ok, "nothing of systemd's settings", "");
  write("sys/class/power_supply/BAT0/type", "Battery\n");
  write("sys/class/power_supply/BAT0/status", "Discharging\n");
  write("sys/class/power_supply/AC/type", "Mains\n");
  write("sys/class/power_supply/AC/online", "0\n");
  expect(check_sleep(root()), CheckState::Warning, "it runs on its battery", "plug it in");
  write("sys/class/power_supply/BAT0/status", "Charging\n");
  write("sys/class/power_supply/AC/online", "1\n");
  expect(check_sleep(root()), CheckState::Ok, "nothing of systemd's settings", "");
}

TEST_F(DoctorMachine, AMousesBatteryIsNobodysConcern) {
  write("sys/class/power_supply/hid/type", "Battery\n");
  write("sys/class/power_supply/hid/scope", "Device\n");
  write("sys/class/power_supply/hid/status", "Discharging\n");
  expect(check_sleep(root()), CheckState::Ok, "cannot sleep", "");
}

// ---- what is said of them all

TEST(DoctorLines, OneLineEachAndNothingThatMovesACursor) {
  const Check check{"tls", CheckState::Stops, "a\nb\x1b[2J", "go"};
  EXPECT_EQ(check_line(check), "stops    tls          a?b?[2J. To do: go");
  EXPECT_EQ(check_line({"tls", CheckState::Ok, "TLS 1.3"}), "ok       tls          TLS 1.3");
  EXPECT_EQ(check_event(check),
            R"({"event":"check","check":"tls","state":"stops","text":"a\nb\u001b[2J","advice":"go"})");
}

TEST(DoctorLines, TheResultNamesWhatStopsAndWhatToLookAt) {
  Checks checks{{"tls", CheckState::Ok, "TLS 1.3"}};
  EXPECT_EQ(result_line(checks), "nothing is wrong");
  EXPECT_EQ(result_event(checks), R"({"event":"result","status":"completed","stops":[],"warnings":[]})");
  checks.push_back({"dial", CheckState::Warning, "one"});
  checks.push_back({"dial", CheckState::Warning, "two"});
  EXPECT_EQ(result_line(checks), "it works; look at: dial");
  EXPECT_FALSE(any_stops(checks));
  checks.push_back({"disk", CheckState::Stops, "full"});
  EXPECT_EQ(result_line(checks), "it cannot work: disk; look at: dial");
  EXPECT_EQ(result_event(checks),
            R"({"event":"result","status":"failed","stops":["disk"],"warnings":["dial"]})");
  EXPECT_TRUE(any_stops(checks));
}

}  // namespace
}  // namespace weft::cli
