#include "peer/backend/host/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>

#include "tests/support/scratch.h"

namespace weft::peer {
namespace {

// A made-up root folder.
class Root {
 public:
  Root& file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((scratch_.folder() / path).parent_path());
    scratch_.write(path, text);
    return *this;
  }
  Result<Bytes> free() const { return free_memory(scratch_.folder()); }

 private:
  test::Scratch scratch_;
};
const std::string kMeminfo = "MemTotal:       8000000 kB\nMemFree:  1 kB\nMemAvailable:    4000000 kB\n";

TEST(FreeMemory, IsWhatTheMachineHasAvailable) {
  Root root;
  root.file("proc/meminfo", kMeminfo);
  EXPECT_EQ(root.free()->value, int64_t{4000000} * 1024);
}

TEST(FreeMemory, AControlGroupLimitsIt) {
  Root root;
  root.file("proc/meminfo", kMeminfo).file("proc/self/cgroup", "0::/user/weft\n");
  root.file("sys/fs/cgroup/user/weft/memory.max", "max\n")
      .file("sys/fs/cgroup/user/weft/memory.current", "5\n");
  root.file("sys/fs/cgroup/user/memory.max", "1000000\n")
      .file("sys/fs/cgroup/user/memory.current", "400000\n");
  EXPECT_EQ(root.free()->value, 600000) << "the outer group's";
  root.file("sys/fs/cgroup/user/memory.stat", "anon 1\ninactive_file 100000\n");
  EXPECT_EQ(root.free()->value, 700000) << "cached files can go";
  root.file("sys/fs/cgroup/user/memory.current", "2000000\n");
  EXPECT_EQ(root.free()->value, 0);
}

TEST(FreeMemory, AControlGroupOfTheFirstVersionToo) {
  Root root;
  root.file("proc/meminfo", kMeminfo).file("proc/self/cgroup", "9:cpu,memory:/weft\n1:name=systemd:/\n");
  root.file("sys/fs/cgroup/memory/weft/memory.limit_in_bytes", "5000\n");
  root.file("sys/fs/cgroup/memory/weft/memory.usage_in_bytes", "2000\n");
  EXPECT_EQ(root.free()->value, 3000);
  root.file("sys/fs/cgroup/memory/weft/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(root.free()->value, int64_t{4000000} * 1024) << "no limit";
}

TEST(FreeMemory, WhatCannotBeReadIsAnError) {
  Root root;
  EXPECT_EQ(root.free().error().code, ErrorCode::Unavailable);
  root.file("proc/meminfo", "MemAvailable: lots\n");
  EXPECT_EQ(root.free().error().code, ErrorCode::Unavailable);
  root.file("proc/meminfo", kMeminfo).file("proc/self/cgroup", "garbage\n0::\n");
  EXPECT_TRUE(root.free().has_value());
}

TEST(FreeMemory, ThisMachineHasSome) {
  const auto free = free_memory();
  ASSERT_TRUE(free.has_value()) << free.error().message;
  EXPECT_GT(free->value, 0);
}

TEST(HostMemory, GivesUpWholePagesOfABlockAndNothingElse) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(page, 8 * page)), &std::free);
  const std::span<std::byte> block(memory.get(), 8 * page);
  std::fill(block.begin(), block.end(), std::byte{7});
  const std::span<std::byte> given = block.subspan(page / 2 + 3, 5 * page + 11);
  give_up_contents(given);
  const auto at = [&](const std::byte& byte) { return &byte - block.data(); };
  for (const std::byte& byte : block) {
    if (at(byte) >= at(given.front()) && at(byte) <= at(given.back())) continue;
    ASSERT_EQ(byte, std::byte{7}) << at(byte);
  }
  EXPECT_EQ(std::count(given.begin(), given.end(), std::byte{7}) + 4 * static_cast<int64_t>(page),
            static_cast<int64_t>(given.size()));
  give_up_contents({});
  give_up_contents(given.first(10));
}

TEST(HostMemory, SaysWhatIsUsedFreeAndThere) {
  const auto use = host_memory_use({12345});
  ASSERT_TRUE(use.has_value()) << use.error().message;
  EXPECT_EQ(use->used.value, 12345);
  EXPECT_GT(use->free.value, 0);
  EXPECT_GE(use->total.value, use->free.value);
}

}  // namespace
}  // namespace weft::peer
