#include "tests/fuzz/files.h"
#include "tests/fuzz/samples_of.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void npz(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  static_cast<void>(data::open_npz({file.path(), {"x"}}));  // beside whatever else it holds
  const auto dataset = data::open_npz({file.path()});
  if (dataset) read_samples(**dataset);
}

}  // namespace weft::fuzz
