#include "weights/index.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <system_error>

#include "base/printable.h"
#include "data/file.h"
#include "storage/files.h"
#include "storage/sha256.h"
#include "storage/text_file.h"
#include "weights/catalogue.h"
#include "weights/recipes.h"

namespace weft::weights {
namespace {
namespace fs = std::filesystem;

constexpr uint64_t kKeptMax = uint64_t{128} << 20;  // bytes of the file that keeps hashes
constexpr auto kKeepEvery = std::chrono::seconds(30);
constexpr uint64_t kLong = uint64_t{1}
                           << 30;  // bytes of a file that takes seconds: what is known is kept first

struct Stamp {
  uint64_t size = 0;
  int64_t modified = 0;
};
std::optional<Stamp> stamp_of(const fs::path& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error) return std::nullopt;
  const auto modified = fs::last_write_time(path, error);
  if (error) return std::nullopt;
  return Stamp{size,
               std::chrono::duration_cast<std::chrono::nanoseconds>(modified.time_since_epoch()).count()};
}

// REQUIRES: no more bytes pass than there is room for.
data::ByteSink into(std::span<std::byte> bytes) {
  return [left = bytes](std::span<const std::byte> piece) mutable {
    std::copy(piece.begin(), piece.end(), left.begin());
    left = left.subspan(piece.size());
    return Status{};
  };
}
bool is_digest_of(std::span<const std::byte> bytes, const Digest& sha256) {
  return digest_from_hex(storage::sha256_hex(bytes)) == sha256;
}

}  // namespace

Result<std::unique_ptr<WeightIndex>> WeightIndex::open(Options options) {
  WEFT_TRY_STATUS(check_folder(options.folder));
  return std::unique_ptr<WeightIndex>(new WeightIndex(std::move(options)));
}

WeightIndex::WeightIndex(Options options)
    : options_(std::move(options)), thread_([this](const std::stop_token& stop) { look(stop); }) {}

WeightIndex::~WeightIndex() = default;

// ---- looking

// Whoever works here goes first. A file that wants more memory than there is ends the search, and nothing
// else.
void WeightIndex::look(const std::stop_token& stop) {
  ::setpriority(PRIO_PROCESS, 0, 19);  // of this thread alone
  try {
    look_through(stop);
  } catch (const std::exception& error) {
    log("warning weights_not_found reason=\"" + printable(error.what()) + "\"");
  }
  const MutexLock lock(mutex_);
  counts_.is_complete = true;
  changed_.notify_all();
}

void WeightIndex::look_through(const std::stop_token& stop) {
  if (!options_.kept.empty())
    if (const auto text = storage::read_text(options_.kept, kKeptMax))
      if (auto files = parse_index(*text))
        for (IndexedFile& file : *files) known_.insert_or_assign(file.path.string(), std::move(file));
  kept_at_ = std::chrono::steady_clock::now();
  const auto paths = find_files(options_.folder, stop);
  if (!paths && !stop.stop_requested())
    log("warning weights_not_found reason=\"" + printable(paths.error().message) + "\"");
  for (const fs::path& path : paths.value_or(std::vector<fs::path>{})) {
    const Status looked = look_into(path, stop);
    if (stop.stop_requested()) break;
    if (!looked) log("warning weights_skipped reason=\"" + printable(looked.error().message) + "\"");
  }
  // What was not found again is gone, unless there was no time to look.
  if (!stop.stop_requested()) known_.clear();
  keep();
  if (stop.stop_requested()) return;
  const Counts found = counts();
  log("info weights_indexed files=" + std::to_string(found.files) +
      " tensors=" + std::to_string(found.tensors) + " bytes=" + std::to_string(found.bytes) + " folder=\"" +
      printable(options_.folder.string()) + "\"");
}

Status WeightIndex::look_into(const fs::path& path, const std::stop_token& stop) {
  WEFT_TRY(std::vector<TensorsOfFile> all, tensors_of(path));
  for (TensorsOfFile& of : all) {
    const auto stamp = stamp_of(of.file);
    if (!stamp) continue;
    const auto known = known_.find(of.file.string());
    if (known != known_.end() && known->second.size == stamp->size &&
        known->second.modified == stamp->modified && known->second.tensors == of.tensors) {
      take(std::move(known->second));
      known_.erase(known);
      continue;
    }
    if (counts().tensors + of.tensors.size() > kTensorsMax)
      return fail(ErrorCode::ResourceExhausted,
                  path.string() + ": the folder holds more than " + std::to_string(kTensorsMax) + " tensors");
    if (is_unkept_ && stamp->size > kLong) keep();
    WEFT_TRY(IndexedFile file, index(of.file, std::move(of.tensors), stop));
    if (known != known_.end()) known_.erase(known);
    take(std::move(file));
    is_unkept_ = true;
    if (std::chrono::steady_clock::now() - kept_at_ > kKeepEvery) keep();
  }
  return {};
}

Result<IndexedFile> WeightIndex::index(const fs::path& path, std::vector<StoredTensor> tensors,
                                       const std::stop_token& stop) const {
  const auto before = stamp_of(path);
  WEFT_TRY(const auto file, data::File::open(path));
  IndexedFile indexed{path, file->size(), before ? before->modified : 0, std::move(tensors), {}};
  for (const StoredTensor& tensor : indexed.tensors) {
    WEFT_TRY(std::vector<Digest> digests, digests_of(*file, tensor, stop));
    indexed.digests.push_back(std::move(digests));
  }
  return indexed;
}

void WeightIndex::take(IndexedFile file) {
  const auto shared = std::make_shared<const IndexedFile>(std::move(file));
  files_.push_back(shared);
  const MutexLock lock(mutex_);
  ++counts_.files;
  counts_.tensors += shared->tensors.size();
  for (uint32_t t = 0; t < shared->tensors.size(); ++t) {
    const dag::TensorSpec& spec = shared->tensors[t].spec;
    counts_.bytes += bytes_of(spec, Form::AsStored);
    const std::vector<Form> forms = forms_of(spec);
    for (size_t f = 0; f < forms.size(); ++f)
      places_.try_emplace(shared->digests[t][f], Place{shared, t, forms[f]});
  }
}

// With what was known and has not been looked at again yet. Where that fails, hashes are computed again the
// next time.
void WeightIndex::keep() {
  if (options_.kept.empty()) return;
  storage::Files files;
  const Status kept =
      files.write_atomic_pieces(options_.kept, [&](const storage::Files::Sink& sink) -> Status {
        const auto write = [&](const std::string& line) { return sink(std::as_bytes(std::span(line))); };
        WEFT_TRY_STATUS(write(first_line()));
        for (const auto& file : files_) WEFT_TRY_STATUS(write(line_of(*file)));
        for (const auto& [path, file] : known_) WEFT_TRY_STATUS(write(line_of(file)));
        return {};
      });
  if (!kept) log("warning weights_not_kept reason=\"" + printable(kept.error().message) + "\"");
  is_unkept_ = false;
  kept_at_ = std::chrono::steady_clock::now();
}

void WeightIndex::log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

// ---- who asks

std::optional<WeightIndex::Place> WeightIndex::find(const Digest& sha256) const {
  const MutexLock lock(mutex_);
  const auto at = places_.find(sha256);
  return at == places_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<uint64_t> WeightIndex::size_of(const Digest& sha256) const {
  const auto place = find(sha256);
  if (!place) return std::nullopt;
  return place->size();
}

Status WeightIndex::copy(const Digest& sha256, const data::ByteSink& sink) const {
  const auto place = find(sha256);
  if (!place) return fail(ErrorCode::NotFound, "no tensor of the folder is that blob");
  WEFT_TRY(const auto file, data::File::open(place->file->path));
  return read_form(*file, place->file->tensors[place->tensor], place->form, sink);
}

Result<std::vector<std::byte>> WeightIndex::read(const Digest& sha256) const {
  const auto place = find(sha256);
  if (!place) return fail(ErrorCode::NotFound, "no tensor of the folder is that blob");
  WEFT_TRY(std::vector<std::byte> bytes, data::allocate_bytes(place->size(), "a tensor"));
  const Status copied = copy(sha256, into(bytes));
  if (copied && is_digest_of(bytes, sha256)) return bytes;
  return fail(lost(sha256, *place, copied));
}

Status WeightIndex::verify(const Digest& sha256) const {
  const auto place = find(sha256);
  if (!place) return fail(ErrorCode::NotFound, "no tensor of the folder is that blob");
  storage::Sha256 hash;
  const Status copied = copy(sha256, [&](std::span<const std::byte> piece) {
    hash.update(piece);
    return Status{};
  });
  if (copied && digest_from_hex(hash.hex()) == sha256) return {};
  return fail(lost(sha256, *place, copied));
}

// Why it is not what it was; then nothing of its file is known any more, unless memory was short.
Error WeightIndex::lost(const Digest& sha256, const Place& place, const Status& copied) const {
  if (!copied && copied.error().code == ErrorCode::ResourceExhausted) return copied.error();
  forget(sha256);
  return {ErrorCode::Corrupted,
          copied ? place.file->path.string() + ": holds something else by now" : copied.error().message};
}

// ---- what recipes make

bool WeightIndex::has_source_of(const dag::Recipe& recipe) const {
  return size_of(recipe.source) == recipe.source_size;
}

Status WeightIndex::copy(const dag::Recipe& recipe, const data::ByteSink& sink) const {
  return follow(
      recipe, [&](const data::ByteSink& taken) { return copy(recipe.source, taken); }, sink);
}

Result<std::vector<std::byte>> WeightIndex::read(const Digest& sha256, const dag::Recipe& recipe) const {
  WEFT_TRY(const uint64_t size, dag::bytes_of(recipe));
  WEFT_TRY(std::vector<std::byte> bytes, data::allocate_bytes(size, "a tensor"));
  const Status copied = copy(recipe, into(bytes));
  if (!copied && copied.error().code == ErrorCode::ResourceExhausted) return fail(copied.error());
  if (copied && is_digest_of(bytes, sha256)) return bytes;
  WEFT_TRY_STATUS(verify(recipe.source));
  return fail(ErrorCode::OutOfRange, "a recipe does not make the tensor that it is said to make");
}

void WeightIndex::forget(const Digest& sha256) const {
  const auto place = find(sha256);
  if (!place) return;
  const MutexLock lock(mutex_);
  std::erase_if(places_, [&](const auto& entry) { return entry.second.file == place->file; });
}

WeightIndex::Counts WeightIndex::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

void WeightIndex::wait() const {
  const MutexLock lock(mutex_);
  changed_.wait(mutex_, [this]() WEFT_REQUIRES(mutex_) { return counts_.is_complete; });
}

}  // namespace weft::weights
