#include "peer/service/microbatch_requests.h"

#include <utility>

#include "dag/narrow.h"
#include "proto/codec/codec.h"

namespace weft::peer {

void MicrobatchRequests::ask(proto::GetMicrobatch request, std::vector<dag::TensorSpec> specs,
                             std::function<void(Result<MicrobatchData>)> done) {
  specs.resize(specs.empty() ? 0 : request.inputs.size());
  const uint64_t number = request.request;
  pending_[number] = {std::move(request), std::move(specs), {}, std::move(done)};
}

Status MicrobatchRequests::on_answer(const proto::MicrobatchAnswer& answer) {
  const auto at = pending_.find(answer.request);
  if (at == pending_.end() || receiving_ != 0)
    return fail(ErrorCode::InvalidArgument, "an answer to nothing that was asked");
  if (!answer.message.empty()) {
    const auto done = std::move(at->second.done);
    pending_.erase(at);
    done(fail(answer.code, answer.message));
    return {};
  }
  at->second.result.sample_position = answer.sample_position;
  at->second.result.valid_count = answer.valid_count;
  receiving_ = answer.request;
  return {};
}

Status MicrobatchRequests::on_tensor(ReceivedTensor tensor) {
  const auto at = pending_.find(receiving_);
  if (receiving_ == 0 || at == pending_.end() || tensor.header.edge >= at->second.request.inputs.size())
    return fail(ErrorCode::InvalidArgument, "a tensor that was not asked for");
  if (tensor.header.codec.kind != compress::Kind::Dense)
    return fail(ErrorCode::InvalidArgument, "data that is not sent as it is");
  Pending& pending = at->second;
  const uint32_t input = tensor.header.edge;
  if (!pending.specs.empty()) {
    WEFT_TRY(tensor.payload, dag::widened(tensor.payload, pending.specs[input]));
  }
  pending.result.tensors[pending.request.inputs[input]] = std::move(tensor.payload);
  if (pending.result.tensors.size() < pending.request.inputs.size()) return {};
  const auto done = std::move(pending.done);
  MicrobatchData result = std::move(pending.result);
  pending_.erase(at);
  receiving_ = 0;
  done(std::move(result));
  return {};
}

Result<net::PayloadPlace> MicrobatchRequests::place(size_t payload_size, std::span<const std::byte> head) {
  const auto at = pending_.find(receiving_);
  const auto tensor = proto::decode_tensor_head(head, payload_size);
  if (!tensor) return fail(tensor.error());
  if (receiving_ == 0 || at == pending_.end() || tensor->header.edge >= at->second.request.inputs.size())
    return fail(ErrorCode::InvalidArgument, "a tensor that was not asked for");
  const std::vector<dag::TensorSpec>& specs = at->second.specs;
  if (!specs.empty() &&
      payload_size - tensor->size > static_cast<size_t>(specs[tensor->header.edge].bytes().value))
    return fail(ErrorCode::InvalidArgument, "data that is larger than what was asked for");
  return net::PayloadPlace{tensor->size, dag::allocate_tensor_bytes(payload_size - tensor->size)};
}

void MicrobatchRequests::fail_all(const Error& error) {
  receiving_ = 0;
  for (auto& [request, pending] : std::exchange(pending_, {})) pending.done(fail(error));
}

}  // namespace weft::peer
