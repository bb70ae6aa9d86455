// Amounts with a unit, and typed ids. Both are plain numbers that do not mix by accident.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

namespace weft {

template <typename Tag>
struct Quantity {
  int64_t value = 0;
  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity& operator+=(Quantity other) {
    value += other.value;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return {a.value + b.value}; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return {a.value - b.value}; }
  friend constexpr Quantity operator*(Quantity a, int64_t times) { return {a.value * times}; }
};

using Bytes = Quantity<struct BytesTag>;
using FlopCount = Quantity<struct FlopCountTag>;  // an amount; a rate is flops_per_second
using Duration = std::chrono::nanoseconds;

// A point on the clock that is handed in: it never goes backwards and is unrelated to the calendar.
using Instant = std::chrono::time_point<struct MonotonicClock, Duration>;
inline double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// An index into one particular table. Default constructed it names nothing.
template <typename Tag>
struct Id {
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  uint32_t index = kNone;
  constexpr bool valid() const { return index != kNone; }
  constexpr auto operator<=>(const Id&) const = default;
};

}  // namespace weft

template <typename Tag>
struct std::hash<weft::Id<Tag>> {
  size_t operator()(weft::Id<Tag> id) const noexcept { return std::hash<uint32_t>()(id.index); }
};
