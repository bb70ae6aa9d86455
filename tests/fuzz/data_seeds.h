// Seeds of what people bring as data: photos, tables, arrays.
#pragma once

#include <string_view>
#include <vector>

#include "tests/fuzz/seeds.h"

namespace weft::fuzz {

std::vector<Seed> data_seeds(std::string_view target);  // of another target none

}  // namespace weft::fuzz
