// Where the parts of a large JSON object lie, found without taking memory for what they hold.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::text {

inline constexpr size_t kJsonDepthMax = 32;           // lists and objects within each other
inline constexpr size_t kJsonEntriesMax = 1'000'000;  // of one list or object

struct JsonMember {
  std::string_view key;    // as it is written, between its quotes
  std::string_view value;  // its bytes
  size_t value_count = 0;  // what is within: values, keys not counted, itself counted
};

// The members of the object that `bytes` are, in order. Strings are passed over and brackets matched; what is
// within a member is not looked at otherwise. One pass, a nanosecond or two a byte.
// Corrupted: no object, or brackets that do not match; a key that comes twice. OutOfRange: nested deeper than
// kJsonDepthMax, or a list or object of more than kJsonEntriesMax entries.
Result<std::vector<JsonMember>> outline_of(std::string_view bytes);

// The member of this name; null: there is none.
const JsonMember* find_member(const std::vector<JsonMember>& members, std::string_view key);

}  // namespace weft::text
