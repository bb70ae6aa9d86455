#include "storage/blob_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>

#include "base/check.h"
#include "storage/posix.h"
#include "storage/sha256.h"

namespace weft::storage {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPiece = size_t{1} << 20;
constexpr uint64_t kRoomLeftMin = uint64_t{16} << 20;  // bytes: a full disk breaks more than this store
constexpr auto kYoung = std::chrono::hours(1);
constexpr size_t kNamesMax = 10'000'000;

Digest digest_of(Sha256& hash) { return *digest_from_hex(hash.hex()); }

fs::path path_of(const fs::path& folder, const Digest& sha256) {
  const std::string hex = to_hex(sha256);
  return folder / hex.substr(0, 2) / hex;
}

Status sync_folder(const fs::path& folder) {
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) return system_error(errno, "sync directory", folder);
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) return system_error(errno, "sync directory", folder);
  return {};
}

// Creates the folder of a blob, durably.
Status make_folder(const fs::path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) return sync_folder(folder.parent_path());
  if (errno != EEXIST) return system_error(errno, "make directory", folder);
  return {};
}

// A lock on the temporary file tells other processes that its writer lives: it goes when the process does.
bool lock(int descriptor) { return ::flock(descriptor, LOCK_EX | LOCK_NB) == 0; }

struct Temporary {
  Descriptor descriptor;
  fs::path path;
};
Result<Temporary> make_temporary(const fs::path& folder) {
  static std::atomic<uint64_t> count{0};
  for (;;) {
    const fs::path path = folder / (".blob." + std::to_string(::getpid()) + "-" + std::to_string(count++) +
                                    std::string(kTemporarySuffix));
    Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (descriptor.get() < 0 && errno == EEXIST) continue;  // a leftover of an earlier process of this number
    if (descriptor.get() < 0) return system_error(errno, "open", path);
    struct stat status {};
    // Somebody who cleaned up between the two calls took it for a leftover.
    if (!lock(descriptor.get()) || ::fstat(descriptor.get(), &status) != 0 || status.st_nlink == 0) continue;
    return Temporary{std::move(descriptor), path};
  }
}

void remove_leftovers(const fs::path& folder, Files& files) {
  const auto names = files.list(folder, kNamesMax);
  if (!names) return;
  for (const std::string& name : *names) {
    if (!Files::is_temporary_name(name)) continue;
    const fs::path path = folder / name;
    const Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (descriptor.get() >= 0 && lock(descriptor.get())) ::unlink(path.c_str());
  }
}

class FileWriter : public BlobStore::Writer {
 public:
  FileWriter(Temporary temporary, const Digest& promised, uint64_t size, fs::path target)
      : temporary_(std::move(temporary)), promised_(promised), left_(size), target_(std::move(target)) {}
  ~FileWriter() override {
    if (!done_) ::unlink(temporary_.path.c_str());
  }

  Status write(std::span<const std::byte> bytes) override {
    if (bytes.size() > left_)
      return fail(ErrorCode::OutOfRange, name() + ": " + std::to_string(bytes.size()) + " bytes come where " +
                                             std::to_string(left_) + " are left of the promised size");
    hash_.update(bytes);
    left_ -= bytes.size();
    const Status written = write_fully(temporary_.descriptor.get(), bytes, temporary_.path);
    failed_ = failed_ || !written;
    return written;
  }

  Status finish() override {
    WEFT_CHECK(!done_);
    if (left_ != 0)
      return fail(ErrorCode::Corrupted,
                  name() + ": " + std::to_string(left_) + " bytes of the promised size are missing");
    if (failed_) return fail(ErrorCode::Corrupted, name() + ": a part of it could not be written");
    if (!hashed_) hashed_ = digest_of(hash_);
    if (*hashed_ != promised_)
      return fail(ErrorCode::Corrupted, name() + ": its bytes have the hash " + to_hex(*hashed_));
    if (::fsync(temporary_.descriptor.get()) != 0) return system_error(errno, "sync", temporary_.path);
    WEFT_TRY_STATUS(make_folder(target_.parent_path()));
    if (::rename(temporary_.path.c_str(), target_.c_str()) != 0)
      return system_error(errno, "rename", target_);
    done_ = true;
    return sync_folder(target_.parent_path());
  }

 private:
  std::string name() const { return "blob " + to_hex(promised_); }

  Temporary temporary_;
  Digest promised_;
  uint64_t left_;
  fs::path target_;
  Sha256 hash_;
  std::optional<Digest> hashed_;
  bool failed_ = false, done_ = false;
};

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

Result<std::unique_ptr<BlobStore>> BlobStore::open(const fs::path& folder) {
  Files files;
  WEFT_TRY_STATUS(files.make_directories(folder));
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return system_error(errno, "open", folder);
  remove_leftovers(folder, files);
  return std::unique_ptr<BlobStore>(new BlobStore(folder));
}

bool BlobStore::has(const Digest& sha256) const {
  // Touched, so that collect() leaves it to whoever asked for as long as it leaves a new one.
  return ::utimensat(AT_FDCWD, path_of(folder_, sha256).c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0;
}

Result<fs::path> BlobStore::find(const Digest& sha256) const {
  fs::path path = path_of(folder_, sha256);
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return not_found(sha256);
  return path;
}

Result<uint64_t> BlobStore::size(const Digest& sha256) const {
  WEFT_TRY(const fs::path path, find(sha256));
  return Files().size(path);
}

Result<std::vector<std::byte>> BlobStore::read(const Digest& sha256, uint64_t size_max) const {
  WEFT_TRY(const fs::path path, find(sha256));
  WEFT_TRY(std::vector<std::byte> bytes, Files().read(path, size_max));
  if (storage::sha256(bytes) != sha256)
    return fail(ErrorCode::Corrupted,
                path.string() + ": its bytes are not those of its name; the disk changed them");
  return bytes;
}

Result<Digest> BlobStore::put(std::span<const std::byte> bytes) {
  const Digest digest = storage::sha256(bytes);
  if (const auto there = size(digest); there && *there == bytes.size() && has(digest)) return digest;
  WEFT_TRY(const auto writer, begin(digest, bytes.size()));
  WEFT_TRY_STATUS(writer->write(bytes));
  WEFT_TRY_STATUS(writer->finish());
  return digest;
}

Result<Digest> BlobStore::put_file(const fs::path& file) {
  Files files;
  WEFT_TRY(const Digest digest, sha256_of(file));
  WEFT_TRY(const Opened from, open_to_read(file));
  if (const auto there = size(digest); there && *there == from.size && has(digest)) return digest;
  WEFT_TRY(const auto writer, begin(digest, from.size));
  std::vector<std::byte> piece(static_cast<size_t>(std::min<uint64_t>(from.size, kPiece)));
  for (uint64_t left = from.size; left > 0;) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min<uint64_t>(left, piece.size())));
    WEFT_TRY_STATUS(read_fully(from.descriptor.get(), part, file));
    WEFT_TRY_STATUS(writer->write(part));
    left -= part.size();
  }
  if (const Status finished = writer->finish(); !finished)
    return fail(finished.error().within(file.string() + " changed while it was read"));
  return digest;
}

Result<std::unique_ptr<BlobStore::Writer>> BlobStore::begin(const Digest& sha256, uint64_t size) {
  struct statvfs disk {};
  if (::statvfs(folder_.c_str(), &disk) != 0) return system_error(errno, "open", folder_);
  const uint64_t room = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (room < kRoomLeftMin || size > room - kRoomLeftMin)
    return fail(ErrorCode::ResourceExhausted, folder_.string() + ": a blob of " + std::to_string(size) +
                                                  " bytes does not fit on the disk, which has " +
                                                  std::to_string(room) + " left; make room");
  WEFT_TRY(Temporary temporary, make_temporary(folder_));
  return std::make_unique<FileWriter>(std::move(temporary), sha256, size, path_of(folder_, sha256));
}

Result<uint64_t> BlobStore::collect(const std::set<Digest>& kept) {
  Files files;
  const auto now = fs::file_time_type::clock::now();
  uint64_t freed = 0;
  WEFT_TRY(const auto folders, files.list(folder_, kNamesMax));
  for (const std::string& folder : folders) {
    if (folder.size() != 2) continue;
    const auto names = files.list(folder_ / folder, kNamesMax);
    if (!names) continue;  // not a folder
    for (const std::string& name : *names) {
      const auto digest = digest_from_hex(name);
      const fs::path path = folder_ / folder / name;
      if (!digest || path != path_of(folder_, *digest) || kept.contains(*digest)) continue;
      std::error_code gone;  // another process may collect as well
      const auto written = fs::last_write_time(path, gone);
      const uint64_t bytes = gone ? 0 : fs::file_size(path, gone);
      if (gone || now - written < kYoung) continue;
      if (::unlink(path.c_str()) == 0) freed += bytes;
    }
  }
  return freed;
}

}  // namespace weft::storage
