// The directory of a zip file, read with every offset and size checked against the file. zip64 too; stored
// and deflated entries; no encryption, no volumes. What an entry holds is read through make_stream.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/file.h"

namespace weft::data {

struct ZipEntry {
  std::string name;
  Encoding encoding = Encoding::Plain;
  uint32_t crc = 0;
  uint64_t compressed_size = 0;
  uint64_t size = 0;
  uint64_t data_offset = 0;  // the entry's bytes are [data_offset, data_offset + compressed_size) of the file
};

inline constexpr uint64_t kZipEntriesMax = 4096;
inline constexpr uint64_t kZipDirectoryMax = uint64_t{4} << 20;  // bytes

// In the order of the directory. Corrupted, Unsupported, ResourceExhausted. No two entries share a byte of
// the file, so that together they inflate to at most 1032 times its size.
Result<std::vector<ZipEntry>> read_zip_directory(const File& file);

}  // namespace weft::data
