#include "data/zip.h"

#include <array>

#include "base/check.h"
#include "tests/fuzz/files.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void zip(std::span<const std::byte> bytes) {
  const MemoryFile memory(bytes);
  const auto file = data::File::open(memory.path());
  WEFT_CHECK(file.has_value());
  const auto entries = data::read_zip_directory(**file);
  if (!entries) return;
  uint64_t left = 4 << 20;  // bytes that are inflated, of all entries
  for (const data::ZipEntry& entry : *entries) {
    WEFT_CHECK(entry.data_offset <= bytes.size() &&
               entry.compressed_size <= bytes.size() - entry.data_offset);
    const auto stream = data::make_stream(*file, entry.data_offset, entry.compressed_size, entry.encoding);
    std::array<std::byte, 4096> part;
    for (uint64_t size = std::min(entry.size, left); size > 0;) {
      const auto wanted = std::span(part).first(std::min<uint64_t>(size, part.size()));
      if (!stream->read(wanted)) break;
      size -= wanted.size();
      left -= wanted.size();
    }
    (void)stream->at_end();
  }
}

}  // namespace weft::fuzz
