#include "train/outputs.h"

#include <sys/resource.h>

#include <array>
#include <system_error>

#include "dag/onnx/export.h"
#include "dag/onnx/pack.h"
#include "data/dataset.h"
#include "storage/files.h"
#include "train/adapter_files.h"
#include "train/initial_weights.h"

namespace weft::train {
namespace {
namespace fs = std::filesystem;

Status check_names(const fs::path& output, std::span<const fs::path> written,
                   std::span<const ReadFile> read) {
  for (const fs::path& path : written)
    for (const ReadFile& file : read)
      if (storage::Files::is_same_file(path, file.path))
        return fail(ErrorCode::InvalidArgument,
                    path.string() + (path == output ? "" : ", which is written beside it,") + " is " +
                        file.what + (path == file.path ? "" : " (" + file.path.string() + ")") +
                        " and would be overwritten; name another file");
  storage::Files files;
  for (const fs::path& path : written) WEFT_TRY_STATUS(files.check_writable(path));
  return {};
}

// The trained files are as large as the model's.
uint64_t size_of(const fs::path& path) {
  std::error_code code;
  const uintmax_t size = fs::file_size(path, code);
  return code ? 0 : size;
}

Status check_size_limit(const fs::path& model) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  for (const ReadFile& file : files_of_model(model))
    if (const uint64_t size = size_of(file.path); size > limit.rlim_cur)
      return fail(ErrorCode::ResourceExhausted, "a file of " + std::to_string(size) +
                                                    " bytes, as the trained one will be, is beyond this " +
                                                    "process's limit of " + std::to_string(limit.rlim_cur) +
                                                    "; raise it (ulimit -f)");
  return {};
}

void add_data(const std::optional<data::DataSpec>& spec, std::vector<ReadFile>& read) {
  if (!spec) return;
  const auto add = [&](const fs::path& path) { read.push_back({"data of the job", path}); };
  if (const auto files = data::files_of(*spec))
    for (const fs::path& path : *files) add(path);
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

std::vector<ReadFile> files_of_job(const configs::Job& job) {
  std::vector<ReadFile> read = files_of_model(job.model);
  for (const auto* spec : {&job.train, &job.test, &job.predict}) add_data(*spec, read);
  for (const fs::path& path : files_of_init(job)) read.push_back({"what `init` reads", path});
  for (const configs::AdapterEntry& entry : job.adapters)
    if (!entry.file.empty()) read.push_back({"what an adapter begins with", entry.file});
  read.push_back({"the job file", job.source});
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
  if (status && job.task == configs::Task::Train) status = check_size_limit(job.model);
  if (status && job.task == configs::Task::Train)
    status = check_names(curves_file(job), std::array{curves_file(job)}, read);
  if (status && job.output_form.links_base)
    if (const auto beside = onnx::folder_beside(job.model.parent_path(), job.output); !beside)
      status = fail(beside.error().within("base: link"));
  if (status && !job.adapters.empty()) status = check_adapter_folder(adapter_folder(job.output));
  if (status && with_checkpoints && job.task == configs::Task::Train)
    status = check_checkpoints(checkpoint_folder(job));
  if (status) return {};
  return fail(job.error(status.error().code, "output", "`output`: " + status.error().message));
}

std::string warn_of_room(const configs::Job& job) {
  uint64_t needed = 0;
  for (const ReadFile& file : files_of_model(job.model))
    if (!job.output_form.links_base || file.path == job.model)
      needed += 2 * size_of(file.path);  // and the twin
  std::error_code code;
  const fs::path folder = job.output.has_parent_path() ? job.output.parent_path() : fs::path(".");
  const fs::space_info space = fs::space(folder, code);
  if (code || space.available >= needed) return {};
  return "the disk of " + job.output.string() + " has room for " + std::to_string(space.available) +
         " bytes, and the trained files will take " + std::to_string(needed) + "; make room before the end";
}

std::string name_of(const fs::path& file) {
  std::string name = file.stem().string();
  std::error_code code;
  if (name == "job") {
    const fs::path folder = fs::absolute(file, code).lexically_normal().parent_path().filename();
    if (!code && !folder.empty()) name = folder.string();
  }
  return name;
}

fs::path curves_file(const configs::Job& job) {
  return fs::path(job.output).replace_extension(".metrics.csv");
}

fs::path checkpoint_folder(const configs::Job& job) { return job.output.string() + ".checkpoints"; }

}  // namespace weft::train
