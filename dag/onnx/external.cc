#include "dag/onnx/external.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace weft::onnx {
namespace {

Error system_error(const std::string& what) {
  const int code = errno;
  const ErrorCode kind = code == ENOENT || code == ENOTDIR                  ? ErrorCode::NotFound
                         : code == EACCES || code == EPERM || code == ELOOP ? ErrorCode::PermissionDenied
                                                                            : ErrorCode::Unavailable;
  return {kind, what + ": " + std::strerror(code)};
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(-1); }
  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }
  void reset(int value) {
    if (value_ >= 0) ::close(value_);
    value_ = value;
  }

 private:
  int value_;
};

Result<std::vector<std::string>> split_location(const std::string& location) {
  const auto refuse = [&](const char* why) {
    return fail(ErrorCode::PermissionDenied, "external data '" + location.substr(0, 256) + "' " + why +
                                                 "; it must be a plain file beneath the model's own folder");
  };
  if (location.empty() || location.find('\0') != std::string::npos) return refuse("has no usable name");
  if (location.front() == '/') return refuse("is an absolute path");
  if (location.find('\\') != std::string::npos || location.find(':') != std::string::npos)
    return refuse("has characters that other systems read as a path");
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= location.size()) {
    const size_t end = std::min(location.find('/', begin), location.size());
    std::string part = location.substr(begin, end - begin);
    if (part == "..") return refuse("leaves the folder");
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
    begin = end + 1;
  }
  if (parts.empty()) return refuse("names a folder");
  return parts;
}

}  // namespace

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}
File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status File::read_at(int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(descriptor_, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(system_error("reading"));
    if (got == 0) return fail(ErrorCode::Corrupted, "the file became shorter while it was read");
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += got;
  }
  return {};
}

Result<File> open_file(const std::filesystem::path& path) {
  // O_NONBLOCK: a fifo must not keep us waiting for a writer.
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) return fail(system_error("cannot open '" + path.string() + "'"));
  struct stat info {};
  if (::fstat(descriptor.get(), &info) != 0)
    return fail(system_error("cannot look at '" + path.string() + "'"));
  if (!S_ISREG(info.st_mode))
    return fail(ErrorCode::InvalidArgument, "'" + path.string() + "' is not a regular file");
  return File(descriptor.release(), info.st_size);
}

Result<File> open_beneath(const std::filesystem::path& folder, const std::string& location) {
  WEFT_TRY(const auto parts, split_location(location));
  const std::string start = folder.empty() ? std::string(".") : folder.string();
  Descriptor at(::open(start.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (at.get() < 0) return fail(system_error("cannot open folder '" + start + "'"));
  const std::string shown = "external data '" + location.substr(0, 256) + "'";
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const int next = ::openat(at.get(), parts[i].c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0) {
      struct stat info {};
      if (::fstatat(at.get(), parts[i].c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode))
        return fail(ErrorCode::PermissionDenied, shown + " goes through a link");
      return fail(system_error(shown));
    }
    at.reset(next);
  }
  const auto check = [&](const struct stat& info) -> Status {
    if (S_ISLNK(info.st_mode)) return fail(ErrorCode::PermissionDenied, shown + " is a symbolic link");
    if (!S_ISREG(info.st_mode)) return fail(ErrorCode::PermissionDenied, shown + " is not a regular file");
    if (info.st_nlink > 1)
      return fail(ErrorCode::PermissionDenied,
                  shown + " has a second hard link; copy it so that it has one name");
    return {};
  };
  // Looked at before it is opened, for to open a device or a pipe is to act on it; and again after, for the
  // name may be another file's by then.
  struct stat info {};
  if (::fstatat(at.get(), parts.back().c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
    return fail(system_error(shown));
  WEFT_TRY_STATUS(check(info));
  Descriptor file(::openat(at.get(), parts.back().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) return fail(system_error(shown));
  if (::fstat(file.get(), &info) != 0) return fail(system_error(shown));
  WEFT_TRY_STATUS(check(info));
  return File(file.release(), info.st_size);
}

namespace {

class FilesAt final : public ModelFiles {
 public:
  explicit FilesAt(std::filesystem::path model) : model_(std::move(model)) {}

  Result<std::shared_ptr<const RandomAccess>> open_model() override {
    WEFT_TRY(File file, open_file(model_));
    return std::make_shared<const File>(std::move(file));
  }
  Result<std::shared_ptr<const RandomAccess>> open_beside(const std::string& location) override {
    auto found = files_.find(location);
    if (found == files_.end()) {
      WEFT_TRY(File file, open_beneath(model_.parent_path(), location));
      found = files_.emplace(location, std::make_shared<const File>(std::move(file))).first;
    }
    return found->second;
  }

 private:
  const std::filesystem::path model_;
  std::map<std::string, std::shared_ptr<const File>> files_;
};

}  // namespace

std::unique_ptr<ModelFiles> files_at(const std::filesystem::path& model) {
  return std::make_unique<FilesAt>(model);
}

Status read_in_pieces(const RandomAccess& file, int64_t offset, int64_t size,
                      const std::function<Status(std::span<const std::byte>)>& visit) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(size, kPiece)));
  while (size > 0) {
    const auto piece = std::span(buffer).first(static_cast<size_t>(std::min(size, kPiece)));
    WEFT_TRY_STATUS(file.read_at(offset, piece));
    WEFT_TRY_STATUS(visit(piece));
    offset += static_cast<int64_t>(piece.size());
    size -= static_cast<int64_t>(piece.size());
  }
  return {};
}

}  // namespace weft::onnx
