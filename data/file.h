// Reading files by position, and streams of bytes over a part of a file, plain or inflated by zlib.
// Every error names the file. A File may be read by any number of threads at once; a stream by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace weft::data {

class File {
 public:
  // Regular files only: a pipe or a device could make the reader wait for ever.
  static Result<std::shared_ptr<const File>> open(const std::filesystem::path& path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  uint64_t size() const { return size_; }  // when it was opened
  const std::filesystem::path& path() const { return path_; }
  // Fills `out`. Corrupted when the file has become shorter than that.
  Status read_at(uint64_t offset, std::span<std::byte> out) const;

  // An error about this file: "<path>: <what>".
  tl::unexpected<Error> error(ErrorCode code, const std::string& what) const;

 private:
  File(int descriptor, uint64_t size, std::filesystem::path path)
      : descriptor_(descriptor), size_(size), path_(std::move(path)) {}
  int descriptor_;
  uint64_t size_;
  std::filesystem::path path_;
};

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills `out`, or Corrupted when the stream ends or breaks before that.
  virtual Status read(std::span<std::byte> out) = 0;
  // At least one byte and at most `out`; 0 where nothing is left. Corrupted when the stream breaks.
  // REQUIRES: `out` is not empty.
  virtual Result<size_t> read_some(std::span<std::byte> out) = 0;
  // True when nothing is left.
  virtual Result<bool> at_end() = 0;
};

enum class Encoding : uint8_t { Plain, Deflate, Gzip };
// The bytes [offset, offset + size) of the file, decoded. Takes about 128 KiB whatever they hold.
// REQUIRES: the range lies in the file.
std::unique_ptr<ByteStream> make_stream(std::shared_ptr<const File> file, uint64_t offset, uint64_t size,
                                        Encoding encoding);
// Of the whole file, by its first bytes: Gzip or Plain.
Result<Encoding> encoding_of(const File& file);

// Deflate cannot do better than 1032 to 1: a declared size beyond that is a lie, known before memory is
// taken.
bool inflates_to_at_most(uint64_t compressed_size, uint64_t declared_size);

// Zero-filled; ResourceExhausted where the machine has not that much.
Result<std::vector<std::byte>> allocate_bytes(uint64_t size, const std::string& what_for);

uint32_t crc32_of(uint32_t crc, std::span<const std::byte> bytes);  // start with 0

}  // namespace weft::data
