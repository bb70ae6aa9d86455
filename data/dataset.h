// A data set: named columns of equally many samples, gathered sample by sample into dense microbatches.
// Files are checked when they are opened; what a file declares never decides how much memory is taken
// before it has been compared with the bytes that are really there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dag/tensor.h"
#include "data/data_spec.h"

namespace weft::data {

// Where a training run is, for what it draws: the samples that are read lie one after the other in the
// endless sequence of all epochs.
struct Draws {
  uint64_t seed = 0;
  uint64_t first = 0;  // position of the first of them in the sequence
};

struct Column {
  std::string name;
  dag::TensorSpec sample;  // of one sample, without the batch axis; at least one element
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  virtual std::span<const Column> columns() const = 0;
  virtual uint32_t sample_count() const = 0;  // at least 1
  // Names of what the file holds beside the columns: arrays that nobody asked for.
  virtual std::span<const std::string> others() const { return {}; }
  // What is known of a column whatever the file holds: that every float of it is finite; between which
  // numbers its integers are.
  virtual bool is_finite(size_t /*column*/) const { return false; }
  struct Range {
    int64_t low = 0, high = 0;
  };
  virtual std::optional<Range> range(size_t /*column*/) const { return std::nullopt; }
  virtual uint64_t resident_bytes() const { return 0; }  // that its arrays take in memory

  // out[i] = sample samples[i] of the column, densely one after the other. Any thread, any number at once.
  // OutOfRange for an index that is not there; Corrupted or Unavailable when the file has changed or cannot
  // be read. REQUIRES: column < columns().size(), out.size() == samples.size() * bytes of a sample.
  virtual Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const = 0;

  // The same, with what chance changes of a sample that is trained on.
  virtual Status read_drawn(size_t column, std::span<const uint32_t> samples, const Draws& /*draws*/,
                            std::span<std::byte> out) const {
    return read(column, samples, out);
  }
  // Whether reading it all is how to find out that each sample can be read.
  virtual bool is_unchecked(size_t /*column*/) const { return false; }
  // A sample's place in the file, for messages: "row 3 (the first is 0)".
  virtual std::string place_of(uint64_t sample) const;
  // What is worth a word though it stops nothing: files that were passed over, say.
  virtual std::span<const std::string> notes() const { return {}; }
  // The names of the classes that the column's numbers stand for, where the file has names.
  virtual std::span<const std::string> classes(size_t /*column*/) const { return {}; }

  std::optional<size_t> find_column(std::string_view name) const;
  std::string describe() const;  // "60000 samples of image f32[1,28,28], label i64[]"
};

// Open and check. NotFound, PermissionDenied, Corrupted, Unsupported, ResourceExhausted, InvalidArgument
// (no sample), each naming the file and what to try.
struct OpenOptions {
  // Bytes that the arrays of the data set may take in memory. Plain npz arrays and text stay on disk and do
  // not count.
  uint64_t resident_max = uint64_t{4} << 30;
  // Whether arrays that stay on disk are read once, to compare their checksums; false for a file that
  // somebody has compared already, for that takes as long as reading all of it.
  bool checks_sums = true;
  // The same of photos, which are decoded then.
  bool checks_photos = true;
};
Result<std::unique_ptr<Dataset>> open_dataset(const DataSpec& spec, const OpenOptions& options = {});
Result<std::unique_ptr<Dataset>> open_idx(const IdxSpec& spec, const OpenOptions& options = {});
Result<std::unique_ptr<Dataset>> open_npz(const NpzSpec& spec, const OpenOptions& options = {});
Result<std::unique_ptr<Dataset>> open_text(const TextSpec& spec);
Result<std::unique_ptr<Dataset>> open_npy(const NpySpec& spec);
Result<std::unique_ptr<Dataset>> open_csv(const CsvSpec& spec, const OpenOptions& options = {});
Result<std::unique_ptr<Dataset>> open_images(const ImagesSpec& spec, const OpenOptions& options = {});
Result<std::unique_ptr<Dataset>> open_jsonl(const JsonlSpec& spec, const OpenOptions& options = {});
// The data set with its columns changed as is said (data/transform.cc). InvalidArgument where that cannot be.
Result<std::unique_ptr<Dataset>> with_transforms(std::unique_ptr<Dataset> stored,
                                                 const Transforms& transforms);
// The same without: as the file has them. What travels to a broker, which changes them itself.
Result<std::unique_ptr<Dataset>> open_stored(const DataSpec& spec, const OpenOptions& options = {});

// All files that are read. Errors: what a folder or a table that names them has wrong with it.
Result<std::vector<std::filesystem::path>> files_of(const DataSpec& spec);

}  // namespace weft::data
