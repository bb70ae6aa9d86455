// Large things as files named by their SHA-256, in DIR/<first two digits>/<64 digits>. A blob is there as a
// whole or not at all, also after a crash.
//
// Transient blobs need not survive whoever wrote them: they lie in memory as far as they may, else in
// DIR/transient/, are written without waiting for the disk, and are known to the store object that wrote them
// only. Readers need not care which is which.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "base/digest.h"
#include "base/result.h"
#include "storage/files.h"

namespace weft::storage {

Digest sha256(std::span<const std::byte> bytes);
// Reads the file in pieces. Errors as Files::read.
Result<Digest> sha256_of(const std::filesystem::path& file);

enum class Durability : uint8_t { Durable, Transient };

struct BlobStoreOptions {
  // What is in DIR/transient/ is put aside at the start, for remove_wiped(): for the one process that writes
  // transient blobs there.
  bool wipe_transient = false;
  // Bytes that uploads leave free on the disk, so that what is more important than they can still be written.
  uint64_t reserve = uint64_t{64} << 20;
  // Bytes of transient blobs that are held in memory; those that do not fit any more are files.
  uint64_t transient_in_memory = 0;
  // keep_transient() leaves what was written or asked about so lately: nobody may have named it yet.
  std::chrono::milliseconds transient_young = std::chrono::seconds(60);
  FaultHook hook{};  // before each operation that writes ("open", "write", "sync", "rename", "link", ...)
};

// A blob's bytes where they are, in memory or a file that is mapped; they never change.
struct BlobView {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

// Safe from several threads and processes: names decide contents. Functions that write answer
// ResourceExhausted when the disk is full, and leave nothing behind then.
class BlobStore {
 public:
  // Makes the folder where it is missing, and removes what writers left that did not live to finish.
  static Result<std::unique_ptr<BlobStore>> open(const std::filesystem::path& folder,
                                                 BlobStoreOptions options = {});
  ~BlobStore();

  // What was put aside at the start may be much: beside other work.
  void remove_wiped();

  // Durable or transient. For collect() and keep_transient() it is then as new again.
  bool has(const Digest& sha256) const;
  // Without that: cheap where it lies in memory, and no reason to keep it.
  bool is_here(const Digest& sha256) const;
  // Whether it is there and will stay so: with Durable, a blob that was only transient is made durable on the
  // way. The question to ask before an upload is asked for or refused. Errors: what the disk says.
  Result<bool> have(const Digest& sha256, Durability durability);
  // NotFound; what the disk says.
  Status make_durable(const Digest& sha256);

  // Its bytes, not compared with its name. NotFound; what the disk says.
  Result<BlobView> view(const Digest& sha256) const;
  // A blob to be taken in pieces, of which only those that are held take memory; none is compared with the
  // blob's name. It stays what it was when it is removed meanwhile.
  class Reader {
   public:
    virtual ~Reader() = default;
    virtual uint64_t size() const = 0;
    virtual Result<BlobView> piece(uint64_t at, size_t size) const = 0;  // REQUIRES: all of it is within
  };
  Result<std::unique_ptr<Reader>> open_blob(const Digest& sha256) const;  // NotFound; what the disk says
  // The file that has its bytes, if they are in one. A transient one may be gone when it is opened: ask again
  // then. NotFound.
  Result<std::filesystem::path> find(const Digest& sha256) const;
  Result<uint64_t> size(const Digest& sha256) const;
  // The bytes, compared with their name. NotFound, Corrupted, ResourceExhausted beyond size_max.
  Result<std::vector<std::byte>> read(const Digest& sha256, uint64_t size_max) const;
  // Durable when it returns. The same bytes again cost only the hash. Errors as begin(), and what the disk
  // says.
  Result<Digest> put(std::span<const std::byte> bytes);
  Result<Digest> put_file(const std::filesystem::path& file);  // copies, in pieces

  // Bytes that come in pieces under a name that was promised. Destroyed before finish(): nothing is left.
  // The store must outlive it.
  class Writer {
   public:
    virtual ~Writer() = default;
    virtual Status write(std::span<const std::byte> bytes) = 0;  // OutOfRange beyond the promised size
    virtual Status finish() = 0;  // Corrupted when size or hash are not as promised; then it is there
  };
  // ResourceExhausted when the disk has not that much room now. It is taken as bytes come, a little ahead of
  // them, so that promises alone keep nobody out: a write may find that there is none any more.
  Result<std::unique_ptr<Writer>> begin(const Digest& sha256, uint64_t size,
                                        Durability durability = Durability::Durable);

  // Reads the blob, and moves it to DIR/damaged/ where its bytes are not those of its name, so that it can be
  // uploaded again. Whether it was: false means that it is sound. NotFound.
  Result<bool> quarantine(const Digest& sha256);

  // Removes every durable blob that is not in `kept` and older than an hour (somebody may be about to name
  // it), and damaged ones older than that. Returns the bytes freed. Files of other names stay.
  Result<uint64_t> collect(const std::set<Digest>& kept);
  // Removes every transient blob that is not in `kept` and not young (by the option, unless said). Returns
  // the bytes freed; those that are durable too count as well.
  uint64_t keep_transient(const std::set<Digest>& kept, std::optional<std::chrono::milliseconds> young = {});

 private:
  class FileWriter;
  class MemoryWriter;
  struct Shared;
  BlobStore(std::filesystem::path folder, BlobStoreOptions options);
  std::filesystem::path durable_path(const Digest& sha256) const;
  std::filesystem::path transient_path(const Digest& sha256) const;
  Result<bool> holds(const Digest& sha256, uint64_t right_size);
  Result<std::unique_ptr<Writer>> begin_file(const Digest& sha256, uint64_t size, Durability durability);
  Status check_room(uint64_t size, uint64_t reserved);
  Status publish_durable(const Digest& sha256);
  Status sync_older(const Digest& sha256);

  std::filesystem::path folder_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace weft::storage
