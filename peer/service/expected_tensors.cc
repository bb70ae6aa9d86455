#include "peer/service/expected_tensors.h"

#include <string>

#include "peer/machine/serve_script.h"

namespace weft::peer {

Result<bool> ExpectedTensors::expects(const proto::TensorHeader& header) const {
  if (header.program == proto::ProgramKind::Serve && assignment_->serve && !serve_edges_.empty()) {
    WEFT_TRY_STATUS(check_serve_tensor(header, *assignment_->serve, serve_edges_));
    return true;
  }
  if (header.program == proto::ProgramKind::Agree && !agreed_.empty()) {
    WEFT_TRY_STATUS(check_agreed_tensor(*assignment_, agreed_, header));
    return true;
  }
  if (header.program == proto::ProgramKind::Sum && !sums_.empty()) {
    WEFT_TRY_STATUS(check_gradient_sum(*assignment_, sums_, header));
    return true;
  }
  for (const proto::StageProgram& program : assignment_->programs) {
    if (program.kind != header.program) continue;
    for (const proto::EdgeEnd& end : program.receives) {
      if (end.edge != header.edge) continue;
      const auto wrong = [&](const std::string& is, const std::string& should) {
        return fail(ErrorCode::InvalidArgument,
                    "edge " + std::to_string(header.edge) + ": it is " + is + ", expected " + should);
      };
      const dag::TensorSpec& spec = program.graph->spec(end.value);
      if (header.spec != spec) return wrong(dag::to_string(header.spec), dag::to_string(spec));
      if (!proto::may_come_as(header.codec, end.codec))
        return wrong(compress::name(header.codec), compress::name(end.codec));
      return true;
    }
  }
  return false;
}

}  // namespace weft::peer
