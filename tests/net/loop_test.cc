#include "net/loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>
#include <thread>
#include <vector>

#include "tests/net/meeting.h"

namespace weft::net::test {
namespace {

using std::chrono::milliseconds;

TEST(Loop, PostedWorkRunsInOrder) {
  Loop loop;
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) loop.post([&, i] { order.push_back(i); });
  EXPECT_TRUE(order.empty());
  ASSERT_TRUE(loop.run_until(kPatience, [&] { return order.size() == 100; }));
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(Loop, OtherThreadsPostAndStop) {
  Loop loop;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      EXPECT_FALSE(loop.in_loop());
      for (int i = 0; i < 1000; ++i)
        loop.post([&] {
          EXPECT_TRUE(loop.in_loop());
          if (++count == 4000) loop.stop();
        });
    });
  loop.run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

TEST(Loop, RunsAgainAfterStop) {
  Loop loop;
  int runs = 0;
  for (int i = 1; i <= 3; ++i) {
    loop.post([&] {
      ++runs;
      loop.stop();
    });
    loop.run();
    EXPECT_EQ(runs, i);
  }
}

TEST(Loop, StopBeforeRunIsNotLost) {
  Loop loop;
  loop.stop();
  loop.run();
}

TEST(Loop, RunUntilGivesUpAtItsDeadline) {
  Loop loop;
  const Instant before = loop.now();
  EXPECT_FALSE(loop.run_until(milliseconds(20), [] { return false; }));
  EXPECT_GE(loop.now() - before, milliseconds(20));
  EXPECT_TRUE(loop.run_until(milliseconds(0), [] { return true; }));
}

TEST(Loop, TimersFireInOrderAndNotEarly) {
  Loop loop;
  std::vector<int> order;
  const Instant before = loop.now();
  std::vector<std::unique_ptr<Loop::Timer>> timers;
  for (const int delay : {30, 10, 20})
    timers.push_back(loop.after(milliseconds(delay), [&, delay] {
      EXPECT_GE(loop.now() - before, milliseconds(delay));
      order.push_back(delay);
    }));
  ASSERT_TRUE(loop.run_until(kPatience, [&] { return order.size() == 3; }));
  EXPECT_EQ(order, (std::vector<int>{10, 20, 30}));
}

TEST(Loop, CancelledAndDestroyedTimersDoNotFire) {
  Loop loop;
  bool is_over = false;
  auto cancelled = loop.after(milliseconds(1), [] { FAIL(); });
  auto destroyed = loop.after(milliseconds(1), [] { FAIL(); });
  std::unique_ptr<Loop::Timer> victim;
  const auto last = loop.after(milliseconds(10), [&] { is_over = true; });
  const auto killer = loop.after(milliseconds(2), [&] { victim.reset(); });
  victim = loop.after(milliseconds(5), [] { FAIL(); });
  cancelled->cancel();
  destroyed.reset();
  ASSERT_TRUE(loop.run_until(kPatience, [&] { return is_over; }));
}

TEST(Loop, ATimerMayDestroyItself) {
  Loop loop;
  bool has_fired = false;
  std::unique_ptr<Loop::Timer> timer;
  timer = loop.after(milliseconds(1), [&, text = std::string(100, 'x')] {
    timer.reset();
    has_fired = text.size() == 100;
  });
  ASSERT_TRUE(loop.run_until(kPatience, [&] { return has_fired; }));
}

TEST(Loop, AVeryLongDelayIsNoDelayOverflown) {
  Loop loop;
  const auto timer = loop.after(Duration::max(), [] { FAIL(); });
  EXPECT_FALSE(loop.run_until(milliseconds(5), [] { return false; }));
}

TEST(Loop, WatchCallsWhileTheDescriptorIsReadable) {
  Loop loop;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  int calls = 0;
  bool reads = false;
  auto watch = loop.watch_readable(ends[0], [&] {
    ++calls;
    char c;
    if (reads) {
      EXPECT_EQ(::read(ends[0], &c, 1), 1);
    }
  });
  EXPECT_FALSE(loop.run_until(milliseconds(5), [&] { return calls > 0; }));
  ASSERT_EQ(::write(ends[1], "abc", 3), 3);
  ASSERT_TRUE(loop.run_until(kPatience, [&] { return calls == 5; })) << "it is readable until it is read";
  reads = true;
  ASSERT_TRUE(loop.run_until(kPatience, [&] { return calls == 8; }));
  EXPECT_FALSE(loop.run_until(milliseconds(5), [&] { return calls > 8; }));
  watch.reset();
  ASSERT_EQ(::write(ends[1], "d", 1), 1);
  EXPECT_FALSE(loop.run_until(milliseconds(5), [&] { return calls > 8; }));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Loop, DestructionFreesWhatWasPosted) {
  const auto witness = std::make_shared<int>(1);
  {
    Loop loop;
    loop.post([witness] {});
    const auto timer = loop.after(std::chrono::hours(1), [witness] {});
  }
  EXPECT_EQ(witness.use_count(), 1);
}

}  // namespace
}  // namespace weft::net::test
