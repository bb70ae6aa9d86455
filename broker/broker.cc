#include "broker/broker.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace weft::broker {

using proto::JobState;
using proto::Message;

namespace {
template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
}  // namespace

Broker::Broker(BrokerOptions options, const StoredState& state) : options_(std::move(options)) {
  for (const PrincipalAdmitted& principal : state.principals)
    known_[principal.principal].insert(principal.role);
  for (const auto& [number, stored] : state.jobs) {
    Job& job = jobs_[number];
    job.submitted = stored.submitted;
    job.state = stored.last.state;
    job.reason = stored.last.reason;
    job.plan_version = stored.last.plan_version;
    job.step = stored.last.step;
    job.steps = stored.last.steps;
    job.checkpoints = stored.checkpoints;
    job.predictions = stored.predictions;
    job.result = stored.result;
    job.last_event = stored.last_event;
    // What was under way goes on from its last checkpoint, as soon as there are peers again.
    if (job.state == JobState::Stopping) job.stop_requested = true;
    if (job.state < JobState::Finished && job.state != JobState::Queued) {
      job.state = JobState::Waiting;
      job.reason = "the broker was restarted";
      if (!job.checkpoints.empty()) job.step = job.checkpoints.back().step;
    }
  }
}

Effects Broker::step(Now now, const Event& event) {
  Effects effects;
  now_ = now;
  out_ = &effects;
  std::visit(
      Overloaded{
          [&](const Introduced& e) { on_introduced(e); },
          [&](const Received& e) { on_received(e); },
          [&](const Disconnected& e) { on_disconnected(e); },
          [&](const SubmissionChecked& e) { on_submission(e); },
          [&](const PlanningDone& e) { on_planned(e); },
          [&](const RelayWaiting& e) {
            for (auto& [number, job] : jobs_) {
              if (!job.plan) continue;
              for (const PlannedStage& stage : job.plan->stages)
                for (const proto::LinkRoute& link : stage.assignment->links)
                  if (!link.dials && link.relay_ticket == e.ticket)
                    send_to_peer(stage.peer, proto::RelayInvitation{number, job.plan_version, e.ticket});
            }
          },
          [&](const Tick&) {
            check_leases();
            if (++ticks_ % 4 == 0) peers_dirty_ = true;  // for the times since they were heard
            check_progress();
            schedule_jobs();
          },
      },
      event);
  const bool tick = std::holds_alternative<Tick>(event);
  for (auto& [number, job] : jobs_)
    if (job.status_dirty && (tick || job.published != job.state)) {  // not with every step
      job.status_dirty = false;
      job.published = job.state;
      effects.effects.push_back(PublishStatus{status_of(job)});
    }
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

// The job and stage that a report is about; nothing when it is of a plan that is no more, or not the peer's.
Broker::Job* Broker::job_of(Peer& peer, proto::JobNumber run, proto::PlanVersion version, uint32_t& stage) {
  if (peer.serving != run || jobs_.at(run).plan_version != version || !jobs_.at(run).plan) {
    ++counters_.stale_dropped;
    return nullptr;
  }
  Job& job = jobs_.at(run);
  for (stage = 0; stage < job.plan->stages.size(); ++stage)
    if (job.plan->stages[stage].peer == peer.id) return &job;
  return nullptr;
}

// A run's wishes, in the name of its job.
class Broker::Sink final : public RunSink {
 public:
  Sink(Broker& broker, Job& job) : broker_(broker), job_(job) {}
  // What ends the run is done after the run has returned, for it destroys it.
  ~Sink() override {
    job_.step = job_.run ? job_.run->committed_step() : job_.step;
    job_.status_dirty = true;
    if (job_.step > job_.failures_at_step) job_.failures = 0;
    if (finished_) broker_.end_job(job_, JobState::Finished, "");
    if (!stopped_) return;
    if (job_.moving && !job_.stop_requested)
      broker_.recover(job_, "a peer wants to leave; moving from step " + std::to_string(step_));
    else
      broker_.end_job(job_, JobState::Stopped, "stopped by its user after step " + std::to_string(step_));
  }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  void send_to_stage(uint32_t stage, Message message) override {
    broker_.send_to_peer(job_.plan->stages[stage].peer, std::move(message));
  }
  void emit(proto::JobEvent event) override { broker_.emit(job_, std::move(event)); }
  void commit_checkpoint(CheckpointCommitted checkpoint) override {
    job_.checkpoints.push_back(checkpoint);
    if (job_.checkpoints.size() > 2) job_.checkpoints.erase(job_.checkpoints.begin());
    broker_.out_->records.push_back(std::move(checkpoint));
    job_.failures = 0;
  }
  void commit_prediction(proto::PredictionReport report) override {
    report.run = job_.submitted.job;
    job_.predictions.push_back(report);
    job_.failures = 0;
    broker_.out_->records.push_back(PredictionCommitted{job_.submitted.job, std::move(report)});
  }
  void finished(uint64_t step) override {
    finished_ = true;
    step_ = step;
    proto::JobResult result;
    result.job = job_.submitted.job;
    result.step = step;
    if (job_.run->training()) {
      for (const auto& tensor : job_.checkpoints.back().tensors)
        if (tensor.slot == "value" || tensor.slot == "running_statistic") result.tensors.push_back(tensor);
    } else {
      result.sample_count = job_.run->plan().forward_samples;
    }
    job_.result = result;
    broker_.out_->records.push_back(ResultCommitted{job_.submitted.job, std::move(result)});
  }
  void stopped(uint64_t step) override {
    stopped_ = true;
    step_ = step;
  }

 private:
  Broker& broker_;
  Job& job_;
  bool finished_ = false, stopped_ = false;
  uint64_t step_ = 0;
};

void Broker::on_peer_message(Peer& peer, const Message& message) {
  peer.last_heard = now_.monotonic;
  uint32_t stage = 0;
  Job* job = nullptr;
  Status status;
  std::visit(Overloaded{
                 [&](const proto::Heartbeat& m) { send(*peer.connection, proto::HeartbeatAck{m.sequence}); },
                 [&](const proto::Drain&) {
                   peer.draining = true;
                   peers_dirty_ = true;
                   log("info peer_drains peer=" + peer.name);
                   if (!peer.serving) return;
                   Job& served = jobs_.at(*peer.serving);
                   served.moving = true;
                   if (served.run) {
                     Sink sink(*this, served);
                     served.run->request_stop(now_.monotonic, sink);
                   } else {
                     recover(served, "peer " + peer.name + " leaves");
                   }
                 },
                 [&](const proto::StageReady& m) {
                   if ((job = job_of(peer, m.run, m.plan_version, stage))) on_stage_ready(*job, stage);
                 },
                 [&](const proto::StageFailed& m) {
                   if ((job = job_of(peer, m.run, m.plan_version, stage)))
                     on_stage_failed(*job, stage, peer, m);
                 },
                 [&](const proto::StepReport& m) {
                   if (!(job = job_of(peer, m.run, m.plan_version, stage)) || !job->run) return;
                   Sink sink(*this, *job);
                   status = job->run->on_step_report(now_.monotonic, stage, m, sink);
                 },
                 [&](const proto::CheckpointReport& m) {
                   if (!(job = job_of(peer, m.run, m.plan_version, stage)) || !job->run) return;
                   Sink sink(*this, *job);
                   status = job->run->on_checkpoint_report(now_.monotonic, stage, m, sink);
                 },
                 [&](const proto::EvaluationReport& m) {
                   if (!(job = job_of(peer, m.run, m.plan_version, stage)) || !job->run) return;
                   Sink sink(*this, *job);
                   status = job->run->on_evaluation_report(now_.monotonic, stage, m, sink);
                 },
                 [&](const proto::PredictionReport& m) {
                   if (!(job = job_of(peer, m.run, m.plan_version, stage)) || !job->run) return;
                   Sink sink(*this, *job);
                   status = job->run->on_prediction_report(now_.monotonic, stage, m, sink);
                 },
                 [&](const proto::PeerLog& m) {
                   log("info peer_says peer=" + peer.name + " text=\"" + m.text + "\"");
                 },
                 [&](const auto&) {
                   status = fail(ErrorCode::InvalidArgument,
                                 std::string(name_of(message)) + " is not for a broker");
                 },
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

void Broker::stop_job(Job& job) {
  if (job.state >= JobState::Finished || job.stop_requested) return;
  job.stop_requested = true;
  if (job.run) {
    set_state(job, JobState::Stopping, "asked by its user");
    Sink sink(*this, job);
    job.run->request_stop(now_.monotonic, sink);
  } else {
    end_job(job, JobState::Stopped, "stopped by its user before it ran");
  }
}

// From the first on, whose outputs are all there.
uint32_t Broker::predicted_microbatches(const Job& job) {
  std::map<uint32_t, uint32_t> reports;
  for (const auto& report : job.predictions) ++reports[report.microbatch];
  uint32_t count = 0;
  while (reports.contains(count) && reports[count] >= job.plan->prediction_stages) ++count;
  return count;
}

proto::JobResult Broker::result_of(const Job& job) const {
  proto::JobResult result;
  if (job.result) {
    result = *job.result;
  } else {  // not finished: as far as it is safe
    result.job = job.submitted.job;
    result.step = job.checkpoints.back().step;
    for (const auto& tensor : job.checkpoints.back().tensors)
      if (tensor.slot == "value" || tensor.slot == "running_statistic") result.tensors.push_back(tensor);
  }
  for (const proto::PackedFile& file : job.submitted.submission.files)
    if (file.path.rfind("model/", 0) == 0) result.model.push_back(file);
  result.predictions = job.predictions;
  return result;
}

void Broker::on_stage_ready(Job& job, uint32_t stage) {
  if (job.run) return;
  job.ready[stage] = true;
  for (const bool ready : job.ready)
    if (!ready) return;
  const uint64_t after = job.checkpoints.empty() ? 0 : job.checkpoints.back().step;
  job.run = std::make_unique<Run>(job.submitted.job, job.plan_version, job.plan, after,
                                  predicted_microbatches(job), options_.run);
  set_state(job, JobState::Running, "");
  Sink sink(*this, job);
  job.run->start(now_.monotonic, sink);
}

// Of the largest stage's tensors, optimizer slots included.
Duration Broker::transfer_time(const PlannedRun& plan) const {
  int64_t largest = 0;
  for (const PlannedStage& stage : plan.stages) {
    int64_t bytes = 0;
    for (const auto& tensor : stage.assignment->tensors)
      if (tensor.slot == "value" || tensor.slot == "running_statistic") bytes += tensor.spec.bytes().value;
    largest = std::max(largest, bytes);
  }
  const auto copies = static_cast<double>(1 + plan.optimizer.slot_names().size());
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
      copies * static_cast<double>(largest) / options_.slowest_bytes_per_second));
}

Duration Broker::stall_deadline(const Run& run) const {
  Duration deadline = std::max(options_.stall_deadline, 20 * run.plan().predicted_step);
  if (run.checkpoint_is_under_way()) deadline += transfer_time(run.plan());
  return deadline;
}

void Broker::check_progress() {
  for (auto& [number, job] : jobs_) {
    if (job.run) {
      {
        Sink sink(*this, job);
        job.run->on_tick(now_.monotonic, sink);
      }
      if (job.run && now_.monotonic - job.run->last_progress() > stall_deadline(*job.run))
        recover(job, "no progress for " +
                         std::to_string(static_cast<int>(seconds(stall_deadline(*job.run)))) + " s");
    } else if (job.plan &&
               now_.monotonic - job.since > options_.loading_deadline + transfer_time(*job.plan)) {
      std::string late;
      for (size_t s = 0; s < job.ready.size(); ++s)
        if (!job.ready[s]) {
          late += " " + peers_.at(job.plan->stages[s].peer).name;
          job.excluded.insert(job.plan->stages[s].peer);
        }
      recover(job, "not ready in time:" + late);
    }
  }
}

}  // namespace weft::broker
