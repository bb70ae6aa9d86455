// The checkpoints of a job on one machine, beside its output: when one is due, and where it goes where that
// cannot be. One thread.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>

#include "base/result.h"
#include "configs/job.h"
#include "storage/checkpoint.h"
#include "storage/files.h"

namespace weft::train {

class KeptCheckpoints {
 public:
  using Clock = std::chrono::steady_clock;
  // `job` and `files` outlive this.
  KeptCheckpoints(const configs::Job& job, storage::Files& files)
      : job_(job), files_(files), last_(Clock::now()) {}

  bool are_wanted() const { return job_.checkpoint.every || job_.checkpoint.steps; }
  // Takes the folder for itself.
  Status open() { return open(folder()); }
  // The times between them count from now.
  void begin() { last_ = Clock::now(); }
  // After that step, where the one before it that could be looked at was `before`.
  bool is_due(uint64_t step, uint64_t before) const;

  Status write(const storage::Checkpoint& checkpoint);
  // The last chance to keep what was learnt: beside the output, or else where temporary files are.
  Status write_somewhere(const storage::Checkpoint& checkpoint);
  const std::filesystem::path& path() const { return path_; }  // of the last; empty: there is none

 private:
  std::filesystem::path folder() const;
  Status open(const std::filesystem::path& folder);
  Status write_to(const std::filesystem::path& folder, const storage::Checkpoint& checkpoint);

  const configs::Job& job_;
  storage::Files& files_;
  std::unique_ptr<storage::CheckpointWriter> writer_;
  Clock::time_point last_;
  std::filesystem::path path_;
};

}  // namespace weft::train
