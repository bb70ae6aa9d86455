#include <filesystem>
#include <span>
#include <string>

#include "data/file.h"
#include "data/kinds.h"
#include "train/submission.h"

namespace weft::train {
namespace fs = std::filesystem;

Result<OpenedJob> open_job(const fs::path& job_file, std::span<const std::string> sets) {
  WEFT_TRY_STATUS(data::check_is_job(job_file));
  WEFT_TRY(const auto file, data::File::open(job_file));
  if (file->size() > configs::kYamlSizeMax)
    return file->error(ErrorCode::ResourceExhausted,
                       "larger than a job file may be (" + std::to_string(configs::kYamlSizeMax) + " bytes)");
  std::string text(static_cast<size_t>(file->size()), '\0');
  WEFT_TRY_STATUS(file->read_at(0, std::as_writable_bytes(std::span(text))));
  OpenedJob opened;
  opened.folder = job_file.parent_path();
  WEFT_TRY(opened.job,
           configs::parse_job(text, sets, {.source = job_file.string(), .folder = opened.folder}));
  WEFT_TRY(opened.tree, configs::parse_yaml(text, job_file.string()));
  for (const std::string& assignment : sets) WEFT_TRY_STATUS(configs::apply_set(opened.tree, assignment));
  return opened;
}

}  // namespace weft::train
