// The broker's store on a disk that fails at the n-th operation, for every n and each way of failing: what
// was acknowledged is there afterwards, and what was not is there as a whole or not at all. Some of the
// points in the ordinary run; all of them, and each power loss several times, with WEFT_LONG=1.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <sstream>

#include "tests/store/history.h"
#include "tests/store/memory_disk.h"

namespace weft::broker {
namespace {

using test::Fault;
using test::MemoryDisk;

constexpr Fault kFaults[] = {Fault::Error, Fault::Full, Fault::Kill, Fault::Torn, Fault::PowerLoss};
constexpr int kLogPages = 24;  // small, so that the log is folded into the file now and then

bool is_long() { return std::getenv("WEFT_LONG") != nullptr; }

class Machine {
 public:
  MemoryDisk disk{"memory"};

  Result<std::unique_ptr<Store>> open() {
    return open_sqlite_store("broker.sqlite", {.vfs = disk.name(), .log_pages_max = kLogPages});
  }
  // What is there. REQUIRES: no store is open.
  std::string found() {
    const auto store = open();
    if (!store) return "cannot be opened: " + store.error().message;
    const auto all = test::everything_in(**store);
    return all ? *all : "cannot be loaded: " + all.error().message;
  }
};

// The history without faults: the disk at the start of each life, and what is there after each write.
struct Life {
  MemoryDisk::Image before;
  std::vector<test::Write> writes;
  std::vector<std::string> expected;  // [n]: after n writes
};
std::vector<Life> lives() {
  Machine machine;
  std::vector<Life> all;
  std::string now;
  for (auto& writes : test::history()) {
    Life life{machine.disk.image(), std::move(writes), {now}};
    const auto store = machine.open();
    if (!store) {
      ADD_FAILURE() << store.error().message;
      return all;
    }
    if (now.empty()) life.expected[0] = now = *test::everything_in(**store);
    for (const auto& write : life.writes) {
      const Status done = write(**store);
      EXPECT_TRUE(done) << done.error().message;
      life.expected.push_back(now = *test::everything_in(**store));
    }
    all.push_back(std::move(life));
  }
  return all;
}

struct Attempt {
  size_t acknowledged = 0;
  bool in_flight = false;  // the next one was tried, and did not come back well
  bool struck = false;
};

// A full disk: nothing of the write is there, and it may be tried again when there is room.
Status again_with_room(Machine& machine, Store& store, const test::Write& write, const std::string& before) {
  const auto now = test::everything_in(store);
  EXPECT_TRUE(now) << now.error().message;
  EXPECT_TRUE(now && *now == before) << "something of it was done";
  machine.disk.make_room();
  return write(store);
}

Attempt attempt(Machine& machine, const Life& life, uint64_t at, Fault fault) {
  machine.disk.restore(life.before);
  machine.disk.arm(at, fault);
  Attempt result;
  auto store = machine.open();
  if (!store && fault == Fault::Full) {
    EXPECT_EQ(store.error().code, ErrorCode::ResourceExhausted) << store.error().message;
    machine.disk.make_room();
    store = machine.open();
    EXPECT_TRUE(store) << store.error().message;
  }
  if (store) {
    for (const auto& write : life.writes) {
      Status done = write(**store);
      if (!done && fault == Fault::Full) {
        EXPECT_EQ(done.error().code, ErrorCode::ResourceExhausted) << done.error().message;
        done = again_with_room(machine, **store, write, life.expected[result.acknowledged]);
        EXPECT_TRUE(done) << done.error().message;
      }
      if (!done) {
        result.in_flight = true;
        EXPECT_NE(done.error().code, ErrorCode::ResourceExhausted) << "only a full disk may be tried again";
        break;
      }
      ++result.acknowledged;
    }
    store->reset();
  }
  result.struck = machine.disk.struck();
  return result;
}

void expect_nothing_lost(Machine& machine, const Life& life, const Attempt& attempt) {
  const std::string found = machine.found();
  const size_t n = attempt.acknowledged;
  const bool whole = found == life.expected[n] || (attempt.in_flight && found == life.expected[n + 1]);
  size_t best = 0;
  while (best < life.expected.size() && life.expected[best] != found) ++best;
  EXPECT_TRUE(whole) << n << " writes were acknowledged; there is what there was after "
                     << (best < life.expected.size() ? std::to_string(best)
                                                     : "no number of them: " + found.substr(0, 300));
}

TEST(StoreCrash, NothingAcknowledgedIsLostAtAnyPoint) {
  const uint64_t seed = 20261121;
  const auto all = lives();
  Machine machine;
  uint64_t points = 0;
  std::map<Fault, uint64_t> by_fault;
  const uint64_t stride = is_long() ? 1 : 3;
  for (size_t l = 0; l < all.size(); ++l)
    for (const Fault fault : kFaults) {
      const int draws = fault == Fault::PowerLoss && is_long() ? 20 : 1;
      for (uint64_t at = 1 + l % stride;; at += stride) {
        bool struck = false;
        for (int draw = 0; draw < draws; ++draw) {
          std::ostringstream where;
          where << "life " << l << ", " << to_string(fault) << " at operation " << at << ", seed " << seed
                << ", draw " << draw;
          SCOPED_TRACE(where.str());
          Rng rng(seed + static_cast<uint64_t>(draw), at * 100 + l);
          const Attempt tried = attempt(machine, all[l], at, fault);
          // Whoever came through may still lose power afterwards.
          if (tried.in_flight || machine.disk.is_dead())
            machine.disk.restart(rng);
          else
            machine.disk.lose_power(rng);
          expect_nothing_lost(machine, all[l], tried);
          struck = tried.struck;
          if (HasFailure()) return;
          if (struck) ++points, ++by_fault[fault];
        }
        if (!struck) break;
      }
    }
  std::cout << points << " crash points:";
  for (const auto& [fault, count] : by_fault) std::cout << ' ' << to_string(fault) << ' ' << count;
  std::cout << '\n';
  EXPECT_GT(points, is_long() ? 8'000u : 500u);
}

}  // namespace
}  // namespace weft::broker
