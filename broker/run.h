// One run of a job, from the moment its stages are assigned: which commands its stages get, when a step is
// committed, when a snapshot of all stages is whole, when it is finished. Pure: told what came in, it says
// what goes out.
//
// Stages carry their commands out strictly in order, so a run is a script: its commands, counted from 1.
// Where the norm of a step's gradient is needed, or steps that are not finite are skipped, stages say what
// came out before they update and are told what to do: all of them the same. What they are told follows from
// what they said alone, so that a broker that was restarted, to which they say it again, tells them the same.
//
// Steps are granted a few ahead of the last committed one, and at a border (evaluation, snapshot, the end)
// the border's commands follow the grant that ends there. No stage can be past a border that was not yet
// written when it was granted. A command is handed to the sink, to be made durable, before it goes to any
// stage: from what is left of the script a run can be resumed (resume()).
//
// Snapshots (rounds, run_rounds.cc): a Checkpoint is durable, a Replicate need not survive the broker. When
// all stages have reported one and its step is committed it is what the run goes back to if a peer is lost.
// There is at most one for a step. With small stages every step has one and is committed only with it
// (eager); else there is one every so many steps that it can be uploaded meanwhile, and at most one waits
// behind the one under way. Where peers stand by for all stages, copies that no commit waits for go to these
// directly: stages report them as soon as they are made, and a part is in when a peer has fetched it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "broker/claims.h"
#include "broker/events.h"
#include "broker/stalls.h"

namespace weft::broker {

// A step that is not finite, and with which the run does not go on.
struct Divergence {
  uint64_t step = 0;
  std::optional<uint32_t> stage{};  // whose numbers they are
  std::string what{};
  // It may be finite when it is done again, by somebody else; false: it was skipped, as so many before it.
  bool may_pass = true;
};

// What a run wants from the broker around it.
class RunSink {
 public:
  virtual ~RunSink() = default;
  virtual void issue(const proto::Command& command) = 0;  // durable before what is sent after it
  virtual void send_to_stage(uint32_t stage, proto::Message message) = 0;
  virtual void emit(proto::JobEvent event) = 0;  // job, sequence and time are filled in
  // A step that the event log holds already: it was done again, after the run had gone back.
  virtual void step_repeated(uint64_t step, double loss) = 0;
  virtual void commit_checkpoint(CheckpointCommitted checkpoint) = 0;
  virtual void commit_round(CheckpointCommitted round,
                            bool direct) = 0;  // one that need not survive the broker
  // Whether each stage has a peer that can fetch its copies from it.
  virtual bool copies_go_direct() const = 0;
  // Every stage has made its part of copy_to_fetch(), which may be another one now.
  virtual void direct_copy_changed() = 0;
  // From now on copies go to the broker.
  virtual void direct_copies_failed(const std::string& why) = 0;
  // A stage could not upload its part; the run goes on and tries again later.
  virtual void upload_failed(uint32_t stage, uint64_t step, const Error& error) = 0;
  virtual void commit_prediction(proto::PredictionReport report) = 0;
  virtual void compared(const proto::LinkComparison& comparison) = 0;
  virtual void finished(
      uint64_t step) = 0;  // the last checkpoint is of the last step, or all predictions are there
  virtual void stopped(uint64_t step) = 0;  // as asked, after a snapshot
  // No step from there on is committed.
  virtual void diverged(const Divergence& divergence) = 0;
};

struct RunOptions {
  uint32_t window_steps = 8;  // granted ahead of the last committed step
  uint32_t forward_chunk =
      8;  // microbatches of evaluation or prediction a command; two commands are under way
  Duration checkpoint_every_default = std::chrono::seconds(60);  // when the job names nothing
  bool replicates = true;  // false: no rounds but checkpoints; a lost peer takes its run back to the last
  uint64_t replication_rate = 12'500'000;  // bytes a second of one peer's uplink for snapshots; 0: no limit
  int64_t eager_bytes_max = 8 << 20;       // of the largest stage
  // Commands that are not settled: beyond, nothing is granted until a snapshot that takes long is in.
  size_t script_max = 1 << 16;
  Duration checkpoint_retry = std::chrono::seconds(10);  // of the last one, after it failed
  // For peers to fetch a direct copy, or ten times what one takes; then copies go to the broker.
  Duration direct_deadline = std::chrono::seconds(30);
  // Of a run over compressed links: what comparisons with dense ones may take of its time (0: there are
  // none), the first after so many steps.
  double compare_share = 0.02;
  uint64_t compare_after = 16;
};

// From where a run begins, and what was recorded of its job before.
struct RunBegin {
  uint64_t after_step = 0;                  // the state that its stages were loaded with
  uint64_t checkpointed = 0;                // the step of the newest checkpoint
  uint64_t recorded = 0;                    // Step events are there up to here
  uint64_t evaluated = 0;                   // Evaluation events
  std::map<std::string, double> metrics{};  // of the last evaluation
  uint32_t predicted = 0;                   // microbatches of which all predictions are there
  std::vector<proto::PredictionReport> predictions{};
};

// Dense bytes over those on the wire, of what codecs carry in training; 0: nothing has one.
double codec_ratio(const PlannedRun& plan);
// Bytes of one stage's state: parameters, their optimizer slots, running statistics.
int64_t state_bytes(const PlannedRun& plan, uint32_t stage);
int64_t largest_state_bytes(const PlannedRun& plan);
// What the slowest stage takes to copy its state at the rate that its peer is allowed, or else at the usual
// one (0: no limit).
double slowest_copy_seconds(const PlannedRun& plan, uint64_t usual_rate);

class Run {
 public:
  Run(proto::JobNumber job, proto::PlanVersion version, std::shared_ptr<const PlannedRun> plan,
      RunBegin begin, RunOptions options);

  // REQUIRES: every stage is ready. The first commands.
  void start(Instant now, RunSink& sink);
  // Instead of start(): the run goes on from what a broker before this one recorded. `script`: its commands
  // that were not settled, in order. No stage is there yet.
  void resume(const std::vector<proto::Command>& script);
  // A stage came back: it gets the commands after `last_sequence`, and the norms of steps under way.
  // InvalidArgument when it cannot have been given just these. What it reports again is dropped.
  Status on_resumed(Instant now, uint32_t stage, uint64_t last_sequence, RunSink& sink);

  // What a stage reports, in its peer's order. InvalidArgument when it cannot be: the peer breaks the
  // protocol.
  Status on_step_report(Instant now, uint32_t stage, const proto::StepReport& report, RunSink& sink);
  // `blobs_missing`: of the report's tensors, how many the broker has not, which a direct copy may.
  Status on_checkpoint_report(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                              uint32_t blobs_missing, RunSink& sink);
  Status on_evaluation_report(Instant now, uint32_t stage, const proto::EvaluationReport& report,
                              RunSink& sink);
  Status on_prediction_report(Instant now, uint32_t stage, const proto::PredictionReport& report,
                              RunSink& sink);
  Status on_comparison_report(Instant now, uint32_t stage, const proto::ComparisonReport& report,
                              RunSink& sink);
  // The oldest direct copy of which every stage has its part and that is not whole yet.
  std::optional<CheckpointCommitted> copy_to_fetch() const;
  // Somebody has fetched that stage's part of it.
  void on_fetched(Instant now, uint32_t stage, uint64_t step, RunSink& sink);
  // Nobody is there to fetch what is under way; and nobody can.
  void drop_direct(Instant now, RunSink& sink);
  void give_up_direct(Instant now, const Error& why, RunSink& sink);
  // The newest direct copy that is under way and of which somebody who is there has each stage's part.
  std::optional<CheckpointCommitted> newest_copy(
      const std::function<bool(uint32_t stage, uint64_t step)>& has) const;
  void on_tick(Instant now, RunSink& sink);
  // After a checkpoint of the last step granted; or, to go on with other peers, after any snapshot of it.
  void request_stop(Instant now, bool to_go_on, RunSink& sink);

  uint64_t committed_step() const { return committed_; }
  uint64_t granted_step() const { return granted_; }
  uint64_t evaluated_step() const { return evaluated_; }
  const std::map<std::string, double>& metrics() const { return metrics_; }
  uint64_t steps() const { return plan_->training.steps; }
  double last_loss() const { return last_loss_; }
  double samples_per_second() const {
    return commit_seconds_ > 0 ? plan_->training.batch_size / commit_seconds_ : 0;
  }
  const std::vector<proto::StageStatus>& stages() const { return stages_; }
  const PlannedRun& plan() const { return *plan_; }
  // When something last came in that brought the run forward: a step, a part of a snapshot, or the answer
  // to the oldest request of an evaluation or prediction.
  Instant last_progress() const { return last_progress_; }
  // What it waits for at the moment.
  Lack lack() const;
  // A snapshot is under way without which the run does not go on.
  bool waits_for_snapshot() const;
  // A microbatch of all stages over dense links is under way, which takes about so long.
  std::optional<Duration> comparing() const;
  const proto::LinkComparison& compared() const { return compared_; }
  bool training() const { return plan_->training.steps != 0; }
  uint64_t repeats_dropped() const { return repeats_; }  // reports of stages that had come back
  // Blobs of snapshots under way, which are not durable.
  void add_reported(std::vector<Digest>& blobs) const;
  // The rule for snapshots: one every so many steps; 0: none but checkpoints.
  uint64_t steps_between_rounds() const;
  bool is_eager() const;

 private:
  struct StepInProgress {
    std::vector<bool> squares_in, updated, positions_in;  // by stage
    std::vector<double> losses;
    std::vector<double> squares;       // by parameter of the whole graph
    bool statistics_diverged = false;  // some stage's
    bool norm_sent = false;
    double norm = 0;
    bool skip = false;
  };
  struct Round {
    uint64_t sequence = 0, step = 0;
    bool durable = false;
    bool gates = false;  // its step is committed only with it
    bool failed = false;
    bool direct = false;
    bool outlived = false;     // a stage came back to it: what it had uploaded may have gone with a broker
    std::vector<bool> made{};  // by stage: it has reported its part of a direct one
    Instant ready_at{};        // every stage had done its step
    Instant made_at{};         // every stage had made its part
    std::vector<bool> in;      // by stage
    std::vector<proto::TensorReference> tensors;
    std::optional<uint64_t> skipped_steps{};  // as the stages say, which have to agree
    bool is_whole() const;
    bool is_made() const;
    bool drop();  // whether it can go at once
  };
  struct Forward {  // an evaluation, or the prediction
    bool active = false;
    uint64_t step = 0;
    uint32_t commanded = 0;                            // microbatches
    uint32_t reported = 0;                             // all before it are complete
    std::vector<std::optional<double>> correct;        // by microbatch
    std::vector<std::optional<double>> loss, counted;  // by microbatch, each term of the loss
    std::vector<std::vector<bool>> outputs;            // prediction: by microbatch, which stages reported
    std::vector<uint32_t> reports;                     // prediction: by microbatch, how many are there
    std::vector<std::set<std::string>> names;  // prediction: by microbatch, of the outputs that are there
  };

  // The script (run_script.cc).
  void write(proto::Command command, RunSink& sink);
  void trim_script();
  bool is_settled(const proto::Command& command) const;
  void resume_forward(const proto::Command& command);
  bool may_repeat(uint32_t stage, uint64_t step);

  // Steps (run.cc).
  void advance(Instant now, RunSink& sink);
  void grant(Instant now, uint64_t step, RunSink& sink);
  uint64_t next_border() const;
  void continue_run(Instant now, RunSink& sink);
  void commit_steps(Instant now, RunSink& sink);
  Status take_squares(uint32_t stage, const proto::StepReport& report, StepInProgress& step) const;
  Status check_ledger(uint32_t stage, const proto::StepReport& report, StepInProgress& step) const;
  void send_norm(uint64_t number, StepInProgress& step, RunSink& sink);
  proto::GradientNorm norm_of(uint64_t number, const StepInProgress& step) const;
  void measure_step(uint64_t number, Instant now);
  void end_if_done(RunSink& sink);

  // Snapshots (run_rounds.cc).
  double step_time() const;  // seconds
  double round_interval() const;
  bool may_copy(uint64_t interval) const;
  uint64_t next_copy(uint64_t interval) const;
  void watch_copies(Instant now);
  void measure_round(const Round& round, Instant now);
  void write_snapshot(Instant now, bool durable, RunSink& sink);
  void write_snapshot_if_due(Instant now, RunSink& sink);
  void write_last_snapshot(Instant now, RunSink& sink);
  void complete_rounds(Instant now, RunSink& sink);
  void check_direct(Instant now, RunSink& sink);
  bool is_gated(uint64_t step) const;
  bool has_last_snapshot() const;
  bool needs_last_snapshot() const { return stopping_ || granted_ == plan_->training.steps; }

  // Compressed links beside dense ones (run_compare.cc).
  struct Comparison {
    uint64_t sequence = 0, step = 0;
    Instant began{};       // every stage had done that step
    std::vector<bool> in;  // by stage
    std::vector<double> losses;
    std::array<double, proto::kComparisonPasses> squares;
  };
  double comparison_cost() const;  // seconds
  void write_comparison_if_due(Instant now, RunSink& sink);
  void finish_comparison(Instant now, RunSink& sink);

  // Evaluation and prediction (run_forward.cc).
  bool evaluation_is_due(uint64_t step) const;
  void begin_evaluation(uint64_t step);
  void begin_prediction(const RunBegin& begin);
  void continue_forward(RunSink& sink);
  void finish_evaluation(RunSink& sink);
  uint64_t samples_of(uint32_t microbatch) const;

  proto::JobNumber job_;
  proto::PlanVersion version_;
  std::shared_ptr<const PlannedRun> plan_;
  std::vector<StageClaims> claims_;  // by stage
  RunOptions options_;
  int64_t largest_bytes_;              // of a stage's state
  double copy_seconds_;                // of the stage whose state takes longest at its rate
  std::deque<proto::Command> script_;  // not settled
  uint64_t sequence_ = 0;              // of the last command
  uint64_t granted_ = 0;               // Advance up to here was written
  uint64_t committed_ = 0;             // every stage has updated, and what gates it is in
  uint64_t recorded_ = 0;              // Step events
  uint64_t evaluated_ = 0;
  uint64_t checkpointed_ = 0;  // the step of the last committed checkpoint
  uint64_t recovery_ = 0;      // of the last whole snapshot
  bool recovery_is_direct_ = false, direct_failed_ = false;
  uint32_t direct_failures_ = 0;  // in a row
  uint64_t keep_from_ = 0;
  std::map<uint64_t, StepInProgress> steps_;
  std::map<uint64_t, Instant> granted_at_;  // by the step that a grant ends with
  std::deque<Round> rounds_;
  uint64_t snapshot_written_ = 0;  // of this step, the last one
  bool snapshot_written_durable_ = false;
  uint64_t snapshots_ = 0;  // written
  bool checkpoint_due_ = false;
  std::optional<Instant> retry_at_;
  Forward forward_;
  double codec_ratio_;
  uint64_t begun_after_;
  std::optional<Comparison> comparison_;  // under way
  double comparison_seconds_ = 0;         // the last one's; 0: not yet
  Instant compared_at_{};                 // or begun
  proto::LinkComparison compared_;
  bool stopping_ = false, moving_ = false, ended_ = false;
  Instant last_checkpoint_{}, last_commit_{}, last_progress_{}, last_updated_{};
  double step_seconds_ = 0;   // measured, smoothed; 0: not yet
  double round_seconds_ = 0;  // what the slowest upload of a round takes; the same
  Instant last_round_whole_{};
  std::optional<Instant> eager_again_at_;
  bool is_held_up_ = false;  // by copies that seem short, until then
  struct Watched {           // the last steps
    Instant since{};
    uint64_t steps = 0, waited = 0;  // after which copies stood in line
  } watched_;
  std::optional<double> eager_seconds_;  // of a window of steps that were, while it is tried without
  bool is_settling_ = false;
  Instant compare_again_at_{};
  uint64_t skipped_in_a_row_ = 0;  // steps, up to the last committed one
  double last_loss_ = 0;           // that was finite
  double commit_seconds_ = 0;      // between the commits of steps, smoothed
  std::map<std::string, double> metrics_;
  std::vector<proto::StageStatus> stages_;
  std::vector<uint64_t> repeats_until_;  // by stage: what it may report a second time, since it came back
  uint64_t repeats_ = 0;
};

}  // namespace weft::broker
