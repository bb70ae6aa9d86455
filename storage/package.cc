#include "storage/package.h"

#include <algorithm>
#include <string>

#include "storage/posix.h"
#include "storage/sha256.h"

namespace weft::storage {
namespace {

namespace fs = std::filesystem;
constexpr size_t kReadSize = size_t{1} << 20;

using Visit = std::function<Status(std::span<const std::byte>)>;

// The next `size` bytes of an open file.
Status read_next(int descriptor, uint64_t size, const fs::path& path, std::vector<std::byte>& buffer,
                 const Visit& visit) {
  buffer.resize(static_cast<size_t>(std::min<uint64_t>(size, kReadSize)));
  while (size > 0) {
    const auto part = std::span(buffer).first(static_cast<size_t>(std::min<uint64_t>(size, buffer.size())));
    WEFT_TRY_STATUS(read_fully(descriptor, part, path));
    WEFT_TRY_STATUS(visit(part));
    size -= part.size();
  }
  return {};
}

class Packer {
 public:
  Packer(const fs::path& path, const Opened& file, const ObserveRange& observe)
      : path_(path), file_(file), observe_(observe) {}

  Status add(uint64_t size, bool is_blob) {
    if (size == 0) return {};
    if (!is_blob && size <= kInlineSizeMax && inline_total_ + size <= kInlineTotalMax) {
      inline_total_ += size;
      Piece piece{.size = size};
      WEFT_TRY_STATUS(read(size, [&](std::span<const std::byte> part) -> Status {
        piece.bytes.insert(piece.bytes.end(), part.begin(), part.end());
        return {};
      }));
      packed_.pieces.push_back(std::move(piece));
      return {};
    }
    const Range range{at_, size};
    Sha256 hash;
    WEFT_TRY_STATUS(read(size, [&](std::span<const std::byte> part) -> Status {
      hash.update(part);
      if (is_blob && observe_) observe_(range, part);
      return {};
    }));
    const Digest digest = *digest_from_hex(hash.hex());
    packed_.pieces.push_back({.sha256 = digest, .size = size});
    packed_.blobs.emplace(digest, BlobSource{path_, range});
    return {};
  }

  uint64_t at() const { return at_; }
  Packed take() { return std::move(packed_); }

 private:
  Status read(uint64_t size, const Visit& visit) {
    at_ += size;
    return read_next(file_.descriptor.get(), size, path_, buffer_, visit);
  }

  const fs::path& path_;
  const Opened& file_;
  const ObserveRange& observe_;
  uint64_t at_ = 0;
  uint64_t inline_total_ = 0;
  std::vector<std::byte> buffer_;
  Packed packed_;
};

Status append_blob(const Piece& piece, const BlobStore& blobs, const Files::Sink& sink) {
  WEFT_TRY(const fs::path path, blobs.find(*piece.sha256));
  WEFT_TRY(const Opened file, open_to_read(path));
  if (file.size != piece.size)
    return fail(ErrorCode::Corrupted, path.string() + ": " + std::to_string(file.size) +
                                          " bytes, where a file wants " + std::to_string(piece.size));
  Sha256 hash;
  std::vector<std::byte> buffer;
  WEFT_TRY_STATUS(read_next(file.descriptor.get(), file.size, path, buffer,
                            [&](std::span<const std::byte> part) -> Status {
                              hash.update(part);
                              return sink(part);
                            }));
  if (hash.hex() != to_hex(*piece.sha256))
    return fail(ErrorCode::Corrupted,
                path.string() + ": its bytes are not those of its name; the disk changed them");
  return {};
}

}  // namespace

Result<Packed> pack(const fs::path& file, std::span<const Range> ranges, const ObserveRange& observe) {
  WEFT_TRY(const Opened opened, open_to_read(file));
  Packer packer(file, opened, observe);
  for (const Range& range : ranges) {
    if (range.offset < packer.at() || range.offset > opened.size || range.size > opened.size - range.offset)
      return fail(ErrorCode::InvalidArgument, file.string() + ": bytes " + std::to_string(range.offset) +
                                                  " and " + std::to_string(range.size) +
                                                  " more are not in it, or not after those before");
    WEFT_TRY_STATUS(packer.add(range.offset - packer.at(), false));
    WEFT_TRY_STATUS(packer.add(range.size, true));
  }
  WEFT_TRY_STATUS(packer.add(opened.size - packer.at(), false));
  return packer.take();
}

Status read_source(const BlobSource& source, const Visit& visit) {
  WEFT_TRY(const Opened file, open_to_read(source.file));
  if (source.range.offset > file.size || source.range.size > file.size - source.range.offset)
    return fail(ErrorCode::Corrupted, source.file.string() + ": became shorter; was it changed meanwhile?");
  WEFT_TRY_STATUS(seek(file.descriptor.get(), source.range.offset, source.file));
  std::vector<std::byte> buffer;
  return read_next(file.descriptor.get(), source.range.size, source.file, buffer, visit);
}

Status unpack(std::span<const Piece> pieces, const BlobStore& blobs, const fs::path& target) {
  Files files;
  if (target.has_parent_path()) WEFT_TRY_STATUS(files.make_directories(target.parent_path()));
  return files.write_atomic_pieces(target, [&](const Files::Sink& sink) -> Status {
    for (const Piece& piece : pieces) {
      if (piece.sha256) {
        WEFT_TRY_STATUS(append_blob(piece, blobs, sink));
        continue;
      }
      if (piece.size != piece.bytes.size())
        return fail(ErrorCode::Corrupted, target.string() + ": a piece of " + std::to_string(piece.size) +
                                              " bytes comes with " + std::to_string(piece.bytes.size()));
      WEFT_TRY_STATUS(sink(piece.bytes));
    }
    return {};
  });
}

}  // namespace weft::storage
