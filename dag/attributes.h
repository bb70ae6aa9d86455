// The attributes of an op: a few named values, sorted by name, that compare, print and serialise.
// Each op's row says which it reads; op-specific meaning lives with the op's family.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace weft::dag {

enum class Attr : uint8_t {
  Alpha,            // double
  Approximate,      // int 0/1: tanh form of Gelu
  Axes,             // ints
  Axis,             // int
  CeilMode,         // int 0/1
  CountIncludePad,  // int 0/1
  Dilations,        // ints, one a spatial dim
  DType,            // int: a DType
  Epsilon,          // double
  Exclusive,        // int 0/1
  Fmod,             // int 0/1
  Groups,           // int
  IgnoreIndex,      // int
  KeepDims,         // int 0/1
  Kernel,           // ints, one a spatial dim
  Key,              // int: which op this is, for counter-based draws
  Layout,           // int: a Layout
  Max,              // double
  Min,              // double
  Mode,             // string
  Name,             // string
  Pads,             // ints, begins then ends
  Perm,             // ints
  Ratio,            // double
  Reduction,        // string: none, mean, sum
  Reverse,          // int 0/1
  Shape,            // ints
  Sizes,            // ints
  Starts,           // ints
  Steps,            // ints
  Strides,          // ints, one a spatial dim
  TransA,           // int 0/1: the last two dims of the operand are swapped
  TransB,           // int 0/1
  Value,            // double
};
std::string_view to_string(Attr name);

using Ints = std::vector<int64_t>;
using AttrValue = std::variant<int64_t, double, Ints, std::string>;

class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<Attr, AttrValue>> entries) {
    for (auto& [name, value] : entries) set(name, value);
  }

  void set(Attr name, AttrValue value);
  bool has(Attr name) const { return find(name) != nullptr; }

  // The value, or the default when absent. REQUIRES: present values have the type listed above
  // (graphs are built through typed code only; a decoder checks types before it gets here).
  int64_t get_int(Attr name, int64_t otherwise = 0) const;
  double get_double(Attr name, double otherwise = 0) const;
  const Ints& get_ints(Attr name) const;           // empty when absent
  const std::string& get_string(Attr name) const;  // empty when absent

  const std::vector<std::pair<Attr, AttrValue>>& entries() const { return entries_; }
  bool operator==(const Attributes&) const = default;

 private:
  const AttrValue* find(Attr name) const;
  std::vector<std::pair<Attr, AttrValue>> entries_;  // sorted by Attr, unique
};

std::string to_string(const Attributes& attributes);  // "axis=1 pads=[1,1,1,1]"; doubles round-trip

}  // namespace weft::dag
