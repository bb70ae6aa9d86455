// The runs that go on: what their stages say goes to the run, what the run wants goes to its stages and into
// the book, and who is late or slow is noticed. What becomes of a run is not decided here: it is left as a
// Verdict, which whoever places jobs takes before the step ends. A run with a verdict hears nothing any more.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "broker/jobs/job_book.h"
#include "broker/jobs/left_out.h"
#include "broker/jobs/run_deadlines.h"
#include "broker/jobs/run_records.h"
#include "broker/jobs/slow_stages.h"
#include "broker/options.h"

namespace weft::broker {

struct Verdict {
  enum class Kind {
    Finished,
    Stopped,   // after a snapshot, as it was asked to: by its user, or to go on with other peers
    Diverged,  // as `divergence` says
    Failed,    // because of `what`, which would come again
    Lost,      // `what`: back to its recovery point, with others for `excluded`
    Stalled,   // the same, with somebody else for who is to blame
    Late,      // a replica holds the others up, which go on without it where they can
  };
  proto::JobNumber job = 0;
  Kind kind = Kind::Lost;
  uint64_t step = 0;
  std::string what{};
  std::vector<PeerId> excluded{};
  std::optional<Divergence> divergence{};
};

// What a stage takes of its peer, as that has said: what others may have beside it.
void keep_memory(Pool& pool, Job& job, uint32_t stage, Bytes persistent, Bytes microbatch);

// Whether those who come can fetch from the stages what each replica has.
bool can_replicas_give(const PlannedRun& plan, const Pool& pool);

class Runs {
 public:
  Runs(const BrokerOptions& options, Step& step, Pool& pool, JobBook& book)
      : options_(options),
        step_(step),
        pool_(pool),
        book_(book),
        deadlines_(options),
        slow_stages_(options.slow, step, pool),
        records_(step, book) {}

  // Has the run of a job that runs hear of something, carries out what comes of it in the job's name, and
  // looks at what the run has come to. Errors: those of `what`, of which nothing comes then.
  Status tell(Job& job, const std::function<Result<RunEffects>(Run& run, Instant now)>& what);

  // REQUIRES: every stage is ready. From Loading to Running.
  void start(Job& job);
  // As a broker before this one left it: every stage has yet to resume. From Waiting to Running.
  void resume(Job& job, Crew crew, const StoredJob& stored);
  // After a snapshot; `to_go_on`: with other peers.
  void request_stop(Job& job, bool to_go_on);

  // The peer was lost, or is late. Whether the run goes on without its replica, until the others have agreed;
  // then whoever has a part in that and is there is let go, and told why.
  bool leave_out(Job& job, const Peer& peer, const std::string& why);

  // The job and stage that a peer speaks of; nothing when it is of a plan that is no more, or not the peer's.
  struct Place {
    Job* job = nullptr;
    uint32_t stage = 0;
  };
  std::optional<Place> place_of(const Peer& peer, proto::JobNumber run, proto::PlanVersion version);

  // What a stage says of the run. What it says before it has resumed is of no use: it says it again then.
  // Errors: InvalidArgument, the peer breaks the protocol.
  // `blobs_missing`: as of Received.
  Status on_report(Peer& peer, const proto::Message& message, uint32_t blobs_missing);
  Status on_stage_resumed(Peer& peer, const proto::StageResumed& resumed);
  // The job of a stage that has been given more than this broker remembers: it was restarted with an older
  // copy of its records. Nothing: it has not.
  Job* find_ahead(const Peer& peer, const proto::StageResumed& resumed);
  // Those of the stages that the peer holds still whose runs go on with it.
  std::vector<Job*> jobs_held(const PeerId& peer, const std::vector<proto::StageHeld>& held);
  void ask_to_resume(Job& job, Peer& peer);
  void on_relay_waiting(const proto::Secret& ticket);

  // What a peer says of its stage's work. Nothing: the stage is not found to be slow.
  std::optional<SlowStage> on_work(Peer& peer, const proto::StageWork& work);
  // And of what its stage saves.
  void on_saving(const Peer& peer, const proto::StageSaving& saving);

  // Deadlines of loading and running.
  void check_progress();

  std::vector<Verdict> take_verdicts() { return std::exchange(verdicts_, {}); }

 private:
  // What came of one tell().
  struct Outcome {
    bool came_forward = false;  // also without a step
    std::optional<Verdict> verdict{};
  };
  void carry_out(Job& job, RunEffects effects, Outcome& outcome);
  void carry_out_one(Job& job, RunEffect& effect, Outcome& outcome);
  void issue(Job& job, const proto::Command& command);
  void send_to_stage(Job& job, uint32_t stage, proto::Message message);
  void look_at(Job& job, uint64_t step_before, uint64_t repeats_before, Outcome& outcome);
  void give_verdict(Job& job, Verdict verdict);
  void note_service(Job& job);

  const BrokerOptions& options_;
  Step& step_;
  Pool& pool_;
  JobBook& book_;
  const RunDeadlines deadlines_;
  SlowStages slow_stages_;
  RunRecords records_;
  std::vector<Verdict> verdicts_;
};

}  // namespace weft::broker
