#include "tests/support/memory_store.h"

#include <algorithm>

#include "broker/jobs/blobs.h"

namespace weft::test {

using namespace broker;  // NOLINT: its records

namespace {

tl::unexpected<Error> contradiction(const std::string& what) {
  return fail(ErrorCode::Internal, "a record that cannot be: " + what);
}

}  // namespace

Status MemoryStore::check(const Record& record) const {
  const auto job = [&](proto::JobNumber number) -> const StoredJob* {
    const auto at = state_.jobs.find(number);
    return at == state_.jobs.end() ? nullptr : &at->second;
  };
  if (const auto* admitted = std::get_if<PrincipalAdmitted>(&record)) {
    const auto token = tokens_.find(admitted->token);
    if (token == tokens_.end() || !token->second.uses_max || token->second.uses < *token->second.uses_max)
      return {};
    return fail(ErrorCode::PermissionDenied, "the token has no use left");
  }
  if (const auto* submitted = std::get_if<JobSubmitted>(&record))
    return job(submitted->job) == nullptr ? Status{} : contradiction("a job submitted twice");
  if (std::holds_alternative<PeerBanned>(record) || std::holds_alternative<PrincipalForgotten>(record))
    return {};
  const auto number = std::visit(
      [](const auto& r) -> proto::JobNumber {
        if constexpr (requires { r.job; })
          return r.job;
        else if constexpr (requires { r.status.job; })
          return r.status.job;
        else
          return 0;
      },
      record);
  const StoredJob* at = job(number);
  if (at == nullptr) return contradiction("there is no job " + std::to_string(number));
  if (const auto* event = std::get_if<proto::JobEvent>(&record))
    if (event->sequence != at->last_event + 1)
      return contradiction("event " + std::to_string(event->sequence) + " after " +
                           std::to_string(at->last_event));
  if (const auto* started = std::get_if<RunStarted>(&record))
    if (!started->plan || started->plan->stages.empty()) return contradiction("a plan without stages");
  if (const auto* issued = std::get_if<CommandIssued>(&record)) {
    if (!at->run || at->run->plan_version != issued->command.plan_version)
      return contradiction("a command of a plan that does not run");
    const uint64_t last = at->script.empty() ? issued->command.sequence - 1 : at->script.back().sequence;
    if (issued->command.sequence != last + 1) return contradiction("a command out of its turn");
  }
  return {};
}

void MemoryStore::apply(const Record& record) {
  if (const auto* admitted = std::get_if<PrincipalAdmitted>(&record)) {
    const auto known = std::find_if(state_.principals.begin(), state_.principals.end(), [&](const auto& p) {
      return p.principal == admitted->principal && p.role == admitted->role;
    });
    if (known != state_.principals.end()) {
      known->name = admitted->name;
      return;
    }
    state_.principals.push_back(*admitted);
    if (const auto token = tokens_.find(admitted->token); token != tokens_.end()) ++token->second.uses;
  } else if (const auto* submitted = std::get_if<JobSubmitted>(&record)) {
    StoredJob& job = state_.jobs[submitted->job];
    job.submitted = *submitted;
    job.last.job = submitted->job;
  } else if (const auto* changed = std::get_if<JobChanged>(&record)) {
    state_.jobs.at(changed->job).last = *changed;
    if (changed->state < proto::JobState::Finished) ended_.erase(changed->job);
  } else if (const auto* ended_job = std::get_if<JobEnded>(&record)) {
    ended_[ended_job->status.job] = {ended_job->submitter, ended_job->status};
  } else if (const auto* forgotten = std::get_if<PrincipalForgotten>(&record)) {
    std::erase_if(state_.principals, [&](const auto& p) {
      return p.principal == forgotten->principal && p.role == forgotten->role;
    });
  } else if (const auto* ban = std::get_if<PeerBanned>(&record)) {
    std::erase_if(state_.bans, [&](const PeerBanned& other) { return other.peer == ban->peer; });
    if (ban->banned) state_.bans.push_back(*ban);
  } else if (const auto* checkpoint = std::get_if<CheckpointCommitted>(&record)) {
    auto& checkpoints = state_.jobs.at(checkpoint->job).checkpoints;
    checkpoints.push_back(*checkpoint);
    if (checkpoints.size() > 2) checkpoints.erase(checkpoints.begin());
  } else if (const auto* prediction = std::get_if<PredictionCommitted>(&record)) {
    state_.jobs.at(prediction->job).predictions.push_back(prediction->report);
  } else if (const auto* result = std::get_if<ResultCommitted>(&record)) {
    state_.jobs.at(result->job).result = result->result;
  } else if (const auto* event = std::get_if<proto::JobEvent>(&record)) {
    StoredJob& job = state_.jobs.at(event->job);
    job.last_event = event->sequence;
    if (event->kind == proto::JobEventKind::Step) job.committed_step = event->step;
    if (event->kind == proto::JobEventKind::Evaluation) job.evaluated_step = event->step;
    events_[event->job].push_back(*event);
  } else if (const auto* started = std::get_if<RunStarted>(&record)) {
    StoredJob& job = state_.jobs.at(started->job);
    job.run = *started;
    job.microbatch_size = started->plan->training.microbatch_size;
    job.chosen = broker::chosen_by(*started->plan);
    job.script.clear();
  } else if (const auto* issued = std::get_if<CommandIssued>(&record)) {
    auto& script = state_.jobs.at(issued->job).script;
    script.push_back(issued->command);
    std::erase_if(script, [&](const auto& command) { return command.sequence <= issued->command.settled; });
  } else if (const auto* ended = std::get_if<RunEnded>(&record)) {
    StoredJob& job = state_.jobs.at(ended->job);
    job.run.reset();
    job.script.clear();
  }
}

// A refused admission refuses all of it. Anything else that cannot be is a mistake of the core: what is there
// then does not matter any more.
Status MemoryStore::append(std::span<const Record> records) {
  if (full_) return fail(ErrorCode::ResourceExhausted, "the disk is full");
  for (const Record& record : records)
    if (std::holds_alternative<PrincipalAdmitted>(record)) WEFT_TRY_STATUS(check(record));
  for (const Record& record : records) {
    WEFT_TRY_STATUS(check(record));
    apply(record);
  }
  return {};
}

Result<std::vector<proto::JobEvent>> MemoryStore::events(proto::JobNumber job, uint64_t from,
                                                         size_t count_max) {
  const auto& all = events_[job];  // sequence n is at n - 1
  const size_t first = std::min<uint64_t>(std::max<uint64_t>(from, 1) - 1, all.size());
  const size_t count = std::min(count_max, all.size() - first);
  return std::vector<proto::JobEvent>(all.begin() + static_cast<long>(first),
                                      all.begin() + static_cast<long>(first + count));
}

Result<std::optional<Store::EndedJob>> MemoryStore::ended_job(proto::JobNumber job) {
  const auto at = ended_.find(job);
  return at == ended_.end() ? std::optional<EndedJob>() : at->second;
}

Status MemoryStore::forget_job(proto::JobNumber job) {
  if (ended_.erase(job) == 0) return fail(ErrorCode::NotFound, "it has not ended");
  state_.jobs.erase(job);
  events_.erase(job);
  return {};
}

Result<std::vector<Store::EndedJob>> MemoryStore::ended_jobs(const std::optional<PeerId>& submitter,
                                                             proto::JobNumber before, size_t count_max) {
  std::vector<EndedJob> found;
  for (auto at = ended_.rbegin(); at != ended_.rend() && found.size() < count_max; ++at)
    if ((before == 0 || at->first < before) && (!submitter || at->second.submitter == *submitter))
      found.push_back(at->second);
  return found;
}

Result<std::optional<StoredJob>> MemoryStore::job(proto::JobNumber job) {
  const auto at = state_.jobs.find(job);
  return at == state_.jobs.end() ? std::optional<StoredJob>() : at->second;
}

Result<std::set<Digest>> MemoryStore::blobs_of_ended(int64_t) {
  std::set<Digest> blobs;
  for (const auto& [number, ended] : ended_) {
    const StoredJob& job = state_.jobs.at(number);
    add_blobs(*job.submitted.submission, BlobsOf::AllFiles, blobs);
    for (const CheckpointCommitted& checkpoint : job.checkpoints) add_blobs(checkpoint.tensors, blobs);
    for (const auto& report : job.predictions) add_blobs(report.outputs, blobs);
    if (job.result) add_blobs(job.result->tensors, blobs);
  }
  return blobs;
}

Result<std::optional<std::set<uint64_t>>> MemoryStore::revoked_tokens_if_changed() { return std::nullopt; }

Status MemoryStore::create_token(const StoredToken& token) {
  tokens_[token.id] = token;
  return {};
}

Result<std::optional<StoredToken>> MemoryStore::find_token(uint64_t id) {
  const auto at = tokens_.find(id);
  return at == tokens_.end() ? std::optional<StoredToken>() : at->second;
}

Result<std::vector<StoredToken>> MemoryStore::tokens() {
  std::vector<StoredToken> all;
  for (const auto& [id, token] : tokens_) all.push_back(token);
  return all;
}

Status MemoryStore::revoke_token(uint64_t id) {
  const auto at = tokens_.find(id);
  if (at == tokens_.end()) return fail(ErrorCode::NotFound, "there is no token " + std::to_string(id));
  at->second.revoked = true;
  return {};
}

}  // namespace weft::test
