// How long functions and classes are. C++ is read by its tokens: what a brace opens is told by what stands
// before it. That is right for the way this code is written, and no more than that.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tidy {

struct Function {    // a lambda, too
  std::string name;  // as it is written, "Broker::step"; "(lambda)"
  size_t line = 0;   // where its declaration begins
  size_t lines = 0;  // to its last brace
};

struct Class {  // a struct, too
  std::string name;
  size_t line = 0;
  size_t lines = 0;
  size_t members = 0;  // data of each object, without what is static
};

struct Sizes {
  size_t lines = 0;
  std::vector<Function> functions;  // in the order of their ends
  std::vector<Class> classes;
};

Sizes sizes_of(std::string_view text);

}  // namespace weft::tidy
