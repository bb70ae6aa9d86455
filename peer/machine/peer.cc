#include "peer/machine/peer.h"

#include <algorithm>

#include "base/overloaded.h"
#include "peer/machine/peer_state.h"

namespace weft::peer {

// ---- the broker

void Peer::State::apply(SessionEffects effects) {
  for (SessionEffect& effect : effects)
    std::visit(Overloaded{
                   [&](BrokerCame&) { on_broker_came(); },
                   [&](BrokerWent& went) { on_broker_went(went.why); },
                   [&](Leave& leave) {
                     drop_stage();
                     out.push_back(std::move(leave));
                   },
                   [&](auto& other) { out.push_back(std::move(other)); },
               },
               effect);
}

// A broker of before does not know the word for a device that is gone.
void Peer::State::tell(proto::Message message) {
  if (auto* failed = std::get_if<proto::StageFailed>(&message);
      failed != nullptr && failed->error.code == ErrorCode::DeviceLost &&
      session.broker_minor() < proto::kProtocolMinorOfDeviceLost)
    failed->error.code = ErrorCode::Unavailable;
  out.push_back(TellBroker{std::move(message)});
}

void Peer::State::on_broker_came() {
  shelf.forget_all_failures();
  pauses.end(now);
  if (!stage) orphan_at.reset();
  if (!stage) settle_drain();
}

void Peer::State::on_broker_went(const std::string& why) {
  shelf.end_all_fetches();
  stand_bys.restock();
  if (!orphan_at) orphan_at = now + options.orphan_deadline;
  if (stage && !stage->ready) drop_stage();
  if (stage) {
    if (stage->is_heard)
      say("info stage_kept run=" + std::to_string(stage->assignment->run) + " reason=\"" + why + "\"");
    stage->is_heard = false;
    for (auto& [key, data] : stage->data) data = {};
    uploads.interrupt();
  } else {
    settle_drain();
  }
}

void Peer::State::settle_drain() {
  if (session.is_to_leave()) apply(session.drain(has_work()));
}

std::optional<proto::StageHeld> Peer::State::holding() const {
  if (!stage || !stage->ready) return std::nullopt;
  return proto::StageHeld{stage->assignment->run, stage->assignment->plan_version, stage->assignment->seat};
}

void Peer::State::on_message(const proto::Message& message) {
  const bool was_admitted = session.is_admitted();
  apply(session.on_message(now, message));
  if (!was_admitted || !session.is_admitted()) return;
  std::visit(Overloaded{
                 [&](const proto::AssignStage& assigned) { assign(assigned); },
                 [&](const proto::ReleaseStage& released) { release(released); },
                 [&](const proto::ResumeStage& resumed) { resume(resumed); },
                 [&](const proto::StandBy& list) { stand_by(list); },
                 [&](const proto::Command& command) { on_command(command); },
                 [&](const proto::GradientNorm& norm) { on_norm(norm); },
                 [&](const proto::RelayInvitation& invitation) {
                   const bool is_of_probe = invitation.run == 0 && !stage;
                   if (is_of_probe || (stage && stage->is_of(invitation)))
                     out.push_back(InviteLink{invitation.ticket});
                 },
                 [&](const proto::ProbeLink& link) { probe(link); },
                 [](const auto&) {},
             },
             message);
}

// A stage's tensors come before measurements.
void Peer::State::probe(const proto::ProbeLink& link) {
  if (!stage) return out.push_back(Probe{link});
  tell(proto::ProbeReport{.round = link.round,
                          .peer = link.peer,
                          .failure = Error{ErrorCode::Cancelled, "the peer runs a stage"}});
}

void Peer::State::on_tick(Bytes memory_free) {
  check_device();
  const bool trains = stage && stage->ready && !stage->failed;
  apply(session.on_tick(now, memory_free, trains ? stage->machine.work(now) : std::nullopt));
  if (orphan_at && now >= *orphan_at) give_up();
  if (stage && stage->lends_until && now >= *stage->lends_until) load_after_lending();
}

bool Peer::State::anything_waits() const {
  if (!session.is_admitted()) return false;
  if (stage && stage->is_heard && !stage->failed) {
    if (!stage->tensors.to_fetch.empty()) return true;
    if (std::any_of(stage->data.begin(), stage->data.end(), [](const auto& d) { return !d.second.asked; }))
      return true;
    if (uploads.anything_waits()) return true;
  }
  return stand_bys.anything_waits();
}

// ---- the public face

namespace {

// One event: nothing happens once the peer has left.
template <typename S, typename F>
PeerEffects handle(S& state, Instant now, F&& what) {
  if (state.session.state() == Session::State::Left) return {};
  state.now = now;
  state.watch.look(now);
  what();
  state.fetch();
  state.ask_data();
  state.start_uploads();
  state.shelf.forget_unnamed(state.out);
  return std::exchange(state.out, {});
}

template <typename T>
bool is_lost(const Result<T>& result) {
  return !result && result.error().code == ErrorCode::DeviceLost;
}

}  // namespace

Peer::Peer(PeerOptions options) : state_(std::make_shared<State>(std::move(options))) {}

PeerEffects Peer::start(Instant now) {
  return handle(*state_, now, [&] { state_->apply(state_->session.start(now)); });
}

PeerEffects Peer::on_connected(Instant now) {
  return handle(*state_, now, [&] { state_->apply(state_->session.on_connected(now, state_->holding())); });
}

PeerEffects Peer::on_connect_failed(Instant now, const Error& error) {
  return handle(*state_, now, [&] { state_->apply(state_->session.on_connect_failed(now, error)); });
}

PeerEffects Peer::on_lost(Instant now, const Error& error) {
  return handle(*state_, now, [&] { state_->apply(state_->session.on_lost(now, error)); });
}

PeerEffects Peer::on_message(Instant now, const proto::Message& message) {
  return handle(*state_, now, [&] { state_->on_message(message); });
}

PeerEffects Peer::on_tick(Instant now, Bytes memory_free) {
  return handle(*state_, now, [&] { state_->on_tick(memory_free); });
}

PeerEffects Peer::request_drain(Instant now) {
  return handle(*state_, now, [&] {
    State& state = *state_;
    // A stage that waits for its broker is drained once that has taken it up again.
    if (state.stage && !state.stage->is_heard)
      state.session.mark_to_leave();
    else
      state.apply(state.session.drain(state.has_work()));
  });
}

PeerEffects Peer::on_blob(Instant now, const Digest& sha256, const Status& fetched) {
  return handle(*state_, now, [&] { state_->on_blob(sha256, fetched); });
}

PeerEffects Peer::on_giving(Instant now, const Digest& sha256, bool whole) {
  return handle(*state_, now, [&] { state_->on_giving(sha256, whole); });
}

PeerEffects Peer::on_runner_made(Instant now, uint64_t generation, const Result<RunnerSize>& made) {
  return handle(*state_, now, [&] {
    if (is_lost(made)) return state_->lose_device(made.error());
    if (state_->is_current(generation)) state_->watch.end();
    if (!state_->is_at_work(generation)) return;
    if (!made) return state_->fail_stage(made.error());
    state_->stage->runner = *made;
    if (const auto error = state_->exceeds_offer()) return state_->fail_stage(*error);
    state_->snapshots.trim(state_->copies_max());
    state_->report_ready();
  });
}

PeerEffects Peer::on_links_up(Instant now, uint64_t generation) {
  return handle(*state_, now, [&] {
    if (!state_->is_at_work(generation)) return;
    state_->stage->links_up = true;
    state_->report_ready();
  });
}

PeerEffects Peer::on_link_failed(Instant now, uint64_t generation, const plan::Seat& seat,
                                 const Error& error) {
  return handle(*state_, now, [&] {
    if (state_->is_at_work(generation))
      state_->fail_stage(error.within("link to " + plan::to_string(seat)), seat);
  });
}

PeerEffects Peer::on_not_finite(Instant now, uint64_t generation, const plan::Seat& from, uint64_t step,
                                const Error& error) {
  return handle(*state_, now, [&] {
    if (state_->is_at_work(generation))
      state_->fail_stage(error, from, /*permanent=*/true, /*diverged=*/true, step);
  });
}

PeerEffects Peer::on_probed(Instant now, const proto::ProbeReport& report) {
  return handle(*state_, now, [&] {
    if (state_->session.is_admitted()) state_->tell(report);
  });
}

PeerEffects Peer::on_tensor(Instant now, uint64_t generation, const plan::Seat& from,
                            const proto::TensorHeader& header, bool& accepted) {
  accepted = false;
  return handle(*state_, now, [&] {
    if (state_->is_at_work(generation)) accepted = state_->on_tensor(from, header);
  });
}

PeerEffects Peer::on_data(Instant now, uint64_t generation, const MicrobatchKey& key,
                          const Result<uint64_t>& sample_position) {
  return handle(*state_, now, [&] {
    if (state_->is_at_work(generation)) state_->on_data(key, sample_position);
  });
}

PeerEffects Peer::on_task_done(Instant now, uint64_t generation, const Task& task,
                               const Result<TaskOutcome>& outcome) {
  return handle(*state_, now, [&] {
    if (is_lost(outcome)) return state_->lose_device(outcome.error());
    if (state_->is_current(generation)) state_->watch.end();
    if (state_->is_at_work(generation)) state_->on_task_done(task, outcome);
  });
}

PeerEffects Peer::on_device(Instant now, const Status& answered) {
  return handle(*state_, now, [&] { state_->on_device(answered); });
}

PeerEffects Peer::on_hashed(Instant now, uint64_t generation, const Task& task,
                            std::vector<proto::TensorReference> tensors) {
  return handle(*state_, now, [&] { state_->on_hashed(generation, task, std::move(tensors)); });
}

PeerEffects Peer::on_missing(Instant now, uint64_t upload, const Result<std::vector<Digest>>& missing) {
  return handle(*state_, now, [&] { state_->on_missing(upload, missing); });
}

PeerEffects Peer::on_uploaded(Instant now, uint64_t upload, const Digest& sha256, const Status& stored) {
  return handle(*state_, now, [&] { state_->on_stored(upload, sha256, stored); });
}

Session::State Peer::state() const { return state_->session.state(); }

const std::shared_ptr<const proto::AssignStage>& Peer::assignment() const {
  static const std::shared_ptr<const proto::AssignStage> kNone;
  return state_->stage ? state_->stage->assignment : kNone;
}

uint64_t Peer::generation() const { return state_->generation; }
const StageMachine* Peer::stage() const { return state_->stage ? &state_->stage->machine : nullptr; }
std::set<Digest> Peer::held() const { return state_->shelf.held(); }
std::optional<Instant> Peer::retry_at() const { return state_->session.retry_at(); }

std::optional<Instant> Peer::next_deadline(Instant now) const {
  const State& state = *state_;
  if (state.session.state() == Session::State::Left) return std::nullopt;
  std::optional<Instant> next = state.session.next_deadline();
  const auto take = [&](Instant at) { next = next ? std::min(*next, at) : at; };
  if (state.orphan_at) take(*state.orphan_at);
  if (state.overdue)
    take(state.now + DeviceWatch::kAwakeMax);
  else if (const auto look = state.watch.next_look())
    take(*look);
  if (!state.pauses.is_over(now) && state.anything_waits()) take(state.pauses.until());
  return next;
}

}  // namespace weft::peer
