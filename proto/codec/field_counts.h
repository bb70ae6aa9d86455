// Whoever adds a field to a message learns here, from the compiler, that weft.proto and the message's put/get
// pair have to carry it. Then its count goes up by one.
#pragma once

#include <cstddef>
#include <utility>

namespace weft::proto {

namespace field_counts {
struct Anything {
  template <typename T>
  operator T() const;  // NOLINT: never called
};

template <typename T, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { T{(void(I), Anything{})...}; };
}
}  // namespace field_counts

// Whether the aggregate has exactly `count` members; what it inherits from one struct counts as one.
template <typename T, size_t count>
constexpr bool has_fields = field_counts::takes<T>(std::make_index_sequence<count>{}) &&
                            !field_counts::takes<T>(std::make_index_sequence<count + 1>{});

}  // namespace weft::proto
