#include "data/zip.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace weft::data {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kDirectorySignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr size_t kLocalSize = 30;
constexpr size_t kEndSize = 22;
constexpr size_t kEnd64Size = 56;
constexpr size_t kLocator64Size = 20;
constexpr uint16_t kZip64Extra = 1;

// Little-endian numbers from a span; asking beyond its end yields 0 and is remembered.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T take() {
    T value = 0;
    const auto source = take_bytes(sizeof(T));
    if (source.size() == sizeof(T)) std::memcpy(&value, source.data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> take_bytes(size_t size) {
    if (size > bytes_.size()) {
      good_ = false;
      bytes_ = {};
      return {};
    }
    const auto head = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return head;
  }
  void skip(size_t size) { take_bytes(size); }
  bool good() const { return good_; }
  bool empty() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool good_ = true;
};

struct Directory {
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t entry_count = 0;
};

tl::unexpected<Error> damaged(const File& file, const std::string& what) {
  return file.error(ErrorCode::Corrupted, "not a whole zip file (" + what + "); fetch or write it again");
}

// The zip64 record that the locator just before the end record names; nothing when there is no locator.
Result<std::optional<Directory>> find_directory64(const File& file, uint64_t end_offset) {
  if (end_offset < kLocator64Size) return std::nullopt;
  std::array<std::byte, kLocator64Size> locator_bytes{};
  WEFT_TRY_STATUS(file.read_at(end_offset - kLocator64Size, locator_bytes));
  Cursor locator(locator_bytes);
  if (locator.take<uint32_t>() != kLocator64Signature) return std::nullopt;
  locator.skip(4);
  const auto offset = locator.take<uint64_t>();
  if (end_offset - kLocator64Size < kEnd64Size || offset > end_offset - kLocator64Size - kEnd64Size)
    return damaged(file, "its zip64 record lies outside the file");
  std::array<std::byte, kEnd64Size> record_bytes{};
  WEFT_TRY_STATUS(file.read_at(offset, record_bytes));
  Cursor record(record_bytes);
  if (record.take<uint32_t>() != kEnd64Signature)
    return damaged(file, "no zip64 record where the locator points");
  record.skip(8 + 2 + 2 + 4 + 4 + 8);
  Directory directory;
  directory.entry_count = record.take<uint64_t>();
  directory.size = record.take<uint64_t>();
  directory.offset = record.take<uint64_t>();
  return directory;
}

Result<Directory> find_directory(const File& file) {
  const uint64_t tail_size = std::min<uint64_t>(file.size(), kEndSize + 0xFFFF);
  std::vector<std::byte> tail(static_cast<size_t>(tail_size));
  WEFT_TRY_STATUS(file.read_at(file.size() - tail_size, tail));
  for (size_t back = kEndSize; back <= tail.size(); ++back) {
    const auto end_bytes = std::span(tail).subspan(tail.size() - back);
    Cursor end(end_bytes);
    if (end.take<uint32_t>() != kEndSignature) continue;
    end.skip(6);
    Directory directory;
    directory.entry_count = end.take<uint16_t>();
    directory.size = end.take<uint32_t>();
    directory.offset = end.take<uint32_t>();
    if (end.take<uint16_t>() != back - kEndSize) continue;  // these four bytes were part of a comment
    const uint64_t end_offset = file.size() - back;
    WEFT_TRY(const auto directory64, find_directory64(file, end_offset));
    if (directory64) directory = *directory64;
    if (directory.offset > end_offset || directory.size > end_offset - directory.offset)
      return damaged(file, "its directory lies outside the file");
    if (directory.size > kZipDirectoryMax || directory.entry_count > kZipEntriesMax)
      return file.error(ErrorCode::ResourceExhausted, "holds " + std::to_string(directory.entry_count) +
                                                          " entries; at most " +
                                                          std::to_string(kZipEntriesMax) + " are read");
    return directory;
  }
  return damaged(file, "no end record");
}

// Sizes of 0xFFFFFFFF stand for the zip64 extra field's, in this order.
void apply_zip64(std::span<const std::byte> extra, ZipEntry& entry, uint64_t& local_offset) {
  Cursor fields(extra);
  while (!fields.empty() && fields.good()) {
    const auto id = fields.take<uint16_t>();
    const auto size = fields.take<uint16_t>();
    Cursor body(fields.take_bytes(size));
    if (id != kZip64Extra) continue;
    for (uint64_t* value : {&entry.size, &entry.compressed_size, &local_offset})
      if (*value == 0xFFFFFFFF) *value = body.take<uint64_t>();
    return;
  }
}

Status locate_data(const File& file, uint64_t limit, uint64_t local_offset, ZipEntry& entry) {
  if (limit < kLocalSize || local_offset > limit - kLocalSize)
    return damaged(file, "entry '" + entry.name + "' lies outside the file");
  std::array<std::byte, kLocalSize> bytes{};
  WEFT_TRY_STATUS(file.read_at(local_offset, bytes));
  Cursor local(bytes);
  if (local.take<uint32_t>() != kLocalSignature)
    return damaged(file, "no entry '" + entry.name + "' where it should be");
  local.skip(22);
  const auto name_size = local.take<uint16_t>();
  const auto extra_size = local.take<uint16_t>();
  entry.data_offset = local_offset + kLocalSize + name_size + extra_size;
  if (entry.data_offset > limit || entry.compressed_size > limit - entry.data_offset)
    return damaged(file, "entry '" + entry.name + "' is larger than the file");
  return {};
}

Result<ZipEntry> read_entry(const File& file, uint64_t limit, Cursor& cursor) {
  if (cursor.take<uint32_t>() != kDirectorySignature) return damaged(file, "its directory is cut off");
  ZipEntry entry;
  cursor.skip(4);
  const auto flags = cursor.take<uint16_t>();
  const auto method = cursor.take<uint16_t>();
  cursor.skip(4);
  entry.crc = cursor.take<uint32_t>();
  entry.compressed_size = cursor.take<uint32_t>();
  entry.size = cursor.take<uint32_t>();
  const auto name_size = cursor.take<uint16_t>();
  const auto extra_size = cursor.take<uint16_t>();
  const auto comment_size = cursor.take<uint16_t>();
  cursor.skip(8);
  uint64_t local_offset = cursor.take<uint32_t>();
  const auto name = cursor.take_bytes(name_size);
  const auto extra = cursor.take_bytes(extra_size);
  cursor.skip(comment_size);
  if (!cursor.good()) return damaged(file, "its directory is cut off");

  entry.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  apply_zip64(extra, entry, local_offset);
  if (flags & 1)
    return file.error(ErrorCode::Unsupported,
                      "entry '" + entry.name + "' is encrypted; write it without a password");
  if (method != 0 && method != 8)
    return file.error(ErrorCode::Unsupported, "entry '" + entry.name + "' is packed by zip method " +
                                                  std::to_string(method) +
                                                  "; write it with np.savez or np.savez_compressed");
  entry.encoding = method == 0 ? Encoding::Plain : Encoding::Deflate;
  WEFT_TRY_STATUS(locate_data(file, limit, local_offset, entry));
  const bool plausible = method == 0 ? entry.size == entry.compressed_size
                                     : inflates_to_at_most(entry.compressed_size, entry.size);
  if (!plausible)
    return damaged(file, "entry '" + entry.name + "' declares " + std::to_string(entry.size) +
                             " bytes from " + std::to_string(entry.compressed_size));
  return entry;
}

Status check_disjoint(const File& file, std::vector<ZipEntry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const ZipEntry& a, const ZipEntry& b) { return a.data_offset < b.data_offset; });
  for (size_t i = 1; i < entries.size(); ++i)
    if (entries[i].data_offset < entries[i - 1].data_offset + entries[i - 1].compressed_size)
      return damaged(file, "entries '" + entries[i - 1].name + "' and '" + entries[i].name + "' overlap");
  return {};
}

}  // namespace

Result<std::vector<ZipEntry>> read_zip_directory(const File& file) {
  if (file.size() < kEndSize) return damaged(file, "too short");
  WEFT_TRY(const Directory directory, find_directory(file));
  std::vector<std::byte> bytes(static_cast<size_t>(directory.size));
  WEFT_TRY_STATUS(file.read_at(directory.offset, bytes));
  Cursor cursor(bytes);
  std::vector<ZipEntry> entries;
  for (uint64_t i = 0; i < directory.entry_count; ++i) {
    WEFT_TRY(auto entry, read_entry(file, /*limit=*/directory.offset, cursor));
    entries.push_back(std::move(entry));
  }
  WEFT_TRY_STATUS(check_disjoint(file, entries));
  return entries;
}

}  // namespace weft::data
