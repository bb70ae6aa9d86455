#include "storage/posix.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace weft::storage {

namespace fs = std::filesystem;

Descriptor::~Descriptor() {
  if (value_ >= 0) ::close(value_);
}

tl::unexpected<Error> system_error(int number, std::string_view operation, const fs::path& path) {
  const auto with = [&](ErrorCode code, std::string_view advice) {
    return fail(code, path.string() + ": " + std::string(operation) + ": " + std::strerror(number) +
                          std::string(advice));
  };
  switch (number) {
    case ENOENT:
    case ENOTDIR:
      return with(ErrorCode::NotFound, "; check the path");
    case EACCES:
    case EPERM:
    case EROFS:
      return with(ErrorCode::PermissionDenied, "; check the permissions of the file and its folder");
    case ENOSPC:
    case EDQUOT:
      return with(ErrorCode::ResourceExhausted, "; make room on the disk");
    case EFBIG:
      return with(ErrorCode::ResourceExhausted, "; raise the limit on the size of files (ulimit -f)");
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return with(ErrorCode::ResourceExhausted, "; raise the limit (ulimit) or close something");
    case ENAMETOOLONG:
    case ELOOP:
    case EISDIR:
      return with(ErrorCode::InvalidArgument, "; name another path");
    default:
      return with(ErrorCode::Unavailable, "; is the disk all right?");
  }
}

Result<Opened> open_to_read(const fs::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) return system_error(errno, "open", path);
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) return system_error(errno, "read", path);
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::InvalidArgument, path.string() + ": not a regular file; name a file");
  return Opened{std::move(descriptor), static_cast<uint64_t>(status.st_size)};
}

Status seek(int descriptor, uint64_t offset, const fs::path& path) {
  if (::lseek(descriptor, static_cast<off_t>(offset), SEEK_SET) < 0) return system_error(errno, "read", path);
  return {};
}

Status read_fully(int descriptor, std::span<std::byte> out, const fs::path& path) {
  while (!out.empty()) {
    const ssize_t got = ::read(descriptor, out.data(), std::min<size_t>(out.size(), size_t{1} << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, "read", path);
    if (got == 0)
      return fail(ErrorCode::Corrupted,
                  path.string() + ": ends too early; was it changed while it was read?");
    out = out.subspan(static_cast<size_t>(got));
  }
  return {};
}

Status write_fully(int descriptor, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor, bytes.data(), std::min<size_t>(bytes.size(), size_t{1} << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return system_error(errno, "write", path);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return {};
}

Status write_hooked(const FaultHook& hook, int descriptor, std::span<const std::byte> bytes,
                    const fs::path& path) {
  if (!hook) return write_fully(descriptor, bytes, path);
  WEFT_TRY_STATUS(hook("write", path));
  WEFT_TRY_STATUS(write_fully(descriptor, bytes.first(bytes.size() / 2), path));
  WEFT_TRY_STATUS(hook("write", path));
  return write_fully(descriptor, bytes.subspan(bytes.size() / 2), path);
}

}  // namespace weft::storage
