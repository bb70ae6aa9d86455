#include "tests/fuzz/files.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/samples_of.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

// The labels' length, labels, images.
void idx(std::span<const std::byte> bytes) {
  Input input(bytes);
  const auto labels_size = static_cast<size_t>(input.number(2));
  const MemoryFile labels(input.take(labels_size)), images(input.rest());
  const auto dataset = data::open_idx({images.path(), labels.path(), 0.5, 1, 2});
  if (dataset) read_samples(**dataset);
}

}  // namespace weft::fuzz
