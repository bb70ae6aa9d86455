// Large things as files named by their SHA-256, in DIR/<first two digits>/<64 digits>. A blob is there as a
// whole or not at all, also after a crash.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <span>

#include "base/digest.h"
#include "base/result.h"
#include "storage/files.h"

namespace weft::storage {

Digest sha256(std::span<const std::byte> bytes);
// Reads the file in pieces. Errors as Files::read.
Result<Digest> sha256_of(const std::filesystem::path& file);

// Safe from several threads and processes: names decide contents.
class BlobStore {
 public:
  // Makes the folder where it is missing, and removes what writers left that did not live to finish.
  static Result<std::unique_ptr<BlobStore>> open(const std::filesystem::path& folder);

  // For collect() it is then as new again.
  bool has(const Digest& sha256) const;
  // Where its bytes are, for reading in place. NotFound.
  Result<std::filesystem::path> find(const Digest& sha256) const;
  Result<uint64_t> size(const Digest& sha256) const;
  // The bytes, compared with their name. NotFound, Corrupted, ResourceExhausted beyond size_max.
  Result<std::vector<std::byte>> read(const Digest& sha256, uint64_t size_max) const;
  // Durable when it returns. The same bytes again cost only the hash. Errors as begin(), and what the disk
  // says.
  Result<Digest> put(std::span<const std::byte> bytes);
  Result<Digest> put_file(const std::filesystem::path& file);  // copies, in pieces

  // Bytes that come in pieces under a name that was promised. Destroyed before finish(): nothing is left.
  class Writer {
   public:
    virtual ~Writer() = default;
    virtual Status write(std::span<const std::byte> bytes) = 0;  // OutOfRange beyond the promised size
    virtual Status finish() = 0;  // Corrupted when size or hash are not as promised; then durable
  };
  // ResourceExhausted when the disk has not that much room.
  Result<std::unique_ptr<Writer>> begin(const Digest& sha256, uint64_t size);

  // Removes every blob that is not in `kept` and older than an hour (somebody may be about to name it).
  // Returns the bytes freed. Files of other names stay.
  Result<uint64_t> collect(const std::set<Digest>& kept);

 private:
  explicit BlobStore(std::filesystem::path folder) : folder_(std::move(folder)) {}
  std::filesystem::path folder_;
};

}  // namespace weft::storage
