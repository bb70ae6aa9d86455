// Planning beside the broker's core. What reads what strangers wrote goes to processes of their own, a few of
// which work at a time: submissions are checked by one, on a thread of its own, so that none waits for
// somebody's plan; jobs are planned by one each, which is kept for the next time while there is room. A
// recovery in which only peers change needs no process and waits for nobody (place_again.h).
//
//   core --> check ---> 1 thread  --> a process that has no job
//       '--> plan ----> 2 threads --> the job's process
//       '--> place ---> 1 thread      (in the broker)
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "broker/events.h"
#include "broker/service/job_feeds.h"
#include "broker/service/plan_process.h"
#include "net/worker.h"
#include "storage/blob_store.h"

namespace weft::broker {

struct PlanningOptions {
  PlanProcessOptions process{};
  Duration plan_time_max = std::chrono::seconds(60), check_time_max = std::chrono::seconds(10);
  size_t working_max = 2;  // jobs that are planned at a time
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
  void open(proto::JobNumber job, proto::SubmitJob submission, uint32_t microbatch_size,
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
  void finish(proto::JobNumber job);
  void clear_away(proto::JobNumber job, std::vector<Kept> processes);
  std::filesystem::path folder_of(proto::JobNumber job) const;
  // Asks the job's process, starting one where there is none; 0: one that has no job.
  Result<PlanReply> ask(const StartPlanning& request, const PlanTaskAt& task);
  Result<Process> take(proto::JobNumber job);
  void give_back(proto::JobNumber job, Process process);
  std::vector<Kept> surplus();  // with mutex_ held
  Planned plan_anew(const StartPlanning& request);
  Status note_feed(proto::JobNumber job, const PlanReply& reply);

  const PlanningOptions options_;
  storage::BlobStore& blobs_;
  JobFeeds& feeds_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;                            // guarded by mutex_
  std::set<proto::JobNumber> working_;                // guarded by mutex_: one at a time for each job
  std::set<proto::JobNumber> ended_;                  // guarded by mutex_: of those that are working
  std::map<proto::JobNumber, PlanProcess*> at_work_;  // guarded by mutex_: processes that are asked
  std::list<Kept> kept_;                      // guarded by mutex_: that nobody asks; the last used last
  bool stopping_ = false;                     // guarded by mutex_
  size_t checks_ = 0, checks_size_ = 0;       // guarded by mutex_
  std::map<ConnectionId, size_t> checks_of_;  // guarded by mutex_

  // Last: joined before the rest goes, those that may wait for a process first.
  std::unique_ptr<net::Worker> ends_, places_;
  std::vector<std::thread> threads_;
  std::unique_ptr<net::Worker> checker_;
};

}  // namespace weft::broker
