#include "broker/service/submitted_files.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "storage/package.h"

namespace weft::broker {

namespace fs = std::filesystem;

namespace {

// Equal tensors (zeros, ones, a weight that two layers have) are uploaded once and stand in a file as often
// as it has them.
constexpr uint64_t kTimesUploaded = 4;
constexpr uint64_t kAlways = uint64_t{64} << 20;  // bytes that may be put together whatever was uploaded

std::string in_folder(const fs::path& path, const fs::path& folder) {
  return path.lexically_normal().lexically_relative(folder.lexically_normal()).generic_string();
}

std::vector<std::string> data_files(const configs::Job& job, const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto* spec : {&job.train, &job.test, &job.predict}) {
    if (!*spec) continue;
    if (!data::travels_as_it_is(**spec)) continue;  // check_submission refuses it
    for (const std::string_view column : {"image", "label"})
      if (std::string file = in_folder(data::file_of(**spec, column), folder);
          files.empty() || files.back() != file)
        files.push_back(std::move(file));
  }
  for (const configs::AdapterEntry& entry : job.adapters)
    if (!entry.file.empty()) files.push_back(in_folder(entry.file, folder));
  return files;
}

bool is_one_blob(const proto::PackedFile& file) {
  return file.pieces.size() == 1 && file.pieces.front().sha256.has_value();
}
bool is_linked(const proto::PackedFile& file, const std::set<std::string>& data) {
  return is_one_blob(file) && data.contains(file.path);
}

Status check_blobs(const proto::SubmitJob& submission, const storage::BlobStore& blobs) {
  std::map<Digest, uint64_t> sizes;
  for (const proto::PackedFile& file : submission.files)
    for (const proto::FilePiece& piece : file.pieces) {
      if (!piece.sha256) continue;
      const auto [at, is_new] = sizes.try_emplace(*piece.sha256, 0);
      if (is_new) {
        WEFT_TRY(at->second, blobs.size(*piece.sha256));
      }
      if (at->second != piece.size)
        return fail(ErrorCode::Corrupted, "'" + file.path + "' names a blob of " +
                                              std::to_string(piece.size) + " bytes, which has " +
                                              std::to_string(at->second));
    }
  return {};
}

// Whose tensors fit the model is seen when it is planned.
Status check_beginning(const proto::SubmitJob& submission, const configs::Job& job,
                       const storage::BlobStore& blobs) {
  if (!submission.beginning) return {};
  if (job.task != configs::Task::Train)
    return fail(ErrorCode::InvalidArgument, "a job begins at a checkpoint only if it trains");
  for (const proto::TensorReference& tensor : submission.beginning->tensors) {
    WEFT_TRY(const uint64_t size, blobs.size(tensor.sha256));
    if (size != static_cast<uint64_t>(tensor.spec.bytes().value))
      return fail(ErrorCode::Corrupted, "the checkpoint's '" + tensor.key.name + "' has " +
                                            std::to_string(size) + " bytes, and is " +
                                            to_string(tensor.spec));
  }
  return {};
}

// What is put together, against the bytes that came for it, each blob counted once.
Status check_sizes(const proto::SubmitJob& submission, const std::set<std::string>& data) {
  std::set<Digest> counted;
  uint64_t taken = 0, uploaded = 0;
  for (const proto::PackedFile& file : submission.files) {
    if (is_linked(file, data)) continue;
    for (const proto::FilePiece& piece : file.pieces) {
      taken += piece.size;  // below 2^43, and there are fewer than 2^20 in a message
      if (!piece.sha256 || counted.insert(*piece.sha256).second) uploaded += piece.size;
    }
    if (taken > kAlways && taken > kTimesUploaded * uploaded)
      return fail(ErrorCode::ResourceExhausted,
                  "'" + file.path + "' would make " + std::to_string(taken >> 20) + " MiB of " +
                      std::to_string(uploaded >> 10) + " KiB that were uploaded, more than " +
                      std::to_string(kTimesUploaded) + " times as much: it names the same bytes too often");
  }
  return {};
}

Status place(const proto::PackedFile& file, bool is_link, const storage::BlobStore& blobs,
             const fs::path& target) {
  std::error_code code;
  if (fs::exists(target, code)) return {};
  fs::create_directories(target.parent_path(), code);
  if (is_link) {
    WEFT_TRY(const fs::path blob, blobs.find(*file.pieces.front().sha256));
    fs::create_hard_link(blob, target, code);
    if (!code) return {};  // else a file system without such links
  }
  std::vector<storage::Piece> pieces;
  for (const proto::FilePiece& piece : file.pieces) {
    const auto* bytes = reinterpret_cast<const std::byte*>(piece.bytes.data());
    pieces.push_back(
        {.bytes = {bytes, bytes + piece.bytes.size()}, .sha256 = piece.sha256, .size = piece.size});
  }
  return storage::unpack(pieces, blobs, target);
}

std::set<std::string> data_set_files(const configs::Job& job, const fs::path& folder) {
  const auto files = data_files(job, folder);
  return {files.begin(), files.end()};
}

}  // namespace

bool is_safe_path(const std::string& path) {
  if (path.empty() || path.size() > 512) return false;
  const fs::path parts(path);
  if (parts.is_absolute()) return false;
  return std::all_of(parts.begin(), parts.end(),
                     [](const fs::path& part) { return !part.empty() && part != "." && part != ".."; });
}

Result<configs::Job> check_submission(const proto::SubmitJob& submission, const storage::BlobStore& blobs,
                                      const fs::path& folder) {
  std::set<std::string> names;
  for (const proto::PackedFile& file : submission.files) {
    if (!is_safe_path(file.path) || !names.insert(fs::path(file.path).generic_string()).second)
      return fail(ErrorCode::InvalidArgument, "a submitted file has the name '" + file.path + "'");
  }
  WEFT_TRY(configs::Job job,
           configs::parse_job(submission.job, {},
                              {.source = submission.name, .folder = folder, .check_files = false}));
  for (const auto* spec : {&job.train, &job.test, &job.predict})
    if (*spec && !data::travels_as_it_is(**spec))
      return fail(
          ErrorCode::Unsupported,
          "the submitted job has data of a type that a broker does not read: submit it with weft submit, "
          "which makes an npz of it");
  std::vector<std::string> named = data_files(job, folder);
  const std::set<std::string> data(named.begin(), named.end());
  named.push_back(in_folder(job.model, folder));
  for (const std::string& beside : {tokenizer_path(job, folder), draft_path(job, folder)})
    if (!beside.empty()) named.push_back(beside);
  for (const std::string& name : named)
    if (!names.contains(name))
      return fail(ErrorCode::PermissionDenied,
                  "the submitted job names '" + name +
                      "', which is not one of its files: submit it with weft submit");
  WEFT_TRY_STATUS(check_sizes(submission, data));
  WEFT_TRY_STATUS(check_blobs(submission, blobs));
  WEFT_TRY_STATUS(check_beginning(submission, job, blobs));
  return job;
}

Status place_files(const proto::SubmitJob& submission, const configs::Job& job,
                   const storage::BlobStore& blobs, const fs::path& folder) {
  const std::set<std::string> data = data_set_files(job, folder);
  for (const proto::PackedFile& file : submission.files)
    if (data.contains(fs::path(file.path).generic_string()))
      WEFT_TRY_STATUS(place(file, is_one_blob(file), blobs, folder / file.path));
  return {};
}

Result<std::string> read_submitted(const proto::SubmitJob& submission, const std::string& path,
                                   const storage::BlobStore& blobs, uint64_t size_max) {
  const auto file = std::find_if(submission.files.begin(), submission.files.end(), [&](const auto& one) {
    return fs::path(one.path).generic_string() == path;
  });
  if (file == submission.files.end())
    return fail(ErrorCode::NotFound, "'" + path.substr(0, 256) + "' is not a file of the submission");
  std::string text;
  for (const proto::FilePiece& piece : file->pieces) {
    if (piece.size > size_max - text.size())
      return fail(ErrorCode::OutOfRange,
                  "'" + path.substr(0, 256) + "' has more than " + std::to_string(size_max) + " bytes");
    if (!piece.sha256) {
      text += piece.bytes;
      continue;
    }
    WEFT_TRY(const auto bytes, blobs.read(*piece.sha256, piece.size));
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return text;
}

std::string tokenizer_path(const configs::Job& job, const fs::path& folder) {
  return job.serve && !job.serve->tokenizer.empty() ? in_folder(job.serve->tokenizer, folder) : std::string();
}

std::string draft_path(const configs::Job& job, const fs::path& folder) {
  return job.serve && !job.serve->draft.file.empty() ? in_folder(job.serve->draft.file, folder)
                                                     : std::string();
}

std::string model_path(const configs::Job& job, const fs::path& folder) {
  return in_folder(job.model, folder);
}

}  // namespace weft::broker
