// Internal to dag/onnx: files read without trusting them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"
#include "dag/onnx/files.h"

namespace weft::onnx {

// An open regular file. Closes on destruction.
class File final : public RandomAccess {
 public:
  File() = default;
  File(int descriptor, int64_t size) : descriptor_(descriptor), size_(size) {}
  File(File&& other) noexcept : descriptor_(other.descriptor_), size_(other.size_) { other.descriptor_ = -1; }
  File& operator=(File&& other) noexcept;
  ~File() override;

  int64_t size() const override { return size_; }
  Status read_at(int64_t offset, std::span<std::byte> bytes) const override;

 private:
  int descriptor_ = -1;
  int64_t size_ = 0;
};

// Follows links: the user named this path. NotFound, or InvalidArgument for what is not a regular file.
Result<File> open_file(const std::filesystem::path& path);

// `location` comes from inside a model: it is resolved beneath `folder` one component at a time, and any
// link, "..", absolute path or special file on the way is refused with PermissionDenied. Where `folder` is a
// snapshot in a Hugging Face cache, symbolic and hard links among the files of that cache are followed.
Result<File> open_beneath(const std::filesystem::path& folder, const std::string& location);

}  // namespace weft::onnx
