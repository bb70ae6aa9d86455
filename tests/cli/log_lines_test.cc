#include "cli/log_lines.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft::cli {
namespace {

struct Written {
  std::vector<std::string> lines;
  Instant now{};
  LogLines log{[this](const std::string& line) { lines.push_back(line); }, [this] { return now; }};
};

TEST(LogLines, EachEventIsOneLine) {
  Written written;
  written.log("info peer_says peer=a text=\"x\nerror disk_full\x1b[2J\"");
  ASSERT_EQ(written.lines.size(), 1u);
  EXPECT_EQ(written.lines[0], "info peer_says peer=a text=\"x?error disk_full?[2J\"");
}

TEST(LogLines, ALongLineIsCutAndSaysSo) {
  Written written;
  written.log("info peer_says text=" + std::string(100'000, 'x'));
  EXPECT_LE(written.lines.at(0).size(), LogLines::kLineMax + 50);
  EXPECT_NE(written.lines[0].find("(100020 bytes)"), std::string::npos) << written.lines[0].substr(2000);
}

TEST(LogLines, AnEventThatFloodsIsLeftOutAndCountedAndOthersAreNot) {
  Written written;
  for (int i = 0; i < 10'000; ++i) written.log("info noise");
  written.log("warning other");
  EXPECT_EQ(written.lines.size(), static_cast<size_t>(LogLines::kAtOnce) + 1);
  EXPECT_EQ(written.lines.back(), "warning other");
  written.now += std::chrono::milliseconds(1000 / LogLines::kPerSecond);
  written.log("info noise");
  EXPECT_EQ(written.lines.back(), "info noise left_out=9500");
  written.log("info noise");
  EXPECT_EQ(written.lines.size(), static_cast<size_t>(LogLines::kAtOnce) + 2);
}

TEST(LogLines, LinesWithoutAnEventAreWritten) {
  Written written;
  for (const char* line : {"", "word", " ", "two words"}) written.log(line);
  EXPECT_EQ(written.lines, (std::vector<std::string>{"", "word", " ", "two words"}));
}

}  // namespace
}  // namespace weft::cli
