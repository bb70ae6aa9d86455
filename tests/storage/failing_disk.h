// The real disk behind a FaultHook: the n-th operation fails, or is the last one of the process or of the
// machine; then what was not synced can be taken back: bytes of files, names, removals, folders. A write
// counts twice, so that the process may end in the middle of it. Operations come from one thread.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "storage/files.h"

namespace weft::test {

enum class DiskFault {
  Error,      // the operation fails; those after it work
  Full,       // what takes room fails from there on, until make_room()
  Kill,       // the process ends before the operation
  PowerLoss,  // the machine does
};
const char* to_string(DiskFault fault);

// Made on the heap and kept while a hook of it is in use.
class FailingDisk {
 public:
  FailingDisk(uint64_t at, DiskFault fault) : at_(at), fault_(fault) {}
  FailingDisk(const FailingDisk&) = delete;
  FailingDisk& operator=(const FailingDisk&) = delete;

  storage::FaultHook hook();
  void make_room() { is_full_ = false; }
  bool struck() const { return struck_; }
  bool is_dead() const { return is_dead_; }
  uint64_t operation_count() const { return count_; }
  // Of everything that was not synced an arbitrary part is taken back. Nothing uses the disk any more.
  void lose_power(Rng& rng);

 private:
  // What a name was before an operation on it that no sync of its folder has made durable.
  struct Pending {
    std::filesystem::path path;
    bool is_folder = false;
    std::optional<std::string> before;  // the bytes that it named; nothing: it was not there
  };
  Status on_operation(std::string_view operation, const std::filesystem::path& path);
  void complete();
  void note(std::string_view operation, const std::filesystem::path& path);

  uint64_t at_;
  DiskFault fault_;
  uint64_t count_ = 0;
  bool struck_ = false, is_dead_ = false, is_full_ = false;

  std::string last_operation_;  // allowed, so done by the time of the next one
  std::filesystem::path last_path_;
  std::optional<Pending> last_change_;
  std::vector<Pending> pending_;
  std::set<std::filesystem::path> unsynced_;  // files with bytes that are not durable
  std::filesystem::path last_opened_;
};

}  // namespace weft::test
