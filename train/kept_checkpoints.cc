#include "train/kept_checkpoints.h"

#include <cstdlib>
#include <system_error>

#include "train/outputs.h"

namespace weft::train {

std::filesystem::path KeptCheckpoints::folder() const { return checkpoint_folder(job_); }

Status KeptCheckpoints::open(const std::filesystem::path& folder) {
  WEFT_TRY(writer_, storage::CheckpointWriter::open(folder, files_));
  return {};
}

bool KeptCheckpoints::is_due(uint64_t step, uint64_t before) const {
  if (job_.checkpoint.steps) return step / *job_.checkpoint.steps > before / *job_.checkpoint.steps;
  return job_.checkpoint.every && Clock::now() - last_ >= *job_.checkpoint.every;
}

Status KeptCheckpoints::write(const storage::Checkpoint& checkpoint) {
  const Status written = write_to(folder(), checkpoint);
  last_ = Clock::now();
  return written;
}

Status KeptCheckpoints::write_to(const std::filesystem::path& folder, const storage::Checkpoint& checkpoint) {
  if (!writer_) WEFT_TRY_STATUS(open(folder));
  const auto report = writer_->write(checkpoint);
  if (!report) {
    writer_.reset();  // its folder may be gone: the next one looks again
    return fail(report.error());
  }
  path_ = report->manifest;
  return {};
}

Status KeptCheckpoints::write_somewhere(const storage::Checkpoint& checkpoint) {
  if (writer_ && write_to(folder(), checkpoint)) return {};
  Status beside = write_to(folder(), checkpoint);
  if (beside) return {};
  std::error_code code;
  std::string elsewhere =
      std::filesystem::temp_directory_path(code) / ("weft-checkpoints-" + std::string(6, 'X'));
  if (code || ::mkdtemp(elsewhere.data()) == nullptr) return beside;
  return write_to(elsewhere, checkpoint) ? Status{} : beside;
}

}  // namespace weft::train
