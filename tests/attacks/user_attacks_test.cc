// What a user with a token asks for, and does not take.
#include <gtest/gtest.h>

#include <cstdio>

#include "broker/store/sqlite_store.h"
#include "storage/blob_store.h"
#include "tests/attacks/lying_peer.h"
#include "tests/attacks/siege.h"

namespace weft::attacks {
namespace {

void withstands(Siege& siege, Lies lies) {
  lies.role = proto::Role::Submitter;
  siege.withstands([&](const std::atomic<bool>& is_over) {
    const LiesTold told = tell(siege.broker().endpoint(), siege.broker().submitter_token(), lies, is_over);
    std::printf("  told: %llu messages of %.1f MiB over %llu connections\n",
                static_cast<unsigned long long>(told.messages), static_cast<double>(told.bytes) / (1 << 20),
                static_cast<unsigned long long>(told.connections));
  });
}

// A job that has ended, with many events.
void store_events(const std::filesystem::path& data) {
  const auto store = broker::open_sqlite_store(data / "broker.sqlite");
  ASSERT_TRUE(store) << store.error().message;
  std::vector<broker::Record> records{
      broker::JobSubmitted{.job = 1, .submission = proto::SubmitJob{.name = "long"}},
      broker::JobChanged{.job = 1, .state = proto::JobState::Failed, .reason = "a test"}};
  for (uint64_t sequence = 1; sequence <= 20'000; ++sequence)
    records.push_back(proto::JobEvent{
        .job = 1, .sequence = sequence, .kind = proto::JobEventKind::Notice, .text = std::string(1000, 'x')});
  const Status stored = (*store)->append(records);
  ASSERT_TRUE(stored) << stored.error().message;
}

// It once cost 196 MB.
TEST(UserAttack, EventsThatNobodyReads) {
  Siege siege(store_events);
  withstands(siege, {.next = [](uint64_t) { return proto::GetEvents{.job = 1}; }, .reads = false});
}

TEST(UserAttack, ListsThatNobodyReads) {
  Siege siege(store_events);
  withstands(siege, {.next = [](uint64_t number) -> proto::Message {
                       if (number % 3 == 0) return proto::ListJobs{};
                       if (number % 3 == 1) return proto::ListPeers{};
                       return proto::GetJob{1};
                     },
                     .reads = false});
}

TEST(UserAttack, BlobsThatNobodyReads) {
  Siege siege;
  const std::vector<std::byte> blob(48 << 20, std::byte{7});
  const Digest name = storage::sha256(blob);
  withstands(siege,
             {.next = [&](uint64_t number) { return proto::GetBlob{.request = number, .sha256 = name}; },
              .blob = blob,
              .reads = false});
}

// It once cost 2 GB in ten seconds.
TEST(UserAttack, SubmissionsOfNothing) {
  Siege siege;
  withstands(siege, {.next = [](uint64_t number) {
               proto::SubmitJob job{.name = "nothing", .job = "no: job\n"};
               job.job.append(500'000, '#');
               job.files.resize(1 + number % 4000);
               for (proto::PackedFile& file : job.files) file.path = "model/" + std::to_string(number);
               return job;
             }});
}

}  // namespace
}  // namespace weft::attacks
