#include "replicas/parts.h"

#include <algorithm>

namespace weft::replicas {

namespace {

constexpr size_t kOfAll = 256;  // parts that a whole model would have

size_t up_to_units(size_t count) { return (count + kPartUnit - 1) / kPartUnit * kPartUnit; }

}  // namespace

std::vector<Part> parts_of(size_t elements, size_t all) {
  const size_t longest = std::max(kPartUnit, up_to_units(all / kOfAll));
  if (elements <= longest || elements > kPartsEnd) return {{0, elements}};
  const size_t count = (elements + longest - 1) / longest, each = up_to_units((elements + count - 1) / count);
  std::vector<Part> parts;
  for (size_t first = 0; first < elements; first += each)
    parts.push_back({first, std::min(each, elements - first)});
  return parts;
}

}  // namespace weft::replicas
