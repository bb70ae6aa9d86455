#include "broker/clients.h"

#include <algorithm>
#include <utility>

#include "base/overloaded.h"
#include "broker/jobs/answers.h"

namespace weft::broker {

using proto::JobState;
using proto::Message;

namespace {
// Of a list: what is asked for when nothing is said, and at most.
constexpr uint32_t kJobsListed = 100, kJobsListedMax = 1000;
}  // namespace

void Clients::leave(const PeerId& who, const std::string& why) {
  std::erase_if(clients_, [&](const auto& entry) {
    const bool ends = entry.second.who == who;
    if (ends) step_.refuse(entry.first, ErrorCode::PermissionDenied, why);
    return ends;
  });
}

size_t Clients::count_of(const PeerId& who) const {
  return static_cast<size_t>(std::count_if(clients_.begin(), clients_.end(),
                                           [&](const auto& entry) { return entry.second.who == who; }));
}

void Clients::on_message(const Received& event) {
  // Else left over from a connection that was closed meanwhile.
  if (const auto client = clients_.find(event.connection); client != clients_.end())
    answer(event, client->second);
}

void Clients::answer(const Received& event, const Client& client) {
  const ConnectionId connection = event.connection;
  const Message& message = *event.message;
  const std::optional<PeerId> whose = client.is_admin ? std::nullopt : std::optional(client.who);
  const auto answer_from_store = [&] { step_.effect(AnswerFromStore{connection, whose, message}); };
  // Of one that goes on and may be seen; nothing: the store may know it.
  const auto open_job = [&](proto::JobNumber number) -> Job* {
    Job* job = book_.find(number);
    return job != nullptr && (client.is_admin || job->submitted.submitter == client.who) ? job : nullptr;
  };
  std::visit(Overloaded{
                 [&](const proto::SubmitJob& m) {
                   // A part of the message that came, which is not copied.
                   const std::shared_ptr<const proto::SubmitJob> submission(event.message, &m);
                   step_.effect(CheckSubmission{connection, {submission, event.bytes}});
                 },
                 [&](const proto::ListJobs& m) { list_jobs(connection, client, m); },
                 [&](const proto::GetJob& m) {
                   const Job* job = open_job(m.job);
                   if (job == nullptr) return answer_from_store();
                   step_.send(connection, book_.status_of(*job, pool_));
                 },
                 [&](const proto::GetEvents& m) {
                   step_.effect(SendEvents{connection, whose, m});
                 },
                 [&](const proto::StopJob& m) {
                   Job* job = open_job(m.job);
                   if (job == nullptr) return answer_from_store();
                   stop_job(*job);
                   step_.send(connection, proto::Done{});
                 },
                 [&](const proto::ResumeJob& m) {
                   const Job* job = open_job(m.job);
                   if (job == nullptr) return step_.effect(ReopenJob{connection, whose, m.job});
                   refuse_open(connection, *job, "");
                 },
                 [&](const proto::RemoveJob& m) {
                   const Job* job = open_job(m.job);
                   if (job == nullptr) return answer_from_store();
                   refuse_open(connection, *job,
                               job->stop_requested ? ", and can be removed once it has stopped"
                                                   : ": weft stop ends it, then it can be removed");
                 },
                 [&](const proto::BanPeer& m) {
                   if (client.is_admin) return ban(connection, m);
                   step_.send(connection,
                              proto::Refusal{
                                  .code = ErrorCode::PermissionDenied,
                                  .message = "only an admin bans peers (weft token create --role admin)"});
                 },
                 [&](const proto::ListPeers&) { list_peers(connection, client); },
                 [&](const proto::ListLinks&) { step_.send(connection, probes_.list()); },
                 [&](const proto::GetResult& m) {
                   const Job* job = open_job(m.job);
                   if (job == nullptr) return answer_from_store();
                   if (job->result || job->points.checkpoint() != nullptr)
                     return step_.send(connection, JobBook::result_of(*job));
                   if (job->serves()) return step_.send(connection, no_result_of_served(m.job));
                   step_.send(connection, proto::Refusal{.code = ErrorCode::Unavailable,
                                                         .message = "job " + std::to_string(m.job) + " is " +
                                                                    std::string(to_string(job->state)) +
                                                                    " and has no checkpoint yet",
                                                         .retry = true});
                 },
                 [&](const auto&) {
                   ++step_.counters.protocol_errors;
                   const ConnectionId ends = connection;
                   clients_.erase(connection);
                   step_.refuse(ends, ErrorCode::InvalidArgument,
                                std::string(name_of(message)) + " is not for a broker from a client");
                 },
             },
             message);
}

void Clients::refuse_open(ConnectionId connection, const Job& job, const std::string& advice) {
  step_.send(connection, proto::Refusal{.code = ErrorCode::InvalidArgument,
                                        .message = "job " + job.text() + " has not ended: it is " +
                                                   std::string(to_string(job.state)) + advice});
}

// The newest first, as many as asked for: those that go on are known here, the store has the others.
void Clients::list_jobs(ConnectionId connection, const Client& client, const proto::ListJobs& request) {
  SendJobs list{.connection = connection,
                .whose = client.is_admin ? std::nullopt : std::optional(client.who),
                .before = request.before,
                .count = std::min(request.count == 0 ? kJobsListed : request.count, kJobsListedMax),
                .open = {}};
  const auto& jobs = book_.jobs();
  auto at = request.before == 0 ? jobs.end() : jobs.lower_bound(request.before);
  while (at != jobs.begin() && list.open.size() <= list.count) {
    --at;
    if (client.is_admin || at->second.submitted.submitter == client.who)
      list.open.push_back(book_.status_of(at->second, pool_));
  }
  step_.effect(std::move(list));
}

// Whose stages a peer has, and how full the broker's disk is, is an admin's matter.
void Clients::list_peers(ConnectionId connection, const Client& client) {
  proto::PeerList list = pool_.list();
  if (!client.is_admin) {
    list.blob_bytes = list.disk_free = list.disk_size = {};
    for (proto::PeerStatus& peer : list.peers) peer.jobs.clear();
  }
  step_.send(connection, std::move(list));
}

void Clients::ban(ConnectionId connection, const proto::BanPeer& request) {
  Peer* peer = pool_.find_by_name(request.peer);
  if (peer == nullptr)
    return step_.send(connection, proto::Refusal{.code = ErrorCode::NotFound,
                                                 .message = "there is no peer '" + request.peer +
                                                            "': weft peers lists them"});
  pool_.ban(peer->id, peer->name, !request.lift);
  step_.log(std::string("info ") + (request.lift ? "peer_ban_lifted" : "peer_banned") +
            " peer=" + peer->name + " key=" + to_string(peer->id));
  if (!request.lift) {
    disconnect_(*peer, ErrorCode::PermissionDenied, "the broker's operator has banned this key");
    step_.effect(CloseAll{peer->id});
  }
  step_.send(connection, proto::Done{});
}

void Clients::on_submission(const SubmissionChecked& event) {
  const auto client = clients_.find(event.connection);
  if (client == clients_.end()) return;
  const auto refuse_it = [&](ErrorCode code, std::string why, bool retry) {
    step_.send(event.connection, proto::Refusal{.code = code, .message = std::move(why), .retry = retry});
  };
  if (!event.verdict) return refuse_it(event.verdict.error().code, event.verdict.error().message, false);
  if (book_.jobs().size() >= options_.limits.jobs_max)
    return refuse_it(ErrorCode::ResourceExhausted, "too many jobs are queued: try again later", true);
  if (book_.count_of(client->second.who) >= options_.limits.jobs_max_of_key)
    return refuse_it(
        ErrorCode::ResourceExhausted,
        "you have " + std::to_string(options_.limits.jobs_max_of_key) +
            " jobs here that have not ended, which is as many as one key may have: wait, or stop "
            "one (weft stop)",
        true);
  Job& job = book_.submit(client->second.who, event.submission);
  job.drift = Drift(options_.drift);
  note_unknown_peers(job);
  note_old_peers(job);
  step_.log("info job_submitted job=" + job.text() + " name=\"" + event.submission->name + "\"");
  step_.send(event.connection, proto::JobAccepted{job.number()});
  step_.jobs = true;
}

// A name that is misspelt would leave a peer in that its user wants out.
void Clients::note_unknown_peers(Job& job) {
  std::string unknown;
  for (const std::string& name : job.submitted.submission->excluded)
    if (std::none_of(pool_.peers().begin(), pool_.peers().end(),
                     [&](const auto& entry) { return entry.second.name == name; }))
      unknown += (unknown.empty() ? "'" : ", '") + name + "'";
  if (!unknown.empty()) book_.notice(job, "excluded, but not known here so far: " + unknown);
}

// What would help a job that finds too few peers is known before it waits.
void Clients::note_old_peers(Job& job) {
  std::string old;
  for (const auto& [id, peer] : pool_.peers())
    if (peer.connection && !job.may_send(peer))
      old += (old.empty() ? "'" : ", '") + peer.name + "' (weft " + peer.software + ")";
  if (!old.empty())
    book_.notice(job, "left out, because they are too old to read compressed tensors: " + old);
}

void Clients::stop_job(Job& job) {
  if (job.has_ended() || job.stop_requested || job.keeping() != nullptr) return;
  job.stop_requested = true;
  if (job.running() == nullptr) {
    const std::string when = job.microbatch_size == 0 ? " before it ran"
                             : job.step == 0          ? ""
                                                      : " after step " + std::to_string(job.step);
    return phases_.end(job, JobState::Stopped, "stopped by its user" + when);
  }
  book_.set_state(job, JobState::Stopping, "asked by its user");
  runs_.request_stop(job, /*to_go_on=*/false);
}

// A job that had failed or was stopped goes on from its last checkpoint, with all its losses forgotten.
void Clients::on_reopened(const JobReopened& event) {
  const auto client = clients_.find(event.connection);
  if (client == clients_.end()) return;
  if (!event.job)
    return step_.send(event.connection,
                      proto::Refusal{.code = event.job.error().code, .message = event.job.error().message});
  const StoredJob& stored = **event.job;
  if (book_.find(stored.submitted.job) != nullptr) return step_.send(event.connection, proto::Done{});
  if (book_.jobs().size() >= options_.limits.jobs_max ||
      book_.count_of(stored.submitted.submitter) >= options_.limits.jobs_max_of_key)
    return step_.send(event.connection, proto::Refusal{.code = ErrorCode::ResourceExhausted,
                                                       .message = "too many jobs have not ended",
                                                       .retry = true});
  Job& job = book_.load(stored);
  job.drift = Drift(options_.drift);
  job.result.reset();
  job.step = job.points.steps_made();
  step_.log("info job_resumed job=" + job.text() + " step=" + std::to_string(job.step));
  book_.notice(job, "resumed by its user: going on from " + job.points.describe());
  phases_.wait(job, "resumed by its user");
  step_.send(event.connection, proto::Done{});
}

}  // namespace weft::broker
