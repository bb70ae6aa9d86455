#include "tests/fuzz/files.h"
#include "tests/fuzz/samples_of.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

void npy_files(std::span<const std::byte> bytes) {
  const MemoryFile file(bytes);
  data::NpySpec spec{{{"x", file.path()}}, {}};
  const auto plain = data::open_dataset(spec);
  if (plain) read_samples(**plain);
  spec.transforms["x"] = {.scale = 0.5, .mean = {1, 2, 3}, .flip = true, .crop = 2};
  const auto changed = data::open_dataset(spec);
  if (changed) read_samples(**changed);
}

}  // namespace weft::fuzz
