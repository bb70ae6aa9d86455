// npz files: a zip of .npy arrays, one a column. Stored arrays stay in the file and are read sample by
// sample, so that they may be larger than memory; deflated ones are inflated once, within
// OpenOptions::resident_max for all of them together.
#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.h"
#include "data/dataset.h"
#include "data/file.h"
#include "data/npy.h"
#include "data/zip.h"

namespace weft::data {
namespace {

struct NpzColumn {
  Column column;
  uint64_t sample_count = 0;
  uint64_t offset = 0;           // of the first element in the file, where it is stored plainly
  bool resident = false;         // whether it was inflated:
  std::vector<std::byte> bytes;  // all elements
};

class NpzDataset final : public Dataset {
 public:
  // REQUIRES: at least one array, all of one length.
  NpzDataset(std::shared_ptr<const File> file, std::vector<NpzColumn> arrays, std::vector<std::string> others)
      : file_(std::move(file)), arrays_(std::move(arrays)), others_(std::move(others)) {
    for (const auto& array : arrays_) columns_.push_back(array.column);
  }

  std::span<const Column> columns() const override { return columns_; }
  uint32_t sample_count() const override { return static_cast<uint32_t>(arrays_.front().sample_count); }
  std::span<const std::string> others() const override { return others_; }
  uint64_t resident_bytes() const override {
    uint64_t sum = 0;
    for (const NpzColumn& array : arrays_) sum += array.bytes.size();
    return sum;
  }

  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    WEFT_CHECK(column < arrays_.size());
    const NpzColumn& array = arrays_[column];
    const auto size = static_cast<size_t>(array.column.sample.bytes().value);
    WEFT_CHECK(out.size() == samples.size() * size);
    for (const uint32_t sample : samples)
      if (sample >= array.sample_count)
        return file_->error(ErrorCode::OutOfRange,
                            "sample " + std::to_string(sample) + " of " + std::to_string(array.sample_count));
    // Samples that lie one after the other are read at once.
    for (size_t i = 0, run = 0; i < samples.size(); i += run) {
      run = 1;
      while (i + run < samples.size() && samples[i + run] == samples[i] + run) ++run;
      const auto target = out.subspan(i * size, run * size);
      if (array.resident)
        std::memcpy(target.data(), array.bytes.data() + samples[i] * size, target.size());
      else
        WEFT_TRY_STATUS(file_->read_at(array.offset + samples[i] * size, target));
    }
    // A byte of a bool array may be anything in a hostile file; elsewhere it is 0 or 1.
    if (array.column.sample.dtype == dag::DType::Bool)
      for (std::byte& b : out) b = b == std::byte{0} ? std::byte{0} : std::byte{1};
    return {};
  }

 private:
  std::shared_ptr<const File> file_;
  std::vector<NpzColumn> arrays_;
  std::vector<std::string> others_;
  std::vector<Column> columns_;
};

// Of an array's entry.
std::string name_of(const ZipEntry& entry) { return entry.name.substr(0, entry.name.size() - 4); }

std::string array_name(const ZipEntry& entry) { return "array '" + name_of(entry) + "'"; }

bool is_array(const ZipEntry& entry) { return entry.name.ends_with(".npy") && entry.name.size() > 4; }

// Only arrays, each name once.
Status check_names(const File& file, const std::vector<ZipEntry>& entries) {
  if (entries.empty())
    return file.error(ErrorCode::InvalidArgument,
                      "holds no arrays; write it with np.savez(path, name=array)");
  std::set<std::string_view> names;
  for (const ZipEntry& entry : entries) {
    if (!is_array(entry))
      return file.error(ErrorCode::Unsupported,
                        "entry '" + entry.name + "' is not an array; write it with np.savez");
    if (!names.insert(entry.name).second)
      return file.error(ErrorCode::Corrupted, "holds " + array_name(entry) + " twice; write it again");
  }
  return {};
}

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

// Takes out of `entries` what is not one of the columns that are asked for, and says its name.
Result<std::vector<std::string>> leave_others(const File& file, const NpzSpec& spec,
                                              std::vector<ZipEntry>& entries) {
  std::vector<std::string> others;
  if (spec.columns.empty()) return others;
  const std::set<std::string_view> wanted(spec.columns.begin(), spec.columns.end());
  std::erase_if(entries, [&](const ZipEntry& entry) {
    if (is_array(entry) && wanted.contains(name_of(entry))) return false;
    others.push_back(is_array(entry) ? name_of(entry) : entry.name);
    return true;
  });
  if (entries.empty())
    return file.error(ErrorCode::NotFound, "holds none of the columns that are asked for (" +
                                               list(spec.columns) + ")" +
                                               (others.empty() ? "" : "; it holds " + list(others)));
  return others;
}

Status check_spec(const File& file, const ZipEntry& entry, const NpyHeader& header) {
  const auto& shape = header.spec.shape;
  const std::string says = array_name(entry) + " of shape " + dag::to_string(shape);
  if (shape.empty())
    return file.error(ErrorCode::InvalidArgument,
                      says +
                          " has no sample axis; its first axis counts the samples. What is the same for all "
                          "samples is a value: `{value: 16000}` in a job, --value for weft predict");
  if (header.spec.element_count() == 0)
    return file.error(ErrorCode::InvalidArgument, says + " has no elements");
  if (shape[0] >= int64_t{UINT32_MAX})
    return file.error(ErrorCode::OutOfRange, says + " has more than 2^32 samples");
  const auto size = static_cast<uint64_t>(header.spec.bytes().value);
  if (entry.size < header.size || entry.size - header.size != size)
    return file.error(ErrorCode::Corrupted,
                      says + " needs " + std::to_string(size) + " bytes, and the file says " +
                          std::to_string(entry.size - std::min(entry.size, header.size)) +
                          "; write it again");
  return {};
}

// Reads the rest of the stream, keeps it or not, and compares the checksum of the whole entry.
Status read_elements(const File& file, const ZipEntry& entry, uint32_t crc, ByteStream& stream,
                     NpzColumn& array) {
  const auto size = static_cast<uint64_t>(array.column.sample.bytes().value) * array.sample_count;
  if (array.resident) {
    WEFT_TRY(array.bytes, allocate_bytes(size, file.path().string() + ": " + array_name(entry)));
    WEFT_TRY_STATUS(stream.read(array.bytes));
    crc = crc32_of(crc, array.bytes);
  } else {
    std::vector<std::byte> chunk(static_cast<size_t>(std::min<uint64_t>(size, 1 << 20)));
    for (uint64_t left = size; left > 0;) {
      const auto part = std::span(chunk).first(static_cast<size_t>(std::min<uint64_t>(left, chunk.size())));
      WEFT_TRY_STATUS(stream.read(part));
      crc = crc32_of(crc, part);
      left -= part.size();
    }
  }
  WEFT_TRY(const bool at_end, stream.at_end());
  if (!at_end || crc != entry.crc)
    return file.error(ErrorCode::Corrupted,
                      array_name(entry) + " fails its checksum; fetch or write the file again");
  return {};
}

// Passes a stream on and keeps the checksum of what went through.
class ChecksumStream final : public ByteStream {
 public:
  explicit ChecksumStream(ByteStream& inner) : inner_(inner) {}
  Status read(std::span<std::byte> out) override {
    WEFT_TRY_STATUS(inner_.read(out));
    crc_ = crc32_of(crc_, out);
    return {};
  }
  Result<size_t> read_some(std::span<std::byte> out) override {
    WEFT_TRY(const size_t size, inner_.read_some(out));
    crc_ = crc32_of(crc_, out.first(size));
    return size;
  }
  Result<bool> at_end() override { return inner_.at_end(); }
  uint32_t crc() const { return crc_; }

 private:
  ByteStream& inner_;
  uint32_t crc_ = 0;
};

Result<NpzColumn> open_array(const std::shared_ptr<const File>& file, const ZipEntry& entry,
                             uint64_t resident_left, const OpenOptions& options) {
  const auto stream = make_stream(file, entry.data_offset, entry.compressed_size, entry.encoding);
  ChecksumStream head(*stream);
  const auto header = read_npy_header(head);
  if (!header) return fail(header.error().within(file->path().string() + ": " + array_name(entry)));
  WEFT_TRY_STATUS(check_spec(*file, entry, *header));
  NpzColumn array;
  array.column.name = name_of(entry);
  array.column.sample = {header->spec.dtype,
                         dag::Shape(header->spec.shape.begin() + 1, header->spec.shape.end())};
  array.sample_count = static_cast<uint64_t>(header->spec.shape[0]);
  array.offset = entry.data_offset + header->size;
  array.resident = entry.encoding != Encoding::Plain;
  if (array.resident && entry.size > resident_left)
    return file->error(ErrorCode::ResourceExhausted,
                       "its compressed arrays need more than " + std::to_string(options.resident_max) +
                           " bytes; write it with np.savez, which is read from disk");
  if (array.resident || options.checks_sums)
    WEFT_TRY_STATUS(read_elements(*file, entry, head.crc(), *stream, array));
  return array;
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_npz(const NpzSpec& spec, const OpenOptions& options) {
  WEFT_TRY(auto file, File::open(spec.path));
  WEFT_TRY(auto entries, read_zip_directory(*file));
  WEFT_TRY(auto others, leave_others(*file, spec, entries));
  WEFT_TRY_STATUS(check_names(*file, entries));
  std::vector<NpzColumn> arrays;
  uint64_t resident = 0;
  for (const ZipEntry& entry : entries) {
    WEFT_TRY(auto array, open_array(file, entry, options.resident_max - resident, options));
    if (!arrays.empty() && array.sample_count != arrays.front().sample_count)
      return file->error(ErrorCode::InvalidArgument,
                         "array '" + array.column.name + "' has " + std::to_string(array.sample_count) +
                             " samples and '" + arrays.front().column.name + "' has " +
                             std::to_string(arrays.front().sample_count) +
                             "; the first axis of every array counts the samples, and np.moveaxis(" +
                             array.column.name + ", AXIS, 0) brings another one there");
    resident += array.bytes.size();
    arrays.push_back(std::move(array));
  }
  return std::make_unique<NpzDataset>(std::move(file), std::move(arrays), std::move(others));
}

}  // namespace weft::data
