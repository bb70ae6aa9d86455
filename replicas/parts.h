// Of a large tensor replicas agree part by part, each with an owner of its own: else one line alone would
// have to carry an embedding that is a third of a model. What a codec makes of a part hangs on that part
// alone (compress::is_by_parts, for no other codec are there any), so that the bytes of a run do not depend
// on how its tensors are divided.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::replicas {

inline constexpr size_t kPartUnit = 65'536;  // numbers: a part begins with a multiple of them
struct Part {
  size_t first = 0, count = 0;  // numbers of the tensor, flat
  bool operator==(const Part&) const = default;
};
// Of a tensor of so many numbers, in a model that has so many in all: each about as long as a 256th of that,
// so that owners can share it evenly. One: it stays whole.
std::vector<Part> parts_of(size_t elements, size_t all);

// How links tell apart what is agreed about. Below: the tensor's place among all of them, of the whole graph
// in the order of dag::trained_state. Above: with which unit of it a part begins.
inline constexpr uint32_t kPlaceBits = 17;
inline constexpr uint32_t kPlacesMax = uint32_t{1} << kPlaceBits;
inline constexpr size_t kPartsEnd = kPartUnit << (32 - kPlaceBits);  // no part begins here or later
constexpr uint32_t agreed_number(uint32_t place, size_t first) {
  return place | static_cast<uint32_t>(first / kPartUnit) << kPlaceBits;
}
constexpr uint32_t place_of(uint32_t number) { return number & (kPlacesMax - 1); }
constexpr size_t first_of(uint32_t number) { return size_t{number >> kPlaceBits} * kPartUnit; }
// Whether one stands before the other in a list: by place, then by part. Of whole tensors: by number.
constexpr bool is_before(uint32_t a, uint32_t b) {
  return std::rotl(a, 32 - kPlaceBits) < std::rotl(b, 32 - kPlaceBits);
}

}  // namespace weft::replicas
