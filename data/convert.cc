#include "data/convert.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace weft::data {
namespace {

using dag::DType;

// How an element lies in memory, and the number that it is.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
struct Truth {
  uint8_t byte;
};

float number(Half value) { return dag::float_from_f16(value.bits); }
float number(Brain value) { return dag::float_from_bf16(value.bits); }
uint8_t number(Truth value) { return value.byte; }
template <typename T>
requires std::is_arithmetic_v<T> T number(T value) { return value; }

template <typename Visit>
auto with_element(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::F32:
      return visit(float{});
    case DType::F64:
      return visit(double{});
    case DType::F16:
      return visit(Half{});
    case DType::BF16:
      return visit(Brain{});
    case DType::I8:
      return visit(int8_t{});
    case DType::U8:
      return visit(uint8_t{});
    case DType::I16:
      return visit(int16_t{});
    case DType::U16:
      return visit(uint16_t{});
    case DType::I32:
      return visit(int32_t{});
    case DType::U32:
      return visit(uint32_t{});
    case DType::I64:
      return visit(int64_t{});
    case DType::U64:
      return visit(uint64_t{});
    case DType::Bool:
      return visit(Truth{});
  }
  WEFT_CHECK_MSG(false, "no such dtype");
  return visit(float{});
}

// ---- one number as a type; false where it is not one of its numbers

template <typename To, typename From>
bool assign_integer(From value, To& out) {
  if constexpr (std::is_floating_point_v<From>) {
    // The limits as powers of two, which floats hold exactly.
    const From low = static_cast<From>(std::numeric_limits<To>::min());
    const From beyond = std::ldexp(From{1}, std::numeric_limits<To>::digits);
    if (!(value >= low && value < beyond) || value != std::trunc(value)) return false;
  } else {
    if (!std::in_range<To>(value)) return false;
  }
  out = static_cast<To>(value);
  return true;
}

template <typename To, typename From>
bool assign_float(From value, To& out) {
  out = static_cast<To>(value);
  if constexpr (std::is_floating_point_v<From>) return std::isfinite(out) || !std::isfinite(value);
  // Up to so many every whole number is exact; beyond, those that come back as they were.
  constexpr int64_t kExact = int64_t{1} << std::numeric_limits<To>::digits;
  if constexpr (std::is_integral_v<From>) {
    if (std::cmp_less_equal(value, kExact) && std::cmp_greater_equal(value, -kExact)) return true;
    From back{};
    return assign_integer(out, back) && back == value;
  }
}

template <typename From, typename To>
bool assign(From value, To& out) {
  if constexpr (std::is_floating_point_v<To>)
    return assign_float(value, out);
  else
    return assign_integer(value, out);
}
template <typename From>
bool assign(From value, Half& out) {
  float wide{};
  if (!assign_float(value, wide)) return false;
  out.bits = dag::f16_from_float(wide);
  const float back = number(out);
  return std::is_integral_v<From> ? back == wide : std::isfinite(back) || !std::isfinite(wide);
}
template <typename From>
bool assign(From value, Brain& out) {
  float wide{};
  if (!assign_float(value, wide)) return false;
  out.bits = dag::bf16_from_float(wide);
  const float back = number(out);
  return std::is_integral_v<From> ? back == wide : std::isfinite(back) || !std::isfinite(wide);
}
template <typename From>
bool assign(From value, Truth& out) {
  out.byte = value == From{1} ? 1 : 0;
  return value == From{0} || value == From{1};
}

template <typename T>
std::span<const T> elements_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace

std::optional<size_t> convert_elements(DType from, std::span<const std::byte> in, DType to,
                                       std::span<std::byte> out) {
  WEFT_CHECK(in.size() / static_cast<size_t>(element_size(from)) ==
             out.size() / static_cast<size_t>(element_size(to)));
  return with_element(from, [&](auto source) {
    return with_element(to, [&](auto target) -> std::optional<size_t> {
      using Source = decltype(source);
      using Target = decltype(target);
      const auto values = elements_of<Source>(in);
      auto* results = reinterpret_cast<Target*>(out.data());
      for (size_t i = 0; i < values.size(); ++i)
        if (!assign(number(values[i]), results[i])) return i;
      return std::nullopt;
    });
  });
}

double element_number(DType dtype, std::span<const std::byte> elements, size_t index) {
  return with_element(dtype, [&](auto kind) {
    return static_cast<double>(number(elements_of<decltype(kind)>(elements)[index]));
  });
}

std::string element_text(DType dtype, std::span<const std::byte> elements, size_t index) {
  return with_element(dtype, [&](auto kind) {
    const auto value = number(elements_of<decltype(kind)>(elements)[index]);
    if constexpr (std::is_integral_v<std::remove_const_t<decltype(value)>>) {
      return std::to_string(value);
    } else {
      char text[64];
      return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
    }
  });
}

}  // namespace weft::data
