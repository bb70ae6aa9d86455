// Planning beside the broker's core. What reads what strangers wrote goes to processes of their own, a few of
// which work at a time: submissions are checked by one, on a thread of its own, so that none waits for
// somebody's plan; jobs are planned by one each, which is kept for the next time while there is room. A
// recovery in which only peers change needs no process and waits for nobody (place_again.h).
//
//   core --> check ---> 1 thread  --> a process that has no job
//       '--> plan ----> 3 threads --> the job's process; one of them for runs that go on
//       '--> place ---> 1 thread      (in the broker)
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "broker/events.h"
#include "broker/service/job_feeds.h"
#include "broker/service/plan_process.h"
#include "net/worker.h"
#include "storage/blob_store.h"

namespace weft::broker {

struct PlanningOptions {
  PlanProcessOptions process{};
  Duration plan_time_max = std::chrono::seconds(60), check_time_max = std::chrono::seconds(10);
  size_t working_max = 2;  // jobs that are planned at a time, beside one of a run that goes on
  // Processes, those that work among them; the least recently used one goes first, also while those that do
  // not work take more memory than one may.
  size_t kept_max = 8;
  // Submissions that wait to be checked, in all and of one connection, and the bytes of their messages.
  size_t checks_max = 64, checks_of_one_max = 4;
  size_t checks_size_max = size_t{64} << 20;
};

// Its functions return at once; what they begin calls `done` on a thread of this. All may be called on one
// thread only.
class Planning {
 public:
  // `blobs` and `feeds` outlive this.
  Planning(PlanningOptions options, storage::BlobStore& blobs, JobFeeds& feeds);
  ~Planning();  // ends what is under way, and drops what waits

  // Compresses and arithmetic of the reply. Errors: what is wrong with it; ResourceExhausted, too many wait.
  void check(CheckSubmission request, std::function<void(const CheckSubmission&, Result<PlanReply>)> done);
  void plan(StartPlanning request, std::function<void(Result<std::shared_ptr<const PlannedRun>>)> done);
  void reconsider(Reconsider request, std::function<void(Result<Reconsidered::Other>)> done);
  // Makes the job's feed known for a run that goes on after a restart.
  void open(proto::JobNumber job, proto::Encoded<proto::SubmitJob> submission, uint32_t microbatch_size,
            std::function<void(Status)> done);
  // The job is over: its process goes, its feed is forgotten and its files are removed.
  void end(proto::JobNumber job);

 private:
  using Process = std::unique_ptr<PlanProcess>;
  using Planned = Result<std::shared_ptr<const PlannedRun>>;
  struct Work {
    proto::JobNumber job = 0;
    bool is_urgent = false;  // of a run that goes on, or did
    std::function<void()> run{};
  };
  struct Kept {
    proto::JobNumber job = 0;  // 0: none yet
    Process process{};
  };

  void serve();
  void post(Work work);
  void finish(const Work& work);
  void forget(proto::JobNumber job, std::vector<Kept>& processes, std::filesystem::path& files)
      WEFT_REQUIRES(mutex_);
  void clear_away(std::vector<Kept> processes, std::filesystem::path files);
  std::filesystem::path folder_of(proto::JobNumber job) const;
  // Asks the job's process, starting one where there is none; 0: one that has no job.
  Result<PlanReply> ask(const StartPlanning& request, const PlanTaskAt& task);
  Result<Process> take(proto::JobNumber job);
  void give_back(proto::JobNumber job, Process process);
  std::vector<Kept> surplus() WEFT_REQUIRES(mutex_);
  Planned plan_anew(const StartPlanning& request);
  Status note_feed(proto::JobNumber job, const PlanReply& reply);

  const PlanningOptions options_;
  storage::BlobStore& blobs_;
  JobFeeds& feeds_;

  Mutex mutex_;
  Condition changed_;
  std::deque<Work> queue_ WEFT_GUARDED_BY(mutex_);
  std::set<proto::JobNumber> working_ WEFT_GUARDED_BY(mutex_);  // one at a time for each job
  size_t not_urgent_ WEFT_GUARDED_BY(mutex_) = 0;               // of these, those that are not urgent
  std::set<proto::JobNumber> ended_ WEFT_GUARDED_BY(mutex_);    // of those that are working
  std::map<proto::JobNumber, PlanProcess*> at_work_ WEFT_GUARDED_BY(mutex_);  // that are asked
  std::list<Kept> kept_ WEFT_GUARDED_BY(mutex_);                       // that nobody asks; the last used last
  std::set<proto::JobNumber> failed_to_open_ WEFT_GUARDED_BY(mutex_);  // whose Open failed
  uint64_t forgotten_ WEFT_GUARDED_BY(mutex_) = 0;
  bool stopping_ WEFT_GUARDED_BY(mutex_) = false;
  size_t checks_ WEFT_GUARDED_BY(mutex_) = 0, checks_size_ WEFT_GUARDED_BY(mutex_) = 0;
  std::map<ConnectionId, size_t> checks_of_ WEFT_GUARDED_BY(mutex_);

  // Last: joined before the rest goes, those that may wait for a process first.
  std::unique_ptr<net::Worker> ends_, places_;
  std::vector<std::thread> threads_;
  std::unique_ptr<net::Worker> checker_;
};

}  // namespace weft::broker
