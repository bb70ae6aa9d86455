#include "peer/service/share.h"

#include <utility>

#include "peer/service/encoding.h"

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

Status take_encoded(std::vector<SendingShare>& sending, std::vector<SentShare>& to) {
  compress::Scratch scratch;
  for (SendingShare& one : sending) {
    WEFT_TRY(const dag::Tensor tensor, one.payload->take());
    one.share.payload = encode_tensor(one.share.header, tensor, one.seed, scratch);
    to.push_back(std::move(one.share));
  }
  return {};
}

}  // namespace weft::peer
