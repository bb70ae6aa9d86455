#include "dag/op_kind.h"

namespace weft::dag {

std::string_view to_string(OpKind kind) {
#define WEFT_OP_KIND(name) #name,
  static constexpr std::string_view kNames[] = {WEFT_OP_KINDS(WEFT_OP_KIND)};
#undef WEFT_OP_KIND
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace weft::dag
