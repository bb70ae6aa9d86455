#include "cli/api_keys.h"

#include "storage/files.h"

namespace weft::cli {

Result<std::vector<std::string>> read_api_keys(const std::string& path) {
  WEFT_TRY(const auto bytes, storage::Files().read(path, 1 << 20));
  std::vector<std::string> keys;
  std::string line;
  const auto take = [&] {
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (!line.empty() && line.front() != '#') keys.push_back(line);
    line.clear();
  };
  for (const std::byte byte : bytes) {
    if (static_cast<char>(byte) == '\n')
      take();
    else
      line += static_cast<char>(byte);
  }
  take();
  if (keys.empty()) return fail(ErrorCode::InvalidArgument, path + " has no key: write one a line");
  return keys;
}

}  // namespace weft::cli
