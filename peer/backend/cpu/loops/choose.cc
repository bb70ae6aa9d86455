// Which set of loops this processor gets.
#include <string_view>

#include "peer/backend/cpu/loops/table.h"

namespace weft::peer::cpu {

namespace baseline {
const LoopTable& table();
}
#ifdef WEFT_CPU_X86_64_LEVELS
namespace v3 {
const LoopTable& table();
}
namespace v4 {
const LoopTable& table();
}
#endif

const LoopTable* loop_table_for(const char* isa) {
  const std::string_view wanted = isa;
  if (wanted == "baseline") return &baseline::table();
#ifdef WEFT_CPU_X86_64_LEVELS
  __builtin_cpu_init();
  const bool v3_here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                       __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4_here = v3_here && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl");
  if (wanted == "v3" && v3_here) return &v3::table();
  if (wanted == "v4" && v4_here) return &v4::table();
#endif
  return nullptr;
}

const LoopTable& loop_table(const char* widest) {
  bool allowed = false;
  for (const char* isa : {"v4", "v3", "baseline"}) {
    allowed = allowed || std::string_view(isa) == widest;
    if (!allowed) continue;
    if (const LoopTable* table = loop_table_for(isa)) return *table;
  }
  return baseline::table();
}

}  // namespace weft::peer::cpu
