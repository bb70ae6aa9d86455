#include "tests/store/memory_disk.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace weft::test {
namespace {

constexpr size_t kSector = 512;

struct Handle {
  sqlite3_file base;
  MemoryDisk* disk;
  MemoryDisk::FilePtr file;
};
Handle& handle_of(sqlite3_file* file) { return *reinterpret_cast<Handle*>(file); }
MemoryDisk& disk_of(sqlite3_vfs* vfs) { return *static_cast<MemoryDisk*>(vfs->pAppData); }

void carry_out(std::vector<uint8_t>& content, const MemoryDisk::Change& change) {
  if (change.is_truncate) return content.resize(std::min<size_t>(content.size(), change.offset));
  if (change.bytes.empty()) return;
  content.resize(std::max<size_t>(content.size(), change.offset + change.bytes.size()));
  std::memcpy(content.data() + change.offset, change.bytes.data(), change.bytes.size());
}

// ---- a file, as SQLite calls it

int close_file(sqlite3_file* file) {
  handle_of(file).~Handle();
  return SQLITE_OK;
}

int read_file(sqlite3_file* file, void* out, int size, sqlite3_int64 offset) {
  Handle& handle = handle_of(file);
  if (handle.disk->is_dead()) return SQLITE_IOERR_READ;
  const auto& content = handle.file->now;
  const size_t from = std::min<size_t>(content.size(), static_cast<size_t>(offset));
  const size_t there = std::min<size_t>(content.size() - from, static_cast<size_t>(size));
  if (there > 0) std::memcpy(out, content.data() + from, there);
  if (there == static_cast<size_t>(size)) return SQLITE_OK;
  std::memset(static_cast<uint8_t*>(out) + there, 0, static_cast<size_t>(size) - there);
  return SQLITE_IOERR_SHORT_READ;
}

void change_file(Handle& handle, MemoryDisk::Change change) {
  carry_out(handle.file->now, change);
  handle.file->unsynced.push_back(std::move(change));
}

int write_file(sqlite3_file* file, const void* bytes, int size, sqlite3_int64 offset) {
  Handle& handle = handle_of(file);
  const auto verdict = handle.disk->before_operation(/*is_write=*/true);
  if (verdict == MemoryDisk::Verdict::Fail) return handle.disk->error_code(SQLITE_IOERR_WRITE);
  const auto* from = static_cast<const uint8_t*>(bytes);
  const bool half = verdict == MemoryDisk::Verdict::Half;
  change_file(handle,
              {.offset = static_cast<uint64_t>(offset), .bytes = {from, from + (half ? size / 2 : size)}});
  return half ? handle.disk->error_code(SQLITE_IOERR_WRITE) : SQLITE_OK;
}

int truncate_file(sqlite3_file* file, sqlite3_int64 size) {
  Handle& handle = handle_of(file);
  if (handle.disk->before_operation(false) != MemoryDisk::Verdict::Go) return SQLITE_IOERR_TRUNCATE;
  change_file(handle, {.is_truncate = true, .offset = static_cast<uint64_t>(size)});
  return SQLITE_OK;
}

int sync_file(sqlite3_file* file, int) {
  Handle& handle = handle_of(file);
  if (handle.disk->before_operation(false) != MemoryDisk::Verdict::Go) return SQLITE_IOERR_FSYNC;
  for (const auto& change : handle.file->unsynced) carry_out(handle.file->durable, change);
  handle.file->unsynced.clear();
  if (handle.file->syncs_folder) handle.disk->sync_folder();
  handle.file->syncs_folder = false;
  return SQLITE_OK;
}

int size_of_file(sqlite3_file* file, sqlite3_int64* size) {
  *size = static_cast<sqlite3_int64>(handle_of(file).file->now.size());
  return SQLITE_OK;
}

int lock_file(sqlite3_file*, int) { return SQLITE_OK; }
int is_reserved(sqlite3_file*, int* out) {
  *out = 0;
  return SQLITE_OK;
}
int control_file(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int sector_size(sqlite3_file*) { return 4096; }
int characteristics(sqlite3_file*) { return SQLITE_IOCAP_POWERSAFE_OVERWRITE; }

int map_shared(sqlite3_file* file, int region, int size, int extend, void volatile** out) {
  auto& memory = handle_of(file).file->shared_memory;
  *out = nullptr;
  if (handle_of(file).disk->is_dead()) return SQLITE_IOERR_SHMMAP;
  if (static_cast<size_t>(region) >= memory.size() && !extend) return SQLITE_OK;
  while (static_cast<size_t>(region) >= memory.size())
    memory.push_back(std::make_unique<uint8_t[]>(static_cast<size_t>(size)));
  *out = memory[static_cast<size_t>(region)].get();
  return SQLITE_OK;
}
int lock_shared(sqlite3_file*, int, int, int) { return SQLITE_OK; }
void barrier_shared(sqlite3_file*) {}
int unmap_shared(sqlite3_file* file, int remove) {
  if (remove) handle_of(file).file->shared_memory.clear();
  return SQLITE_OK;
}

const sqlite3_io_methods kMethods = {
    2,           close_file,     read_file,    write_file,   truncate_file, sync_file,       size_of_file,
    lock_file,   lock_file,      is_reserved,  control_file, sector_size,   characteristics, map_shared,
    lock_shared, barrier_shared, unmap_shared, nullptr,      nullptr};

// ---- the disk, as SQLite calls it

int open_file(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* out_flags) {
  MemoryDisk& disk = disk_of(vfs);
  file->pMethods = nullptr;
  MemoryDisk::FilePtr found;
  if (!path) {
    found = std::make_shared<MemoryDisk::File>();  // one without a name
  } else {
    found = disk.find(path);
    if (!found) {
      if (!(flags & SQLITE_OPEN_CREATE)) return SQLITE_CANTOPEN;
      if (disk.before_operation(false) != MemoryDisk::Verdict::Go) return SQLITE_IOERR;
      found = disk.create(path);
      // As the system's door: with its first sync, a journal or a log makes its name durable as well.
      found->syncs_folder = (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL)) != 0;
    }
  }
  if (disk.is_dead()) return SQLITE_IOERR;
  new (file) Handle{{&kMethods}, &disk, std::move(found)};
  if (out_flags) *out_flags = flags;
  return SQLITE_OK;
}

int delete_file(sqlite3_vfs* vfs, const char* path, int sync_folder) {
  MemoryDisk& disk = disk_of(vfs);
  if (!disk.find(path)) return SQLITE_IOERR_DELETE_NOENT;
  if (disk.before_operation(false) != MemoryDisk::Verdict::Go) return SQLITE_IOERR_DELETE;
  disk.remove(path, sync_folder != 0);
  return SQLITE_OK;
}

int access_file(sqlite3_vfs* vfs, const char* path, int flags, int* out) {
  if (disk_of(vfs).is_dead()) return SQLITE_IOERR_ACCESS;
  const auto found = disk_of(vfs).find(path);
  // As the system's door: an empty file does not count as a journal that is there.
  *out = found && !(flags == SQLITE_ACCESS_EXISTS && found->now.empty()) ? 1 : 0;
  return SQLITE_OK;
}

int full_path(sqlite3_vfs*, const char* path, int size, char* out) {
  if (std::strlen(path) >= static_cast<size_t>(size)) return SQLITE_CANTOPEN;
  std::strcpy(out, path);
  return SQLITE_OK;
}

sqlite3_vfs& system_vfs() { return *sqlite3_vfs_find("unix"); }
int randomness(sqlite3_vfs*, int size, char* out) {
  return system_vfs().xRandomness(&system_vfs(), size, out);
}
int sleep_for(sqlite3_vfs*, int microseconds) { return microseconds; }
int current_time(sqlite3_vfs*, double* out) {
  *out = 2'460'000.5;
  return SQLITE_OK;
}
int last_error(sqlite3_vfs*, int, char*) { return 0; }

}  // namespace

const char* to_string(Fault fault) {
  switch (fault) {
    case Fault::None:
      return "none";
    case Fault::Error:
      return "error";
    case Fault::Full:
      return "full";
    case Fault::Kill:
      return "kill";
    case Fault::Torn:
      return "torn";
    case Fault::PowerLoss:
      return "power loss";
  }
  return "";
}

MemoryDisk::MemoryDisk(std::string name) : name_(std::move(name)) {
  vfs_.iVersion = 1;
  vfs_.szOsFile = sizeof(Handle);
  vfs_.mxPathname = 512;
  vfs_.zName = name_.c_str();
  vfs_.pAppData = this;
  vfs_.xOpen = open_file;
  vfs_.xDelete = delete_file;
  vfs_.xAccess = access_file;
  vfs_.xFullPathname = full_path;
  vfs_.xRandomness = randomness;
  vfs_.xSleep = sleep_for;
  vfs_.xCurrentTime = current_time;
  vfs_.xGetLastError = last_error;
  sqlite3_vfs_register(&vfs_, 0);
}
MemoryDisk::~MemoryDisk() { sqlite3_vfs_unregister(&vfs_); }

void MemoryDisk::arm(uint64_t at, Fault fault) {
  count_ = 0;
  at_ = at;
  fault_ = fault;
  struck_ = dead_ = full_ = full_answer_ = false;
}

MemoryDisk::Verdict MemoryDisk::before_operation(bool is_write) {
  full_answer_ = false;
  if (dead_) return Verdict::Fail;
  ++count_;
  if (full_ && is_write) {
    full_answer_ = true;
    return Verdict::Half;
  }
  if (struck_ || fault_ == Fault::None || count_ < at_) return Verdict::Go;
  if (fault_ == Fault::Full && !is_write) return Verdict::Go;  // the next one
  struck_ = true;
  switch (fault_) {
    case Fault::None:
      return Verdict::Go;
    case Fault::Error:
      return Verdict::Fail;
    case Fault::Full:
      full_ = full_answer_ = true;
      return Verdict::Half;
    case Fault::Torn:
      dead_ = true;
      return Verdict::Half;
    case Fault::Kill:
    case Fault::PowerLoss:
      dead_ = true;
      return Verdict::Fail;
  }
  return Verdict::Go;
}

MemoryDisk::FilePtr MemoryDisk::find(const std::string& path) const {
  const auto found = files_.find(path);
  return found == files_.end() ? nullptr : found->second;
}
MemoryDisk::FilePtr MemoryDisk::create(const std::string& path) {
  return files_[path] = std::make_shared<File>();
}
void MemoryDisk::remove(const std::string& path, bool durably) {
  const auto found = files_.find(path);
  if (found->second->has_durable_name && !durably) removed_.emplace_back(*found);
  files_.erase(found);
  if (durably) sync_folder();
}
void MemoryDisk::sync_folder() {
  for (auto& [path, file] : files_) file->has_durable_name = true;
  removed_.clear();
}

void MemoryDisk::restart(Rng& rng) {
  const bool lost_power = dead_ && fault_ == Fault::PowerLoss;
  arm(0, Fault::None);
  if (lost_power) return lose_power(rng);
  for (auto& [path, file] : files_) file->shared_memory.clear();
}

void MemoryDisk::lose_power(Rng& rng) {
  arm(0, Fault::None);
  // Sometimes all that was not synced is lost, sometimes nothing, mostly a part.
  const uint64_t share = rng.below(5);
  const auto stays = [&] { return rng.below(4) < share; };
  for (auto& [path, file] : removed_)
    if (!files_.contains(path) && stays()) files_[path] = file;
  removed_.clear();
  for (auto at = files_.begin(); at != files_.end();) {
    File& file = *at->second;
    if (!file.has_durable_name && !stays()) {
      at = files_.erase(at);
      continue;
    }
    std::vector<uint8_t> content = file.durable;
    for (const Change& change : file.unsynced) {
      if (change.is_truncate) {
        if (stays()) carry_out(content, change);
        continue;
      }
      for (size_t from = 0; from < change.bytes.size();) {  // a sector is written or not
        const size_t to = std::min(change.bytes.size(), from + kSector - (change.offset + from) % kSector);
        if (stays())
          carry_out(content, {.offset = change.offset + from,
                              .bytes = {change.bytes.begin() + static_cast<std::ptrdiff_t>(from),
                                        change.bytes.begin() + static_cast<std::ptrdiff_t>(to)}});
        from = to;
      }
    }
    file.now = file.durable = std::move(content);
    file.unsynced.clear();
    file.has_durable_name = true;
    file.shared_memory.clear();
    ++at;
  }
}

MemoryDisk::Image MemoryDisk::image() const {
  Image image;
  for (const auto& [path, file] : files_) image[path] = file->now;
  return image;
}
void MemoryDisk::restore(const Image& image) {
  arm(0, Fault::None);
  files_.clear();
  removed_.clear();
  for (const auto& [path, bytes] : image) {
    auto file = std::make_shared<File>();
    file->now = file->durable = bytes;
    file->has_durable_name = true;
    files_[path] = std::move(file);
  }
}

}  // namespace weft::test
