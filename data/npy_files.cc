// Arrays as np.save writes them, a file a column. Their elements stay on the disk and are read sample by
// sample, so that they may be larger than memory.
#include <algorithm>

#include "base/check.h"
#include "data/dataset.h"
#include "data/file.h"
#include "data/npy.h"

namespace weft::data {
namespace {

struct NpyFile {
  Column column;
  std::shared_ptr<const File> file;
  uint64_t sample_count = 0;
  uint64_t offset = 0;  // of the first element
};

class NpyDataset final : public Dataset {
 public:
  // REQUIRES: at least one array, all of one length.
  explicit NpyDataset(std::vector<NpyFile> arrays) : arrays_(std::move(arrays)) {
    for (const NpyFile& array : arrays_) columns_.push_back(array.column);
  }

  std::span<const Column> columns() const override { return columns_; }
  uint32_t sample_count() const override { return static_cast<uint32_t>(arrays_.front().sample_count); }

  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    WEFT_CHECK(column < arrays_.size());
    const NpyFile& array = arrays_[column];
    const auto size = static_cast<size_t>(array.column.sample.bytes().value);
    WEFT_CHECK(out.size() == samples.size() * size);
    for (const uint32_t sample : samples)
      if (sample >= array.sample_count)
        return array.file->error(ErrorCode::OutOfRange, "sample " + std::to_string(sample) + " of " +
                                                            std::to_string(array.sample_count));
    // Samples that lie one after the other are read at once.
    for (size_t i = 0, run = 0; i < samples.size(); i += run) {
      run = 1;
      while (i + run < samples.size() && samples[i + run] == samples[i] + run) ++run;
      WEFT_TRY_STATUS(
          array.file->read_at(array.offset + samples[i] * size, out.subspan(i * size, run * size)));
    }
    // A byte of a bool array may be anything in a hostile file; elsewhere it is 0 or 1.
    if (array.column.sample.dtype == dag::DType::Bool)
      for (std::byte& b : out) b = b == std::byte{0} ? std::byte{0} : std::byte{1};
    return {};
  }

 private:
  std::vector<NpyFile> arrays_;
  std::vector<Column> columns_;
};

// The line that makes a file of another kind one that is read.
std::string converting(const std::filesystem::path& path, std::string_view what) {
  const std::string name = path.filename().string();
  return ": np.save('" + name + "', np.load('" + name + "', allow_pickle=True)" + std::string(what) + ")";
}

Error header_error(const std::filesystem::path& path, const Error& error) {
  Error told = error.within(path.string());
  if (error.code != ErrorCode::Unsupported) return told;
  if (error.message.find("Fortran") != std::string::npos)
    told.message += ": np.save('" + path.filename().string() + "', np.ascontiguousarray(np.load('" +
                    path.filename().string() + "')))";
  else if (error.message.find("dtype '") != std::string::npos)
    told.message += converting(path, ".astype(np.float32)");
  return told;
}

Result<NpyFile> open_array_file(const std::string& name, const std::filesystem::path& path) {
  NpyFile array;
  WEFT_TRY(array.file, File::open(path));
  const File& file = *array.file;
  const auto stream = make_stream(array.file, 0, file.size(), Encoding::Plain);
  const auto header = read_npy_header(*stream);
  if (!header) {
    // A file that ends within its header names itself.
    const bool is_named = header.error().message.starts_with(path.string());
    return fail(is_named ? header.error() : header_error(path, header.error()));
  }
  const dag::Shape& shape = header->spec.shape;
  const std::string says = "holds an array of shape " + dag::to_string(shape);
  if (shape.empty())
    return file.error(ErrorCode::InvalidArgument,
                      says + ", which has no sample axis; its first axis counts the samples");
  if (header->spec.element_count() == 0)
    return file.error(ErrorCode::InvalidArgument, says + ", which has no elements");
  if (shape[0] >= int64_t{UINT32_MAX})
    return file.error(ErrorCode::OutOfRange, says + ", which is more than 2^32 samples");
  const auto size = static_cast<uint64_t>(header->spec.bytes().value);
  if (file.size() < header->size || file.size() - header->size != size)
    return file.error(ErrorCode::Corrupted,
                      says + " of " + std::to_string(size) + " bytes, and has " +
                          std::to_string(file.size() - std::min(file.size(), header->size)) +
                          " bytes behind its header; write or fetch it again");
  array.column = {name, {header->spec.dtype, dag::Shape(shape.begin() + 1, shape.end())}};
  array.sample_count = static_cast<uint64_t>(shape[0]);
  array.offset = header->size;
  return array;
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_npy(const NpySpec& spec) {
  std::vector<NpyFile> arrays;
  for (const auto& [name, path] : spec.arrays) {
    WEFT_TRY(NpyFile array, open_array_file(name, path));
    if (!arrays.empty() && array.sample_count != arrays.front().sample_count)
      return array.file->error(ErrorCode::InvalidArgument,
                               "has " + std::to_string(array.sample_count) + " samples and " +
                                   arrays.front().file->path().string() + " has " +
                                   std::to_string(arrays.front().sample_count) +
                                   "; the first axis of every array counts the samples");
    arrays.push_back(std::move(array));
  }
  if (arrays.empty()) return fail(ErrorCode::InvalidArgument, "`arrays` names no file");
  return std::make_unique<NpyDataset>(std::move(arrays));
}

}  // namespace weft::data
