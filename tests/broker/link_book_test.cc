// What is believed of links, against emulated clusters whose truth is known.
#include "broker/link_book.h"

#include <gtest/gtest.h>

namespace weft::broker {
namespace {

PeerId peer(uint8_t n) {
  PeerId id;
  id.digest.bytes[0] = n;
  return id;
}

TEST(LinkBook, AllPairsOfAFewAreMeasuredAndThenNoMore) {
  const std::vector<PeerId> peers{peer(1), peer(2), peer(3)};
  LinkBook book;
  for (int i = 0; i < 3; ++i) {
    const auto round = book.next_round(peers, {});
    ASSERT_EQ(round.size(), 1u);
    book.record({.from = round[0].dials, .to = round[0].accepts, .bytes_per_second = 1e6});
    book.record({.from = round[0].accepts, .to = round[0].dials, .bytes_per_second = 2e6});
  }
  EXPECT_FALSE(book.wants_more(peers, {}));
}

}  // namespace
}  // namespace weft::broker
