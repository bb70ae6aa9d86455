// The attributes of an op: a few named values, sorted by name, that compare, print and serialise.
// Each op's row says which it reads; op-specific meaning lives with the op's family.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

// Name, how it prints and travels, type, and what it says. The name is what is sent (proto/codec/graph.cc).
// clang-format off
#define WEFT_ATTRIBUTES(ATTR) \
  ATTR(Activation, activation, Text)                    /* tanh, relu */ \
  ATTR(AlignCorners, align_corners, Integer)            /* 0/1: the outermost samples stand on the corners, not half a sample inside */ \
  ATTR(Alpha, alpha, Number) \
  ATTR(Approximate, approximate, Integer)               /* 0/1: tanh form of Gelu */ \
  ATTR(Axes, axes, Integers) \
  ATTR(Axis, axis, Integer) \
  ATTR(Bits, bits, Integer)                             /* of a stored number */ \
  ATTR(CeilMode, ceil_mode, Integer)                    /* 0/1 */ \
  ATTR(Count, count, Integer)                           /* how many */ \
  ATTR(CountIncludePad, count_include_pad, Integer)     /* 0/1 */ \
  ATTR(Dilations, dilations, Integers)                  /* one a spatial dim */ \
  ATTR(DType, dtype, Integer)                           /* a DType */ \
  ATTR(Epsilon, epsilon, Number) \
  ATTR(Exclusive, exclusive, Integer)                   /* 0/1 */ \
  ATTR(Fmod, fmod, Integer)                             /* 0/1 */ \
  ATTR(Groups, groups, Integer) \
  ATTR(IgnoreIndex, ignore_index, Integer) \
  ATTR(KeepDims, keepdims, Integer)                     /* 0/1 */ \
  ATTR(Kernel, kernel, Integers)                        /* one a spatial dim */ \
  ATTR(Key, key, Integer)                               /* which op this is, for counter-based draws */ \
  ATTR(Largest, largest, Integer)                       /* 0/1: the largest, not the smallest */ \
  ATTR(Layout, layout, Integer)                         /* a Layout */ \
  ATTR(LinearBeforeReset, linear_before_reset, Integer) /* 0/1: of Gru */ \
  ATTR(Max, max, Number) \
  ATTR(Min, min, Number) \
  ATTR(Mode, mode, Text) \
  ATTR(Name, name, Text) \
  ATTR(OffsetGroups, offset_groups, Integer)            /* groups of channels that share their offsets */ \
  ATTR(PaddingMode, padding_mode, Text)                 /* zeros, border, reflection */ \
  ATTR(Pads, pads, Integers)                            /* begins then ends */ \
  ATTR(Perm, perm, Integers) \
  ATTR(Ratio, ratio, Number) \
  ATTR(Reduction, reduction, Text)                      /* none, mean, sum */ \
  ATTR(Reverse, reverse, Integer)                       /* 0/1 */ \
  ATTR(SamplingRatio, sampling_ratio, Integer)          /* sampling points a bin and dim; 0: as many as the bin is wide */ \
  ATTR(Shape, shape, Integers) \
  ATTR(Sizes, sizes, Integers) \
  ATTR(Sorted, sorted, Integer)                         /* 0/1 */ \
  ATTR(SpatialScale, spatial_scale, Number)             /* from places in the image to places in the map */ \
  ATTR(Starts, starts, Integers) \
  ATTR(Steps, steps, Integers) \
  ATTR(Strides, strides, Integers)                      /* one a spatial dim */ \
  ATTR(TransA, trans_a, Integer)                        /* 0/1: the last two dims of the operand are swapped */ \
  ATTR(TransB, trans_b, Integer)                        /* 0/1 */ \
  ATTR(Value, value, Number) \
  ATTR(Zero, zero, Integer)                             /* the stored number that stands for 0 */ \
  ATTR(ZeroRows, zero_rows, Integer)                    /* 0/1: a row of NaN becomes zeros */
// clang-format on

namespace weft::dag {

enum class Attr : uint8_t {
#define WEFT_ATTRIBUTE(name, text, type) name,
  WEFT_ATTRIBUTES(WEFT_ATTRIBUTE)
#undef WEFT_ATTRIBUTE
};
#define WEFT_ATTRIBUTE(name, text, type) +1
inline constexpr int kAttributeCount = WEFT_ATTRIBUTES(WEFT_ATTRIBUTE);
#undef WEFT_ATTRIBUTE
std::string_view to_string(Attr name);

using Ints = std::vector<int64_t>;
using AttrValue = std::variant<int64_t, double, Ints, std::string>;
// The alternatives of AttrValue, in its order.
enum class AttrType : uint8_t { Integer, Number, Integers, Text };
AttrType type_of(Attr name);

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
