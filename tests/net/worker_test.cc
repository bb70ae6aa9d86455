#include "net/worker.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <stdexcept>
#include <vector>

namespace weft::net::test {
namespace {

TEST(Worker, RunsWhatIsPostedInOrder) {
  std::vector<int> order, expected;
  std::promise<void> done;
  Worker worker;
  for (int i = 0; i < 100; ++i) {
    expected.push_back(i);
    worker.post([&, i] { order.push_back(i); });
  }
  worker.post([&] { done.set_value(); });
  done.get_future().wait();
  EXPECT_EQ(order, expected);
}

TEST(Worker, WhatThrowsIsOverAndTheNextRuns) {
  std::promise<void> done;
  Worker worker;
  worker.post([] { throw std::runtime_error("of a test"); });
  worker.post([&] { done.set_value(); });
  done.get_future().wait();
}

// The first may still be in post(). TSan and ASan see what it touches then.
TEST(Worker, MayGoAsSoonAsItsWorkIsDone) {
  Worker first;
  for (int i = 0; i < 200; ++i) {
    auto second = std::make_unique<Worker>();
    std::promise<void> done;
    first.post([&] { second->post([&] { done.set_value(); }); });
    done.get_future().wait();
    second.reset();
  }
}

}  // namespace
}  // namespace weft::net::test
