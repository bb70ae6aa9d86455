#include "sim/disk.h"

#include "base/overloaded.h"
#include "broker/jobs/blobs.h"

#include <algorithm>

namespace weft::sim {

namespace {
constexpr Duration kBetweenSweeps = std::chrono::seconds(5);
}  // namespace

Status SimStore::append(std::span<const broker::Record> records) {
  if (full_) return fail(ErrorCode::ResourceExhausted, "the disk is full");
  for (const broker::Record& record : records) apply(record);
  return {};
}

void SimStore::apply(const broker::Record& record) {
  std::visit(
      Overloaded{
          [&](const broker::PrincipalAdmitted& r) { state_.principals.push_back(r); },
          [&](const broker::PrincipalForgotten& r) {
            std::erase_if(state_.principals, [&](const broker::PrincipalAdmitted& p) {
              return p.principal == r.principal && p.role == r.role;
            });
          },
          [&](const broker::JobSubmitted& r) { state_.jobs[r.job].submitted = r; },
          [&](const broker::JobChanged& r) { state_.jobs[r.job].last = r; },
          [&](const broker::CheckpointCommitted& r) {
            auto& checkpoints = state_.jobs[r.job].checkpoints;
            checkpoints.push_back(r);
            if (checkpoints.size() > 2) checkpoints.erase(checkpoints.begin());
          },
          [&](const broker::PredictionCommitted& r) { state_.jobs[r.job].predictions.push_back(r.report); },
          [&](const broker::ResultCommitted& r) { state_.jobs[r.job].result = r.result; },
          [&](const proto::JobEvent& r) {
            broker::StoredJob& job = state_.jobs[r.job];
            job.last_event = std::max(job.last_event, r.sequence);
            if (r.kind == proto::JobEventKind::Step)
              job.committed_step = std::max(job.committed_step, r.step);
            if (r.kind == proto::JobEventKind::Evaluation)
              job.evaluated_step = std::max(job.evaluated_step, r.step);
          },
          [&](const broker::RunStarted& r) {
            state_.jobs[r.job].run = r;
            state_.jobs[r.job].microbatch_size = r.plan->training.microbatch_size;
            state_.jobs[r.job].chosen = broker::chosen_by(*r.plan);
            state_.jobs[r.job].script.clear();
          },
          [&](const broker::CommandIssued& r) {
            auto& script = state_.jobs[r.job].script;
            script.push_back(r.command);
            std::erase_if(script, [&](const auto& c) { return c.sequence <= r.command.settled; });
          },
          [&](const broker::RunEnded& r) {
            state_.jobs[r.job].run.reset();
            state_.jobs[r.job].script.clear();
          },
          [&](const broker::JobEnded& r) {
            ended_[r.status.job] = {r.submitter, r.status};
          },
          [&](const broker::PeerBanned& r) { state_.bans.push_back(r); },
      },
      record);
}

Result<std::optional<broker::Store::EndedJob>> SimStore::ended_job(proto::JobNumber job) {
  const auto at = ended_.find(job);
  return at == ended_.end() ? std::optional<EndedJob>() : at->second;
}

Result<std::optional<broker::StoredJob>> SimStore::job(proto::JobNumber job) {
  const auto at = state_.jobs.find(job);
  return at == state_.jobs.end() ? std::optional<broker::StoredJob>() : at->second;
}

Result<std::set<Digest>> SimStore::blobs_of_ended(int64_t) {
  std::set<Digest> blobs;
  for (const auto& [number, ended] : ended_) {
    const broker::StoredJob& job = state_.jobs.at(number);
    for (const auto& checkpoint : job.checkpoints) broker::add_blobs(checkpoint.tensors, blobs);
    for (const auto& report : job.predictions) broker::add_blobs(report.outputs, blobs);
    if (job.result) broker::add_blobs(job.result->tensors, blobs);
  }
  return blobs;
}

Result<std::vector<proto::JobEvent>> SimStore::events(proto::JobNumber, uint64_t, size_t) {
  return std::vector<proto::JobEvent>{};
}

std::optional<int64_t> SimBlobs::size(const Digest& blob) const {
  if (const auto at = transient_.find(blob); at != transient_.end()) return at->second.size;
  if (const auto at = durable_.find(blob); at != durable_.end()) return at->second.size;
  return std::nullopt;
}

Status SimBlobs::put(const Digest& blob, int64_t size, bool durable, Instant now) {
  if (durable && durable_.contains(blob)) {
    durable_[blob].since = now;
    return {};
  }
  if (full_) return fail(ErrorCode::ResourceExhausted, "the disk is full");
  (durable ? durable_ : transient_)[blob] = {size, now};
  if (durable) transient_.erase(blob);
  return {};
}

bool SimBlobs::ask(const Digest& blob, Instant now) {
  bool there = false;
  for (auto* blobs : {&durable_, &transient_}) {
    const auto at = blobs->find(blob);
    if (at == blobs->end()) continue;
    at->second.since = now;
    there = true;
  }
  return there;
}

Status SimBlobs::make_durable(const Digest& blob, Instant now) {
  const auto at = transient_.find(blob);
  if (at == transient_.end()) return {};
  return put(blob, at->second.size, true, now);
}

Status SimBlobs::make_durable(const std::set<Digest>& blobs, Instant now) {
  for (const Digest& blob : blobs) {
    if (!has(blob)) return fail(ErrorCode::NotFound, "a blob is not here any more");
    WEFT_TRY_STATUS(make_durable(blob, now));
  }
  return {};
}

void SimBlobs::collect(const std::set<Digest>& kept, Instant now) {
  std::erase_if(durable_, [&](const auto& entry) {
    return !kept.contains(entry.first) && now - entry.second.since > collect_age_;
  });
}

void SimBlobs::keep_transient(const std::set<Digest>& kept, Instant now, Duration young) {
  if (now < next_sweep_) return;
  next_sweep_ = now + kBetweenSweeps;
  std::erase_if(transient_, [&](const auto& entry) {
    return !kept.contains(entry.first) && now - entry.second.since > young;
  });
}

}  // namespace weft::sim
