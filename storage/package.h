// A file on its way: a sequence of pieces, each the bytes themselves or a blob by its SHA-256. A model
// travels as its bytes without tensors, and its tensors as blobs, which checkpoints and other models share;
// put together again it is the same file, byte for byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "storage/blob_store.h"

namespace weft::storage {

struct Piece {
  std::vector<std::byte> bytes{};  // when there is no digest
  std::optional<Digest> sha256{};
  uint64_t size = 0;
};

// What of a file becomes a blob of its own.
struct Range {
  uint64_t offset = 0;  // bytes from the file's start
  uint64_t size = 0;    // bytes
};

// Where the bytes of a blob can be read.
struct BlobSource {
  std::filesystem::path file;
  Range range;
};

struct Packed {
  std::vector<Piece> pieces;
  std::map<Digest, BlobSource> blobs;
};

// Bytes between ranges up to this size stay in the piece; longer ones are blobs, too.
inline constexpr uint64_t kInlineSizeMax = 64 << 10;
inline constexpr uint64_t kInlineTotalMax = 4 << 20;  // of one file

// Sees the bytes of each range in order, in pieces of at most 1 MiB, as they are hashed.
using ObserveRange = std::function<void(const Range& range, std::span<const std::byte> bytes)>;

// `ranges` ascend and do not overlap: else, or beyond the file's end, InvalidArgument. The file is read once,
// in pieces of at most 1 MiB. Errors as Files::read.
Result<Packed> pack(const std::filesystem::path& file, std::span<const Range> ranges,
                    const ObserveRange& observe = {});

// The bytes of a blob that pack() named, in pieces of at most 1 MiB; an error of `visit` ends it. Whether
// they are still those of the digest is for the receiver to see.
Status read_source(const BlobSource& source, const std::function<Status(std::span<const std::byte>)>& visit);

// Puts the file together, durably and as a whole or not at all; `target`'s folders are made. Every blob is
// compared with its digest on the way. The file has one name on the disk (no hard link), as readers of
// external data ask for. NotFound for a blob that is not there, Corrupted for one that is not what its piece
// says.
Status unpack(std::span<const Piece> pieces, const BlobStore& blobs, const std::filesystem::path& target);

}  // namespace weft::storage
