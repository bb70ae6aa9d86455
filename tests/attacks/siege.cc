#include "tests/attacks/siege.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/support/sanitized.h"

namespace weft::attacks {

namespace {
constexpr Bytes kGrowth{64 << 20}, kLogGrowth{1 << 20};
constexpr Duration kRoundTrip = std::chrono::seconds(test::kIsSanitized ? 20 : 1);
constexpr Duration kJoining =
    std::chrono::seconds(test::kIsSanitized ? 300 : 30);  // of all, before the attack
constexpr Duration kNewcomer =
    std::chrono::seconds(test::kIsSanitized ? 100 : 10);  // during it: half a second
}  // namespace

Duration attack_time() {
  return std::getenv("WEFT_LONG") != nullptr ? std::chrono::seconds(60) : std::chrono::seconds(2);
}

Siege::Siege(const std::function<void(const std::filesystem::path& data)>& prepare,
             std::vector<std::string> broker_arguments) {
  if (prepare) {
    std::filesystem::create_directory(scratch_.folder() / "broker");
    prepare(scratch_.folder() / "broker");
  }
  broker_ = std::make_unique<BrokerProcess>(scratch_.folder(), std::move(broker_arguments));
  if (::testing::Test::HasFatalFailure()) return;
  honest_ = std::make_unique<HonestPeers>(broker_->endpoint(), broker_->peer_token(), kHonestPeers);
  EXPECT_TRUE(honest_->wait_until_joined(kJoining)) << honest_->report().reason;
  for (size_t i = 0; i < kOwners; ++i) {
    const std::string name = "owner-" + std::to_string(i);
    std::filesystem::create_directory(scratch_.folder() / name);
    owners_.push_back(std::make_unique<PeerProcess>(
        scratch_.folder() / name, net::to_string(broker_->endpoint()),
        security::to_text(broker_->peer_token()),
        std::vector<std::string>{"--device", "null:rtx3080", "--memory", "64MiB", "--name", name}));
  }
  const auto all_joined = [&] {
    const std::string log = broker_->log_text();
    for (size_t i = 0; i < kOwners; ++i)
      if (log.find("peer_joined peer=owner-" + std::to_string(i)) == std::string::npos) return false;
    return true;
  };
  const auto end = std::chrono::steady_clock::now() + kJoining;
  while (!all_joined() && std::chrono::steady_clock::now() < end) ::poll(nullptr, 0, 5);
  EXPECT_TRUE(all_joined()) << broker_->log_text();
}

void Siege::withstands(const std::function<void(const std::atomic<bool>& is_over)>& attack) {
  if (!honest_) return;
  broker_->reset_peak();
  const Bytes before = broker_->memory(), log_before = broker_->log_size();
  const double cpu_before = broker_->cpu_seconds();
  (void)honest_->report();

  std::atomic<bool> is_over = false;
  std::thread attacker([&] { attack(is_over); });
  const auto end = std::chrono::steady_clock::now() + attack_time();
  Duration worst_join{};
  for (auto begin = std::chrono::steady_clock::now(); begin < end && !::testing::Test::HasFailure();) {
    HonestPeers newcomer(broker_->endpoint(), broker_->peer_token(), 1);
    EXPECT_TRUE(newcomer.wait_until_joined(kNewcomer)) << "a newcomer: " << newcomer.report().reason;
    const auto now = std::chrono::steady_clock::now();
    worst_join = std::max(worst_join, std::chrono::duration_cast<Duration>(now - begin));
    begin = now;
  }
  is_over = true;
  attacker.join();

  ASSERT_TRUE(broker_->is_alive()) << broker_->log_text();
  const HonestPeers::Report report = honest_->report();
  const Bytes peak = broker_->memory_peak();
  const auto grown = peak.value > before.value ? peak.value - before.value : 0;
  const auto logged = broker_->log_size().value - log_before.value;
  std::printf(
      "  honest: %zu of %zu lost, worst round trip %.0f ms over %llu heartbeats, worst join %.0f ms; "
      "broker: +%.1f MiB, log +%.1f KiB, %.2f s of processor time\n",
      report.lost, kHonestPeers, 1e3 * seconds(report.worst_round_trip),
      static_cast<unsigned long long>(report.answered), 1e3 * seconds(worst_join),
      static_cast<double>(grown) / (1 << 20), static_cast<double>(logged) / 1024,
      broker_->cpu_seconds() - cpu_before);
  EXPECT_EQ(report.lost, 0u) << report.reason;
  for (const auto& owner : owners_) EXPECT_TRUE(owner->is_alive()) << owner->log_text();
  const std::string log = broker_->log_text();
  if (const auto at = log.find("peer_lost peer=owner-"); at != std::string::npos)
    ADD_FAILURE() << log.substr(at, log.find('\n', at) - at);
  EXPECT_GT(report.answered, 0u);
  EXPECT_LT(report.worst_round_trip, kRoundTrip);
  if (!test::kIsSanitized) {
    EXPECT_LE(grown, kGrowth.value);
  }
  EXPECT_LE(logged, kLogGrowth.value);

  honest_.reset();
  broker_->restart();
  HonestPeers again(broker_->endpoint(), broker_->peer_token(), 1);
  EXPECT_TRUE(again.wait_until_joined(kJoining)) << "after a restart: " << again.report().reason;
}

}  // namespace weft::attacks
