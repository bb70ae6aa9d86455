// Whose turn it is: what a served model is asked goes ahead, and training is not starved by it.
#include "peer/service/turns.h"

#include <gtest/gtest.h>

#include <string>

namespace weft::peer::test {
namespace {

struct Written {
  Turns turns;
  std::string text;
  void add(char what) {
    if (std::isupper(what) != 0)
      turns.add_ahead([this, what] { text += what; });
    else
      turns.add([this, what] { text += what; });
  }
  std::string take(size_t count) {
    text.clear();
    for (size_t i = 0; i < count; ++i) turns.take_one();
    return text;
  }
};

TEST(Turns, EachKindKeepsItsOrderAndWhatIsServedGoesAhead) {
  Written written;
  for (const char what : {'a', 'b', 'A', 'B', 'c'}) written.add(what);
  EXPECT_EQ(written.take(5), "ABabc");
}

TEST(Turns, NobodyIsStarved) {
  Written written;
  written.add('a');
  written.add('b');
  for (char what = 'A'; what <= 'L'; ++what) written.add(what);
  EXPECT_EQ(written.take(14), "ABCDaEFGHbIJKL");
  // However many have gone alone, they do not wait for one that comes later.
  for (char what = 'A'; what <= 'H'; ++what) written.add(what);
  EXPECT_EQ(written.take(6), "ABCDEF");
  written.add('a');
  EXPECT_EQ(written.take(3), "aGH");
}

TEST(Turns, OneMayAddAnother) {
  Written written;
  written.turns.add([&] { written.add('A'); });
  written.add('b');
  EXPECT_EQ(written.take(3), "Ab");
}

}  // namespace
}  // namespace weft::peer::test
