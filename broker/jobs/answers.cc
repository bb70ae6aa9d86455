#include "broker/jobs/answers.h"

#include <algorithm>

#include "broker/jobs/job_book.h"

namespace weft::broker {

namespace {
Error no_such_job(proto::JobNumber job) {
  return {ErrorCode::NotFound,
          "there is no job " + std::to_string(job) + " of yours here: weft jobs lists them"};
}

proto::Refusal refusal(const Error& error) { return {.code = error.code, .message = error.message}; }
}  // namespace

bool may_read(const std::optional<PeerId>& whose, const PeerId& submitter) {
  return !whose || *whose == submitter;
}

Result<std::optional<PeerId>> submitter_of(Store& store, proto::JobNumber job) {
  WEFT_TRY(const auto stored, store.job(job));
  if (!stored) return std::nullopt;
  return stored->submitted.submitter;
}

proto::Refusal no_result_of_served(proto::JobNumber job) {
  return {.code = ErrorCode::InvalidArgument,
          .message = "job " + std::to_string(job) + " serves a model: it has no result"};
}

proto::Message answer_from_store(Store& store, const AnswerFromStore& question) {
  if (const auto* get = std::get_if<proto::GetResult>(&question.request)) {
    const auto job = store.job(get->job);
    if (!job) return refusal(job.error());
    if (!*job || !may_read(question.whose, (*job)->submitted.submitter))
      return refusal(no_such_job(get->job));
    const StoredJob& stored = **job;
    if (stored.result || !stored.checkpoints.empty())
      return result_of(*stored.submitted.submission, get->job, stored.result,
                       stored.checkpoints.empty() ? nullptr : &stored.checkpoints.back(), stored.predictions);
    if (!stored.submitted.submission->serves.empty()) return no_result_of_served(get->job);
    return proto::Refusal{.code = ErrorCode::NotFound,
                          .message = "job " + std::to_string(get->job) + " is " +
                                     std::string(to_string(stored.last.state)) +
                                     " and has no checkpoint: " + stored.last.reason};
  }
  const auto* status = std::get_if<proto::GetJob>(&question.request);
  const auto* stop = std::get_if<proto::StopJob>(&question.request);
  const auto* remove = std::get_if<proto::RemoveJob>(&question.request);
  const proto::JobNumber number = status != nullptr   ? status->job
                                  : stop != nullptr   ? stop->job
                                  : remove != nullptr ? remove->job
                                                      : 0;
  const auto ended = store.ended_job(number);
  if (!ended) return refusal(ended.error());
  if (!*ended || !may_read(question.whose, (*ended)->submitter)) return refusal(no_such_job(number));
  if (stop != nullptr) return proto::Done{};
  if (remove != nullptr) {
    const Status forgotten = store.forget_job(number);
    return forgotten ? proto::Message(proto::Done{}) : refusal(forgotten.error());
  }
  return (*ended)->status;
}

proto::Message list_jobs(Store& store, SendJobs&& request) {
  const auto ended = store.ended_jobs(request.whose, request.before, request.count + size_t{1});
  if (!ended) return refusal(ended.error());
  proto::JobList list{.jobs = std::move(request.open)};
  for (const Store::EndedJob& job : *ended) list.jobs.push_back(job.status);
  std::sort(list.jobs.begin(), list.jobs.end(), [](const auto& a, const auto& b) { return a.job > b.job; });
  list.more = list.jobs.size() > request.count;
  if (list.more) list.jobs.resize(request.count);
  return list;
}

Result<std::shared_ptr<const StoredJob>> reopen(Store& store, const ReopenJob& request) {
  WEFT_TRY(auto job, store.job(request.job));
  if (!job || !may_read(request.whose, job->submitted.submitter)) return fail(no_such_job(request.job));
  if (job->last.state == proto::JobState::Finished)
    return fail(ErrorCode::InvalidArgument,
                "job " + std::to_string(request.job) + " is finished: weft fetch gets what it learnt");
  if (job->last.state < proto::JobState::Finished) return fail(no_such_job(request.job));  // being opened
  return std::make_shared<const StoredJob>(std::move(*job));
}

}  // namespace weft::broker
