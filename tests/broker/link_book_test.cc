// What is believed of links, against clusters whose truth is known.
#include "broker/links/link_book.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <iostream>
#include <limits>
#include <set>

#include "tests/broker/link_truth.h"
#include "tests/support/keys.h"

namespace weft::broker {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;

bool operator==(const plan::ClusterView& a, const plan::ClusterView& b) {
  for (size_t i = 0; i < a.devices().size(); ++i)
    for (size_t k = 0; k < a.devices().size(); ++k)
      if (i != k && a.link(i, k) != b.link(i, k)) return false;
  return true;
}

using test::key;

// Both directions.
void record(LinkBook& book, const PeerId& a, const PeerId& b, double rate,
            Duration round_trip = milliseconds(10), Instant at = {}) {
  book.record({a, b, rate, round_trip, false, at});
  book.record({b, a, rate, round_trip, false, at});
}

TEST(LinkBook, AllPairsOfAFewAreMeasuredWithoutAnybodyWaiting) {
  for (const uint32_t count : {2u, 5u, 12u, 16u}) {
    Truth truth(1, count, 1);
    LinkBook book;
    const Effort effort = measure(book, truth, 0);
    EXPECT_EQ(effort.probes, count * (count - 1) / 2);
    EXPECT_EQ(effort.rounds, count - 1 + count % 2) << count;
  }
}

// What lies between two machines of one home is known before what lies between homes.
TEST(LinkBook, ThoseOfOnePlaceAreMeasuredFirst) {
  for (const uint32_t count : {4u, 12u, 16u, 17u, 48u, 201u})
    for (const bool by_host : {false, true}) {
      SCOPED_TRACE(std::to_string(count) + (by_host ? " peers by host" : " peers by region"));
      std::vector<PeerId> peers;
      std::vector<Place> places;
      const uint32_t homes = (count + 1) / 2;
      for (uint32_t peer = 0; peer < count; ++peer) {
        peers.push_back(key(peer + 1));
        const std::string home = "home " + std::to_string(peer % homes);
        // All of a region come from one host, or all of a host name one region.
        places.push_back(by_host ? Place{"", home} : Place{home, "192.0.2.7"});
      }
      LinkBook book;
      const auto home_of = [&](const PeerId& peer) {
        return static_cast<size_t>(std::find(peers.begin(), peers.end(), peer) - peers.begin()) % homes;
      };
      const auto first = book.next_round(peers, Instant{}, places);
      const auto together = [&](const LinkBook::Pair& pair) {
        return home_of(pair.dials) == home_of(pair.accepts);
      };
      EXPECT_EQ(std::count_if(first.begin(), first.end(), together), count / 2);
      EXPECT_TRUE(book.wants_more(peers, Instant{}, places));
      for (const LinkBook::Pair& pair : first) record(book, pair.dials, pair.accepts, 1e8);
      const auto second = book.next_round(peers, Instant{}, places);
      EXPECT_EQ(std::count_if(second.begin(), second.end(), together), 0) << "they know each other";
      EXPECT_FALSE(second.empty());
      std::set<PeerId> once;
      for (const LinkBook::Pair& pair : second)
        EXPECT_TRUE(once.insert(pair.dials).second && once.insert(pair.accepts).second);
    }
}

TEST(LinkBook, TheMatrixOfAFewIsRightForEveryPair) {
  for (const double noise : {0.0, 0.05})
    for (uint64_t seed = 1; seed <= 200; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Truth truth(seed, static_cast<uint32_t>(2 + seed % 15), static_cast<uint32_t>(1 + seed % 5));
      LinkBook book;
      measure(book, truth, noise);
      const Errors errors = errors_of(view_of(book, truth), truth);
      EXPECT_EQ(errors.off, 0u) << "of " << errors.pairs << ", the worst by " << errors.worst;
    }
}

TEST(LinkBook, SitesAndTheMatrixOfManyAreFoundFromASample) {
  for (const double noise : {0.0, 0.05})
    for (uint64_t seed = 1; seed <= 10; ++seed)
      for (const auto& [peers, regions] : {std::pair{200u, 8u}, {80u, 10u}, {40u, 4u}, {200u, 1u}}) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(peers) + " peers");
        Truth truth(seed, peers, regions);
        LinkBook book;
        const Effort effort = measure(book, truth, noise);
        EXPECT_LE(effort.probes, 2.5 * peers * (std::log2(peers) + 1));
        const plan::ClusterView view = view_of(book, truth);
        EXPECT_TRUE(has_sites_of(view, truth)) << view.site_count();
        const Errors errors = errors_of(view, truth);
        EXPECT_LE(20 * errors.off, errors.pairs) << errors.off << " of " << errors.pairs;
        EXPECT_EQ(errors.above, 0u) << "of " << errors.pairs << ", the worst by " << errors.worst;
      }
}

TEST(LinkBook, NoiseDoesNotTellEqualDevicesApart) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Truth truth(seed, 12, 2);
    for (Truth::Device& device : truth.devices) device.uplink = device.downlink = 1e7;
    LinkBook book;
    measure(book, truth, 0.05);
    const auto equal = view_of(book, truth).equal_in_links();
    EXPECT_EQ(std::set<uint32_t>(equal.begin(), equal.end()).size(), 2u);
  }
}

TEST(LinkBook, FasterThanMattersIsAllOne) {
  Truth truth(5, 12, 1);
  LinkBook book;
  for (Truth::Device& device : truth.devices) device.uplink = device.downlink = 1e10;
  truth.rates = {4e9};
  truth.round_trips = {3e-4};
  measure(book, truth, 0.6);
  const auto view = view_of(book, truth);
  EXPECT_EQ(view.site_count(), 1u);
  EXPECT_FALSE(view.has_pairs());
  const auto equal = view.equal_in_links();
  EXPECT_EQ(std::count(equal.begin(), equal.end(), 0u), 12);
}

TEST(LinkBook, PeersThatJoinAreMeasuredAndOthersNotAgain) {
  Truth truth(11, 60, 5);
  LinkBook book;
  const Effort first = measure(book, truth, 0.02);
  for (size_t gone = 0; gone < 15; ++gone) book.forget(truth.devices[3 * gone].id);
  for (size_t gone = 15; gone-- > 0;)
    truth.devices.erase(truth.devices.begin() + static_cast<ptrdiff_t>(3 * gone));
  for (uint32_t i = 0; i < 10; ++i) truth.add(i % 5);
  const Effort then = measure(book, truth, 0.02);
  EXPECT_LT(then.probes, first.probes / 2);
  const auto view = view_of(book, truth);
  EXPECT_TRUE(has_sites_of(view, truth));
  EXPECT_LE(20 * errors_of(view, truth).off, errors_of(view, truth).pairs);
}

TEST(LinkBook, PeersThatComeWhileAllOthersAreBusyAreMeasuredAmongThemselves) {
  Truth truth(12, 26, 3);
  Truth busy = truth, idle = truth;
  busy.devices.resize(20);
  idle.devices.erase(idle.devices.begin(), idle.devices.begin() + 20);
  LinkBook book;
  measure(book, busy, 0);
  measure(book, idle, 0);
  EXPECT_EQ(errors_of(view_of(book, idle), idle).off, 0u);
  EXPECT_TRUE(has_sites_of(view_of(book, idle), idle));
  measure(book, truth, 0);  // and with the others when they are idle
  EXPECT_TRUE(has_sites_of(view_of(book, truth), truth));

  // Those who would be measured first are gone before they were.
  LinkBook early;
  const auto round = early.next_round(truth.ids(), {});
  for (const LinkBook::Pair& pair : round) record(early, pair.dials, pair.accepts, 1e7);
  std::erase_if(truth.devices, [&](const Truth::Device& device) {
    return std::any_of(round.begin(), round.end(), [&](const LinkBook::Pair& pair) {
      return device.id == pair.dials || device.id == pair.accepts;
    });
  });
  EXPECT_EQ(measure(early, truth, 0).probes, truth.devices.size() * (truth.devices.size() - 1) / 2);
}

TEST(LinkBook, EqualInputsGiveEqualOutputs) {
  std::vector<plan::ClusterView> views;
  for (int i = 0; i < 2; ++i) {
    Truth truth(3, 50, 4);
    LinkBook book;
    measure(book, truth, 0.05);
    views.push_back(view_of(book, truth));
  }
  EXPECT_TRUE(views[0] == views[1]);
}

TEST(LinkBook, WhatNobodyMeasuredIsSlowAndSaysSo) {
  LinkBook book;
  std::vector<plan::DeviceView> devices(3);
  for (plan::DeviceView& device : devices) device.region = "one room";
  const std::vector<PeerId> peers{key(1), key(2), key(3)};
  const auto blank = book.cluster(devices, peers, {});
  EXPECT_EQ(blank.site_count(), 1u);
  EXPECT_TRUE(blank.link(0, 1).is_assumed);
  EXPECT_LE(blank.link(0, 1).bytes_per_second, 1.25e6);
  EXPECT_GE(blank.link(0, 1).latency, milliseconds(100));

  record(book, key(1), key(2), 1e7);
  const auto some = book.cluster(devices, peers, {});
  EXPECT_FALSE(some.link(0, 1).is_assumed);
  EXPECT_NEAR(some.link(0, 1).bytes_per_second, 1e7, 1e6);
  EXPECT_TRUE(some.link(0, 2).is_assumed);
  EXPECT_LE(some.link(0, 2).bytes_per_second, 1.25e6);

  LinkBook slow;
  record(slow, key(1), key(2), 1e5, milliseconds(600));
  const auto slower = slow.cluster(devices, peers, {});
  EXPECT_LE(slower.link(0, 2).bytes_per_second, 1e5) << "no faster than what was measured";
  EXPECT_EQ(slower.link(0, 2).latency, milliseconds(300));
}

// Five homes far from each other, and one that was measured with the first of them alone.
TEST(LinkBook, WhoHasJustComeIsGuessedByItsLineAndThoseOfTheOthers) {
  for (const double line : {2.5e6, 0.25e6, 25e6}) {
    SCOPED_TRACE(line);
    LinkBook book;
    std::vector<PeerId> peers;
    for (uint8_t peer = 1; peer <= 6; ++peer) peers.push_back(key(peer));
    for (uint32_t a = 0; a < 5; ++a)
      for (uint32_t b = a + 1; b < 5; ++b)
        record(book, peers[a], peers[b], 2.5e6, milliseconds(20 + 50 * (b - a)));
    record(book, peers[0], peers[5], std::min(line, 2.5e6), milliseconds(300));
    const auto view = book.cluster(std::vector<plan::DeviceView>(6), peers, {});
    EXPECT_FALSE(view.link(5, 0).is_assumed);
    for (const size_t other : {1, 4}) {
      for (const auto& link : {view.link(5, other), view.link(other, 5)}) {
        EXPECT_TRUE(link.is_assumed);
        EXPECT_NEAR(link.bytes_per_second, std::min(line, 2.5e6), 0.1 * std::min(line, 2.5e6));
        EXPECT_EQ(link.latency, milliseconds(150)) << "as the slowest that was seen";
      }
    }
  }
}

TEST(LinkBook, APairWithoutAWayIsVerySlowAndTriedLater) {
  LinkBook book;
  const std::vector<PeerId> peers{key(1), key(2), key(3)};
  const Instant now{hours(5)};
  record(book, key(1), key(2), 0, {}, now);
  record(book, key(1), key(3), 1e7, milliseconds(10), now);
  record(book, key(2), key(3), 1e7, milliseconds(10), now);
  const auto view = book.cluster(std::vector<plan::DeviceView>(3), peers, now);
  EXPECT_GT(view.link(0, 1).bytes_per_second, 0);
  EXPECT_LT(view.link(0, 1).bytes_per_second, 1e5);
  EXPECT_NEAR(view.link(0, 2).bytes_per_second, 1e7, 1e6);
  EXPECT_TRUE(book.next_round(peers, now + minutes(1)).empty());
  EXPECT_FALSE(book.wants_more(peers, now + minutes(10)));
  const auto again = book.next_round(peers, now + minutes(10));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_TRUE(again[0].dials == key(1) && again[0].accepts == key(2));
}

TEST(LinkBook, WhatIsOldIsMeasuredAgainOneByOneTheOldestFirst) {
  LinkBook book;
  const std::vector<PeerId> peers{key(1), key(2), key(3), key(4)};
  for (uint8_t a = 1; a <= 4; ++a)
    for (uint8_t b = 1; b < a; ++b)
      record(book, key(a), key(b), 1e7, milliseconds(10), Instant(minutes(a == 4 && b == 2 ? 0 : a + b)));
  EXPECT_TRUE(book.next_round(peers, Instant(minutes(50))).empty());
  Instant now{hours(2)};
  EXPECT_FALSE(book.wants_more(peers, now)) << "nobody has to wait for it";
  auto round = book.next_round(peers, now);
  ASSERT_EQ(round.size(), 1u);
  EXPECT_TRUE(round[0].dials == key(4) || round[0].accepts == key(4));
  EXPECT_TRUE(round[0].dials == key(2) || round[0].accepts == key(2));
  int rounds = 0;
  for (; !round.empty() && rounds < 100; ++rounds, round = book.next_round(peers, now))
    record(book, round[0].dials, round[0].accepts, 1e7, milliseconds(10), now);
  EXPECT_EQ(rounds, 6);
}

// All tensors as fast as each other.
void observe(LinkBook& book, uint8_t from, uint8_t to, double rate, Instant at, int times = 1) {
  for (int i = 0; i < times; ++i) book.observe(key(from), key(to), {.usual = rate, .fastest = rate}, at);
}

TEST(LinkBook, TrafficIsBelievedIfItGoesOnAndKeepsFresh) {
  LinkBook book;
  const std::vector<PeerId> peers{key(1), key(2), key(3)};
  for (const auto& [a, b] : {std::pair{1, 2}, {1, 3}, {2, 3}})
    record(book, key(static_cast<uint8_t>(a)), key(static_cast<uint8_t>(b)), 1e7);
  const auto rate = [&](size_t from = 0, size_t to = 1) {
    return book.cluster(std::vector<plan::DeviceView>(3), peers, {}).link(from, to).bytes_per_second;
  };
  const Instant at{minutes(50)};
  const uint64_t version = book.version();
  observe(book, 1, 2, 4e7, at, 3);
  EXPECT_NEAR(rate(), 1e7, 1e6) << "it may have waited at the receiver";
  observe(book, 1, 2, 1e7, at);
  observe(book, 1, 2, 4e7, at, 3);
  EXPECT_NEAR(rate(), 1e7, 1e6) << "not in a row";
  EXPECT_EQ(book.version(), version);
  observe(book, 1, 2, 4e7, at);
  EXPECT_NEAR(rate(), 4e7, 4e6);
  EXPECT_GT(book.version(), version);
  for (int i = 0; i < 9; ++i) book.observe(key(1), key(2), {.usual = 1e6, .fastest = 4e7}, at);
  EXPECT_NEAR(rate(), 4e7, 4e6) << "others use the line, now and then nobody does";
  observe(book, 1, 2, 5e6, at, 3);
  EXPECT_NEAR(rate(), 4e7, 4e6) << "others may have used it";
  observe(book, 1, 2, 5e6, at);
  EXPECT_NEAR(rate(), 5e6, 1e6);
  observe(book, 2, 1, 1e7, at, 5);
  for (const auto& pair : book.next_round(peers, Instant(minutes(70))))
    EXPECT_TRUE(pair.dials == key(3) || pair.accepts == key(3)) << "that pair is fresh";
}

TEST(LinkBook, ASlowSendersUplinkIsBlamedUntilOthersAreSlowToTheSameReceiver) {
  LinkBook book;
  const std::vector<PeerId> peers{key(1), key(2), key(3), key(4)};
  for (int a = 1; a <= 4; ++a)
    for (int b = a + 1; b <= 4; ++b)
      record(book, key(static_cast<uint8_t>(a)), key(static_cast<uint8_t>(b)), 1e7);
  const auto rate = [&](size_t from, size_t to) {  // 1 to 4
    return book.cluster(std::vector<plan::DeviceView>(4), peers, {}).link(from - 1, to - 1).bytes_per_second;
  };
  const Instant at{minutes(10)};
  observe(book, 1, 2, 1e6, at, 4);
  EXPECT_NEAR(rate(1, 2), 1e6, 1e5);
  EXPECT_NEAR(rate(1, 3), 1e6, 1e5) << "the uplink is to blame, it seems";
  EXPECT_NEAR(rate(1, 4), 1e6, 1e5);
  EXPECT_NEAR(rate(2, 1), 1e7, 1e6) << "the other way says nothing";
  EXPECT_NEAR(rate(3, 2), 1e7, 1e6);
  const auto round = book.next_round(std::vector<PeerId>{key(1), key(3), key(4)}, at + milliseconds(1));
  ASSERT_FALSE(round.empty()) << "as soon as it and another have nothing to do";
  EXPECT_TRUE(round[0].dials == key(1) || round[0].accepts == key(1));
  // It goes on elsewhere, and is slow there too: it was the receiver's downlink.
  observe(book, 3, 2, 1e6, at + std::chrono::seconds(1), 4);
  EXPECT_NEAR(rate(4, 2), 1e6, 1e5);
  EXPECT_NEAR(rate(1, 3), 1e7, 1e6);
  EXPECT_NEAR(rate(1, 4), 1e7, 1e6);
  EXPECT_NEAR(rate(3, 1), 1e7, 1e6);
  record(book, key(4), key(2), 1e7, milliseconds(10), at + std::chrono::seconds(2));
  EXPECT_NEAR(rate(4, 2), 1e7, 1e6) << "a measurement ends all doubt";
}

TEST(LinkBook, WhatWasMeasuredAsMuchSlowerIsMeasuredAgainSoon) {
  LinkBook book;
  const std::vector<PeerId> peers{key(1), key(2)};
  const Instant at{minutes(1)};
  record(book, key(1), key(2), 1e7, milliseconds(10), at);
  EXPECT_TRUE(book.next_round(peers, at + minutes(20)).empty());
  record(book, key(1), key(2), 1e6, milliseconds(10), at + minutes(20));
  EXPECT_TRUE(book.next_round(peers, at + minutes(24)).empty());
  EXPECT_EQ(book.next_round(peers, at + minutes(26)).size(), 1u);
  record(book, key(1), key(2), 1e6, milliseconds(10), at + minutes(26));
  EXPECT_TRUE(book.next_round(peers, at + minutes(80)).empty()) << "so it is";
}

TEST(LinkBook, WhatIsSeenToBeFastIsNotDoubted) {
  LinkBook book;
  const std::vector<PeerId> peers{key(1), key(2), key(3)};
  for (const auto& [a, b] : {std::pair{1, 2}, {1, 3}, {2, 3}})
    record(book, key(static_cast<uint8_t>(a)), key(static_cast<uint8_t>(b)), 1e7);
  const Instant at{minutes(10)};
  observe(book, 1, 3, 1e7, at + milliseconds(1));  // its other neighbour, at the same time
  observe(book, 1, 2, 1e6, at, 4);
  const auto view = book.cluster(std::vector<plan::DeviceView>(3), peers, {});
  EXPECT_NEAR(view.link(0, 1).bytes_per_second, 1e6, 1e5);
  EXPECT_NEAR(view.link(0, 2).bytes_per_second, 1e7, 1e6);
}

TEST(LinkBook, ThroughTheRelayIsAnotherLinkThanThatOfTheSites) {
  // Two of six peers cannot dial each other.
  Truth truth(2, 6, 1);
  for (Truth::Device& device : truth.devices) device.uplink = device.downlink = 2e7;
  LinkBook book;
  measure(book, truth, 0);
  const auto& devices = truth.devices;
  book.record({devices[0].id, devices[1].id, 1e6, milliseconds(150), true, {}});
  book.record({devices[1].id, devices[0].id, 1e6, milliseconds(150), true, {}});
  const auto view = view_of(book, truth);
  EXPECT_EQ(view.site_count(), 2u) << "those two, whose links to each other are others, and the rest";
  EXPECT_NEAR(view.link(0, 1).bytes_per_second, 1e6, 1e5);
  EXPECT_EQ(view.link(0, 1).latency, milliseconds(75));
  EXPECT_NEAR(view.link(0, 2).bytes_per_second, 2e7, 2e6);
}

TEST(LinkBook, WhatMakesNoSenseIsHarmless) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  LinkBook book;
  Truth truth(4, 8, 2);
  measure(book, truth, 0);
  const auto before = view_of(book, truth);
  const PeerId a = truth.devices[0].id, b = truth.devices[1].id;
  for (const double rate : {nan, inf, -1.0, -inf}) {
    book.record({a, b, rate, milliseconds(1), false, {}});
    book.observe(a, b, {.usual = rate, .fastest = 1e7}, {});
    book.observe(a, b, {.usual = 1e7, .fastest = rate}, {});
  }
  book.record({a, a, 1e7, milliseconds(1), false, {}});
  book.record({a, b, 1e7, -milliseconds(1), false, {}});
  book.observe(a, a, {.usual = 1e7, .fastest = 1e7}, {});
  book.observe(a, b, {}, {});
  book.forget(key(77));
  EXPECT_TRUE(view_of(book, truth) == before);

  for (const double rate : {1e300, 1e-300, 0.0}) {
    book.record({a, b, rate, Duration::max(), false, Instant::max()});
    book.record({b, a, rate, Duration{}, true, Instant::min()});
    const auto view = view_of(book, truth);
    for (size_t from = 0; from < 8; ++from)
      for (size_t to = 0; to < 8; ++to) {
        if (from == to) continue;
        EXPECT_TRUE(std::isfinite(view.link(from, to).bytes_per_second));
        EXPECT_GE(view.link(from, to).bytes_per_second, 1e3);
        EXPECT_LE(view.link(from, to).bytes_per_second, 1.3e9);
        EXPECT_GE(view.link(from, to).latency, Duration{});
        EXPECT_LE(view.link(from, to).latency, minutes(1));
      }
    book.next_round(truth.ids(), Instant(hours(3)));
    book.next_round(truth.ids(), Instant());
  }
  EXPECT_TRUE(book.next_round({}, {}).empty());
  EXPECT_EQ(book.cluster({}, {}, {}).site_count(), 0u);
  EXPECT_LE(book.next_round(std::vector<PeerId>{a, a, b, b}, {}).size(), 1u) << "a name twice is one peer";
}

TEST(LinkBook, OfOnePeerOnlySoMuchIsKept) {
  LinkBook book;
  std::vector<PeerId> peers;
  for (uint8_t n = 0; n < 120; ++n) peers.push_back(key(n));
  for (uint8_t n = 1; n < 120; ++n)
    record(book, peers[0], peers[n], 1e7, milliseconds(10), Instant(minutes(n)));
  const auto view = book.cluster(std::vector<plan::DeviceView>(120), peers, {});
  size_t kept = 0;
  for (size_t n = 1; n < 120; ++n) kept += !view.link(0, n).is_assumed;
  EXPECT_LE(kept, 64u);
  EXPECT_FALSE(view.link(0, 119).is_assumed) << "the newest";
}

TEST(LinkBook, ThoseWhoWereThereBeforeAreForgottenInTheEnd) {
  LinkBook book;
  Truth here(1, 6, 1);
  const auto visitor = [&](uint32_t n) {
    PeerId id;
    std::memcpy(id.digest.bytes.data(), &n, sizeof n);
    return id;
  };
  for (uint32_t n = 1; n <= 5000; ++n)
    book.record({visitor(n), visitor(n - 1), 1e7, milliseconds(10), false, Instant(minutes(n))});
  measure(book, here, 0, Instant(minutes(5001)));
  const auto rate = [&](uint32_t n) {
    const std::vector<PeerId> two{visitor(n), visitor(n - 1)};
    return book.cluster(std::vector<plan::DeviceView>(2), two, {}).link(0, 1).bytes_per_second;
  };
  EXPECT_NEAR(rate(5000), 1e7, 1e6);
  EXPECT_LT(rate(100), 2e6);
  EXPECT_EQ(errors_of(view_of(book, here), here).off, 0u);
  EXPECT_EQ(view_of(book, here).site_count(), 1u);
}

// Looked at, not asserted: how long the calls take.
TEST(LinkBook, AThousandPeersAreNoBurden) {
  for (const uint32_t peers : {500u, 1000u}) {
    Truth truth(1, peers, 20);
    LinkBook book;
    const Effort effort = measure(book, truth, 0.05);
    const std::clock_t begin = std::clock();
    for (int i = 0; i < 10; ++i) book.next_round(truth.ids(), {});
    const std::clock_t middle = std::clock();
    const auto view = view_of(book, truth);
    const double a_tick = 1e3 / CLOCKS_PER_SEC;
    std::cout << peers << " peers: " << effort.rounds << " rounds, " << 2 * effort.probes / peers
              << " probes a peer; next_round " << static_cast<double>(middle - begin) * a_tick / 10
              << " ms, cluster " << static_cast<double>(std::clock() - middle) * a_tick << " ms\n";
    EXPECT_TRUE(has_sites_of(view, truth));
    EXPECT_LE(20 * errors_of(view, truth).off, errors_of(view, truth).pairs);
  }
}

}  // namespace
}  // namespace weft::broker
