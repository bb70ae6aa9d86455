// Which set of loops this processor gets.
#include <string_view>

#include "base/instruction_set.h"
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
  if (!has_instruction_set(wanted)) return nullptr;
  if (wanted == "baseline") return &baseline::table();
#ifdef WEFT_CPU_X86_64_LEVELS
  if (wanted == "v3") return &v3::table();
  if (wanted == "v4") return &v4::table();
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
