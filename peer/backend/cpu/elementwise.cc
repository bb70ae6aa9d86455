// Elementwise ops and dropout, alone or fused.
#include "peer/backend/cpu/elementwise_program.h"

namespace weft::peer::cpu {

KernelResult make_elementwise(const KernelRequest& request) {
  std::optional<ElementProgram> program = ElementProgram::compile(request);
  if (!program) return request.decline();
  std::vector<int> in_place = program->in_place();
  std::string name = program->instruction_count() == 1 ? "vector loop" : "vector program";
  name += std::string(" ") + request.loops.isa;
  return request.make(
      std::move(name),
      [program = std::move(*program), &team = request.team,
       &loops = request.loops](const Call& call) -> Status {
        program.run(call, team, loops);
        return {};
      },
      0, std::move(in_place));
}

}  // namespace weft::peer::cpu
