#include "storage/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "storage/sha256.h"
#include "tests/storage/failing.h"
#include "tests/support/scratch.h"

namespace weft::storage {
namespace {

using test::Scratch;

// A small state in which the weights differ from step to step and the statistic does not.
Checkpoint state_at(uint64_t step, const std::string& run = "run") {
  const auto s = static_cast<float>(step);
  const std::vector<float> weights = {s, s + 1, s + 2, s + 3};
  const std::vector<float> slot = {-s, 0, 0, 1};
  const std::vector<float> statistic = {0.5f, 0.25f};
  Checkpoint checkpoint{run, step, step / 3, step * 8, sha256_hex("graph"), "cpu", {}};
  checkpoint.tensors[dag::of_initializer("w")] = dag::make_tensor({2, 2}, weights);
  checkpoint.tensors[dag::of_initializer("w", dag::StateSlot::Momentum)] = dag::make_tensor({2, 2}, slot);
  checkpoint.tensors[dag::of_initializer("mean", dag::StateSlot::RunningStatistic)] =
      dag::make_tensor({2}, statistic);
  return checkpoint;
}

void expect_equal(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.run, b.run);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.skipped_steps, b.skipped_steps);
  EXPECT_EQ(a.data_position, b.data_position);
  EXPECT_EQ(a.graph_hash, b.graph_hash);
  EXPECT_EQ(a.numerics, b.numerics);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [key, tensor] : a.tensors) {
    const auto found = b.tensors.find(key);
    ASSERT_NE(found, b.tensors.end()) << to_string(key);
    EXPECT_EQ(tensor.spec(), found->second.spec());
    EXPECT_TRUE(std::ranges::equal(tensor.bytes(), found->second.bytes()));
  }
}

WriteReport write(const std::filesystem::path& folder, const Checkpoint& checkpoint) {
  Files files;
  auto writer = CheckpointWriter::open(folder, files);
  EXPECT_TRUE(writer.has_value());
  auto report = (*writer)->write(checkpoint);
  EXPECT_TRUE(report.has_value()) << (report ? "" : report.error().message);
  return report.value_or(WriteReport{});
}

LoadReport load(const std::filesystem::path& path) {
  Files files;
  auto report = load_checkpoint(path, files);
  EXPECT_TRUE(report.has_value()) << (report ? "" : report.error().message);
  return report.value_or(LoadReport{});
}

size_t blob_count(const std::filesystem::path& folder) {
  Files files;
  return files.list(folder / "blobs", 1000).value().size();
}

void append_byte(const std::filesystem::path& path) {
  std::ofstream(path, std::ios::binary | std::ios::app) << 'x';
}

TEST(Checkpoint, ComesBackFromFolderAndManifest) {
  const Scratch scratch;
  const auto report = write(scratch.folder(), state_at(10));
  EXPECT_EQ(report.manifest, scratch.folder() / "checkpoint-10.json");
  EXPECT_EQ(report.blobs_written, 3u);
  expect_equal(load(scratch.folder()).checkpoint, state_at(10));
  expect_equal(load(report.manifest).checkpoint, state_at(10));
  Files files;
  EXPECT_EQ(find_latest(scratch.folder(), files).value(), report.manifest);
}

TEST(Checkpoint, UnchangedTensorsAreWrittenOnce) {
  const Scratch scratch;
  write(scratch.folder(), state_at(10));
  const auto report = write(scratch.folder(), state_at(20));
  EXPECT_EQ(report.blobs_written, 2u);
  EXPECT_EQ(report.blobs_reused, 1u);
  EXPECT_EQ(blob_count(scratch.folder()), 5u);
}

TEST(Checkpoint, TwoGenerationsAreKeptAndTheRestGoes) {
  const Scratch scratch;
  for (uint64_t step = 10; step <= 50; step += 10) write(scratch.folder(), state_at(step));
  Files files;
  EXPECT_EQ(files.list(scratch.folder(), 10).value(),
            (std::vector<std::string>{"blobs", "checkpoint-40.json", "checkpoint-50.json"}));
  EXPECT_EQ(blob_count(scratch.folder()), 5u);
  expect_equal(load(scratch.folder() / "checkpoint-40.json").checkpoint, state_at(40));
}

TEST(Checkpoint, LatestIsTheOneWrittenLastWhateverItsStep) {
  const Scratch scratch;
  write(scratch.folder(), state_at(500, "old"));
  write(scratch.folder(), state_at(10, "new"));
  expect_equal(load(scratch.folder()).checkpoint, state_at(10, "new"));
}

TEST(Checkpoint, SameStepAgainReplacesIt) {
  const Scratch scratch;
  write(scratch.folder(), state_at(10, "a"));
  write(scratch.folder(), state_at(10, "b"));
  EXPECT_EQ(load(scratch.folder()).checkpoint.run, "b");
}

TEST(Checkpoint, DamagedBlobIsNeverUsedAndTheOlderOneIs) {
  const Scratch scratch;
  write(scratch.folder(), state_at(10));
  write(scratch.folder(), state_at(20));
  const auto blob =
      scratch.folder() / "blobs" / sha256_hex(state_at(20).tensors.at(dag::of_initializer("w")).bytes());
  scratch.write("blobs/" + blob.filename().string(), std::string(16, 'x'));
  Files files;
  EXPECT_TRUE(fails_with(load_checkpoint(scratch.folder() / "checkpoint-20.json", files),
                         ErrorCode::Corrupted, "do not match their hash"));
  const auto report = load(scratch.folder());
  expect_equal(report.checkpoint, state_at(10));
  ASSERT_EQ(report.passed_over.size(), 1u);
  append_byte(blob);
  EXPECT_TRUE(fails_with(load_checkpoint(scratch.folder() / "checkpoint-20.json", files),
                         ErrorCode::Corrupted, "17"));
  std::filesystem::remove(blob);
  EXPECT_TRUE(fails_with(load_checkpoint(scratch.folder() / "checkpoint-20.json", files), ErrorCode::NotFound,
                         "blobs"));
  expect_equal(load(scratch.folder()).checkpoint, state_at(10));
}

TEST(Checkpoint, DamagedBlobIsWrittenAgainRatherThanReused) {
  const Scratch scratch;
  write(scratch.folder(), state_at(10));
  const auto name = sha256_hex(
      state_at(10).tensors.at(dag::of_initializer("mean", dag::StateSlot::RunningStatistic)).bytes());
  scratch.write("blobs/" + name, std::string(8, 'x'));
  write(scratch.folder(), state_at(20));
  expect_equal(load(scratch.folder() / "checkpoint-20.json").checkpoint, state_at(20));
}

TEST(Checkpoint, DamagedManifestIsPassedOver) {
  const Scratch scratch;
  write(scratch.folder(), state_at(10));
  scratch.write("checkpoint-20.json", "{");
  const auto report = load(scratch.folder());
  expect_equal(report.checkpoint, state_at(10));
  EXPECT_EQ(report.passed_over.size(), 1u);
}

TEST(Checkpoint, LeftOversOfACrashAreRemoved) {
  const Scratch scratch;
  write(scratch.folder(), state_at(10));
  scratch.write(".checkpoint-15.json.1-0.weft-tmp", "{");
  scratch.write("blobs/.abc.1-0.weft-tmp", "x");
  scratch.write("blobs/" + std::string(64, 'a'), "x");
  scratch.write("notes.txt", "mine");
  write(scratch.folder(), state_at(20));
  EXPECT_EQ(blob_count(scratch.folder()), 5u);
  Files files;
  const auto names = files.list(scratch.folder(), 10).value();
  EXPECT_EQ(names,
            (std::vector<std::string>{"blobs", "checkpoint-10.json", "checkpoint-20.json", "notes.txt"}));
}

TEST(Checkpoint, EmptyOrAbsentFolderIsNotFound) {
  const Scratch scratch;
  Files files;
  EXPECT_TRUE(fails_with(find_latest(scratch.folder(), files), ErrorCode::NotFound, "no checkpoint"));
  EXPECT_TRUE(fails_with(load_checkpoint(scratch.folder(), files), ErrorCode::NotFound, "no checkpoint"));
  EXPECT_TRUE(fails_with(load_checkpoint(scratch.folder() / "absent", files), ErrorCode::NotFound, "absent"));
}

TEST(Checkpoint, SecondWriterIsRefused) {
  const Scratch scratch;
  Files files;
  const auto first = CheckpointWriter::open(scratch.folder(), files);
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(
      fails_with(CheckpointWriter::open(scratch.folder(), files), ErrorCode::Unavailable, "another run"));
}

TEST(Checkpoint, StateThatCouldNotBeReadBackIsRefused) {
  const Scratch scratch;
  Files files;
  const auto writer = CheckpointWriter::open(scratch.folder(), files);
  auto bad_slot = state_at(1);
  bad_slot.tensors[dag::of_initializer("w", dag::StateSlot::None)] =
      bad_slot.tensors.at(dag::of_initializer("w"));
  EXPECT_TRUE(fails_with((*writer)->write(bad_slot), ErrorCode::InvalidArgument, "slot"));
  auto bad_name = state_at(1);
  bad_name.run = "\xff";
  EXPECT_TRUE(fails_with((*writer)->write(bad_name), ErrorCode::InvalidArgument, "UTF-8"));
  auto bad_hash = state_at(1);
  bad_hash.graph_hash = "none";
  EXPECT_TRUE(fails_with((*writer)->write(bad_hash), ErrorCode::InvalidArgument, "graph"));
}

// Fails every operation of opening and writing in turn: alone, or with all that follow, as in a crash.
// Whatever happened, a folder that held step 20 still loads: step 20 after an error, or step 30 whole.
void expect_every_fault_survived(bool and_after) {
  int operations = 0;
  for (int at = 1;; ++at) {
    SCOPED_TRACE("operation " + std::to_string(at));
    const Scratch scratch;
    write(scratch.folder(), state_at(10));
    write(scratch.folder(), state_at(20));
    const auto count = std::make_shared<int>(0);
    bool written = false;
    {
      Files files(fail_at(at, and_after, count));
      auto writer = CheckpointWriter::open(scratch.folder(), files);
      if (writer) {
        const auto report = (*writer)->write(state_at(30));
        written = report.has_value();
      }
    }
    const auto loaded = load(scratch.folder());
    if (written)
      expect_equal(loaded.checkpoint, state_at(30));
    else
      expect_equal(loaded.checkpoint, state_at(loaded.checkpoint.step == 30 ? 30 : 20));
    // The disk is well again: the next write succeeds and leaves nothing behind.
    write(scratch.folder(), state_at(40));
    expect_equal(load(scratch.folder()).checkpoint, state_at(40));
    EXPECT_EQ(blob_count(scratch.folder()), 5u);
    operations = *count;
    if (*count < at) break;
  }
  EXPECT_GT(operations, 20);
}
TEST(Checkpoint, EveryFailingOperationLeavesAWholeCheckpoint) { expect_every_fault_survived(false); }
TEST(Checkpoint, EveryCrashPointLeavesAWholeCheckpoint) { expect_every_fault_survived(true); }

// A disk that half of a checkpoint has filled has no room for anything else.
TEST(Checkpoint, AWriteThatFailedLeavesNoBlobsBehind) {
  int failed = 0;
  for (int at = 1; at <= 40; ++at) {  // beyond the last
    SCOPED_TRACE("operation " + std::to_string(at));
    const Scratch scratch;
    write(scratch.folder(), state_at(10));
    const size_t before = blob_count(scratch.folder());
    Files files(fail_at(at, false, std::make_shared<int>(0)));
    auto writer = CheckpointWriter::open(scratch.folder(), files);
    if (!writer) continue;
    const auto report = (*writer)->write(state_at(20));
    if (report) continue;  // a blob that could not be read is written anew
    ++failed;
    if (load(scratch.folder()).checkpoint.step == 10) {
      EXPECT_EQ(blob_count(scratch.folder()), before);
    }
  }
  EXPECT_GT(failed, 10);
}

TEST(Checkpoint, ReadErrorIsToldAndNotTakenForDamage) {
  const Scratch scratch;
  write(scratch.folder(), state_at(10));
  write(scratch.folder(), state_at(20));
  for (int at = 1; at <= 6; ++at) {
    SCOPED_TRACE("operation " + std::to_string(at));
    Files files(fail_at(at, false, std::make_shared<int>(0)));
    EXPECT_TRUE(fails_with(load_checkpoint(scratch.folder(), files), ErrorCode::Unavailable, "injected"));
  }
}

}  // namespace
}  // namespace weft::storage
