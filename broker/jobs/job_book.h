// The jobs that have not ended, by number; what their users are told of them; and whose they are. A job ends
// here: with its last record it leaves memory and is the store's alone, so that no event costs more because
// many have ended.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "broker/jobs/blobs.h"
#include "broker/jobs/job.h"

namespace weft::broker {

class JobBook {
 public:
  explicit JobBook(Step& step) : step_(step) {}

  // Addresses stay as long as the job is there.
  const std::map<proto::JobNumber, Job>& jobs() const { return jobs_; }
  std::map<proto::JobNumber, Job>& jobs() { return jobs_; }
  Job* find(proto::JobNumber number);
  // Of a number that somebody serves: it has not ended.
  Job& at(proto::JobNumber number) { return jobs_.at(number); }

  Job& submit(const PeerId& submitter, proto::Encoded<proto::SubmitJob> submission);
  Job& load(const StoredJob& stored);
  void set_next(proto::JobNumber number) { next_ = number; }
  size_t count_of(const PeerId& submitter) const;

  void emit(Job& job, proto::JobEvent event);
  void notice(Job& job, std::string text);
  void set_state(Job& job, proto::JobState state, std::string reason);
  // Its newest copy, which is durable by now, is a checkpoint.
  void keep_round(Job& job);
  // Its last state; the job is there until remove_ended(), which records what is said of it from then on.
  void end(Job& job, proto::JobState state, const std::string& reason);
  void remove_ended(const Pool& pool);

  proto::JobStatus status_of(const Job& job, const Pool& pool) const;
  // REQUIRES: it has a checkpoint or a result.
  static proto::JobResult result_of(const Job& job);
  std::set<Digest> referenced_blobs() const;
  std::set<proto::JobNumber> numbers() const;
  // Of plans that go on or may go on, and who holds copies.
  std::set<PeerId> peers_needed() const;

 private:
  void begin_at(Job& job, const proto::Beginning& beginning);

  Step& step_;
  std::map<proto::JobNumber, Job> jobs_;
  proto::JobNumber next_ = 1;
  bool some_ended_ = false;
};

// Of a job that has a result, or goes by its newest checkpoint.
proto::JobResult result_of(const proto::SubmitJob& submission, proto::JobNumber number,
                           const std::optional<proto::JobResult>& result,
                           const CheckpointCommitted* checkpoint,
                           const std::vector<proto::PredictionReport>& predictions);

}  // namespace weft::broker
