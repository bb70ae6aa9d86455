// Data made ready to travel. A broker reads npz, idx and text; of tables, photos and single arrays it gets an
// npz of their columns as they were read, and the job that it gets says so. So no broker decodes a picture.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/result.h"
#include "configs/yaml.h"
#include "data/data_spec.h"

namespace weft::train {

// A file without a name on any disk: its room is given back when the process ends, however it does.
class MadeFile {
 public:
  // In TMPDIR, else in /var/tmp, which has more room than /tmp where that is memory.
  static Result<std::shared_ptr<MadeFile>> make();
  ~MadeFile();
  MadeFile(const MadeFile&) = delete;
  MadeFile& operator=(const MadeFile&) = delete;

  std::filesystem::path path() const;  // by which this process can open it
  Status write_at(uint64_t offset, std::span<const std::byte> bytes) const;

 private:
  MadeFile(int descriptor, std::string folder) : descriptor_(descriptor), folder_(std::move(folder)) {}
  int descriptor_;
  std::string folder_;
};

// The npz of all columns that `spec` reads, before anything changes them. Reads every sample, photos too.
// Errors: what reading says; ResourceExhausted where there is no room.
Result<std::shared_ptr<const MadeFile>> make_npz(const data::DataSpec& spec);

// How a job says that it reads that npz, at `path`, as `spec` would be read.
configs::Node npz_node(const data::DataSpec& spec, const std::string& path);

}  // namespace weft::train
