// Blobs, checkpoints and whole files on a disk that fails at the n-th operation, for every n and each way of
// failing. Power losses are drawn several times with WEFT_LONG=1.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "storage/blob_store.h"
#include "storage/checkpoint.h"
#include "storage/sha256.h"
#include "tests/storage/failing_disk.h"
#include "tests/support/scratch.h"

namespace weft::storage {
namespace {

namespace fs = std::filesystem;
using test::DiskFault;
using test::FailingDisk;

constexpr uint64_t kSeed = 20261121;
constexpr DiskFault kFaults[] = {DiskFault::Error, DiskFault::Full, DiskFault::Kill, DiskFault::PowerLoss};

int draws(DiskFault fault) { return fault == DiskFault::PowerLoss ? (std::getenv("WEFT_LONG") ? 12 : 2) : 1; }

// In memory where that can be had: syncs that nobody relies on cost most of the time.
class Folder {
 public:
  Folder() {
    std::error_code code;
    const fs::path memory = "/dev/shm";
    if (::access(memory.c_str(), W_OK) == 0)
      folder_ = memory / ("weft-" + test::scratch_folder().filename().string());
    else
      folder_ = test::scratch_folder();
    fs::remove_all(folder_, code);
    fs::create_directories(folder_);
  }
  ~Folder() {
    std::error_code code;
    fs::remove_all(folder_, code);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

// `body` for each operation and fault, until it came through without meeting the fault.
template <typename Body>
void at_every_operation(uint64_t points_min, const Body& body) {
  uint64_t points = 0;
  for (const DiskFault fault : kFaults)
    for (uint64_t at = 1;; ++at) {
      bool struck = false;
      for (int draw = 0; draw < draws(fault); ++draw) {
        SCOPED_TRACE(std::string(to_string(fault)) + " at operation " + std::to_string(at) + ", seed " +
                     std::to_string(kSeed) + ", draw " + std::to_string(draw));
        Rng rng(kSeed + static_cast<uint64_t>(draw), at);
        FailingDisk disk(at, fault);
        body(disk, fault, rng);
        struck = disk.struck();
        if (struck) ++points;
        if (testing::Test::HasFailure()) return;
      }
      if (!struck) break;
    }
  std::cout << points << " crash points\n";
  EXPECT_GT(points, points_min);
}

std::vector<std::byte> bytes_of(uint64_t number, size_t size) {
  Rng rng(number, 5);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next_u32());
  return bytes;
}

// ---- blobs

constexpr uint64_t kBlobs = 6;  // the odd ones come as transient ones and are made durable afterwards

Status put_transient(BlobStore& store, std::span<const std::byte> bytes) {
  WEFT_TRY(const auto writer, store.begin(sha256(bytes), bytes.size(), Durability::Transient));
  WEFT_TRY_STATUS(writer->write(bytes.first(bytes.size() / 3)));
  WEFT_TRY_STATUS(writer->write(bytes.subspan(bytes.size() / 3)));
  return writer->finish();
}

Status put_one(BlobStore& store, uint64_t number) {
  const auto bytes = bytes_of(number, 100 + number * 1000);
  const Digest digest = sha256(bytes);
  if (number % 2 == 0) {
    const auto put = store.put(bytes);
    return put ? Status{} : fail(put.error());
  }
  WEFT_TRY_STATUS(put_transient(store, bytes));
  WEFT_TRY(const bool there, store.have(digest, Durability::Durable));
  return there ? Status{} : fail(ErrorCode::Internal, "it was just written");
}

Digest digest_of_number(uint64_t number) { return sha256(bytes_of(number, 100 + number * 1000)); }

size_t count_leftovers(const fs::path& folder) {
  size_t count = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    count += Files::is_temporary_name(entry.path().filename().string());
  return count;
}

void expect_blobs(const fs::path& folder, const std::set<uint64_t>& acknowledged) {
  auto opened = BlobStore::open(folder, {.wipe_transient = true});
  ASSERT_TRUE(opened) << opened.error().message;
  BlobStore& store = **opened;
  for (uint64_t number = 1; number <= kBlobs; ++number) {
    const auto read = store.read(digest_of_number(number), 1 << 20);
    if (acknowledged.contains(number))
      EXPECT_TRUE(read) << "blob " << number << " was acknowledged: " << read.error().message;
    else
      EXPECT_TRUE(read || read.error().code == ErrorCode::NotFound) << read.error().message;
  }
  EXPECT_FALSE(fs::exists(folder / "transient"));
  EXPECT_EQ(count_leftovers(folder), 0u);
  for (uint64_t number = 1; number <= kBlobs; ++number) EXPECT_TRUE(put_one(store, number));
  for (uint64_t number = 1; number <= kBlobs; ++number)
    EXPECT_TRUE(store.read(digest_of_number(number), 1 << 20));
}

TEST(StorageCrash, BlobsThatWereAcknowledgedAreThere) {
  at_every_operation(200, [](FailingDisk& disk, DiskFault fault, Rng& rng) {
    const Folder scratch;
    const fs::path folder = scratch.folder() / "data" / "blobs";
    std::set<uint64_t> acknowledged;
    {
      auto store = BlobStore::open(folder, {.wipe_transient = true, .hook = disk.hook()});
      if (!store && !disk.is_dead()) {
        disk.make_room();
        store = BlobStore::open(folder, {.wipe_transient = true, .hook = disk.hook()});
        EXPECT_TRUE(store) << store.error().message;
      }
      for (uint64_t number = 1; store && number <= kBlobs; ++number) {
        Status done = put_one(**store, number);
        if (!done && fault == DiskFault::Full) {
          EXPECT_EQ(done.error().code, ErrorCode::ResourceExhausted) << done.error().message;
          EXPECT_EQ(count_leftovers(folder), 0u);
          disk.make_room();
        }
        if (!done && !disk.is_dead()) {  // whoever uploads tries again
          done = put_one(**store, number);
          EXPECT_TRUE(done) << done.error().message;
        }
        if (done) acknowledged.insert(number);
      }
    }
    // Whoever came through may still lose power afterwards.
    if (fault != DiskFault::Kill) disk.lose_power(rng);
    expect_blobs(folder, acknowledged);
  });
}

// ---- checkpoints

Checkpoint state_at(uint64_t step) {
  const auto s = static_cast<float>(step);
  const std::vector<float> weights = {s, s + 1, s + 2, s + 3};
  const std::vector<float> statistic = {0.5f, 0.25f};
  Checkpoint checkpoint{"run", step, 0, step * 8, sha256_hex("graph"), "cpu", {}};
  checkpoint.tensors[dag::of_initializer("w")] = dag::make_tensor({2, 2}, weights);
  checkpoint.tensors[dag::of_initializer("mean", dag::StateSlot::RunningStatistic)] =
      dag::make_tensor({2}, statistic);
  return checkpoint;
}

bool equal(const Checkpoint& a, const Checkpoint& b) {
  return a.step == b.step && a.data_position == b.data_position &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && std::ranges::equal(x.second.bytes(), y.second.bytes());
                    });
}

Status write_checkpoint(const fs::path& folder, Files& files, uint64_t step) {
  WEFT_TRY(const auto writer, CheckpointWriter::open(folder, files));
  const auto report = writer->write(state_at(step));
  return report ? Status{} : fail(report.error());
}

TEST(StorageCrash, TheNewestCheckpointThatWasAcknowledgedIsThere) {
  at_every_operation(400, [](FailingDisk& disk, DiskFault fault, Rng& rng) {
    const Folder scratch;
    const fs::path folder = scratch.folder() / "run" / "checkpoints";
    uint64_t acknowledged = 0;
    Files files(disk.hook());
    for (const uint64_t step : {10, 20, 30, 40}) {
      Status done = write_checkpoint(folder, files, step);
      if (!done && fault == DiskFault::Full) {
        EXPECT_EQ(done.error().code, ErrorCode::ResourceExhausted) << done.error().message;
        disk.make_room();
      }
      if (!done && disk.is_dead()) break;
      if (done) acknowledged = step;
    }
    if (fault != DiskFault::Kill) disk.lose_power(rng);

    Files well;
    const auto loaded = load_checkpoint(folder, well);
    if (acknowledged == 0 && !loaded) {
      EXPECT_EQ(loaded.error().code, ErrorCode::NotFound) << loaded.error().message;
    } else {
      ASSERT_TRUE(loaded) << loaded.error().message;
      const uint64_t step = loaded->checkpoint.step;
      EXPECT_TRUE(step >= acknowledged && step <= 40)
          << step << " where " << acknowledged << " was acknowledged";
      EXPECT_TRUE(equal(loaded->checkpoint, state_at(step)));
      EXPECT_TRUE(loaded->passed_over.empty());
    }
    // And it goes on: with what is there, and two generations.
    for (const uint64_t step : {50, 60}) {
      const Status done = write_checkpoint(folder, well, step);
      ASSERT_TRUE(done) << done.error().message;
    }
    EXPECT_EQ(load_checkpoint(folder, well)->checkpoint.step, 60u);
    EXPECT_EQ(load_checkpoint(folder / "checkpoint-50.json", well)->checkpoint.step, 50u);
    EXPECT_EQ(count_leftovers(folder), 0u);
    EXPECT_EQ(well.list(folder, 100)->size(), 3u) << "two manifests and the blobs";
  });
}

// ---- files

TEST(StorageCrash, AFileHasTheOldBytesOrTheNewOnes) {
  at_every_operation(30, [](FailingDisk& disk, DiskFault fault, Rng& rng) {
    const Folder scratch;
    const fs::path path = scratch.folder() / "f";
    const std::string old(1000, 'o'), fresh(3000, 'n');
    Files files(disk.hook());
    const bool first = files.write_atomic(path, std::as_bytes(std::span(old))).has_value();
    disk.make_room();
    const bool second = files.write_atomic(path, std::as_bytes(std::span(fresh))).has_value();
    if (fault != DiskFault::Kill) disk.lose_power(rng);
    std::ifstream in(path, std::ios::binary);
    const std::string found{std::istreambuf_iterator<char>(in), {}};
    if (second)
      EXPECT_TRUE(found == fresh);
    else
      EXPECT_TRUE(found == fresh || found == old || (!first && !fs::exists(path))) << found.size();
  });
}

}  // namespace
}  // namespace weft::storage
