#include "base/printable.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace weft {
namespace {

TEST(Printable, LeavesWhatPeopleWrite) {
  for (const std::string text : {"", "peer-1", "Zoë's 机器", "a \"b\" = c\\d", "\U0001F980", "\u00a0"})
    EXPECT_EQ(printable(text), text);
  EXPECT_EQ(printable("two\nlines\tof it", Lines::Many), "two\nlines\tof it");
}

TEST(Printable, WhatATerminalWouldObeyIsReplaced) {
  EXPECT_EQ(printable("a\nb\rc\td"), "a?b?c?d");
  EXPECT_EQ(printable("a\nb\rc", Lines::Many), "a\nb?c");
  EXPECT_EQ(printable("\x1b[2J\x1b]0;title\x07"), "?[2J?]0;title?");
  EXPECT_EQ(printable(std::string_view("nul\0del\x7f", 8)), "nul?del?");
  EXPECT_EQ(printable("csi \u009b31m"), "csi ?31m");
  EXPECT_EQ(printable("a\u2028b\u202egnp.exe\u2066"), "a?b?gnp.exe?");
}

TEST(Printable, BytesThatAreNoUtf8AreReplacedOneByOne) {
  EXPECT_EQ(printable("a\xff"), "a?");
  EXPECT_EQ(printable("\xc0\x8a"), "??");            // an overlong line feed
  EXPECT_EQ(printable("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "????");  // beyond the last
  EXPECT_EQ(printable("\xe2\x82"), "??");            // cut
}

TEST(Printable, RandomBytesComeOutPrintableAndStaySo) {
  Rng rng(7, 0);
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (uint64_t size = rng.below(12); size > 0; --size)
      text += static_cast<char>(rng.below(4) == 0 ? rng.below(0x30) : rng.below(256));
    const std::string once = printable(text);
    EXPECT_EQ(printable(once), once);
    EXPECT_LE(once.size(), text.size());
    EXPECT_EQ(once.find_first_of("\n\r\x1b"), std::string::npos);
  }
}

}  // namespace
}  // namespace weft
