#include "peer/service/share.h"

#include <utility>

namespace weft::peer {

SentShare sum_share(const proto::AssignStage& assign, const proto::AgreedTensor& tensor, dag::TensorSpec spec,
                    uint64_t step, uint32_t range, bool is_sum, uint32_t to) {
  return {.to = {tensor.stages[to], to},
          .header = {.run = assign.run,
                     .plan_version = assign.plan_version,
                     .step = step,
                     .microbatch = range,
                     .edge = tensor.number,
                     .program = proto::ProgramKind::Sum,
                     .direction = is_sum ? proto::Direction::Backward : proto::Direction::Forward,
                     .replica = static_cast<uint16_t>(assign.seat.replica),
                     .spec = std::move(spec)},
          .payload = {}};
}

}  // namespace weft::peer
