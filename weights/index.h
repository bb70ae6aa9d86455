// The tensors that lie in the files of a folder, by the SHA-256 that a job's blob of them has. A thread looks
// for them and computes the hashes, once: a file beside the index keeps them for the next time. What is read
// is what the hash says, or it is not given.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/digest.h"
#include "base/mutex.h"
#include "base/result.h"
#include "dag/recipe.h"
#include "weights/forms.h"

namespace weft::weights {

inline constexpr size_t kTensorsMax = size_t{1} << 17;  // of all files; the others are left out

// A file whose hashes are known. It is taken for the same as long as it has that size and time.
struct IndexedFile {
  std::filesystem::path path;
  uint64_t size = 0;
  int64_t modified = 0;  // nanoseconds of the file system's clock
  std::vector<StoredTensor> tensors;
  std::vector<std::vector<Digest>> digests;  // of each, in the order of forms_of()
};

// As text, for the file that keeps them: a line that says the format, then one for each file. Errors of the
// last: Corrupted.
std::string first_line();
std::string line_of(const IndexedFile& file);
Result<std::vector<IndexedFile>> parse_index(std::string_view lines);

class WeightIndex {
 public:
  struct Options {
    std::filesystem::path folder;
    std::filesystem::path kept{};                        // the file that keeps hashes; empty: none does
    std::function<void(const std::string& line)> log{};  // on the index's thread
  };
  // Begins to look. Errors: NotFound, InvalidArgument where there is no folder.
  static Result<std::unique_ptr<WeightIndex>> open(Options options);
  ~WeightIndex();

  // Any thread. How many bytes it has; nothing: it is not here, or has not been found yet.
  std::optional<uint64_t> size_of(const Digest& sha256) const;
  // Any thread; takes as long as reading it does, and no more memory than read_form(). Hands on the bytes as
  // they lie in the file, which may be another one by now: whoever takes them compares the hash, and says so
  // with forget(). NotFound; errors as of read_form().
  Status copy(const Digest& sha256, const data::ByteSink& sink) const;
  // The whole, compared with its name. NotFound; ResourceExhausted; Corrupted where the file is another one
  // by now: then nothing of it is known any more.
  Result<std::vector<std::byte>> read(const Digest& sha256) const;
  // Likewise what a recipe makes of a tensor that it has. OutOfRange where that is another blob.
  bool has_source_of(const dag::Recipe& recipe) const;
  Status copy(const dag::Recipe& recipe, const data::ByteSink& sink) const;
  Result<std::vector<std::byte>> read(const Digest& sha256, const dag::Recipe& recipe) const;
  // Reads it, and compares it with its name. Errors: as of read().
  Status verify(const Digest& sha256) const;
  // Nothing is known any more of the file that it lies in.
  void forget(const Digest& sha256) const;

  struct Counts {
    uint64_t files = 0, tensors = 0, bytes = 0;  // as stored
    bool is_complete = false;                    // the folder was looked through
  };
  Counts counts() const;
  void wait() const;  // until it was

 private:
  struct Place {
    std::shared_ptr<const IndexedFile> file;
    uint32_t tensor = 0;
    Form form = Form::AsStored;
    uint64_t size() const { return bytes_of(file->tensors[tensor].spec, form); }
  };
  explicit WeightIndex(Options options);
  void look(const std::stop_token& stop);
  void look_through(const std::stop_token& stop);
  Status look_into(const std::filesystem::path& path, const std::stop_token& stop);
  Result<IndexedFile> index(const std::filesystem::path& path, std::vector<StoredTensor> tensors,
                            const std::stop_token& stop) const;
  void take(IndexedFile file);
  void keep();
  void log(const std::string& line) const;
  std::optional<Place> find(const Digest& sha256) const;
  Error lost(const Digest& sha256, const Place& place, const Status& copied) const;

  const Options options_;
  std::unordered_map<std::string, IndexedFile> known_;     // by path, of the last time; the thread's
  std::vector<std::shared_ptr<const IndexedFile>> files_;  // the thread's
  bool is_unkept_ = false;                                 // likewise: something was computed since
  std::chrono::steady_clock::time_point kept_at_{};
  mutable Mutex mutex_;
  mutable Condition changed_;
  mutable std::unordered_map<Digest, Place> places_ WEFT_GUARDED_BY(mutex_);
  Counts counts_ WEFT_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it begins when the rest is there
};

}  // namespace weft::weights
