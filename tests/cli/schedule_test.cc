// The hours of a peer: what they mean at which civil time, and what comes of summer time.
#include "cli/schedule.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "cli/attendance.h"

namespace weft::cli {
namespace {

CivilTime at(int weekday, int hour, int minute = 0) { return {weekday, hour * 60 + minute}; }
constexpr int kMon = 0, kTue = 1, kFri = 4, kSat = 5, kSun = 6;

Schedule parsed(std::string_view text) {
  const auto schedule = Schedule::parse(text);
  EXPECT_TRUE(schedule) << text << ": " << (schedule ? "" : schedule.error().message);
  return schedule.value_or(Schedule{});
}

TEST(Schedule, OpenAndClosed) {
  struct Case {
    const char* text;
    CivilTime time;
    bool open;
    const char* changes;  // next
  };
  const Case cases[] = {
      {"09:00-17:00", at(kMon, 8, 59), false, "mon 09:00"},
      {"09:00-17:00", at(kMon, 9), true, "mon 17:00"},
      {"09:00-17:00", at(kMon, 16, 59), true, "mon 17:00"},
      {"09:00-17:00", at(kMon, 17), false, "tue 09:00"},
      {"09:00-17:00", at(kSun, 18), false, "mon 09:00"},
      {"22:00-07:00", at(kMon, 21, 59), false, "mon 22:00"},
      {"22:00-07:00", at(kMon, 22), true, "tue 07:00"},
      {"22:00-07:00", at(kMon, 0), true, "mon 07:00"},
      {"22:00-07:00", at(kSun, 23), true, "mon 07:00"},
      {"22:00-07:00", at(kTue, 7), false, "tue 22:00"},
      {"fri 22:00-07:00", at(kFri, 6), false, "fri 22:00"},
      {"fri 22:00-07:00", at(kSat, 6, 59), true, "sat 07:00"},
      {"fri 22:00-07:00", at(kSat, 22), false, "fri 22:00"},
      {"sun 22:00-07:00", at(kMon, 3), true, "mon 07:00"},
      {"sat-mon 00:00-24:00", at(kSun, 12), true, "tue 00:00"},
      {"sat-mon 00:00-24:00", at(kTue, 0), false, "sat 00:00"},
      {"mon-fri 22:00-07:00, sat-sun 00:00-24:00", at(kFri, 23), true, "mon 00:00"},
      {"mon-fri 22:00-07:00, sat-sun 00:00-24:00", at(kMon, 1), false, "mon 22:00"},
      {" 12:00-13:00 ,12:30-14:00", at(kMon, 12), true, "mon 14:00"},
      {"00:00-24:00", at(kMon, 12), true, ""},
      {"22:00-00:00", at(kMon, 23, 59), true, "tue 00:00"},
      {"22:00-24:00", at(kMon, 23, 59), true, "tue 00:00"},
  };
  for (const Case& one : cases) {
    const Schedule schedule = parsed(one.text);
    EXPECT_EQ(schedule.is_open(one.time), one.open) << one.text << " at " << to_string(one.time);
    const auto change = schedule.next_change(one.time);
    EXPECT_EQ(change ? to_string(*change) : "", one.changes) << one.text << " at " << to_string(one.time);
  }
}

TEST(Schedule, WhatIsWrongIsSaid) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no range"},
      {"22:00", "no range"},
      {"22:00-07:00,", "no range"},
      {"22-7", "times"},
      {"24:00-07:00", "times"},
      {"22:00-24:01", "times"},
      {"22:60-07:00", "times"},
      {"-1:00-07:00", "times"},
      {"22:00-07:00-08:00", "times"},
      {"08:00-08:00", "begins when it ends"},
      {"monday 22:00-07:00", "days"},
      {"mon- 22:00-07:00", "days"},
      {"mon-fri-sun 22:00-07:00", "days"},
      {"Mon 22:00-07:00", "days"},
  };
  for (const auto& [text, why] : cases) {
    const auto schedule = Schedule::parse(text);
    ASSERT_FALSE(schedule) << text;
    EXPECT_EQ(schedule.error().code, ErrorCode::InvalidArgument);
    EXPECT_NE(schedule.error().message.find(why), std::string::npos)
        << text << ": " << schedule.error().message;
    EXPECT_NE(schedule.error().message.find("--schedule"), std::string::npos);
  }
  EXPECT_FALSE(Schedule::parse(std::string(5000, 'x')));
}

class InBerlin : public testing::Test {
 protected:
  InBerlin() {
    const char* before = std::getenv("TZ");
    if (before != nullptr) before_ = before;
    ::setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);  // needs no table of zones
  }
  ~InBerlin() override {
    if (before_)
      ::setenv("TZ", before_->c_str(), 1);
    else
      ::unsetenv("TZ");
    ::tzset();
  }
  static int64_t utc(int month, int day, int hour) {
    std::tm parts{};
    parts.tm_year = 2026 - 1900;
    parts.tm_mon = month - 1;
    parts.tm_mday = day;
    parts.tm_hour = hour;
    return ::timegm(&parts);
  }
  // Of the 24 hours from noon of that day in UTC.
  static double hours_open(const Schedule& schedule, int month, int day) {
    int minutes = 0;
    for (int64_t i = 0; i < 24 * 60; ++i)
      minutes += schedule.is_open(civil_time(utc(month, day, 12) + i * 60));
    return minutes / 60.0;
  }
  std::optional<std::string> before_;
};

TEST_F(InBerlin, CivilTimeIsThatOfTheWall) {
  EXPECT_EQ(to_string(civil_time(utc(1, 5, 6))), "mon 07:00");
  EXPECT_EQ(to_string(civil_time(utc(7, 5, 22))), "mon 00:00");
}

// The night of 29 March has no 02:00 to 03:00, that of 25 October has it twice.
TEST_F(InBerlin, ANightIsAnHourShorterOrLonger) {
  const Schedule nights = parsed("22:00-07:00"), hour = parsed("02:00-03:00");
  EXPECT_EQ(hours_open(nights, 3, 27), 9);
  EXPECT_EQ(hours_open(nights, 3, 28), 8);
  EXPECT_EQ(hours_open(nights, 10, 24), 10);
  EXPECT_EQ(hours_open(hour, 3, 28), 0);
  EXPECT_EQ(hours_open(hour, 10, 24), 2);
}

TEST(Attendance, WorksWithinItsHoursAndWhileItIsNotPaused) {
  using std::chrono::hours;
  Attendance attendance(parsed("09:00-17:00"));
  const auto now = [](int hour) { return Attendance::Now{Instant(hours(hour)), at(kMon, hour)}; };
  EXPECT_FALSE(attendance.is_open(now(8)));
  EXPECT_EQ(attendance.describe(now(8)), "outside of its hours until mon 09:00");
  EXPECT_TRUE(attendance.is_open(now(9)));
  EXPECT_EQ(attendance.describe(now(9)), "at work until mon 17:00");
  attendance.pause(hours(2), now(10).clock);
  EXPECT_FALSE(attendance.is_open(now(11)));
  EXPECT_EQ(attendance.describe(now(11)), "paused for 1h 00m more");
  EXPECT_TRUE(attendance.is_open(now(12)));
  EXPECT_FALSE(attendance.resume(now(12).clock)) << "it was over";
  attendance.pause({}, now(12).clock);
  EXPECT_FALSE(attendance.is_open(now(16)));
  EXPECT_NE(attendance.describe(now(16)).find("weft pause --off"), std::string::npos);
  attendance.pause(hours(1), now(12).clock);  // the last word counts
  EXPECT_TRUE(attendance.is_open(now(16)));
  attendance.pause({}, now(16).clock);
  EXPECT_TRUE(attendance.resume(now(18).clock));
  EXPECT_FALSE(attendance.is_open(now(18))) << "hours are not ended by it";
  EXPECT_TRUE(Attendance().is_open(now(3)));
  EXPECT_EQ(Attendance().describe(now(3)), "at work");
}

}  // namespace
}  // namespace weft::cli
