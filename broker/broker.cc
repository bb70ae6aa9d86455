#include "broker/broker.h"

#include <algorithm>
#include <chrono>

#include "base/overloaded.h"

namespace weft::broker {

using proto::Message;

namespace {
// Of a peer's own lines in the broker's log.
constexpr size_t kSaysMax = 200;
constexpr Duration kSaysInterval = std::chrono::seconds(1);
}  // namespace

Status Broker::check() const {
  for (const auto& [number, job] : book_.jobs())
    if (const phase::Running* at = job.running())
      if (const Status checked = at->run->check(); !checked)
        return fail(checked.error().code, "run of job " + job.text() + ": " + checked.error().message);
  return {};
}

Effects Broker::step(Now now, const Event& event) {
  step_.begin(now);
  if (!stepped_) first_step();
  std::visit(Overloaded{
                 [&](const Introduced& e) { membership_.on_introduced(e); },
                 [&](const Received& e) { on_received(e); },
                 [&](const Heard& e) { on_heard(e); },
                 [&](const Disconnected& e) { membership_.on_disconnected(e); },
                 [&](const SubmissionChecked& e) { clients_.on_submission(e); },
                 [&](const PlanningDone& e) { scheduler_.on_planned(e); },
                 [&](const Reconsidered& e) { replanning_.on_reconsidered(e); },
                 [&](const JobReopened& e) { clients_.on_reopened(e); },
                 [&](const BlobsVerified& e) { recovery_.on_blobs_verified(e); },
                 [&](const BlobsKept& e) { phases_.on_kept(e); },
                 [&](const TokensRevoked& e) { membership_.on_tokens_revoked(e); },
                 [&](const RelayWaiting& e) {
                   probes_.on_relay_waiting(e.ticket);
                   runs_.on_relay_waiting(e.ticket);
                 },
                 [&](const Tick& e) {
                   if (e.disk) step_.disk = *e.disk;
                   membership_.check_leases(e.heard_until.value_or(step_.now.monotonic));
                   pool_.let_in();
                   if (++ticks_ % 4 == 0) step_.peers = true;  // for the times since they were heard
                   runs_.check_progress();
                   phases_.keep_copies();
                   replanning_.look_at_runs();
                   membership_.forget_gone();
                   step_.jobs = step_.probes = true;
                 },
                 [&](const Leaving&) { leave(); },
             },
             event);
  // Each may be a reason for the others.
  for (bool more = true; more;) {
    more = false;
    for (const Verdict& verdict : runs_.take_verdicts()) {
      recovery_.settle(verdict);
      more = true;
    }
    if (std::exchange(step_.jobs, false)) scheduler_.schedule(), more = true;
    if (std::exchange(step_.probes, false)) probes_.update(), more = true;
    if (step_.stand_bys && !more) stand_bys_.update(), more = true;
  }
  book_.remove_ended(pool_);
  if (step_.served) served_jobs_.update();
  if (step_.transient) stand_bys_.keep_transient();
  if (std::exchange(step_.peers, false)) step_.effect(PublishPeers{pool_.list()});
  return step_.end();
}

std::optional<proto::JobStatus> Broker::status(proto::JobNumber job) const {
  const auto at = book_.jobs().find(job);
  if (at == book_.jobs().end()) return std::nullopt;
  return book_.status_of(at->second, pool_);
}

void Broker::on_received(const Received& event) {
  if (Peer* peer = pool_.of(event.connection)) return on_peer_message(*peer, event);
  clients_.on_message(event);
}

void Broker::on_heard(const Heard& event) {
  Peer* peer = pool_.of(event.connection);
  if (peer == nullptr) return;
  peer->last_heard = std::max(peer->last_heard, event.at);
  on_beat(*peer, event.work, event.saving);
}

void Broker::on_beat(Peer& peer, const std::optional<proto::StageWork>& work,
                     const std::optional<proto::StageSaving>& saving) {
  if (saving) runs_.on_saving(peer, *saving);
  if (!work) return;
  if (const auto slow = runs_.on_work(peer, *work)) recovery_.on_slow(*slow, peer);
}

void Broker::protocol_error(Peer& peer, const std::string& what) {
  ++step_.counters.protocol_errors;
  step_.log("warning protocol_error peer=" + peer.name + " what=\"" + what + "\"");
  pool_.failed_stage(peer);
  membership_.disconnect(peer, ErrorCode::InvalidArgument, what);
}

void Broker::on_drain(Peer& peer, const proto::Drain& drain) {
  peer.draining = true;
  peer.goodbye = drain;
  step_.peers = step_.stand_bys = true;
  step_.log("info peer_drains peer=" + peer.name + (drain.returns ? " returns=yes" : "") +
            (drain.reason.empty() ? "" : " reason=\"" + drain.reason + "\""));
  for (const proto::JobNumber number : peer.jobs()) {
    Job& job = book_.at(number);
    phase::Running* at = job.running();
    if (at == nullptr) {
      recovery_.recover(job, "peer " + peer.name + " leaves");
      continue;
    }
    at->moving = true;
    job.move_to.clear();
    runs_.request_stop(job, /*to_go_on=*/true);
  }
}

void Broker::on_peer_message(Peer& peer, const Received& event) {
  const Message& message = *event.message;
  peer.last_heard = step_.now.monotonic;
  Status status;
  const auto with_stage = [&](const auto& m, const auto& action) {
    if (const auto place = runs_.place_of(peer, m.run, m.plan_version)) action(*place->job, place->stage);
  };
  std::visit(
      Overloaded{
          [&](const proto::Heartbeat& m) {
            step_.send(*peer.connection, proto::HeartbeatAck{m.sequence});
            on_beat(peer, m.work, m.saving);
          },
          [&](const proto::Drain& m) { on_drain(peer, m); },
          [&](const proto::StageReady& m) {
            with_stage(m, [&](Job& job, uint32_t stage) {
              scheduler_.on_stage_ready(job, stage, m);
              replanning_.on_stage_ready(job, stage, m);
            });
          },
          [&](const proto::StageFailed& m) {
            with_stage(m, [&](Job& job, uint32_t stage) { recovery_.on_stage_failed(job, stage, peer, m); });
          },
          [&](const proto::DifferenceRefused& m) {
            with_stage(m, [&](Job& job, uint32_t stage) {
              status = recovery_.on_difference_refused(job, stage, peer, m);
            });
          },
          [&](const proto::StageResumed& m) {
            if (Job* job = runs_.find_ahead(peer, m))
              return recovery_.recover(*job, "peer " + peer.name +
                                                 " has come further than this broker remembers: was an older "
                                                 "copy of its data restored?");
            status = runs_.on_stage_resumed(peer, m);
          },
          [&](const proto::StandingBy& m) { stand_bys_.on_standing_by(peer, m); },
          [&](const proto::ProbeReport& m) { probes_.on_report(peer, m); },
          [&](const proto::PeerLog& m) {
            if (peer.said_at && step_.now.monotonic - *peer.said_at < kSaysInterval) return;
            peer.said_at = step_.now.monotonic;
            step_.log("info peer_says peer=" + peer.name + " text=\"" + m.text.substr(0, kSaysMax) + "\"");
          },
          [&](const proto::ServeProgress&) { ++step_.counters.stale_dropped; },  // gates pass it on
          [&](const proto::StepReport& m) {
            status = runs_.on_report(peer, message, 0);
            if (!status) return;
            count(peer, m);
            probes_.observe(peer, m);
          },
          [&](const auto&) { status = runs_.on_report(peer, message, event.blobs_missing); },
      },
      message);
  if (!status && peer.connection) protocol_error(peer, status.error().message);
}

}  // namespace weft::broker
