// Which set of loops this processor gets.
#include <string_view>

#include "base/instruction_set.h"
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
  if (!has_instruction_set(wanted)) return nullptr;
  if (wanted == "baseline") return &baseline::table();
#ifdef WEFT_COMPRESS_X86_64_LEVELS
  if (wanted == "v3") return &v3::table();
  if (wanted == "v4") return &v4::table();
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
  static const LoopTable* const kWidest = &widest();
  return forced != nullptr ? *forced : *kWidest;
}

ForcedLoops::ForcedLoops(const LoopTable& table) : before_(forced) { forced = &table; }
ForcedLoops::~ForcedLoops() { forced = before_; }

}  // namespace weft::compress
