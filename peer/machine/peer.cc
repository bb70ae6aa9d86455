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
                     drop_stages();
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
  if (!stages.empty()) return;
  orphan_at.reset();
  settle_drain();
}

void Peer::State::on_broker_went(const std::string& why) {
  shelf.end_all_fetches();
  stand_bys.restock();
  if (!orphan_at) orphan_at = now + options.orphan_deadline;
  for (auto at = stages.begin(); at != stages.end();) {
    HeldStage& stage = (at++)->second;
    if (!stage.ready) drop_stage(stage);
  }
  for (auto& [number, stage] : stages) {
    if (stage.is_heard) say("info stage_kept run=" + std::to_string(stage.run()) + " reason=\"" + why + "\"");
    stage.is_heard = false;
    for (auto& [key, data] : stage.data) data = {};
    stage.uploads.interrupt();
  }
  if (stages.empty()) settle_drain();
}

bool Peer::State::has_work() const {
  return std::any_of(stages.begin(), stages.end(), [](const auto& held) { return !held.second.failed; });
}

bool Peer::State::all_heard() const {
  return std::all_of(stages.begin(), stages.end(), [](const auto& held) { return held.second.is_heard; });
}

void Peer::State::settle_drain() {
  if (session.is_to_leave()) apply(session.drain(has_work()));
}

// A stage that waits for its broker is drained once that has taken it up again.
void Peer::State::request_drain() {
  if (all_heard())
    apply(session.drain(has_work()));
  else
    session.mark_to_leave();
}

// A broker of before reads the last one.
std::vector<proto::StageHeld> Peer::State::holding() const {
  std::vector<proto::StageHeld> held;
  for (const auto& [number, stage] : stages)
    if (stage.ready) held.push_back({stage.run(), stage.assignment->plan_version, stage.assignment->seat});
  return held;
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
                 [&](const proto::ServeRequest& request) { on_request(request); },
                 [&](const proto::CancelRequest& cancel) { on_cancel(cancel); },
                 [&](const proto::RelayInvitation& invitation) { on_invitation(invitation); },
                 [&](const proto::ProbeLink& link) { probe(link); },
                 [](const auto&) {},
             },
             message);
}

void Peer::State::on_invitation(const proto::RelayInvitation& invitation) {
  const bool is_of_probe = invitation.run == 0 && may_measure();
  if (is_of_probe || find_of(invitation) != nullptr) out.push_back(InviteLink{invitation.ticket});
}

// A stage's tensors come before measurements. Replicas that make local steps have few of them.
bool Peer::State::may_measure() const {
  return std::all_of(stages.begin(), stages.end(),
                     [](const auto& entry) { return entry.second.machine.assignment().local.has_value(); });
}

void Peer::State::probe(const proto::ProbeLink& link) {
  if (may_measure()) return out.push_back(Probe{link});
  tell(proto::ProbeReport{.round = link.round,
                          .peer = link.peer,
                          .failure = Error{ErrorCode::Cancelled, "the peer runs a stage"}});
}

void Peer::State::on_tick(Bytes memory_free) {
  check_device();
  std::optional<proto::StageWork> work;
  for (const auto& [number, stage] : stages)
    if (stage.trains() && !work) work = stage.machine.work(now);
  apply(session.on_tick(now, memory_free, work, saving()));
  if (orphan_at && now >= *orphan_at) give_up();
  if (retired && now >= retired->until) forget_retired();
  for (auto& [number, stage] : stages)
    if (stage.lends_until && now >= *stage.lends_until) load_after_lending(stage);
  for (auto& [number, stage] : stages) serve_on_tick(stage);
  if (parked && now >= parked->until) drop_parked();
}

bool Peer::State::anything_waits() const {
  if (!session.is_admitted()) return false;
  const auto waits = [](const HeldStage& stage) {
    return stage.is_heard && !stage.failed &&
           (!stage.tensors.to_fetch.empty() || stage.uploads.anything_waits() ||
            std::any_of(stage.data.begin(), stage.data.end(), [](const auto& d) { return !d.second.asked; }));
  };
  return stand_bys.anything_waits() ||
         std::any_of(stages.begin(), stages.end(), [&](const auto& held) { return waits(held.second); });
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

PeerEffects Peer::request_drain(Instant now, proto::Drain goodbye) {
  return handle(*state_, now, [&] {
    state_->session.set_goodbye(std::move(goodbye));
    state_->request_drain();
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
    state_->on_runner_made(generation, made);
  });
}

PeerEffects Peer::on_links_up(Instant now, uint64_t generation) {
  return handle(*state_, now, [&] {
    HeldStage* stage = state_->find_at_work(generation);
    if (stage == nullptr) return;
    stage->links_up = true;
    state_->report_ready(*stage);
  });
}

PeerEffects Peer::on_link_failed(Instant now, uint64_t generation, const plan::Seat& seat,
                                 const Error& error) {
  return handle(*state_, now, [&] {
    HeldStage* stage = state_->find_at_work(generation);
    if (stage != nullptr && !stage->machine.is_left_out(seat))
      state_->fail_stage(*stage, error.within("link to " + plan::to_string(seat)), {.unreachable = seat});
  });
}

PeerEffects Peer::on_not_finite(Instant now, uint64_t generation, const plan::Seat& from, uint64_t step,
                                const Error& error) {
  return handle(*state_, now, [&] {
    HeldStage* stage = state_->find_at_work(generation);
    if (stage == nullptr || stage->machine.is_left_out(from)) return;
    state_->fail_stage(*stage, error,
                       {.unreachable = from, .permanent = true, .diverged = true, .step = step});
  });
}

PeerEffects Peer::on_difference_not_finite(Instant now, uint64_t generation, const plan::Seat& from,
                                           uint64_t steps_before, const Error& error) {
  return handle(*state_, now, [&] {
    HeldStage* stage = state_->find_at_work(generation);
    if (stage == nullptr || stage->machine.is_left_out(from)) return;
    if (!stage->machine.refuse_not_finite(from, steps_before))
      return state_->fail_stage(
          *stage, error, {.unreachable = from, .permanent = true, .diverged = true, .step = steps_before});
    for (proto::Message& message : stage->machine.take_reports()) {
      state_->report(*stage, stage->machine.last_sequence(), std::move(message));
      if (stage->failed) return;
    }
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
    if (HeldStage* stage = state_->find_at_work(generation))
      accepted = state_->on_tensor(*stage, from, header);
  });
}

PeerEffects Peer::on_data(Instant now, uint64_t generation, const MicrobatchKey& key,
                          const Result<uint64_t>& sample_position) {
  return handle(*state_, now, [&] {
    if (HeldStage* stage = state_->find_at_work(generation)) state_->on_data(*stage, key, sample_position);
  });
}

PeerEffects Peer::on_task_done(Instant now, uint64_t generation, const Task& task,
                               const Result<TaskOutcome>& outcome) {
  return handle(*state_, now, [&] {
    if (is_lost(outcome)) return state_->lose_device(outcome.error());
    state_->on_task_done(generation, task, outcome);
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

PeerEffects Peer::on_sent(Instant now, uint64_t upload, const Digest& sha256, uint64_t bytes) {
  return handle(*state_, now, [&] { state_->on_sent(upload, sha256, bytes); });
}

Session::State Peer::state() const { return state_->session.state(); }

const std::shared_ptr<const proto::AssignStage>& Peer::assignment() const {
  static const std::shared_ptr<const proto::AssignStage> kNone;
  return state_->stages.empty() ? kNone : state_->stages.rbegin()->second.assignment;
}

uint64_t Peer::generation() const { return state_->generation; }
const StageMachine* Peer::stage() const {
  return state_->stages.empty() ? nullptr : &state_->stages.rbegin()->second.machine;
}
size_t Peer::stages() const { return state_->stages.size(); }

std::vector<Peer::Held> Peer::at_work() const {
  std::vector<Held> held;
  for (const auto& [generation, stage] : state_->stages)
    if (!stage.failed) held.push_back({stage.assignment, stage.ready && !stage.follows()});
  return held;
}

std::set<Digest> Peer::held() const { return state_->shelf.held(); }
std::optional<Instant> Peer::retry_at() const { return state_->session.retry_at(); }

std::optional<Instant> Peer::next_deadline(Instant now) const {
  const State& state = *state_;
  if (state.session.state() == Session::State::Left) return std::nullopt;
  std::optional<Instant> next = state.session.next_deadline();
  const auto take = [&](Instant at) { next = next ? std::min(*next, at) : at; };
  if (state.orphan_at) take(*state.orphan_at);
  if (state.retired) take(state.retired->until);
  if (state.overdue)
    take(state.now + DeviceWatch::kAwakeMax);
  else if (const auto look = state.watch.next_look())
    take(*look);
  if (!state.pauses.is_over(now) && state.anything_waits()) take(state.pauses.until());
  return next;
}

}  // namespace weft::peer
