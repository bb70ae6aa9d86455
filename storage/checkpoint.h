// Checkpoints: the training state of a run, in a folder that survives crashes.
//
//   checkpoint-<step>.json    the manifests (storage/manifest.h), the last two that were written
//   blobs/<sha-256>           the bytes of the tensors, each once
//
// Blobs are written first, then the manifest, each by temporary file, fsync and rename: a manifest that can
// be read names only blobs that are there. After a write that failed, at whatever operation, the checkpoint
// before it is still whole. Old manifests and blobs that no manifest names go after the new manifest is
// durable, and those of a write that failed at once, for the disk may be full of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"
#include "storage/files.h"
#include "storage/manifest.h"

namespace weft::storage {

using CheckpointTensors = std::map<dag::StateKey, dag::Tensor>;

struct Checkpoint {
  std::string run;
  uint64_t step = 0;
  uint64_t skipped_steps = 0;  // of those up to `step`: without an update
  uint64_t data_position = 0;
  std::string graph_hash;  // 64 hexadecimal digits
  std::string numerics;
  CheckpointTensors tensors;
  std::optional<RunSettings> settings{};    // none: an older weft wrote it
  std::vector<uint64_t> replica_updates{};  // as Manifest has it
};

struct WriteReport {
  std::filesystem::path manifest;
  uint64_t blobs_written = 0;
  uint64_t bytes_written = 0;
  uint64_t blobs_reused = 0;      // were there already, with the right bytes
  std::optional<Error> clean_up;  // the checkpoint is whole, but something old could not be removed
};

// Owns the folder for writing while it lives. One thread at a time.
class CheckpointWriter {
 public:
  // Makes the folder where it is missing. Unavailable when another writer holds it. `files` must outlive
  // this.
  static Result<std::unique_ptr<CheckpointWriter>> open(const std::filesystem::path& folder, Files& files);

  // InvalidArgument when a field breaks the manifest's rules; else what the disk says.
  Result<WriteReport> write(const Checkpoint& checkpoint);

 private:
  CheckpointWriter(std::filesystem::path folder, Files& files, FolderLock lock)
      : folder_(std::move(folder)), files_(files), lock_(std::move(lock)) {}
  Result<WriteReport> write_all(const Checkpoint& checkpoint);
  Result<std::string> write_blob(const dag::Tensor& tensor, WriteReport& report);
  Status collect_garbage();

  std::filesystem::path folder_;
  Files& files_;
  FolderLock lock_;
  std::set<std::string> verified_;  // blobs that this writer wrote, or read and found right
};

// The manifest written last in the folder, among those that can be read. NotFound when there is none.
Result<std::filesystem::path> find_latest(const std::filesystem::path& folder, Files& files);

struct LoadReport {
  Checkpoint checkpoint;
  std::filesystem::path manifest;
  // Newer checkpoints of the folder that were passed over because they are damaged.
  std::vector<Error> passed_over;
};

// From a manifest file, or from a folder: then the newest checkpoint that is whole. Every blob's bytes are
// compared with their hash before they are used. NotFound, Corrupted, VersionMismatch, ResourceExhausted.
Result<LoadReport> load_checkpoint(const std::filesystem::path& path, Files& files);

}  // namespace weft::storage
