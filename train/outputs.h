// What a job, or a command, writes at its end: whether it can be written is found before it begins, and that
// it is nothing that is read.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"

namespace weft::train {

struct ReadFile {
  std::string what;  // "the model"
  std::filesystem::path path;
};

// A model with the files of its external data. Without these where it cannot be read, which is told
// elsewhere.
std::vector<ReadFile> files_of_model(const std::filesystem::path& model);

// All that a job reads, its own file too.
std::vector<ReadFile> files_of_job(const configs::Job& job);

// Whether a trained model, or one file as it stands, can be written there. `read`: what must stay as it is,
// by whatever name or link it is reached. InvalidArgument for one of them, or a folder; else what
// storage::Files::check_writable says.
Status check_trained_output(const std::filesystem::path& output, std::span<const ReadFile> read);
Status check_output_file(const std::filesystem::path& output, std::span<const ReadFile> read);

// The same for a job's `output`, with its place in the file: neither model, data nor the job's own file are
// overwritten. `with_checkpoints`: the folder of its checkpoints, too.
Status check_output(const configs::Job& job, bool with_checkpoints);

// What to say where the disk is too full for the trained files now; empty: it is not.
std::string warn_of_room(const configs::Job& job);

// Where the checkpoints of a job lie: beside its output, "<output>.checkpoints".
std::filesystem::path checkpoint_folder(const configs::Job& job);

// What people know a job by: its file's name, or, where that is job.yaml, its folder's.
std::string name_of(const std::filesystem::path& job_file);

// Where the curves of a job go: beside its output, trained.metrics.csv for trained.onnx.
std::filesystem::path curves_file(const configs::Job& job);

}  // namespace weft::train
