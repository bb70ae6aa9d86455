#include "storage/text_file.h"

#include "storage/files.h"

namespace weft::storage {

Result<std::string> read_text(const std::filesystem::path& path, uint64_t size_max) {
  WEFT_TRY(const auto bytes, Files().read(path, size_max));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace weft::storage
