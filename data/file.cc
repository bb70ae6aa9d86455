#include "data/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/check.h"

namespace weft::data {
namespace {

constexpr size_t kChunk = size_t{64} << 10;

class PlainStream final : public ByteStream {
 public:
  PlainStream(std::shared_ptr<const File> file, uint64_t offset, uint64_t size)
      : file_(std::move(file)), offset_(offset), left_(size) {}

  Status read(std::span<std::byte> out) override {
    if (out.size() > left_)
      return file_->error(ErrorCode::Corrupted, "ends too early; fetch or write it again");
    WEFT_TRY_STATUS(file_->read_at(offset_, out));
    offset_ += out.size();
    left_ -= out.size();
    return {};
  }
  Result<size_t> read_some(std::span<std::byte> out) override {
    const auto part = out.first(static_cast<size_t>(std::min<uint64_t>(out.size(), left_)));
    WEFT_TRY_STATUS(read(part));
    return part.size();
  }
  Result<bool> at_end() override { return left_ == 0; }

 private:
  std::shared_ptr<const File> file_;
  uint64_t offset_;
  uint64_t left_;
};

class InflateStream final : public ByteStream {
 public:
  InflateStream(std::shared_ptr<const File> file, uint64_t offset, uint64_t size, Encoding encoding)
      : file_(std::move(file)), offset_(offset), left_(size), gzip_(encoding == Encoding::Gzip) {
    ready_ = inflateInit2(&z_, gzip_ ? 15 + 16 : -15) == Z_OK;
  }
  ~InflateStream() override {
    if (ready_) inflateEnd(&z_);
  }
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;

  Status read(std::span<std::byte> out) override {
    while (!out.empty()) {
      WEFT_TRY(const size_t made, inflate_some(out));
      if (made == 0)
        return file_->error(ErrorCode::Corrupted,
                            "its compressed data ends too early; fetch or write it again");
      out = out.subspan(made);
    }
    return {};
  }

  Result<size_t> read_some(std::span<std::byte> out) override { return inflate_some(out); }

  Result<bool> at_end() override {
    std::byte extra{};
    WEFT_TRY(const size_t made, inflate_some({&extra, 1}));
    return made == 0;
  }

 private:
  // How many bytes were made; 0 only at the end of the compressed data.
  Result<size_t> inflate_some(std::span<std::byte> out) {
    if (!ready_) return file_->error(ErrorCode::ResourceExhausted, "no memory to inflate it");
    for (;;) {
      WEFT_TRY_STATUS(refill());
      if (ended_) {
        // A gzip file may hold several members one after the other.
        if (!gzip_ || z_.avail_in == 0) return size_t{0};
        if (inflateReset(&z_) != Z_OK) return broken();
        ended_ = false;
      }
      const size_t room = std::min<size_t>(out.size(), kChunk * 1024);
      z_.next_out = reinterpret_cast<Bytef*>(out.data());
      z_.avail_out = static_cast<uInt>(room);
      const int code = inflate(&z_, Z_NO_FLUSH);
      if (code == Z_STREAM_END)
        ended_ = true;
      else if (code != Z_OK)
        return broken();  // Z_BUF_ERROR too: no input left, and nothing more to come from what was read
      const size_t made = room - z_.avail_out;
      if (made > 0) return made;
    }
  }

  Status refill() {
    if (z_.avail_in > 0 || left_ == 0) return {};
    const size_t size = static_cast<size_t>(std::min<uint64_t>(left_, buffer_.size()));
    WEFT_TRY_STATUS(file_->read_at(offset_, std::span(buffer_).first(size)));
    offset_ += size;
    left_ -= size;
    z_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
    z_.avail_in = static_cast<uInt>(size);
    return {};
  }

  tl::unexpected<Error> broken() const {
    return file_->error(ErrorCode::Corrupted,
                        "its compressed data is damaged or cut off; fetch or write it again");
  }

  std::shared_ptr<const File> file_;
  uint64_t offset_;
  uint64_t left_;
  bool gzip_;
  bool ready_ = false;
  bool ended_ = false;
  z_stream z_{};
  std::array<std::byte, kChunk> buffer_;
};

tl::unexpected<Error> open_error(const std::filesystem::path& path, int number) {
  const std::string name = path.string();
  if (number == ENOENT || number == ENOTDIR)
    return fail(ErrorCode::NotFound, name + ": no such file; check the path");
  if (number == EACCES || number == EPERM)
    return fail(ErrorCode::PermissionDenied, name + ": may not be read; check its permissions");
  return fail(ErrorCode::Unavailable, name + ": cannot be opened: " + std::strerror(number));
}

}  // namespace

Result<std::shared_ptr<const File>> File::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return open_error(path, errno);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    return fail(ErrorCode::InvalidArgument,
                path.string() + ": not a regular file; name a file, not a folder or a pipe");
  }
  return std::shared_ptr<const File>(new File(descriptor, static_cast<uint64_t>(status.st_size), path));
}

File::~File() { ::close(descriptor_); }

Status File::read_at(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error(ErrorCode::Unavailable, std::string("cannot be read: ") + std::strerror(errno));
    if (got == 0) return error(ErrorCode::Corrupted, "ends too early; was it changed while it was in use?");
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
  return {};
}

tl::unexpected<Error> File::error(ErrorCode code, const std::string& what) const {
  return fail(code, path_.string() + ": " + what);
}

std::unique_ptr<ByteStream> make_stream(std::shared_ptr<const File> file, uint64_t offset, uint64_t size,
                                        Encoding encoding) {
  WEFT_CHECK(offset <= file->size() && size <= file->size() - offset);
  if (encoding == Encoding::Plain) return std::make_unique<PlainStream>(std::move(file), offset, size);
  return std::make_unique<InflateStream>(std::move(file), offset, size, encoding);
}

Result<Encoding> encoding_of(const File& file) {
  constexpr std::array kGzip{std::byte{0x1f}, std::byte{0x8b}};
  std::array<std::byte, kGzip.size()> first{};
  if (file.size() >= first.size()) WEFT_TRY_STATUS(file.read_at(0, first));
  return first == kGzip ? Encoding::Gzip : Encoding::Plain;
}

bool inflates_to_at_most(uint64_t compressed_size, uint64_t declared_size) {
  return declared_size / 1032 <= compressed_size;
}

Result<std::vector<std::byte>> allocate_bytes(uint64_t size, const std::string& what_for) {
  try {
    return std::vector<std::byte>(static_cast<size_t>(size));
  } catch (const std::exception&) {
    return fail(ErrorCode::ResourceExhausted,
                what_for + ": needs " + std::to_string(size) + " bytes of memory; use less data");
  }
}

uint32_t crc32_of(uint32_t crc, std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace weft::data
