#include "peer/machine/urgency.h"

#include <algorithm>
#include <limits>

namespace weft::peer {

Urgency urgency_of(const proto::TensorHeader& header, const proto::AssignStage& sender) {
  Urgency urgency{.step = header.step,
                  .program = header.program,
                  .pass = proto::is_comparison(header.microbatch) ? header.microbatch
                                                                  : std::numeric_limits<uint32_t>::max(),
                  .microbatch = header.microbatch,
                  .edge = header.edge};
  for (const proto::StageProgram& program : sender.programs) {
    if (program.kind != header.program) continue;
    for (const proto::EdgeEnd& end : program.sends) {
      if (end.edge != header.edge) continue;
      const uint32_t op = program.graph->value(end.value).producer.index;
      const uint32_t segment = op < program.segment_of_op.size() ? program.segment_of_op[op] : 0;
      const uint32_t last = std::max(program.segment_count, 1u) - 1;
      urgency.height = last - std::min(segment, last);
    }
  }
  return urgency;
}

}  // namespace weft::peer
