#include "base/instruction_set.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace weft {

#if defined(__x86_64__)
namespace {
// clang 14's __builtin_cpu_supports does not know the name.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
bool has_v3() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && has_f16c() && __builtin_cpu_supports("popcnt");
}
bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
}  // namespace

bool has_instruction_set(std::string_view name) {
  if (name == "v3") return has_v3();
  if (name == "v4") return has_v4();
  return name == "baseline";
}
#else
bool has_instruction_set(std::string_view name) { return name == "baseline"; }
#endif

}  // namespace weft
