// A stage of a served model at work: requests that come for the entry, and what is told of them.
#include "peer/machine/peer_state.h"

namespace weft::peer {

template <typename M>
void Peer::State::pass_request(const M& message, Result<bool> (*take)(ServeScript&, Instant, const M&)) {
  HeldStage* stage = find_of(message);
  if (stage == nullptr || stage->failed) return;
  ServeScript* serve = stage->machine.serve();
  const Result<bool> taken = stage->ready && serve != nullptr
                                 ? take(*serve, now, message)
                                 : fail(ErrorCode::InvalidArgument, "a request before the stage was ready");
  if (!taken) return fail_stage(*stage, taken.error().within("the broker breaks the protocol"));
  end_lending(*stage);
  if (*taken) out.push_back(PassRequest{stage->generation, message});
  tell_served(*stage);
  work(*stage);
}

void Peer::State::on_request(const proto::ServeRequest& request) {
  pass_request<proto::ServeRequest>(request, [](ServeScript& serve, Instant at, const auto& message) {
    return serve.on_request(at, message);
  });
}

void Peer::State::on_cancel(const proto::CancelRequest& cancel) {
  pass_request<proto::CancelRequest>(
      cancel, [](ServeScript& serve, Instant, const auto& message) { return serve.on_cancel(message); });
}

// While the broker is away it is kept.
void Peer::State::tell_served(HeldStage& stage) {
  ServeScript* serve = stage.machine.serve();
  if (serve == nullptr || !stage.is_heard || stage.failed) return;
  for (proto::ServeProgress& progress : serve->take_progress()) tell(std::move(progress));
}

void Peer::State::serve_on_tick(HeldStage& stage) {
  ServeScript* serve = stage.machine.serve();
  if (serve == nullptr || stage.failed) return;
  cancel_unwanted(stage);
  if (const Status status = serve->on_tick(now); !status)
    fail_stage(stage, status.error(), {.unreachable = ServeScript::before(*stage.assignment)});
}

}  // namespace weft::peer
