// What an admitted peer says that lies, or says too much.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/attacks/lying_peer.h"
#include "tests/attacks/siege.h"

namespace weft::attacks {
namespace {

void withstands(const Lies& lies) {
  Siege siege;
  siege.withstands([&](const std::atomic<bool>& is_over) {
    const LiesTold told = tell(siege.broker().endpoint(), siege.broker().peer_token(), lies, is_over);
    std::printf("  told: %llu messages of %.1f MiB over %llu connections\n",
                static_cast<unsigned long long>(told.messages), static_cast<double>(told.bytes) / (1 << 20),
                static_cast<unsigned long long>(told.connections));
  });
}

// It once wrote 1.6 GB of log in three seconds, lines of its own choice among them.
TEST(PeerAttack, LinesForTheLog) {
  withstands({.next = [](uint64_t number) {
    return proto::PeerLog{std::to_string(number) + "\nerror disk_full \x1b[2J" + std::string(60'000, 'x')};
  }});
}

// Reports of a run that nobody runs, as large as they may be: 2 GB lay between gate and core after ten
// seconds.
TEST(PeerAttack, StaleReports) {
  withstands({.next = [](uint64_t number) {
    proto::StepReport report{.run = 1 + number % 7, .plan_version = 1, .step = number};
    report.squares.assign(number % 3 == 0 ? 100'000 : 10, 1.0);
    return report;
  }});
}

TEST(PeerAttack, Heartbeats) {
  withstands({.next = [](uint64_t number) { return proto::Heartbeat{number, {1 << 30}, {}}; }});
}

// The answers are left unread.
TEST(PeerAttack, HeartbeatsWhoseAnswersNobodyReads) {
  withstands({.next =
                  [](uint64_t number) {
                    return proto::Heartbeat{number, {1 << 30}, {}};
                  },
              .reads = false});
}

// A key of its own each time, by a token that admits whoever shows it: the broker once remembered all of
// them.
TEST(PeerAttack, KeysWithoutEnd) { withstands({.is_fickle = true}); }

// A second connection asks for what nobody has.
TEST(PeerAttack, QuestionsForBlobs) {
  withstands({.role = proto::Role::PeerBulk, .next = [](uint64_t number) {
                proto::HaveBlobs have{
                    .request = number, .blobs = std::vector<Digest>(10'000), .durable = false};
                have.blobs[0].bytes[0] = static_cast<uint8_t>(number);
                return have;
              }});
}

}  // namespace
}  // namespace weft::attacks
