#include "broker/broker.h"

#include <algorithm>
#include <chrono>

#include "broker/job_sink.h"

namespace weft::broker {

using proto::JobState;
using proto::Message;

namespace {
template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

// Of a peer's own lines in the broker's log.
constexpr size_t kSaysMax = 200;
constexpr Duration kSaysInterval = std::chrono::seconds(1);
}  // namespace

Effects Broker::step(Now now, const Event& event) {
  Effects effects;
  now_ = now;
  out_ = &effects;
  if (!stepped_) first_step();
  std::visit(Overloaded{
                 [&](const Introduced& e) { on_introduced(e); },
                 [&](const Received& e) { on_received(e); },
                 [&](const Disconnected& e) { on_disconnected(e); },
                 [&](const SubmissionChecked& e) { on_submission(e); },
                 [&](const PlanningDone& e) { on_planned(e); },
                 [&](const Reconsidered& e) { on_reconsidered(e); },
                 [&](const RelayWaiting& e) { on_relay_waiting(e.ticket); },
                 [&](const Tick&) {
                   check_leases();
                   if (++ticks_ % 4 == 0) peers_dirty_ = true;  // for the times since they were heard
                   check_progress();
                   look_at_runs();
                   jobs_dirty_ = probes_dirty_ = true;
                 },
             },
             event);
  while (jobs_dirty_ || probes_dirty_) {
    if (std::exchange(jobs_dirty_, false)) schedule_jobs();
    if (probes_dirty_) update_probes();
  }
  const bool tick = std::holds_alternative<Tick>(event);
  for (auto& [number, job] : jobs_)
    if (job.status_dirty && (tick || job.published != job.state)) {  // not with every step
      job.status_dirty = false;
      job.published = job.state;
      effects.effects.push_back(PublishStatus{status_of(job)});
    }
  if (stand_bys_dirty_) update_stand_bys();
  if (transient_dirty_) keep_transient();
  if (peers_dirty_) publish_peers();
  out_ = nullptr;
  return effects;
}

void Broker::send(ConnectionId connection, Message message) {
  out_->effects.push_back(Send{connection, std::make_shared<const Message>(std::move(message))});
}

void Broker::send_to_peer(const PeerId& id, Message message) {
  const auto peer = peers_.find(id);
  if (peer != peers_.end() && peer->second.connection) send(*peer->second.connection, std::move(message));
}

void Broker::on_received(const Received& event) {
  if (const auto peer = peer_of_connection_.find(event.connection); peer != peer_of_connection_.end())
    return on_peer_message(peers_.at(peer->second), *event.message);
  if (clients_.contains(event.connection)) return on_client_message(event.connection, *event.message);
  // Left over from a connection that was closed meanwhile.
}

void Broker::protocol_error(Peer& peer, const std::string& what) {
  ++counters_.protocol_errors;
  log("warning protocol_error peer=" + peer.name + " what=\"" + what + "\"");
  const ConnectionId connection = *peer.connection;
  send(connection, proto::Refusal{.code = ErrorCode::InvalidArgument, .message = what});
  out_->effects.push_back(Close{connection});
  lose_peer(peer, "it broke the protocol: " + what);
}

void Broker::on_relay_waiting(const proto::Secret& ticket) {
  invite_to_probe(ticket);
  for (auto& [number, job] : jobs_) {
    if (!job.plan) continue;
    for (size_t s = 0; s < job.plan->stages.size(); ++s)
      for (const proto::LinkRoute& link : job.plan->stages[s].assignment->links) {
        if (link.dials || link.relay_ticket != ticket) continue;
        if (!job.seats[s].here) job.seats[s].relays_waiting.insert(ticket);
        send_to_peer(job.plan->stages[s].peer, proto::RelayInvitation{number, job.plan_version, ticket});
      }
  }
}

Broker::Job* Broker::job_of(const Peer& peer, proto::JobNumber run, proto::PlanVersion version,
                            uint32_t& stage) {
  if (peer.serving != run || jobs_.at(run).plan_version != version || !jobs_.at(run).plan) {
    ++counters_.stale_dropped;
    return nullptr;
  }
  Job& job = jobs_.at(run);
  for (stage = 0; stage < job.plan->stages.size(); ++stage)
    if (job.plan->stages[stage].peer == peer.id) return &job;
  return nullptr;
}

void Broker::on_drain(Peer& peer) {
  peer.draining = true;
  peers_dirty_ = stand_bys_dirty_ = true;
  log("info peer_drains peer=" + peer.name);
  if (!peer.serving) return;
  Job& served = jobs_.at(*peer.serving);
  served.moving = true;
  served.move_to.clear();
  if (!served.run) return recover(served, "peer " + peer.name + " leaves");
  Sink sink(*this, served);
  served.run->request_stop(now_.monotonic, /*to_go_on=*/true, sink);
}

// What a stage says of the run. What it says before it has resumed is of no use: it says it again then.
Status Broker::on_report(Peer& peer, const Message& message) {
  Status status;
  const auto with_run = [&](const auto& report, auto handler) {
    uint32_t stage = 0;
    Job* job = job_of(peer, report.run, report.plan_version, stage);
    if (job == nullptr || !job->run) return;
    if (!job->seats[stage].here) {
      ++counters_.stale_dropped;
      return;
    }
    Sink sink(*this, *job);
    status = (*job->run.*handler)(now_.monotonic, stage, report, sink);
  };
  std::visit(Overloaded{
                 [&](const proto::StepReport& m) {
                   with_run(m, &Run::on_step_report);
                   if (status) observe_links(peer, m);
                 },
                 [&](const proto::CheckpointReport& m) { with_run(m, &Run::on_checkpoint_report); },
                 [&](const proto::EvaluationReport& m) { with_run(m, &Run::on_evaluation_report); },
                 [&](const proto::ComparisonReport& m) { with_run(m, &Run::on_comparison_report); },
                 [&](const proto::PredictionReport& m) { with_run(m, &Run::on_prediction_report); },
                 [&](const auto&) {
                   status = fail(ErrorCode::InvalidArgument,
                                 std::string(name_of(message)) + " is not for a broker");
                 },
             },
             message);
  return status;
}

void Broker::on_peer_message(Peer& peer, const Message& message) {
  peer.last_heard = now_.monotonic;
  uint32_t stage = 0;
  Status status;
  std::visit(Overloaded{
                 [&](const proto::Heartbeat& m) {
                   send(*peer.connection, proto::HeartbeatAck{m.sequence});
                   if (m.work) on_work(peer, *m.work);
                 },
                 [&](const proto::Drain&) { on_drain(peer); },
                 [&](const proto::StageReady& m) {
                   if (Job* job = job_of(peer, m.run, m.plan_version, stage)) on_stage_ready(*job, stage, m);
                 },
                 [&](const proto::StageFailed& m) {
                   if (Job* job = job_of(peer, m.run, m.plan_version, stage))
                     on_stage_failed(*job, stage, peer, m);
                 },
                 [&](const proto::StageResumed& m) { status = on_stage_resumed(peer, m); },
                 [&](const proto::StandingBy& m) { on_standing_by(peer, m); },
                 [&](const proto::ProbeReport& m) { on_probe_report(peer, m); },
                 [&](const proto::PeerLog& m) {
                   if (peer.said_at && now_.monotonic - *peer.said_at < kSaysInterval) return;
                   peer.said_at = now_.monotonic;
                   log("info peer_says peer=" + peer.name + " text=\"" + m.text.substr(0, kSaysMax) + "\"");
                 },
                 [&](const auto&) { status = on_report(peer, message); },
             },
             message);
  if (!status && peer.connection) protocol_error(peer, status.error().message);
}

void Broker::on_client_message(ConnectionId client, const Message& message) {
  const auto with_job = [&](proto::JobNumber number, const auto& action) {
    const auto at = jobs_.find(number);
    if (at == jobs_.end())
      return send(client, proto::Refusal{.code = ErrorCode::NotFound,
                                         .message = "there is no job " + std::to_string(number) +
                                                    " here: weft jobs lists them"});
    action(at->second);
  };
  std::visit(
      Overloaded{
          [&](const proto::SubmitJob& m) {
            out_->effects.push_back(CheckSubmission{client, m});
          },
          [&](const proto::ListJobs&) {
            proto::JobList list;
            for (const auto& [number, job] : jobs_) list.jobs.push_back(status_of(job));
            send(client, std::move(list));
          },
          [&](const proto::GetJob& m) { with_job(m.job, [&](Job& job) { send(client, status_of(job)); }); },
          [&](const proto::GetEvents& m) {
            with_job(m.job, [&](Job&) { out_->effects.push_back(SendEvents{client, m}); });
          },
          [&](const proto::StopJob& m) {
            with_job(m.job, [&](Job& job) {
              stop_job(job);
              send(client, proto::Done{});
            });
          },
          [&](const proto::ListPeers&) {
            proto::PeerList list;
            for (const auto& [id, peer] : peers_) list.peers.push_back(status_of(peer));
            send(client, std::move(list));
          },
          [&](const proto::ListLinks&) { send(client, list_links()); },
          [&](const proto::GetResult& m) {
            with_job(m.job, [&](Job& job) {
              if (job.result || !job.checkpoints.empty()) return send(client, result_of(job));
              send(client,
                   proto::Refusal{.code = ErrorCode::Unavailable,
                                  .message = "job " + std::to_string(m.job) + " is " +
                                             std::string(to_string(job.state)) + " and has no checkpoint yet",
                                  .retry = true});
            });
          },
          [&](const auto&) {
            ++counters_.protocol_errors;
            clients_.erase(client);
            refuse(client, ErrorCode::InvalidArgument,
                   std::string(name_of(message)) + " is not for a broker from a client");
          },
      },
      message);
}

}  // namespace weft::broker
