// What a peer with a GPU offers of its memory when nobody says how much, asked of the module over a
// HostDevice whose kernels compute nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cli/device.h"

namespace weft::cli {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kOfTheBackend = int64_t{128} << 20;  // staging memory and what is small: less than this

Bytes offered(const std::string& options, const OfferedMemory& given = {}) {
  ::setenv("WEFT_MODULES", WEFT_HOST_MODULES, 1);
  ::setenv("WEFT_HOST_DEVICE", ("works_when=/never/is/there," + options).c_str(), 1);
  const auto device = parse_device("cuda");
  EXPECT_TRUE(device.has_value());
  const auto report = describe(*device, given);
  if (!report) {
    ADD_FAILURE() << report.error().message;
    return {};
  }
  EXPECT_GT(report->host_memory.value, 0) << "for copies of the state";
  return report->memory;
}

void expect_share(Bytes offer, int64_t free) {
  EXPECT_LE(offer.value, static_cast<int64_t>(0.8 * static_cast<double>(free)));
  EXPECT_GE(offer.value, static_cast<int64_t>(0.8 * static_cast<double>(free - kOfTheBackend)));
}

TEST(Offer, IsMostOfWhatTheGpuHasFree) { expect_share(offered("memory=2147483648"), 2 * kGiB); }

TEST(Offer, LeavesADesktopItsMemory) {
  expect_share(offered("memory=2147483648,display=1"), 2 * kGiB - kGiB);
}

TEST(Offer, IsWhatTheOwnerSays) {
  EXPECT_EQ(offered("memory=2147483648,display=1", {.device = Bytes{kGiB / 2}, .host = {}}).value, kGiB / 2);
}

}  // namespace
}  // namespace weft::cli
