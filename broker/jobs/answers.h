// What users are told of jobs that have ended, out of the store. Nobody but the job's submitter, or an admin,
// learns that it is there.
#pragma once

#include "broker/events.h"
#include "broker/store.h"

namespace weft::broker {

// GetJob, GetResult, StopJob and RemoveJob of a job that is not open: JobStatus, JobResult, Done or Refusal.
proto::Message answer_from_store(Store& store, const AnswerFromStore& question);
// Of a job that serves and was never to have one.
proto::Refusal no_result_of_served(proto::JobNumber job);
// JobList or Refusal.
proto::Message list_jobs(Store& store, SendJobs&& request);
// To go on with it, once it has ended. Errors: NotFound; InvalidArgument: it is finished.
Result<std::shared_ptr<const StoredJob>> reopen(Store& store, const ReopenJob& request);
// Whether events of the job may be read: of one that is open, or has ended.
bool may_read(const std::optional<PeerId>& whose, const PeerId& submitter);
// Whose job it is; nothing: there is none.
Result<std::optional<PeerId>> submitter_of(Store& store, proto::JobNumber job);

}  // namespace weft::broker
