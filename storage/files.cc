#include "storage/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "storage/posix.h"

namespace weft::storage {
namespace {

namespace fs = std::filesystem;
constexpr size_t kPiece = size_t{1} << 20;

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

bool is_mount_point(const fs::path& path) {
  struct statx status {};
  return ::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_TYPE, &status) == 0 &&
         (status.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

// In a folder as /tmp nobody replaces other people's files.
bool is_kept_by_another(const struct stat& file, const fs::path& folder) {
  struct stat status {};
  const uid_t me = ::geteuid();
  return ::stat(folder.c_str(), &status) == 0 && (status.st_mode & S_ISVTX) != 0 && me != 0 &&
         me != file.st_uid && me != status.st_uid;
}

// What has the name already, if anything.
Status check_replaceable(const fs::path& path) {
  struct stat name {};
  if (::lstat(path.c_str(), &name) != 0)
    return errno == ENOENT ? Status{} : system_error(errno, "write", path);
  struct stat file = name;
  const bool leads_somewhere = ::stat(path.c_str(), &file) == 0;  // a link may lead nowhere
  if (leads_somewhere && S_ISDIR(file.st_mode))
    return fail(ErrorCode::InvalidArgument, path.string() + " is a folder; name a file in it");
  if (leads_somewhere && !S_ISREG(file.st_mode))
    return fail(ErrorCode::InvalidArgument,
                path.string() + " is no ordinary file, and a file would replace it; name another");
  if (is_mount_point(path))
    return fail(ErrorCode::InvalidArgument,
                path.string() +
                    " is mounted by itself and cannot be replaced; mount its folder, or name another file");
  if (is_kept_by_another(name, folder_of(path))) return system_error(EPERM, "replace", path);
  // Not of what the file's own rights say, for it is replaced; a file that nobody may change says EPERM.
  if (::access(path.c_str(), W_OK) != 0 && (errno == EPERM || errno == EROFS))
    return system_error(errno, "replace", path);
  return {};
}

}  // namespace

Result<std::vector<std::byte>> Files::read(const fs::path& path, uint64_t size_max) {
  WEFT_TRY_STATUS(allow("read", path));
  WEFT_TRY(const Opened file, open_to_read(path));
  if (file.size > size_max)
    return fail(ErrorCode::ResourceExhausted, path.string() + ": " + std::to_string(file.size) +
                                                  " bytes, more than the limit of " +
                                                  std::to_string(size_max));
  std::vector<std::byte> bytes(static_cast<size_t>(file.size));
  WEFT_TRY_STATUS(read_fully(file.descriptor.get(), bytes, path));
  return bytes;
}

Status Files::read_pieces(const fs::path& path,
                          const std::function<void(std::span<const std::byte>)>& visit) {
  WEFT_TRY_STATUS(allow("read", path));
  WEFT_TRY(const Opened file, open_to_read(path));
  std::vector<std::byte> piece(static_cast<size_t>(std::min<uint64_t>(file.size, kPiece)));
  for (uint64_t left = file.size; left > 0;) {
    const auto part = std::span(piece).first(static_cast<size_t>(std::min<uint64_t>(left, piece.size())));
    WEFT_TRY_STATUS(read_fully(file.descriptor.get(), part, path));
    visit(part);
    left -= part.size();
  }
  return {};
}

Status Files::read_exactly(const fs::path& path, std::span<std::byte> out) {
  WEFT_TRY_STATUS(allow("read", path));
  WEFT_TRY(const Opened file, open_to_read(path));
  if (file.size != out.size())
    return fail(ErrorCode::Corrupted, path.string() + ": " + std::to_string(file.size) + " bytes where " +
                                          std::to_string(out.size()) + " should be");
  return read_fully(file.descriptor.get(), out, path);
}

Status Files::write_atomic(const fs::path& path, std::span<const std::byte> bytes, WriteOptions options) {
  return write_atomic_pieces(
      path, [&](const Sink& sink) { return sink(bytes); }, options);
}

Result<std::pair<fs::path, Descriptor>> Files::make_temporary(const fs::path& path, uint32_t mode) {
  for (;;) {
    fs::path temporary =
        folder_of(path) / ("." + path.filename().string().substr(0, 128) + "." + std::to_string(::getpid()) +
                           "-" + std::to_string(temporary_count_++) + std::string(kTemporarySuffix));
    WEFT_TRY_STATUS(allow("open", temporary));
    Descriptor descriptor(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                                 static_cast<mode_t>(mode)));
    if (descriptor.get() >= 0) return std::pair(std::move(temporary), std::move(descriptor));
    // A process of this number died here before: in a container all have the same one.
    if (errno != EEXIST) return system_error(errno, "open", temporary);
  }
}

Status Files::check_writable(const fs::path& path) {
  WEFT_TRY_STATUS(check_replaceable(path));
  auto made = make_temporary(path, 0600);
  if (!made) return fail(made.error().within("no file can be written at " + path.string()));
  if (::unlink(made->first.c_str()) != 0) return system_error(errno, "remove", made->first);
  return {};
}

bool Files::is_same_file(const fs::path& one, const fs::path& other) {
  struct stat a {
  }, b{};
  return ::stat(one.c_str(), &a) == 0 && ::stat(other.c_str(), &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

Status Files::write_new(const fs::path& path, WriteOptions options,
                        const std::function<Status(int descriptor, const fs::path&)>& write) {
  WEFT_TRY(auto made, make_temporary(path, options.mode));
  auto& [temporary, descriptor] = made;
  Status status = write(descriptor.get(), temporary);
  if (status) status = allow("sync", temporary);
  if (status && ::fsync(descriptor.get()) != 0) status = system_error(errno, "sync", temporary);
  // A close that fails after a good fsync has nothing left to lose.
  if (status) status = allow("rename", path);
  if (status && ::rename(temporary.c_str(), path.c_str()) != 0) status = system_error(errno, "rename", path);
  if (!status) {
    if (allow("remove", temporary)) ::unlink(temporary.c_str());
    return status;
  }
  return options.sync_directory ? sync_directory(folder_of(path)) : Status{};
}

Status Files::write_atomic_pieces(const fs::path& path, const std::function<Status(const Sink&)>& produce,
                                  WriteOptions options) {
  return write_new(path, options, [&](int descriptor, const fs::path& temporary) {
    return produce([&](std::span<const std::byte> piece) -> Status {
      return write_hooked(hook_, descriptor, piece, temporary);
    });
  });
}

Status Files::write_atomic_placed(const fs::path& path,
                                  const std::function<Status(const PlacedSink&)>& produce,
                                  WriteOptions options) {
  return write_new(path, options, [&](int descriptor, const fs::path& temporary) {
    return produce([&](uint64_t offset, std::span<const std::byte> piece) -> Status {
      WEFT_TRY_STATUS(seek(descriptor, offset, temporary));
      return write_hooked(hook_, descriptor, piece, temporary);
    });
  });
}

Result<std::vector<std::string>> Files::list(const fs::path& folder, size_t count_max) {
  WEFT_TRY_STATUS(allow("list", folder));
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(folder.c_str()), ::closedir);
  if (!directory) return system_error(errno, "list", folder);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(directory.get());
    if (!entry) break;
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (names.size() == count_max)
      return fail(ErrorCode::ResourceExhausted, folder.string() + ": holds more than " +
                                                    std::to_string(count_max) +
                                                    " files; is it the right folder?");
    names.emplace_back(name);
  }
  if (errno != 0) return system_error(errno, "list", folder);
  std::sort(names.begin(), names.end());
  return names;
}

Result<uint64_t> Files::size(const fs::path& path) {
  WEFT_TRY_STATUS(allow("read", path));
  WEFT_TRY(const Opened file, open_to_read(path));
  return file.size;
}

Status Files::remove(const fs::path& path) {
  WEFT_TRY_STATUS(allow("remove", path));
  if (::unlink(path.c_str()) != 0) return system_error(errno, "remove", path);
  return {};
}

// One that is there already may be what a process left that died before the sync.
Status Files::make_directories(const fs::path& folder) {
  const fs::path absolute = fs::absolute(folder.has_filename() ? folder : folder.parent_path());
  const fs::path parent = absolute.parent_path();
  std::error_code code;
  if (!fs::is_directory(absolute, code)) {
    if (parent != absolute) WEFT_TRY_STATUS(make_directories(parent));
    WEFT_TRY_STATUS(allow("make directory", absolute));
    fs::create_directory(absolute, code);
    if (code) return system_error(code.value(), "make directory", folder);
  }
  Status synced = sync_directory(parent);
  if (!synced && synced.error().code == ErrorCode::PermissionDenied) return {};  // not ours to read
  return synced;
}

Status Files::sync_directory(const fs::path& folder) {
  WEFT_TRY_STATUS(allow("sync directory", folder));
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) return system_error(errno, "sync directory", folder);
  // Some file systems have no fsync of folders; their renames are as durable as they get.
  if (::fsync(descriptor.get()) != 0 && errno != EINVAL) return system_error(errno, "sync directory", folder);
  return {};
}

bool Files::is_temporary_name(std::string_view name) {
  return name.starts_with('.') && name.ends_with(kTemporarySuffix);
}

Result<FolderLock> FolderLock::acquire(Files& files, const fs::path& folder) {
  WEFT_TRY_STATUS(files.allow("lock", folder));
  Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) return system_error(errno, "lock", folder);
  if (::flock(descriptor.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return fail(
          ErrorCode::Unavailable,
          folder.string() + ": another run writes its checkpoints here; wait for it or name another folder");
    return system_error(errno, "lock", folder);
  }
  return FolderLock(descriptor.release());
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace weft::storage
