#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace weft {
void check_failed(const char* expression, const char* file, int line, const char* why) {
  std::fprintf(stderr, "CHECK failed: %s at %s:%d %s\n", expression, file, line, why);
  std::abort();
}
}  // namespace weft
