#include "dag/onnx/external.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
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

namespace {

namespace fs = std::filesystem;
constexpr char kBlobs[] = "blobs", kSnapshots[] = "snapshots";
constexpr int64_t kCacheNamesMax = 100'000;  // looked at for the other names of one file

// The root of the Hugging Face cache that the folder stands in: snapshots of a repository, whose files are
// links to blobs beside them.
std::optional<fs::path> cache_root(const fs::path& folder) {
  std::error_code failed;
  fs::path at = fs::canonical(folder.empty() ? fs::path(".") : folder, failed);
  for (; !failed && at.has_relative_path(); at = at.parent_path())
    if (at.filename() == kSnapshots && fs::is_directory(at.parent_path() / kBlobs, failed))
      return at.parent_path();
  return std::nullopt;
}

// Whether each of the file's names stands in the cache: then nobody else's file is behind one of them.
bool all_names_within(const fs::path& root, const struct stat& file) {
  nlink_t names = 0;
  int64_t left = kCacheNamesMax;
  for (const char* part : {kBlobs, kSnapshots}) {
    std::error_code failed;
    for (fs::recursive_directory_iterator each(root / part, failed), end; !failed && each != end;
         each.increment(failed)) {
      if (--left < 0) return false;
      struct stat info {};
      if (::lstat(each->path().c_str(), &info) == 0 && info.st_dev == file.st_dev &&
          info.st_ino == file.st_ino)
        ++names;
    }
  }
  return names == file.st_nlink;
}

// Whom a file beside a model may belong to. `cache`: the root of the cache that the model stands in.
Status check_file(const struct stat& info, const std::string& shown, const std::optional<fs::path>& cache) {
  const auto refuse = [&](const std::string& why) {
    return fail(ErrorCode::PermissionDenied, shown + " " + why);
  };
  if (S_ISLNK(info.st_mode))
    return refuse(
        "is a symbolic link; links are followed only within a Hugging Face cache: put a copy in its place "
        "(cp --remove-destination \"$(readlink -f FILE)\" FILE)");
  if (!S_ISREG(info.st_mode)) return refuse("is not a regular file");
  if (info.st_nlink > 1 && !(cache && all_names_within(*cache, info)))
    return refuse("has a second hard link; copy it so that it has one name");
  return {};
}

// One component at a time, no links.
Result<File> open_parts(const fs::path& folder, const std::vector<std::string>& parts,
                        const std::string& shown, const std::optional<fs::path>& cache) {
  const std::string start = folder.empty() ? std::string(".") : folder.string();
  Descriptor at(::open(start.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (at.get() < 0) return fail(system_error("cannot open folder '" + start + "'"));
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
  // Looked at before it is opened, for to open a device or a pipe is to act on it; and again after, for the
  // name may be another file's by then.
  struct stat info {};
  if (::fstatat(at.get(), parts.back().c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
    return fail(system_error(shown));
  WEFT_TRY_STATUS(check_file(info, shown, cache));
  Descriptor file(::openat(at.get(), parts.back().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) return fail(system_error(shown));
  if (::fstat(file.get(), &info) != 0) return fail(system_error(shown));
  WEFT_TRY_STATUS(check_file(info, shown, cache));
  return File(file.release(), info.st_size);
}

// What the link leads to, where that is one of the cache's own files.
Result<File> open_in_cache(const fs::path& root, const fs::path& link, const std::string& shown) {
  std::error_code failed;
  const fs::path real = fs::canonical(link, failed);
  if (failed) return fail(ErrorCode::NotFound, shown + " is a link to a file that is not there");
  std::vector<std::string> parts;
  for (const auto& part : real.lexically_relative(root)) parts.push_back(part.string());
  if (parts.size() < 2 || (parts[0] != kBlobs && parts[0] != kSnapshots))
    return fail(ErrorCode::PermissionDenied,
                shown + " is a link that leads out of the cache '" + root.string() + "'");
  return open_parts(root, parts, shown, root);
}

}  // namespace

Result<File> open_beneath(const fs::path& folder, const std::string& location) {
  WEFT_TRY(const auto parts, split_location(location));
  const std::string shown = "external data '" + location.substr(0, 256) + "'";
  const std::optional<fs::path> cache = cache_root(folder);
  auto opened = open_parts(folder, parts, shown, cache);
  if (opened || !cache || opened.error().code != ErrorCode::PermissionDenied) return opened;
  fs::path link = folder;
  for (const auto& part : parts) link /= part;
  return open_in_cache(*cache, link, shown);
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
