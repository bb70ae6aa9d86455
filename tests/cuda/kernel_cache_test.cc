// Compiled kernels on disk: what was kept is found as it was, or not at all.
#include "peer/backend/cuda/kernel_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>

namespace weft::peer::cuda {
namespace {

namespace fs = std::filesystem;

class KernelCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path());
    return found;
  }
  const fs::path folder_ = fs::path(::testing::TempDir()) / "weft_kernel_cache_test";
};

std::vector<char> code(size_t size, char with = 'c') { return std::vector<char>(size, with); }

TEST_F(KernelCacheTest, FindsWhatItKeptByTheWholeKey) {
  const KernelCache cache(folder_);
  EXPECT_FALSE(cache.find("key"));
  cache.keep("key", code(1000));
  cache.keep("other", code(10, 'd'));
  EXPECT_EQ(cache.find("key"), code(1000));
  EXPECT_EQ(cache.find("other"), code(10, 'd'));
  EXPECT_FALSE(cache.find("ke"));
  cache.keep("key", code(3));
  EXPECT_EQ(cache.find("key"), code(3));
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(KernelCacheTest, DamageAnywhereIsFound) {
  const KernelCache cache(folder_);
  cache.keep("key", code(100));
  const fs::path path = files().front();
  std::ifstream in(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_FALSE(cache.find("key")) << "byte " << at;
  }
  for (size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    EXPECT_FALSE(cache.find("key")) << size << " bytes";
  }
  std::ofstream(path, std::ios::binary) << whole;
  EXPECT_TRUE(cache.find("key"));
}

TEST_F(KernelCacheTest, WhatWasUsedLongestAgoGoes) {
  const KernelCache cache(folder_, {3000});
  const auto age = [&](int hours) {
    for (const fs::path& file : files())
      fs::last_write_time(file, fs::last_write_time(file) - std::chrono::hours(hours));
  };
  cache.keep("first", code(1000));
  age(1);
  cache.keep("second", code(1000));
  age(1);
  EXPECT_TRUE(cache.find("first"));  // used again
  cache.keep("third", code(1000));
  EXPECT_TRUE(cache.find("first"));
  EXPECT_FALSE(cache.find("second"));
  EXPECT_TRUE(cache.find("third"));
}

TEST_F(KernelCacheTest, TheFolderNeverHasMoreThanItsSize) {
  const KernelCache cache(folder_, {3000});
  const auto size = [&] {
    uintmax_t sum = 0;
    for (const fs::path& file : files()) sum += fs::file_size(file);
    return sum;
  };
  for (int i = 0; i < 20; ++i) {
    cache.keep("key" + std::to_string(i), code(static_cast<size_t>(100 * i)));
    EXPECT_LE(size(), 3000u) << i;
  }
  EXPECT_TRUE(cache.find("key19"));
  cache.keep("large", code(3000));
  EXPECT_FALSE(cache.find("large"));
  EXPECT_TRUE(cache.find("key19")) << "what does not fit makes no room";
}

TEST_F(KernelCacheTest, ItsOwnerSaysHowMuchItKeeps) {
  ::setenv("WEFT_KERNEL_CACHE_MAX", "1000", 1);
  EXPECT_EQ(KernelCache::default_size_max().value, 1000);
  ::setenv("WEFT_KERNEL_CACHE_MAX", "much", 1);
  EXPECT_EQ(KernelCache::default_size_max().value, int64_t{256} << 20);
  ::unsetenv("WEFT_KERNEL_CACHE_MAX");
  EXPECT_EQ(KernelCache::default_size_max().value, int64_t{256} << 20);
}

TEST_F(KernelCacheTest, WhatWasLeftHalfWrittenGoesInTheEnd) {
  const KernelCache cache(folder_);
  cache.keep("key", code(10));
  const fs::path left = folder_ / "0123.kernels.77.0";
  std::ofstream(left) << "half";
  cache.keep("key", code(10));
  EXPECT_TRUE(fs::exists(left));  // somebody may be writing it
  fs::last_write_time(left, fs::last_write_time(left) - std::chrono::hours(2));
  cache.keep("key", code(10));
  EXPECT_FALSE(fs::exists(left));
}

TEST_F(KernelCacheTest, AFolderThatCannotBeIsAnEmptyCache) {
  std::ofstream(folder_) << "a file";
  const KernelCache cache(folder_), none({});
  cache.keep("key", code(10));
  none.keep("key", code(10));
  EXPECT_FALSE(cache.find("key"));
  EXPECT_FALSE(none.find("key"));
}

}  // namespace
}  // namespace weft::peer::cuda
