// Where a link is dialled next, and when.
#include "peer/machine/link_dialling.h"

#include <gtest/gtest.h>

namespace weft::peer {
namespace {

using std::chrono::milliseconds;

std::string dialled(LinkDialling& dialling) {
  std::string address = dialling.begin(/*over_relay=*/false);
  EXPECT_TRUE(dialling.is_under_way());
  EXPECT_TRUE(dialling.end());
  EXPECT_FALSE(dialling.end()) << "ends once";
  return address;
}

TEST(LinkDialling, EachAddressHasItsTurnAndThenTheRelay) {
  LinkDialling dialling(/*dials=*/true, {"a", "b"});
  for (const char* expected : {"a", "b", "", "a"}) {
    EXPECT_EQ(dialled(dialling), expected);
    EXPECT_EQ(dialling.is_over_relay(), std::string(expected).empty());
    dialling.fail("refused by " + std::string(expected));
  }
  EXPECT_EQ(dialling.problems(), "a: refused by a; b: refused by b; relay: refused by ");
}

TEST(LinkDialling, WhatWorkedIsDialledFirst) {
  LinkDialling dialling(/*dials=*/true, {"a", "b"});
  (void)dialled(dialling);
  dialling.fail("refused");
  ASSERT_EQ(dialled(dialling), "b");
  dialling.came_up(/*relayed=*/false);
  EXPECT_EQ(dialling.problems(), "nobody came") << "those before it came up do not matter any more";
  EXPECT_EQ(dialled(dialling), "b");
  ASSERT_NE(dialling.address(), nullptr);
  EXPECT_EQ(*dialling.address(), "b");
  dialling.go_on();
  EXPECT_EQ(dialling.address(), nullptr) << "the relay";
}

TEST(LinkDialling, PausesGrowOnceEachPlaceWasTried) {
  LinkDialling dialling(/*dials=*/true, {"a", "b"});
  const auto pause = [&] { return dialling.pause(milliseconds(150)); };
  for (int i = 0; i < 3; ++i, dialling.count_try()) EXPECT_EQ(pause(), milliseconds(0)) << i;
  for (int i = 0; i < 3; ++i, dialling.count_try()) EXPECT_EQ(pause(), milliseconds(100)) << i;
  for (int i = 0; i < 100; ++i, dialling.count_try()) EXPECT_EQ(pause(), milliseconds(150)) << i;
  dialling.something_came();
  EXPECT_EQ(pause(), milliseconds(0));
}

TEST(LinkDialling, WhoWaitsGoesByItselfOnlyOnceTheRelayWorked) {
  LinkDialling dialling(/*dials=*/false, {});
  EXPECT_FALSE(dialling.goes_by_itself());
  dialling.came_up(/*relayed=*/false);
  EXPECT_FALSE(dialling.goes_by_itself());
  dialling.came_up(/*relayed=*/true);
  EXPECT_TRUE(dialling.goes_by_itself());
  EXPECT_EQ(dialled(dialling), "");
}

// Of a link that was up each place has two turns before the link has failed, but no handshake is cut off.
TEST(LinkDialling, ALinkThatWasUpHasLessTimeForEachPlace) {
  const LinkTimes times{.address_deadline = milliseconds(5000), .heal_deadline = milliseconds(16000)};
  const LinkDialling few(/*dials=*/true, {"a"});
  EXPECT_EQ(few.deadline(times, /*was_up=*/false), milliseconds(5000));
  EXPECT_EQ(few.deadline(times, /*was_up=*/true), milliseconds(4000));
  const LinkDialling many(/*dials=*/true, std::vector<std::string>(20, "a"));
  EXPECT_EQ(many.deadline(times, /*was_up=*/true), milliseconds(1500));
  const LinkDialling waits(/*dials=*/false, {});
  EXPECT_EQ(waits.deadline(times, /*was_up=*/true), milliseconds(5000));
}

}  // namespace
}  // namespace weft::peer
