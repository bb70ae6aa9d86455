#include "data/npz_writer.h"

#include <set>

#include "base/check.h"
#include "data/file.h"
#include "data/npy.h"

namespace weft::data {
namespace {

constexpr uint64_t kMax32 = 0xFFFFFFFF;
constexpr uint16_t kVersion = 20;
constexpr uint16_t kVersion64 = 45;
constexpr uint16_t kDosDate = 0x0021;  // 1980-01-01, the first that the format knows
constexpr uint16_t kUtf8Names = 0x0800;

template <typename T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
}

struct Entry {
  std::string name;
  uint32_t crc = 0;
  uint64_t size = 0;
  uint64_t offset = 0;
  bool large() const { return size >= kMax32; }
};

uint32_t clipped(uint64_t value) {
  return value >= kMax32 ? static_cast<uint32_t>(kMax32) : static_cast<uint32_t>(value);
}

// What local header and directory share, from the version to the name's length.
void put_common(std::string& out, const Entry& entry, bool zip64) {
  put<uint16_t>(out, zip64 ? kVersion64 : kVersion);
  put<uint16_t>(out, kUtf8Names);
  put<uint16_t>(out, 0);  // stored
  put<uint16_t>(out, 0);
  put<uint16_t>(out, kDosDate);
  put<uint32_t>(out, entry.crc);
  put<uint32_t>(out, entry.large() ? kMax32 : entry.size);
  put<uint32_t>(out, entry.large() ? kMax32 : entry.size);
  put<uint16_t>(out, static_cast<uint16_t>(entry.name.size()));
}

std::string local_header(const Entry& entry) {
  std::string out;
  put<uint32_t>(out, 0x04034b50);
  put_common(out, entry, entry.large());
  put<uint16_t>(out, entry.large() ? 20 : 0);
  out += entry.name;
  if (entry.large()) {
    put<uint16_t>(out, 1);
    put<uint16_t>(out, 16);
    put<uint64_t>(out, entry.size);
    put<uint64_t>(out, entry.size);
  }
  return out;
}

std::string directory_entry(const Entry& entry) {
  std::string extra;
  if (entry.large()) {
    put<uint64_t>(extra, entry.size);
    put<uint64_t>(extra, entry.size);
  }
  if (entry.offset >= kMax32) put<uint64_t>(extra, entry.offset);
  std::string out;
  put<uint32_t>(out, 0x02014b50);
  put<uint16_t>(out, kVersion64);
  put_common(out, entry, !extra.empty());
  put<uint16_t>(out, static_cast<uint16_t>(extra.empty() ? 0 : extra.size() + 4));
  put<uint16_t>(out, 0);  // comment
  put<uint16_t>(out, 0);  // disk
  put<uint16_t>(out, 0);
  put<uint32_t>(out, 0);
  put<uint32_t>(out, clipped(entry.offset));
  out += entry.name;
  if (!extra.empty()) {
    put<uint16_t>(out, 1);
    put<uint16_t>(out, static_cast<uint16_t>(extra.size()));
    out += extra;
  }
  return out;
}

std::string end_records(uint64_t count, uint64_t offset, uint64_t size) {
  std::string out;
  if (offset >= kMax32 || size >= kMax32) {
    put<uint32_t>(out, 0x06064b50);
    put<uint64_t>(out, 44);
    put<uint16_t>(out, kVersion64);
    put<uint16_t>(out, kVersion64);
    put<uint64_t>(out, 0);  // disks
    put<uint64_t>(out, count);
    put<uint64_t>(out, count);
    put<uint64_t>(out, size);
    put<uint64_t>(out, offset);
    put<uint32_t>(out, 0x07064b50);
    put<uint32_t>(out, 0);
    put<uint64_t>(out, offset + size);
    put<uint32_t>(out, 1);
  }
  put<uint32_t>(out, 0x06054b50);
  put<uint32_t>(out, 0);  // disks
  put<uint16_t>(out, static_cast<uint16_t>(count));
  put<uint16_t>(out, static_cast<uint16_t>(count));
  put<uint32_t>(out, clipped(size));
  put<uint32_t>(out, clipped(offset));
  put<uint16_t>(out, 0);
  return out;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

Status check_arrays(std::span<const NpzRows::Array> arrays) {
  if (arrays.size() >= 0xFFFF) return fail(ErrorCode::Unsupported, "an npz file of more than 65534 arrays");
  std::set<std::string_view> names;
  for (const auto& [name, spec] : arrays) {
    if (name.empty() || name.size() > 0xFF00 || !names.insert(name).second)
      return fail(ErrorCode::InvalidArgument, "array '" + name + "' needs a name of its own in an npz file");
    if (spec.dtype == dag::DType::BF16)
      return fail(ErrorCode::Unsupported,
                  "array '" + name + "' is bf16, which npz files do not know; convert it to f32");
  }
  return {};
}

}  // namespace

Status write_npz(std::span<const NpzArray> arrays, const ByteSink& sink) {
  std::vector<NpzRows::Array> specs;
  for (const NpzArray& array : arrays) specs.push_back({array.name, array.tensor.spec()});
  WEFT_TRY_STATUS(check_arrays(specs));
  uint64_t position = 0;
  const auto emit = [&](std::span<const std::byte> bytes) -> Status {
    position += bytes.size();
    return sink(bytes);
  };
  std::vector<Entry> entries;
  for (const NpzArray& array : arrays) {
    const std::string header = npy_header(array.tensor.spec());
    const auto header_bytes = bytes_of(header);
    Entry entry{.name = array.name + ".npy",
                .crc = crc32_of(crc32_of(0, header_bytes), array.tensor.bytes()),
                .size = header.size() + array.tensor.bytes().size(),
                .offset = position};
    WEFT_TRY_STATUS(emit(bytes_of(local_header(entry))));
    WEFT_TRY_STATUS(emit(header_bytes));
    WEFT_TRY_STATUS(emit(array.tensor.bytes()));
    entries.push_back(std::move(entry));
  }
  const uint64_t directory_offset = position;
  for (const Entry& entry : entries) WEFT_TRY_STATUS(emit(bytes_of(directory_entry(entry))));
  return emit(bytes_of(end_records(entries.size(), directory_offset, position - directory_offset)));
}

Result<NpzRows> NpzRows::create(std::vector<Array> arrays, PlacedSink sink) {
  WEFT_TRY_STATUS(check_arrays(arrays));
  NpzRows rows;
  rows.sink_ = std::move(sink);
  for (Array& array : arrays) {
    Growing& growing = rows.arrays_.emplace_back();
    growing.header = npy_header(array.spec);
    growing.crc = crc32_of(0, bytes_of(growing.header));
    const auto bytes = static_cast<uint64_t>(array.spec.bytes().value);
    const Entry entry{.name = array.name + ".npy", .size = growing.header.size() + bytes};
    growing.offset = rows.end_;
    growing.begin = growing.offset + local_header(entry).size() + growing.header.size();
    growing.array = std::move(array);
    rows.end_ = growing.begin + bytes;
  }
  return rows;
}

Status NpzRows::append(size_t array, std::span<const std::byte> bytes) {
  Growing& growing = arrays_.at(array);
  WEFT_CHECK(growing.written + bytes.size() <= static_cast<uint64_t>(growing.array.spec.bytes().value));
  WEFT_TRY_STATUS(sink_(growing.begin + growing.written, bytes));
  growing.crc = crc32_of(growing.crc, bytes);
  growing.written += bytes.size();
  return {};
}

Status NpzRows::finish() {
  std::string directory;
  for (const Growing& growing : arrays_) {
    WEFT_CHECK(growing.written == static_cast<uint64_t>(growing.array.spec.bytes().value));
    const Entry entry{.name = growing.array.name + ".npy",
                      .crc = growing.crc,
                      .size = growing.header.size() + growing.written,
                      .offset = growing.offset};
    WEFT_TRY_STATUS(sink_(growing.offset, bytes_of(local_header(entry) + growing.header)));
    directory += directory_entry(entry);
  }
  const size_t size = directory.size();
  directory += end_records(arrays_.size(), end_, size);
  return sink_(end_, bytes_of(directory));
}

Result<std::vector<std::byte>> npz_bytes(std::span<const NpzArray> arrays) {
  std::vector<std::byte> bytes;
  WEFT_TRY_STATUS(write_npz(arrays, [&](std::span<const std::byte> piece) -> Status {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
    return {};
  }));
  return bytes;
}

}  // namespace weft::data
