#include "storage/blob_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "storage/blob_shared.h"
#include "storage/posix.h"

namespace weft::storage {
namespace {

namespace fs = std::filesystem;

constexpr auto kYoung = std::chrono::hours(1);
constexpr size_t kNamesMax = 10'000'000;
constexpr std::string_view kTransient = "transient", kDamaged = "damaged", kWiped = "wiped-";

fs::path path_of(const fs::path& folder, const Digest& sha256) {
  const std::string hex = to_hex(sha256);
  return folder / hex.substr(0, 2) / hex;
}

void remove_leftovers(const fs::path& folder, Files& files) {
  const auto names = files.list(folder, kNamesMax);
  if (!names) return;
  for (const std::string& name : *names) {
    if (!Files::is_temporary_name(name)) continue;
    const fs::path path = folder / name;
    const Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (descriptor.get() >= 0 && lock_temporary(descriptor.get())) ::unlink(path.c_str());
  }
}

tl::unexpected<Error> not_found(const Digest& sha256) {
  return fail(ErrorCode::NotFound, "there is no blob " + to_hex(sha256) + "; it has to be uploaded first");
}

}  // namespace

Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return digest_of(hash);
}

Result<Digest> sha256_of(const fs::path& file) {
  Sha256 hash;
  WEFT_TRY_STATUS(Files().read_pieces(file, [&](std::span<const std::byte> piece) { hash.update(piece); }));
  return digest_of(hash);
}

namespace {

// A part of a file without reading it into memory.
Result<BlobView> map_part(const Opened& file, const fs::path& path, uint64_t at, size_t size) {
  if (size == 0) return BlobView{};
  static const auto kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const auto before = static_cast<size_t>(at % kPage);
  const size_t mapped_size = before + size;
  void* mapped = ::mmap(nullptr, mapped_size, PROT_READ, MAP_PRIVATE, file.descriptor.get(),
                        static_cast<off_t>(at - before));
  if (mapped == MAP_FAILED) return system_error(errno, "map", path);
  const std::shared_ptr<const void> owner(mapped,
                                          [mapped_size](void* memory) { ::munmap(memory, mapped_size); });
  return BlobView{owner, {static_cast<const std::byte*>(mapped) + before, size}};
}

Result<BlobView> map_file(const fs::path& path) {
  WEFT_TRY(const Opened file, open_to_read(path));
  return map_part(file, path, 0, file.size);
}

class FileReader : public BlobStore::Reader {
 public:
  FileReader(Opened file, fs::path path) : file_(std::move(file)), path_(std::move(path)) {}
  uint64_t size() const override { return file_.size; }
  Result<BlobView> piece(uint64_t at, size_t size) const override { return map_part(file_, path_, at, size); }

 private:
  Opened file_;
  fs::path path_;
};

class MemoryReader : public BlobStore::Reader {
 public:
  explicit MemoryReader(std::shared_ptr<const std::vector<std::byte>> bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_->size(); }
  Result<BlobView> piece(uint64_t at, size_t size) const override {
    return BlobView{bytes_, std::span(*bytes_).subspan(at, size)};
  }

 private:
  std::shared_ptr<const std::vector<std::byte>> bytes_;
};

}  // namespace

// ---- the store

BlobStore::BlobStore(fs::path folder, BlobStoreOptions options)
    : folder_(std::move(folder)), shared_(std::make_unique<Shared>(std::move(options))) {}
BlobStore::~BlobStore() = default;

fs::path BlobStore::durable_path(const Digest& sha256) const { return path_of(folder_, sha256); }
fs::path BlobStore::transient_path(const Digest& sha256) const {
  return path_of(folder_ / kTransient, sha256);
}

Result<std::unique_ptr<BlobStore>> BlobStore::open(const fs::path& folder, BlobStoreOptions options) {
  Files files(options.hook);
  WEFT_TRY_STATUS(files.make_directories(folder));
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return system_error(errno, "open", folder);
  remove_leftovers(folder, files);
  WEFT_TRY(const auto names, files.list(folder, kNamesMax));
  if (options.wipe_transient && fs::exists(folder / kTransient)) {
    int number = 0;
    while (fs::exists(folder / (std::string(kWiped) + std::to_string(number)))) ++number;
    std::error_code code;
    fs::rename(folder / kTransient, folder / (std::string(kWiped) + std::to_string(number)), code);
    if (code) return system_error(code.value(), "rename", folder / kTransient);
  }
  std::unique_ptr<BlobStore> store(new BlobStore(folder, std::move(options)));
  Shared& shared = *store->shared_;
  const MutexLock hold(shared.mutex);
  for (const std::string& name : names)
    if (name.size() == 2) shared.older.insert(folder / name);
  return store;
}

void BlobStore::remove_wiped() {
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder_, code))
    if (entry.path().filename().string().starts_with(kWiped)) fs::remove_all(entry.path(), code);
}

// A process before this one may have died between a name and its sync: seen to when the name counts.
Status BlobStore::sync_older(const Digest& sha256) {
  const fs::path folder = durable_path(sha256).parent_path();
  {
    const MutexLock hold(shared_->mutex);
    if (!shared_->older.contains(folder)) return {};
  }
  Files files(shared_->options.hook);
  WEFT_TRY_STATUS(files.sync_directory(folder));
  const MutexLock hold(shared_->mutex);
  shared_->older.erase(folder);
  return {};
}

bool BlobStore::has(const Digest& sha256) const {
  // Touched, so that collect() leaves it to whoever asked for as long as it leaves a new one.
  const bool durable = ::utimensat(AT_FDCWD, durable_path(sha256).c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0;
  return shared_->ask_transient(sha256) || durable;
}

bool BlobStore::is_here(const Digest& sha256) const {
  return shared_->ask_transient(sha256) || ::access(durable_path(sha256).c_str(), F_OK) == 0;
}

Result<bool> BlobStore::have(const Digest& sha256, Durability durability) {
  if (durability == Durability::Transient && shared_->ask_transient(sha256)) return true;
  if (!has(sha256)) return false;
  if (durability == Durability::Transient) return true;
  const Status made = make_durable(sha256);
  if (made) return true;
  if (made.error().code == ErrorCode::NotFound) return false;  // removed in between
  return fail(made.error());
}

Status BlobStore::make_durable(const Digest& sha256) {
  struct stat status {};
  const fs::path target = durable_path(sha256);
  if (::lstat(target.c_str(), &status) == 0) {
    if (!shared_->is_unsynced(sha256)) return sync_older(sha256);
    return publish_durable(sha256);
  }
  if (!shared_->knows_transient(sha256)) return not_found(sha256);
  if (const Shared::Bytes held = shared_->find_in_memory(sha256)) {
    WEFT_TRY(const auto writer, begin(sha256, held->size()));
    WEFT_TRY_STATUS(writer->write(*held));
    return writer->finish();
  }
  const fs::path source = transient_path(sha256);
  const Descriptor file(::open(source.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (file.get() < 0)
    return errno == ENOENT ? Status(not_found(sha256)) : system_error(errno, "open", source);
  WEFT_TRY_STATUS(allow(shared_->options.hook, "sync", source));
  if (::fsync(file.get()) != 0) return system_error(errno, "sync", source);
  WEFT_TRY_STATUS(shared_->make_directories(target.parent_path()));
  shared_->mark_unsynced(sha256, true);
  WEFT_TRY_STATUS(allow(shared_->options.hook, "link", target));
  // Both names stay, for somebody may be reading under the other one; a file system without links moves it.
  if (::link(source.c_str(), target.c_str()) != 0 && errno != EEXIST) {
    const int number = errno;
    if (number == ENOENT) return not_found(sha256);
    const bool movable = number == EPERM || number == EOPNOTSUPP || number == EMLINK;
    if (!movable || ::rename(source.c_str(), target.c_str()) != 0)
      return system_error(movable ? errno : number, "link", target);
    const MutexLock hold(shared_->mutex);
    shared_->transient.erase(sha256);  // it was a file
  }
  return publish_durable(sha256);
}

// The last step of every way to a durable blob: it has its name, which the folder must not lose.
Status BlobStore::publish_durable(const Digest& sha256) {
  {
    Files files(shared_->options.hook);
    WEFT_TRY_STATUS(files.sync_directory(durable_path(sha256).parent_path()));
  }
  shared_->mark_unsynced(sha256, false);
  return {};
}

Result<fs::path> BlobStore::find(const Digest& sha256) const {
  struct stat status {};
  const auto is_there = [&](const fs::path& path) {
    return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
  };
  fs::path durable = durable_path(sha256);
  if (is_there(durable)) return durable;
  fs::path transient = transient_path(sha256);
  if (shared_->knows_transient(sha256) && is_there(transient)) return transient;
  if (is_there(durable)) return durable;  // became so in between
  return not_found(sha256);
}

Result<BlobView> BlobStore::view(const Digest& sha256) const {
  for (int attempt = 0;; ++attempt) {
    if (const Shared::Bytes held = shared_->find_in_memory(sha256)) return BlobView{held, *held};
    WEFT_TRY(const fs::path path, find(sha256));
    auto mapped = map_file(path);
    // It may have gone from among the transient ones, and be durable by now.
    if (!mapped && mapped.error().code == ErrorCode::NotFound && attempt == 0) continue;
    return mapped;
  }
}

Result<std::unique_ptr<BlobStore::Reader>> BlobStore::open_blob(const Digest& sha256) const {
  for (int attempt = 0;; ++attempt) {
    if (Shared::Bytes held = shared_->find_in_memory(sha256))
      return std::make_unique<MemoryReader>(std::move(held));
    WEFT_TRY(const fs::path path, find(sha256));
    auto file = open_to_read(path);
    if (file) return std::make_unique<FileReader>(std::move(*file), path);
    if (file.error().code != ErrorCode::NotFound || attempt > 0) return fail(file.error());  // as view()
  }
}

Result<uint64_t> BlobStore::size(const Digest& sha256) const {
  if (const Shared::Bytes held = shared_->find_in_memory(sha256)) return held->size();
  WEFT_TRY(const fs::path path, find(sha256));
  return Files().size(path);
}

Result<std::vector<std::byte>> BlobStore::read(const Digest& sha256, uint64_t size_max) const {
  if (const Shared::Bytes held = shared_->find_in_memory(sha256)) {
    if (held->size() > size_max)
      return fail(ErrorCode::ResourceExhausted, "blob " + to_hex(sha256) + " is larger than expected");
    return *held;
  }
  WEFT_TRY(const fs::path path, find(sha256));
  WEFT_TRY(std::vector<std::byte> bytes, Files().read(path, size_max));
  if (storage::sha256(bytes) != sha256)
    return fail(ErrorCode::Corrupted,
                path.string() + ": its bytes are not those of its name; the disk changed them");
  return bytes;
}

// ---- removing

Result<bool> BlobStore::quarantine(const Digest& sha256) {
  const fs::path durable = durable_path(sha256), transient = transient_path(sha256);
  bool found = shared_->find_in_memory(sha256) != nullptr;  // compared when it came
  bool moved = false;
  for (const fs::path& path : {durable, transient}) {
    struct stat status {};
    if (::lstat(path.c_str(), &status) != 0) continue;
    if (path == transient && (!shared_->knows_transient(sha256) || shared_->find_in_memory(sha256))) continue;
    found = true;
    WEFT_TRY(const Digest actual, sha256_of(path));
    if (actual == sha256) continue;
    const fs::path target = folder_ / kDamaged / to_hex(sha256);
    WEFT_TRY_STATUS(shared_->make_directories(target.parent_path()));
    if (path == transient) {
      const MutexLock hold(shared_->mutex);
      shared_->transient.erase(sha256);
    }
    WEFT_TRY_STATUS(allow(shared_->options.hook, "rename", target));
    if (::rename(path.c_str(), target.c_str()) != 0) return system_error(errno, "rename", target);
    ::unlink(path.c_str());  // two names of one file stay when one takes the other's place
    ::utimensat(AT_FDCWD, target.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
    moved = true;
  }
  if (!found) return not_found(sha256);
  return moved;
}

namespace {

// The bytes of the file when it is older than an hour and could be removed; else 0.
uint64_t remove_old(const fs::path& path, fs::file_time_type now) {
  std::error_code gone;  // another process may collect as well
  const auto written = fs::last_write_time(path, gone);
  const uint64_t bytes = gone ? 0 : fs::file_size(path, gone);
  if (gone || now - written < kYoung) return 0;
  return ::unlink(path.c_str()) == 0 ? bytes : 0;
}

}  // namespace

Result<uint64_t> BlobStore::collect(const std::set<Digest>& kept) {
  Files files;
  const auto now = fs::file_time_type::clock::now();
  uint64_t freed = 0;
  WEFT_TRY(const auto folders, files.list(folder_, kNamesMax));
  for (const std::string& folder : folders) {
    const bool is_damaged = folder == kDamaged;
    if (folder.size() != 2 && !is_damaged) continue;
    const auto names = files.list(folder_ / folder, kNamesMax);
    if (!names) continue;  // not a folder
    for (const std::string& name : *names) {
      const auto digest = digest_from_hex(name);
      const fs::path path = folder_ / folder / name;
      if (!digest || (!is_damaged && (path != durable_path(*digest) || kept.contains(*digest)))) continue;
      freed += remove_old(path, now);
    }
  }
  return freed;
}

uint64_t BlobStore::keep_transient(const std::set<Digest>& kept,
                                   std::optional<std::chrono::milliseconds> young) {
  const auto recent = young.value_or(shared_->options.transient_young);
  const auto now = std::chrono::steady_clock::now();
  uint64_t freed = 0;
  // Under the lock, so that nobody is told of a blob that goes at the same moment.
  const MutexLock hold(shared_->mutex);
  auto& ages = shared_->ages;
  for (size_t left = ages.size(); left > 0 && now - ages.front().first >= recent; --left) {
    const Digest sha256 = ages.front().second;
    ages.pop_front();
    const auto at = shared_->transient.find(sha256);
    if (at == shared_->transient.end()) continue;
    if (now - at->second.asked < recent) {
      ages.emplace_back(at->second.asked, sha256);
      continue;
    }
    const bool in_file = !at->second.bytes;
    if (kept.contains(sha256) ||
        (in_file && ::unlink(transient_path(sha256).c_str()) != 0 && errno != ENOENT)) {
      ages.emplace_back(now, sha256);
      continue;
    }
    freed += at->second.size;
    if (!in_file) shared_->in_memory -= at->second.size;
    shared_->transient.erase(at);
  }
  return freed;
}

}  // namespace weft::storage
