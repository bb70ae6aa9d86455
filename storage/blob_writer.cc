#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <string>

#include "base/check.h"
#include "storage/blob_shared.h"
#include "storage/posix.h"

namespace weft::storage {
namespace {

namespace fs = std::filesystem;
constexpr size_t kPiece = size_t{1} << 20;
constexpr uint64_t kReserved = uint64_t{8} << 20;  // ahead of what a writer has got

struct Temporary {
  Descriptor descriptor;
  fs::path path;
};
Result<Temporary> make_temporary(const fs::path& folder, const FaultHook& hook) {
  static std::atomic<uint64_t> count{0};
  for (;;) {
    const fs::path path = folder / (".blob." + std::to_string(::getpid()) + "-" + std::to_string(count++) +
                                    std::string(kTemporarySuffix));
    WEFT_TRY_STATUS(allow(hook, "open", path));
    Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (descriptor.get() < 0 && errno == EEXIST) continue;  // a leftover of an earlier process of this number
    if (descriptor.get() < 0) return system_error(errno, "open", path);
    struct stat status {};
    // Somebody who cleaned up between the two calls took it for a leftover.
    if (!lock_temporary(descriptor.get()) || ::fstat(descriptor.get(), &status) != 0 || status.st_nlink == 0)
      continue;
    return Temporary{std::move(descriptor), path};
  }
}

}  // namespace

bool lock_temporary(int descriptor) { return ::flock(descriptor, LOCK_EX | LOCK_NB) == 0; }

class BlobStore::FileWriter : public BlobStore::Writer {
 public:
  FileWriter(BlobStore& store, Temporary temporary, const Digest& promised, uint64_t size,
             Durability durability)
      : store_(store),
        temporary_(std::move(temporary)),
        promised_(promised),
        size_(size),
        left_(size),
        durability_(durability) {}
  ~FileWriter() override { give_up(); }

  Status write(std::span<const std::byte> bytes) override {
    if (bytes.size() > left_)
      return fail(ErrorCode::OutOfRange, name() + ": " + std::to_string(bytes.size()) + " bytes come where " +
                                             std::to_string(left_) + " are left of the promised size");
    if (failed_) return fail(*failed_);
    hash_.update(bytes);
    Status written = reserve(bytes.size());
    left_ -= bytes.size();
    if (written) written = write_halves(bytes);
    if (!written) {
      failed_ = written.error();
      give_up();  // its bytes make room for others at once
      return written;
    }
    pay(bytes.size());
    return {};
  }

  Status finish() override {
    WEFT_CHECK(!done_);
    if (left_ != 0)
      return fail(ErrorCode::Corrupted,
                  name() + ": " + std::to_string(left_) + " bytes of the promised size are missing");
    if (failed_) return fail(*failed_);
    if (!hashed_) hashed_ = digest_of(hash_);
    if (*hashed_ != promised_)
      return fail(ErrorCode::Corrupted, name() + ": its bytes have the hash " + to_hex(*hashed_));
    return durability_ == Durability::Durable ? finish_durable() : finish_transient();
  }

 private:
  std::string name() const { return "blob " + to_hex(promised_); }
  const FaultHook& hook() const { return store_.shared_->options.hook; }

  Status write_halves(std::span<const std::byte> bytes) {
    return write_hooked(hook(), temporary_.descriptor.get(), bytes, temporary_.path);
  }

  Status finish_durable() {
    WEFT_TRY_STATUS(allow(hook(), "sync", temporary_.path));
    if (::fsync(temporary_.descriptor.get()) != 0) return system_error(errno, "sync", temporary_.path);
    store_.shared_->mark_unsynced(promised_, true);
    WEFT_TRY_STATUS(take_name(store_.durable_path(promised_)));
    return store_.publish_durable(promised_);
  }

  Status finish_transient() {
    WEFT_TRY_STATUS(take_name(store_.transient_path(promised_)));
    store_.shared_->add_transient(promised_, {size_, std::chrono::steady_clock::now()});
    return {};
  }

  Status take_name(const fs::path& target) {
    WEFT_TRY_STATUS(store_.shared_->make_directories(target.parent_path()));
    WEFT_TRY_STATUS(allow(hook(), "rename", target));
    if (::rename(temporary_.path.c_str(), target.c_str()) != 0) return system_error(errno, "rename", target);
    done_ = true;
    return {};
  }

  // Room for what comes next and a little more, of that which is left.
  Status reserve(uint64_t bytes) {
    if (bytes <= reserved_) return {};
    const uint64_t more = std::max(bytes, std::min(left_, kReserved)) - reserved_;
    WEFT_TRY_STATUS(store_.check_room(more, more));
    reserved_ += more;
    return {};
  }
  void pay(uint64_t bytes) {
    const MutexLock hold(store_.shared_->mutex);
    store_.shared_->promised -= bytes;
    reserved_ -= bytes;
  }
  void give_up() {
    pay(reserved_);
    if (done_ || removed_) return;
    if (allow(hook(), "remove", temporary_.path)) ::unlink(temporary_.path.c_str());
    temporary_.descriptor = Descriptor(-1);
    removed_ = true;
  }

  BlobStore& store_;
  Temporary temporary_;
  Digest promised_;
  uint64_t size_, left_;
  uint64_t reserved_ = 0;  // on the disk, and not written yet
  Durability durability_;
  Sha256 hash_;
  std::optional<Digest> hashed_;
  std::optional<Error> failed_;
  bool done_ = false, removed_ = false;
};

// In memory as long as there is room for what has come, then in a file: a promise costs nothing.
class BlobStore::MemoryWriter : public BlobStore::Writer {
 public:
  MemoryWriter(BlobStore& store, const Digest& promised, uint64_t size)
      : store_(store), shared_(*store.shared_), promised_(promised), size_(size) {}
  ~MemoryWriter() override {
    if (!done_) give_back();
  }

  Status write(std::span<const std::byte> bytes) override {
    if (file_) return file_->write(bytes);
    if (bytes.size() > size_ - bytes_.size())
      return fail(ErrorCode::OutOfRange, "blob " + to_hex(promised_) + ": more than the promised size");
    if (!take(bytes.size())) {
      WEFT_TRY_STATUS(go_to_file());
      return file_->write(bytes);
    }
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return {};
  }

  Status finish() override {
    if (file_) return file_->finish();
    WEFT_CHECK(!done_);
    if (bytes_.size() != size_)
      return fail(ErrorCode::Corrupted,
                  "blob " + to_hex(promised_) + ": bytes of the promised size are missing");
    const Digest actual = storage::sha256(bytes_);
    if (actual != promised_)
      return fail(ErrorCode::Corrupted,
                  "blob " + to_hex(promised_) + ": its bytes have the hash " + to_hex(actual));
    done_ = true;
    shared_.add_transient(promised_, {size_, std::chrono::steady_clock::now(),
                                      std::make_shared<const std::vector<std::byte>>(std::move(bytes_))});
    return {};
  }

 private:
  bool take(uint64_t bytes) {
    const MutexLock hold(shared_.mutex);
    if (bytes > shared_.options.transient_in_memory - shared_.in_memory) return false;
    shared_.in_memory += bytes;
    return true;
  }
  void give_back() {
    const MutexLock hold(shared_.mutex);
    shared_.in_memory -= bytes_.size();
    bytes_.clear();
  }
  Status go_to_file() {
    WEFT_TRY(file_, store_.begin_file(promised_, size_, Durability::Transient));
    Status written = file_->write(bytes_);
    give_back();
    bytes_.shrink_to_fit();
    return written;
  }

  BlobStore& store_;
  Shared& shared_;
  Digest promised_;
  uint64_t size_;
  std::vector<std::byte> bytes_;  // grows with what comes
  std::unique_ptr<Writer> file_;
  bool done_ = false;
};

Result<std::unique_ptr<BlobStore::Writer>> BlobStore::begin(const Digest& sha256, uint64_t size,
                                                            Durability durability) {
  if (durability == Durability::Transient) {
    const MutexLock hold(shared_->mutex);
    if (size <= shared_->options.transient_in_memory - shared_->in_memory)
      return std::make_unique<MemoryWriter>(*this, sha256, size);
  }
  return begin_file(sha256, size, durability);
}

Result<std::unique_ptr<BlobStore::Writer>> BlobStore::begin_file(const Digest& sha256, uint64_t size,
                                                                 Durability durability) {
  WEFT_TRY_STATUS(check_room(size, 0));
  WEFT_TRY(auto temporary, make_temporary(folder_, shared_->options.hook));
  return std::make_unique<FileWriter>(*this, std::move(temporary), sha256, size, durability);
}

// Whether so much fits now, and then reserves a part of it.
Status BlobStore::check_room(uint64_t size, uint64_t reserved) {
  struct statvfs disk {};
  if (::statvfs(folder_.c_str(), &disk) != 0) return system_error(errno, "open", folder_);
  const uint64_t free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
  const MutexLock hold(shared_->mutex);
  const uint64_t taken = shared_->promised + shared_->options.reserve;
  if (free < taken || size > free - taken)
    return fail(ErrorCode::ResourceExhausted, folder_.string() + ": a blob of " + std::to_string(size) +
                                                  " bytes does not fit on the disk, which has " +
                                                  std::to_string(free) + " left, of which " +
                                                  std::to_string(taken) + " are for others; make room");
  shared_->promised += reserved;
  return {};
}

// Whether it is there, durably, with a size that can be right.
Result<bool> BlobStore::holds(const Digest& sha256, uint64_t right_size) {
  const auto there = size(sha256);
  if (!there || *there != right_size) return false;
  return have(sha256, Durability::Durable);
}

Result<Digest> BlobStore::put(std::span<const std::byte> bytes) {
  const Digest digest = storage::sha256(bytes);
  WEFT_TRY(const bool there, holds(digest, bytes.size()));
  if (there) return digest;
  WEFT_TRY(const auto writer, begin(digest, bytes.size()));
  WEFT_TRY_STATUS(writer->write(bytes));
  WEFT_TRY_STATUS(writer->finish());
  return digest;
}

Result<Digest> BlobStore::put_file(const fs::path& file) {
  Files files;
  WEFT_TRY(const Digest digest, sha256_of(file));
  WEFT_TRY(const Opened from, open_to_read(file));
  WEFT_TRY(const bool there, holds(digest, from.size));
  if (there) return digest;
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

}  // namespace weft::storage
