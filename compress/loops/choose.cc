// Which set of loops this processor gets.
#include <string_view>

#include "compress/loops/table.h"

namespace weft::compress {

namespace baseline {
const LoopTable& table();
}
#ifdef WEFT_COMPRESS_X86_64_LEVELS
namespace v3 {
const LoopTable& table();
}
namespace v4 {
const LoopTable& table();
}
#endif

const LoopTable* loops_for(const char* isa) {
  const std::string_view wanted = isa;
  if (wanted == "baseline") return &baseline::table();
#ifdef WEFT_COMPRESS_X86_64_LEVELS
  __builtin_cpu_init();
  const bool v3_here = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                       __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                       __builtin_cpu_supports("f16c") && __builtin_cpu_supports("popcnt");
  const bool v4_here = v3_here && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl");
  if (wanted == "v3" && v3_here) return &v3::table();
  if (wanted == "v4" && v4_here) return &v4::table();
#endif
  return nullptr;
}

namespace {

thread_local const LoopTable* forced = nullptr;

const LoopTable& widest() {
  for (const char* isa : {"v4", "v3"})
    if (const LoopTable* table = loops_for(isa)) return *table;
  return baseline::table();
}

}  // namespace

const LoopTable& loops() {
  static const LoopTable& kWidest = widest();
  return forced != nullptr ? *forced : kWidest;
}

ForcedLoops::ForcedLoops(const LoopTable& table) : before_(forced) { forced = &table; }
ForcedLoops::~ForcedLoops() { forced = before_; }

}  // namespace weft::compress
