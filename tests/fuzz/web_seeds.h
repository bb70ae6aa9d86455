// Seeds of what arrives at the door of HTTP.
#pragma once

#include <string_view>
#include <vector>

#include "tests/fuzz/seeds.h"

namespace weft::fuzz {

std::vector<Seed> web_seeds(std::string_view target);  // of another target none

}  // namespace weft::fuzz
