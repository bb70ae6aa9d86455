#include "configs/rename.h"

#include <algorithm>
#include <cstdint>
#include <regex>
#include <string_view>

namespace weft::configs {
namespace {

// The library's executor that looks at each place of a name once for each state of the pattern. The usual one
// tries nested repeats in as many ways as there are, which may take for ever. This one knows no references
// back.
constexpr auto kBounded = std::regex_constants::ECMAScript | std::regex_constants::__polynomial;
constexpr size_t kPatternMax = 256, kRenamedMax = 1024;
constexpr uint64_t kRepeatsMax = 1000;  // by all braces together

// How often a letter of the pattern may stand there by its braces, as {2,30}, at most; nested ones multiply.
uint64_t repeats_of(std::string_view pattern) {
  uint64_t all = 1;
  for (size_t at = pattern.find('{'); at != std::string_view::npos; at = pattern.find('{', at + 1)) {
    uint64_t number = 0, largest = 1;
    for (size_t i = at + 1; i < pattern.size() && pattern[i] != '}'; ++i) {
      const bool is_digit = pattern[i] >= '0' && pattern[i] <= '9';
      number =
          is_digit ? std::min(number * 10 + static_cast<uint64_t>(pattern[i] - '0'), kRepeatsMax + 1) : 0;
      largest = std::max(largest, number);
    }
    all = std::min(all * largest, kRepeatsMax + 1);
  }
  return all;
}

}  // namespace

struct Rename::Compiled {
  std::regex pattern;
  std::string replacement;
};

Result<Rename> Rename::compile(const std::string& pattern, const std::string& replacement) {
  if (pattern.empty() || pattern.size() > kPatternMax || replacement.size() > kPatternMax)
    return fail(ErrorCode::InvalidArgument,
                "a pattern has 1 to " + std::to_string(kPatternMax) + " bytes, and so has a replacement");
  if (repeats_of(pattern) > kRepeatsMax)
    return fail(ErrorCode::InvalidArgument,
                "'" + pattern + "' repeats something more than " + std::to_string(kRepeatsMax) + " times");
  try {
    return Rename(std::make_shared<const Compiled>(Compiled{std::regex(pattern, kBounded), replacement}));
  } catch (const std::regex_error&) {
    return fail(ErrorCode::InvalidArgument,
                "'" + pattern +
                    "' is no regular expression; a letter with a meaning, as a bracket, wants a "
                    "backslash before it, and a pattern cannot refer back to its own groups");
  }
}

std::string Rename::apply(const std::string& name) const {
  if (name.size() > kRenamedMax) return name;
  try {
    return std::regex_replace(name, compiled_->pattern, compiled_->replacement);
  } catch (const std::regex_error&) {
    return name;  // too much to look through
  }
}

}  // namespace weft::configs
