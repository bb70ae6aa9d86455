#include "storage/checkpoint.h"

#include <algorithm>
#include <system_error>

#include "storage/sha256.h"

namespace weft::storage {
namespace {

namespace fs = std::filesystem;
constexpr size_t kGenerations = 2;
constexpr size_t kFilesMax = 1'000'000;
constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kSuffix = ".json";

bool is_manifest_name(std::string_view name) {
  return name.starts_with(kPrefix) && name.ends_with(kSuffix) &&
         name.size() > kPrefix.size() + kSuffix.size();
}

fs::path blob_path(const fs::path& folder, const std::string& hash) { return folder / "blobs" / hash; }

Result<Manifest> read_manifest(Files& files, const fs::path& path) {
  WEFT_TRY(const auto bytes, files.read(path, kManifestSizeMax));
  auto manifest = parse_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (!manifest) return fail(manifest.error().within(path.string()));
  return manifest;
}

// The manifests of a folder, the newest first. What cannot be parsed is in `damaged`; a disk that cannot be
// read is an error, for nobody may conclude from it that a checkpoint is gone.
struct Generations {
  struct Item {
    fs::path path;
    Manifest manifest;
  };
  std::vector<Item> whole;
  std::vector<std::pair<fs::path, Error>> damaged;
};

bool is_damage(const Error& error) {
  return error.code == ErrorCode::Corrupted || error.code == ErrorCode::VersionMismatch ||
         error.code == ErrorCode::ResourceExhausted || error.code == ErrorCode::InvalidArgument;
}

Result<Generations> read_generations(Files& files, const fs::path& folder) {
  WEFT_TRY(const auto names, files.list(folder, kFilesMax));
  Generations generations;
  for (const std::string& name : names) {
    if (!is_manifest_name(name)) continue;
    const fs::path path = folder / name;
    auto manifest = read_manifest(files, path);
    if (manifest)
      generations.whole.push_back({path, std::move(*manifest)});
    else if (is_damage(manifest.error()))
      generations.damaged.emplace_back(path, manifest.error());
    else
      return fail(manifest.error());
  }
  std::sort(generations.whole.begin(), generations.whole.end(),
            [](const auto& a, const auto& b) { return a.manifest.sequence > b.manifest.sequence; });
  return generations;
}

Result<Manifest> describe(const Checkpoint& checkpoint) {
  Manifest manifest{0,
                    checkpoint.run,
                    checkpoint.step,
                    checkpoint.skipped_steps,
                    checkpoint.data_position,
                    checkpoint.graph_hash,
                    checkpoint.numerics,
                    {},
                    checkpoint.settings,
                    checkpoint.replica_updates};
  for (const auto& [key, tensor] : checkpoint.tensors)
    manifest.tensors.push_back({key, tensor.spec(), std::string(64, '0')});
  // The reader's own rules, before anything is written.
  const auto read_back = parse_manifest(manifest_json(manifest));
  if (!read_back)
    return fail(ErrorCode::InvalidArgument,
                "this state cannot be a checkpoint: " + read_back.error().message);
  if (*read_back != manifest)
    return fail(ErrorCode::InvalidArgument, "this state cannot be a checkpoint: a name is not UTF-8");
  return manifest;
}

Result<dag::Tensor> load_blob(Files& files, const fs::path& folder, const TensorRecord& record) {
  const fs::path path = blob_path(folder, record.sha256);
  // The size is compared before that much memory is taken.
  WEFT_TRY(const uint64_t size, files.size(path));
  const std::string what = path.string() + ": the bytes of " + to_string(record.key);
  if (size != static_cast<uint64_t>(record.spec.bytes().value))
    return fail(ErrorCode::Corrupted,
                what + " are " + std::to_string(size) + " where " + dag::to_string(record.spec) + " needs " +
                    std::to_string(record.spec.bytes().value) + "; take an older checkpoint");
  dag::Tensor tensor(record.spec);
  WEFT_TRY_STATUS(files.read_exactly(path, tensor.mutable_bytes()));
  if (sha256_hex(tensor.bytes()) != record.sha256)
    return fail(ErrorCode::Corrupted, what + " do not match their hash; take an older checkpoint");
  return tensor;
}

Result<Checkpoint> load_tensors(Files& files, const fs::path& folder, const Manifest& manifest) {
  Checkpoint checkpoint{manifest.run,
                        manifest.step,
                        manifest.skipped_steps,
                        manifest.data_position,
                        manifest.graph_hash,
                        manifest.numerics,
                        {},
                        manifest.settings,
                        manifest.replica_updates};
  // Records that name one blob share its bytes, so that a manifest cannot ask for more memory than the
  // folder's size.
  std::map<std::pair<std::string, dag::DType>, dag::Tensor> loaded;
  for (const TensorRecord& record : manifest.tensors) {
    const std::pair<std::string, dag::DType> key{record.sha256, record.spec.dtype};
    auto found = loaded.find(key);
    if (found == loaded.end() || found->second.spec().bytes() != record.spec.bytes()) {
      WEFT_TRY(auto tensor, load_blob(files, folder, record));
      found = loaded.insert_or_assign(key, std::move(tensor)).first;
    }
    checkpoint.tensors.emplace(record.key, found->second.reshaped(record.spec.shape));
  }
  return checkpoint;
}

}  // namespace

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::open(const fs::path& folder, Files& files) {
  WEFT_TRY_STATUS(files.make_directories(folder / "blobs"));
  WEFT_TRY(auto lock, FolderLock::acquire(files, folder));
  return std::unique_ptr<CheckpointWriter>(new CheckpointWriter(folder, files, std::move(lock)));
}

Result<WriteReport> CheckpointWriter::write(const Checkpoint& checkpoint) {
  auto report = write_all(checkpoint);
  const Status cleaned = collect_garbage();
  if (report && !cleaned) report->clean_up = cleaned.error();
  return report;
}

Result<WriteReport> CheckpointWriter::write_all(const Checkpoint& checkpoint) {
  WEFT_TRY(Manifest manifest, describe(checkpoint));
  WEFT_TRY(const Generations before, read_generations(files_, folder_));
  manifest.sequence = before.whole.empty() ? 1 : before.whole.front().manifest.sequence + 1;

  WriteReport report;
  size_t index = 0;
  for (const auto& [key, tensor] : checkpoint.tensors) {
    WEFT_TRY(manifest.tensors[index].sha256, write_blob(tensor, report));
    ++index;
  }
  // Also when every blob was there: a writer before us may have died between its rename and its fsync.
  WEFT_TRY_STATUS(files_.sync_directory(folder_ / "blobs"));
  report.manifest = folder_ / (std::string(kPrefix) + std::to_string(manifest.step) + std::string(kSuffix));
  const std::string json = manifest_json(manifest);
  WEFT_TRY_STATUS(files_.write_atomic(report.manifest, std::as_bytes(std::span(json))));
  return report;
}

Result<std::string> CheckpointWriter::write_blob(const dag::Tensor& tensor, WriteReport& report) {
  std::string hash = sha256_hex(tensor.bytes());
  const fs::path path = blob_path(folder_, hash);
  std::error_code code;
  if (fs::exists(path, code)) {
    bool right = verified_.contains(hash);
    if (!right) {
      Sha256 there;
      right = files_.read_pieces(path, [&](std::span<const std::byte> piece) { there.update(piece); })
                  .has_value() &&
              there.hex() == hash;
    }
    if (right) {
      verified_.insert(hash);
      ++report.blobs_reused;
      return hash;
    }
  }
  WEFT_TRY_STATUS(files_.write_atomic(path, tensor.bytes(), {.sync_directory = false}));
  verified_.insert(hash);
  ++report.blobs_written;
  report.bytes_written += tensor.bytes().size();
  return hash;
}

// Manifests go before the blobs that they alone name, and durably so.
Status CheckpointWriter::collect_garbage() {
  WEFT_TRY(const Generations generations, read_generations(files_, folder_));
  std::set<std::string> named;
  std::vector<fs::path> old;
  for (size_t i = 0; i < generations.whole.size(); ++i) {
    if (i >= kGenerations)
      old.push_back(generations.whole[i].path);
    else
      for (const TensorRecord& record : generations.whole[i].manifest.tensors) named.insert(record.sha256);
  }
  // One of a newer format is not ours to remove, nor are then its blobs, which we cannot tell.
  for (const auto& [path, error] : generations.damaged) {
    if (error.code == ErrorCode::VersionMismatch) return fail(error);
    old.push_back(path);
  }
  WEFT_TRY(const auto names, files_.list(folder_, kFilesMax));
  for (const std::string& name : names)
    if (Files::is_temporary_name(name)) old.push_back(folder_ / name);
  for (const fs::path& path : old) WEFT_TRY_STATUS(files_.remove(path));
  if (!old.empty()) WEFT_TRY_STATUS(files_.sync_directory(folder_));

  WEFT_TRY(const auto blobs, files_.list(folder_ / "blobs", kFilesMax));
  for (const std::string& name : blobs) {
    if (named.contains(name) || !(is_sha256_hex(name) || Files::is_temporary_name(name))) continue;
    verified_.erase(name);
    WEFT_TRY_STATUS(files_.remove(folder_ / "blobs" / name));
  }
  return {};
}

Result<fs::path> find_latest(const fs::path& folder, Files& files) {
  WEFT_TRY(const Generations generations, read_generations(files, folder));
  if (!generations.whole.empty()) return generations.whole.front().path;
  if (!generations.damaged.empty()) return fail(generations.damaged.front().second);
  return fail(ErrorCode::NotFound, folder.string() + ": holds no checkpoint (checkpoint-<step>.json)");
}

Result<LoadReport> load_checkpoint(const fs::path& path, Files& files) {
  std::error_code code;
  if (!fs::is_directory(path, code)) {
    WEFT_TRY(const Manifest manifest, read_manifest(files, path));
    WEFT_TRY(auto checkpoint,
             load_tensors(files, path.has_parent_path() ? path.parent_path() : fs::path("."), manifest));
    return LoadReport{std::move(checkpoint), path, {}};
  }
  WEFT_TRY(const Generations generations, read_generations(files, path));
  LoadReport report;
  for (const auto& [damaged, error] : generations.damaged) report.passed_over.push_back(error);
  for (const auto& item : generations.whole) {
    auto checkpoint = load_tensors(files, path, item.manifest);
    if (checkpoint) {
      report.checkpoint = std::move(*checkpoint);
      report.manifest = item.path;
      return report;
    }
    // A blob that is gone is damage as well; a disk that cannot be read is not.
    if (!is_damage(checkpoint.error()) && checkpoint.error().code != ErrorCode::NotFound)
      return fail(checkpoint.error());
    report.passed_over.push_back(checkpoint.error());
  }
  if (!report.passed_over.empty()) return fail(report.passed_over.back());
  return fail(ErrorCode::NotFound, path.string() + ": holds no checkpoint (checkpoint-<step>.json)");
}

}  // namespace weft::storage
