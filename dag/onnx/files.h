// Where the bytes of a model are: its file, and the files that it keeps beside itself. On a disk, or in the
// pieces that a submission names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace weft::onnx {

// A file of known size that is read anywhere.
class RandomAccess {
 public:
  virtual ~RandomAccess() = default;
  virtual int64_t size() const = 0;
  // REQUIRES: all of it lies within size().
  virtual Status read_at(int64_t offset, std::span<std::byte> bytes) const = 0;
};

class ModelFiles {
 public:
  virtual ~ModelFiles() = default;
  virtual Result<std::shared_ptr<const RandomAccess>> open_model() = 0;
  // `location` comes from inside the model, and may be anything. PermissionDenied for what is not beneath the
  // model's own folder; NotFound.
  virtual Result<std::shared_ptr<const RandomAccess>> open_beside(const std::string& location) = 0;
};

// Of a model on the disk. Each file beside it is opened once.
std::unique_ptr<ModelFiles> files_at(const std::filesystem::path& model);

// Bytes of a file, in pieces of at most 1 MiB, in order. An error of `visit` ends it.
Status read_in_pieces(const RandomAccess& file, int64_t offset, int64_t size,
                      const std::function<Status(std::span<const std::byte>)>& visit);

}  // namespace weft::onnx
