#include "train/outputs.h"

#include <array>
#include <system_error>
#include <variant>

#include "base/overloaded.h"
#include "dag/onnx/export.h"
#include "dag/onnx/pack.h"
#include "storage/files.h"

namespace weft::train {
namespace {
namespace fs = std::filesystem;

Status check_names(const fs::path& output, std::span<const fs::path> written,
                   std::span<const ReadFile> read) {
  for (const fs::path& path : written)
    for (const ReadFile& file : read)
      if (storage::Files::is_same_file(path, file.path))
        return fail(ErrorCode::InvalidArgument, path.string() +
                                                    (path == output ? "" : ", which is written beside it,") +
                                                    " is " + file.what + " (" + file.path.string() +
                                                    ") and would be overwritten; name another file");
  storage::Files files;
  for (const fs::path& path : written) WEFT_TRY_STATUS(files.check_writable(path));
  return {};
}

void add_data(const std::optional<data::DataSpec>& spec, std::vector<ReadFile>& read) {
  if (!spec) return;
  const auto add = [&](const fs::path& path) { read.push_back({"data of the job", path}); };
  std::visit(Overloaded{[&](const data::IdxSpec& idx) {
                          add(idx.images);
                          add(idx.labels);
                        },
                        [&](const auto& other) { add(other.path); }},
             *spec);
}

std::vector<ReadFile> files_of_job(const configs::Job& job) {
  std::vector<ReadFile> read = files_of_model(job.model);
  for (const auto* spec : {&job.train, &job.test, &job.predict}) add_data(*spec, read);
  read.push_back({"the job file", job.source});
  return read;
}

// One that is there has to take new files, as a folder that is made would.
Status check_checkpoints(const fs::path& folder) {
  storage::Files files;
  std::error_code code;
  if (!fs::exists(folder, code)) return files.check_writable(folder);
  if (!fs::is_directory(folder, code))
    return fail(ErrorCode::InvalidArgument, folder.string() +
                                                ", where checkpoints are kept, is a file; name another "
                                                "output, or move that file away");
  WEFT_TRY_STATUS(files.check_writable(folder / "checkpoint"));
  return fs::exists(folder / "blobs", code) ? files.check_writable(folder / "blobs" / "blob") : Status{};
}

}  // namespace

std::vector<ReadFile> files_of_model(const fs::path& model) {
  std::vector<ReadFile> read{{"the model", model}};
  if (const auto external = onnx::list_external_files(model))
    for (const onnx::ExternalFile& file : *external)
      read.push_back({"data of the model", model.parent_path() / file.location});
  return read;
}

Status check_trained_output(const fs::path& output, std::span<const ReadFile> read) {
  return check_names(output, onnx::trained_paths(output), read);
}

Status check_output_file(const fs::path& output, std::span<const ReadFile> read) {
  return check_names(output, std::array{output}, read);
}

Status check_output(const configs::Job& job, bool with_checkpoints) {
  const std::vector<ReadFile> read = files_of_job(job);
  Status status = job.task == configs::Task::Train ? check_trained_output(job.output, read)
                                                   : check_output_file(job.output, read);
  if (status && with_checkpoints && job.task == configs::Task::Train)
    status = check_checkpoints(checkpoint_folder(job));
  if (status) return {};
  return fail(job.error(status.error().code, "output", "`output`: " + status.error().message));
}

fs::path checkpoint_folder(const configs::Job& job) { return job.output.string() + ".checkpoints"; }

}  // namespace weft::train
