// What a file is, by its first bytes, for whoever named one of another kind than was asked for: what it is,
// and what to write instead.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::data {

enum class FileKind : uint8_t {
  Unknown,  // or none at all
  Folder,
  Onnx,
  Npz,
  Npy,
  Idx,
  Photo,
  Torch,   // what torch.save writes
  Pickle,  // of Python
  Csv,
  Parquet,
  Hdf5,
  Safetensors,
  Tar,
  Zip,
  Gzip,
  JobFile,  // YAML with keys of a job
  Jsonl,    // a JSON object a line
  Text
};

// Reads a few KiB at most; Unknown for what cannot be read.
FileKind kind_of(const std::filesystem::path& path);

std::string_view name_of(FileKind kind);  // "a folder", "an ONNX model"

// How such a file is used as data: the lines of YAML, or the line that converts it. Empty where it is not.
std::string as_data(FileKind kind, const std::filesystem::path& path);
// The same where a model is asked for, or a job file.
std::string as_model(FileKind kind, const std::filesystem::path& path);
std::string as_job(FileKind kind, const std::filesystem::path& path);

// What is wrong with a file that is to be a job file, as far as its first bytes tell: "model.onnx: is an ONNX
// model, not a job file; ...".
Status check_is_job(const std::filesystem::path& path);

}  // namespace weft::data
