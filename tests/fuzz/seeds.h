// Inputs to begin with, made by the code that is fuzzed: they stay current as it changes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace weft::fuzz {

struct Seed {
  std::string name;
  std::vector<std::byte> bytes;
};
// Of the target of this name; the same ones each time. REQUIRES: a target.
std::vector<Seed> seeds_of(std::string_view target);

}  // namespace weft::fuzz
