#include "replicas/fragments.h"

#include <algorithm>
#include <numeric>

namespace weft::replicas {

std::vector<uint32_t> fragments_of(std::span<const uint64_t> elements, uint32_t fragments) {
  std::vector<size_t> by_size(elements.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::ranges::stable_sort(by_size, [&](size_t a, size_t b) { return elements[a] > elements[b]; });
  std::vector<uint64_t> filled(fragments, 0);
  std::vector<uint32_t> fragment(elements.size());
  for (const size_t place : by_size) {
    const auto least = std::min_element(filled.begin(), filled.end());
    *least += elements[place];
    fragment[place] = static_cast<uint32_t>(least - filled.begin());
  }
  return fragment;
}

}  // namespace weft::replicas
