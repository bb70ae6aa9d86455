// CHECK is for our own mistakes: always compiled in, it says where and stops the process.
// Nothing that came from outside (a file, a frame, a user's option) may reach a CHECK.
#pragma once

namespace weft {
[[noreturn]] void check_failed(const char* expression, const char* file, int line, const char* why);
}

#define WEFT_CHECK(condition)                                   \
  do {                                                          \
    if (!(condition)) [[unlikely]]                              \
      ::weft::check_failed(#condition, __FILE__, __LINE__, ""); \
  } while (false)
#define WEFT_CHECK_MSG(condition, why)                           \
  do {                                                           \
    if (!(condition)) [[unlikely]]                               \
      ::weft::check_failed(#condition, __FILE__, __LINE__, why); \
  } while (false)
