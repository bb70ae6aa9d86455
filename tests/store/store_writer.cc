// Writes a broker's memory for tests/e2e, until it is killed, and looks at what is left of it.
//   store_writer write FOLDER     appends records 1, 2, 3, ... (after those that are there), each with blobs
//   of its
//                                 own, and prints each number once it is acknowledged. With a full disk it
//                                 prints "full", waits for a line on its input and tries again.
//   store_writer check FOLDER N   everything up to N must be there, and nothing by half; prints the last
//   number store_writer past FOLDER N    a broker's data folder that has seen a job of N events, which has
//   ended
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <utility>

#include "base/rng.h"
#include "broker/store/sqlite_store.h"
#include "storage/blob_store.h"

namespace {

namespace fs = std::filesystem;
using namespace weft;
using broker::Record;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "crash writer: %s\n", why.c_str());
  std::exit(1);
}
template <typename T>
T value_or_stop(Result<T> result) {
  if (!result) stop(result.error().message);
  return std::move(result).value();
}

std::vector<std::byte> blob_of(uint64_t number) {
  Rng rng(number, 0xB10B);
  std::vector<std::byte> bytes(static_cast<size_t>(1000 + rng.below(60'000)));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next_u32());
  return bytes;
}

struct Memory {
  std::unique_ptr<broker::Store> store;
  std::unique_ptr<storage::BlobStore> blobs;
};
Memory open(const fs::path& folder) {
  fs::create_directories(folder);
  Memory memory;
  memory.store = value_or_stop(broker::open_sqlite_store(folder / "broker.sqlite", {.log_pages_max = 50}));
  memory.blobs = value_or_stop(storage::BlobStore::open(
      folder / "blobs", {.wipe_transient = true, .reserve = 256 << 10, .transient_in_memory = 256 << 10}));
  return memory;
}

// The blob comes as one that need not survive and is then made to, as a checkpoint's tensors do; every third
// one comes as a durable one. The record that names it is the last.
Status write_one(Memory& memory, uint64_t number) {
  const auto bytes = blob_of(number);
  const Digest digest = storage::sha256(bytes);
  if (number % 3 == 0) {
    WEFT_TRY(const Digest put, memory.blobs->put(bytes));
    if (put != digest) stop("another digest");
  } else {
    WEFT_TRY(const auto writer, memory.blobs->begin(digest, bytes.size(), storage::Durability::Transient));
    WEFT_TRY_STATUS(writer->write(bytes));
    WEFT_TRY_STATUS(writer->finish());
    WEFT_TRY(const bool there, memory.blobs->have(digest, storage::Durability::Durable));
    if (!there) stop("a blob went while it was made durable");
  }
  proto::JobEvent event{.job = 1, .sequence = number, .kind = proto::JobEventKind::Step, .step = number};
  std::vector<Record> records;
  records.emplace_back(event);
  records.emplace_back(broker::CheckpointCommitted{
      1,
      number,
      {{dag::of_initializer("w"), {dag::DType::U8, {static_cast<int64_t>(bytes.size())}}, digest}}});
  records.emplace_back(
      broker::JobChanged{1, proto::JobState::Running, std::string(number % 50 * 100, 'r'), 1, number, 0});
  return memory.store->append(records);
}

int write_until_killed(const fs::path& folder) {
  Memory memory = open(folder);
  const auto state = value_or_stop(memory.store->load());
  if (state.jobs.empty()) {
    const Status made = memory.store->append(std::vector<Record>{broker::JobSubmitted{.job = 1}});
    if (!made) stop(made.error().message);
  }
  uint64_t number = state.jobs.empty() ? 0 : state.jobs.at(1).last_event;
  for (;;) {
    const Status done = write_one(memory, number + 1);
    if (!done && done.error().code == ErrorCode::ResourceExhausted) {
      std::cout << "full" << std::endl;
      std::string line;
      if (!std::getline(std::cin, line)) return 0;
      continue;
    }
    if (!done) stop(done.error().message);
    std::cout << ++number << std::endl;
  }
}

int check(const fs::path& folder, uint64_t acknowledged) {
  Memory memory = open(folder);
  const auto state = value_or_stop(memory.store->load());
  if (state.jobs.empty()) {
    if (acknowledged > 0) stop("the job is gone");
    std::cout << 0 << std::endl;
    return 0;
  }
  const broker::StoredJob& job = state.jobs.at(1);
  const std::string counts = std::to_string(job.last_event) + " events, step " +
                             std::to_string(job.last.step) + ", " + std::to_string(acknowledged) +
                             " acknowledged";
  if (job.last_event < acknowledged || job.last_event > acknowledged + 1)
    stop("not what was acknowledged: " + counts);
  if (job.last.step != job.last_event || job.committed_step != job.last_event)
    stop("half an append: " + counts);
  const auto events = value_or_stop(memory.store->events(1, 1, 1'000'000));
  for (size_t i = 0; i < events.size(); ++i)
    if (events[i].sequence != i + 1) stop("an event is missing: " + std::to_string(i + 1));
  if (events.size() != job.last_event) stop("events are missing: " + counts);
  for (const auto& checkpoint : job.checkpoints)
    value_or_stop(memory.blobs->read(checkpoint.tensors.front().sha256, 1 << 20));
  // Those of the records before: all of them are there, whole. The last few are enough each time.
  for (uint64_t n = job.last_event > 5 ? job.last_event - 5 : 1; n <= job.last_event; ++n)
    if (value_or_stop(memory.blobs->read(storage::sha256(blob_of(n)), 1 << 20)) != blob_of(n))
      stop("another blob");
  for (const auto& entry : fs::directory_iterator(folder / "blobs"))
    if (storage::Files::is_temporary_name(entry.path().filename().string()))
      stop("a leftover: " + entry.path().string());
  std::cout << job.last_event << std::endl;
  return 0;
}

int make_past(const fs::path& folder, uint64_t events) {
  fs::create_directories(folder);
  const auto store = value_or_stop(broker::open_sqlite_store(folder / "broker.sqlite"));
  std::vector<Record> records{broker::JobSubmitted{.job = 1}};
  for (uint64_t n = 1; n <= events; ++n) {
    records.emplace_back(
        proto::JobEvent{.job = 1, .sequence = n, .kind = proto::JobEventKind::Step, .step = n});
    if (n < events && records.size() < 10'000) continue;
    if (n == events)
      records.emplace_back(broker::JobChanged{1, proto::JobState::Failed, "made for a test", 1, n, n});
    const Status done = store->append(std::exchange(records, {}));
    if (!done) stop(done.error().message);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && !std::strcmp(arguments[1], "write")) return write_until_killed(arguments[2]);
  if (count == 4 && !std::strcmp(arguments[1], "check"))
    return check(arguments[2], std::strtoull(arguments[3], nullptr, 10));
  if (count == 4 && !std::strcmp(arguments[1], "past"))
    return make_past(arguments[2], std::strtoull(arguments[3], nullptr, 10));
  std::fprintf(stderr, "usage: store_writer write FOLDER | check FOLDER N | past FOLDER N\n");
  return 2;
}
