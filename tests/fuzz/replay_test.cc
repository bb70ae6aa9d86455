// Every target on its seeds, on the kept corpus, and on some mutations of both: what libFuzzer would call, in
// a program that any compiler builds. A failure names the input; WEFT_FUZZ_SEED=N mutates by another seed,
// WEFT_FUZZ_INPUTS=N so many times for each target.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/rng.h"
#include "tests/fuzz/seeds.h"
#include "tests/fuzz/targets.h"
#include "tests/support/peak_memory.h"

namespace weft::fuzz {
namespace {

using Bytes = std::vector<std::byte>;

// Of one input, whatever it claims: what a peer or a user's file of some KiB may cost. The targets' own
// values count.
constexpr size_t kMemoryMax = size_t{128} << 20;
constexpr size_t kInputMax = 64 << 10;

struct Target {
  const char* name;
  void (*run)(std::span<const std::byte>);
};
constexpr Target kTargets[] = {
#define WEFT_FUZZ_ROW(name) {#name, &name},
    WEFT_FUZZ_TARGETS(WEFT_FUZZ_ROW)
#undef WEFT_FUZZ_ROW
};

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// What is running, for a failure that ends the process: a target ends by a CHECK.
char running[512];
void tell_what_runs(int signal) {
  (void)!::write(STDERR_FILENO, running, std::strlen(running));
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void mutate(Bytes& bytes, std::span<const Seed> others, Rng& rng) {
  for (uint64_t times = 1 + rng.below(4); times > 0; --times) {
    const size_t at = rng.below(bytes.size() + 1);
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const auto part_of = [&](const Bytes& from) {
      const size_t begin = rng.below(from.size() + 1);
      const auto first = from.begin() + static_cast<std::ptrdiff_t>(begin);
      return Bytes(first, first + static_cast<std::ptrdiff_t>(
                                      rng.below(std::min<size_t>(from.size() - begin, 64) + 1)));
    };
    switch (rng.below(7)) {
      case 0:
        if (at < bytes.size()) bytes[at] ^= static_cast<std::byte>(1u << rng.below(8));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<std::byte>(rng.below(256));
        break;
      case 2:  // numbers that are a bound of something
        for (size_t i = at; i < std::min(bytes.size(), at + (size_t{1} << rng.below(4))); ++i)
          bytes[i] = std::byte{0xFF};
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.erase(place, place + static_cast<std::ptrdiff_t>(
                                       rng.below(std::min<size_t>(bytes.size() - at, 16) + 1)));
        break;
      case 5: {
        const Bytes part = part_of(bytes);
        bytes.insert(place, part.begin(), part.end());
        break;
      }
      case 6: {
        const Bytes part = part_of(others[rng.below(others.size())].bytes);
        bytes.insert(place, part.begin(), part.end());
        break;
      }
    }
  }
  if (bytes.size() > kInputMax) bytes.resize(kInputMax);
}

class FuzzCorpus : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL}) ::signal(signal, tell_what_runs);
  }
  void TearDown() override {
    for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL}) ::signal(signal, SIG_DFL);
  }

  static std::vector<Seed> corpus() {
    std::vector<Seed> all = seeds_of(GetParam().name);
    const auto folder = std::filesystem::path(WEFT_FUZZ_CORPUS) / GetParam().name;
    std::vector<std::filesystem::path> files;
    if (std::filesystem::exists(folder))
      for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& path : files) {
      std::ifstream file(path, std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
      all.push_back({path.filename(), {bytes.begin(), bytes.end()}});
    }
    return all;
  }

  static void run(const Bytes& bytes, const std::string& name) {
    std::snprintf(running, sizeof(running), "\n%s: ended by %s\n", GetParam().name, name.c_str());
    const test::PeakMemory memory;
    GetParam().run(bytes);
    EXPECT_LE(memory.bytes(), kMemoryMax) << name << ", of " << bytes.size() << " bytes";
  }
};

TEST_P(FuzzCorpus, WhateverComesReturns) {
  const std::vector<Seed> all = corpus();
  ASSERT_FALSE(all.empty());
  for (const Seed& seed : all) run(seed.bytes, seed.name);

  const uint64_t seed = setting("WEFT_FUZZ_SEED", 1);
  const uint64_t count = setting("WEFT_FUZZ_INPUTS", test::kCountsMemory ? 2000 : 200);
  SCOPED_TRACE("WEFT_FUZZ_SEED=" + std::to_string(seed));
  for (uint64_t i = 0; i < count; ++i) {
    Rng rng(seed, i);
    const Seed& original = all[rng.below(all.size())];
    Bytes bytes = original.bytes;
    mutate(bytes, all, rng);
    run(bytes, "input " + std::to_string(i) + " of WEFT_FUZZ_SEED=" + std::to_string(seed) + ", from " +
                   original.name);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzCorpus, ::testing::ValuesIn(kTargets),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace weft::fuzz
