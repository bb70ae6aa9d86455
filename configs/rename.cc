#include "configs/rename.h"

#include <regex>

namespace weft::configs {
namespace {

// The library goes one call deeper with each letter of either.
constexpr size_t kPatternMax = 256, kRenamedMax = 1024;

}  // namespace

struct Rename::Compiled {
  std::regex pattern;
  std::string replacement;
};

Result<Rename> Rename::compile(const std::string& pattern, const std::string& replacement) {
  if (pattern.empty() || pattern.size() > kPatternMax || replacement.size() > kPatternMax)
    return fail(ErrorCode::InvalidArgument,
                "a pattern has 1 to " + std::to_string(kPatternMax) + " bytes, and so has a replacement");
  try {
    return Rename(std::make_shared<const Compiled>(Compiled{std::regex(pattern), replacement}));
  } catch (const std::regex_error&) {
    return fail(ErrorCode::InvalidArgument,
                "'" + pattern +
                    "' is no regular expression; a letter with a meaning, as a bracket, wants a "
                    "backslash before it");
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
