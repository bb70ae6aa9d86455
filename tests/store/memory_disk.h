// A disk in memory that SQLite writes to, which fails where a test wants it to: the n-th operation that
// changes something (write, truncate, sync, delete, making a file) fails, or is torn, or is the last thing
// the process or the machine does. It knows what was synced, so that a power loss can take what was not.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"

namespace weft::test {

enum class Fault {
  None,
  Error,      // the operation fails with an I/O error and does nothing; those after it work
  Full,       // the next write writes half and says that the disk is full, as all do until make_room()
  Kill,       // the process ends before the operation; what was written stays
  Torn,       // the process ends in the middle of the operation
  PowerLoss,  // the machine stops before the operation; of what was not synced an arbitrary part stays
};
const char* to_string(Fault fault);

// One connection at a time. Registered with SQLite under `name` while it lives.
class MemoryDisk {
 public:
  explicit MemoryDisk(std::string name);
  ~MemoryDisk();
  MemoryDisk(const MemoryDisk&) = delete;
  MemoryDisk& operator=(const MemoryDisk&) = delete;

  const std::string& name() const { return name_; }
  // The `at`-th operation from now on (from 1).
  void arm(uint64_t at, Fault fault);
  void make_room() { full_ = false; }
  bool struck() const { return struck_; }
  bool is_dead() const { return dead_; }
  uint64_t operation_count() const { return count_; }  // since arm()
  // The files as they are found after what happened; nothing is armed. REQUIRES: no connection.
  void restart(Rng& rng);
  // The same with a power loss, whatever happened.
  void lose_power(Rng& rng);

  struct Change {
    bool is_truncate = false;
    uint64_t offset = 0;  // truncate: the new size
    std::vector<uint8_t> bytes{};
  };
  struct File {
    std::vector<uint8_t> now, durable;
    std::vector<Change> unsynced;
    bool has_durable_name = false, syncs_folder = false;
    std::vector<std::unique_ptr<uint8_t[]>> shared_memory;  // the log's index: never durable
  };
  using FilePtr = std::shared_ptr<File>;
  using Image = std::map<std::string, std::vector<uint8_t>>;
  Image image() const;               // as if everything were synced
  void restore(const Image& image);  // REQUIRES: no connection

  // For the sqlite3_vfs.
  enum class Verdict { Go, Fail, Half };
  Verdict before_operation(bool is_write);
  FilePtr find(const std::string& path) const;
  FilePtr create(const std::string& path);
  void remove(const std::string& path, bool durably);
  void sync_folder();
  int error_code(int of_operation) const { return full_answer_ ? SQLITE_FULL : of_operation; }

 private:
  std::string name_;
  sqlite3_vfs vfs_{};
  std::map<std::string, FilePtr> files_;
  std::vector<std::pair<std::string, FilePtr>> removed_;  // may come back
  uint64_t count_ = 0, at_ = 0;
  Fault fault_ = Fault::None;
  bool struck_ = false, dead_ = false, full_ = false, full_answer_ = false;
};

}  // namespace weft::test
