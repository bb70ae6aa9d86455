// Internal to peer/machine: what a Peer knows. Every public call sets `now`, runs, and takes `out` away.
//
// A stage is handed on by reference: it stays where it is, failed perhaps, until drop_stage().
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "peer/machine/blob_shelf.h"
#include "peer/machine/device_watch.h"
#include "peer/machine/peer.h"
#include "peer/machine/report_log.h"
#include "peer/machine/stand_bys.h"
#include "peer/machine/transfer_pauses.h"
#include "peer/machine/uploads.h"

namespace weft::peer {

struct HeldStage {
  HeldStage(std::shared_ptr<const proto::AssignStage> assigned, uint64_t number,
            const StageMachine::Options& options, Uploads of_stage)
      : assignment(std::move(assigned)),
        generation(number),
        machine(assignment, options),
        uploads(std::move(of_stage)) {}

  const std::shared_ptr<const proto::AssignStage> assignment;
  const uint64_t generation;
  StageMachine machine;
  Uploads uploads;
  BlobList tensors;
  bool runner_asked = false, links_up = false, ready = false, failed = false;
  bool load_asked = false,
       is_loaded = false;  // of a follower, whose runner is there before what it begins with
  std::optional<RunnerSize> runner;
  bool is_spoilt = false;                // a task of its has failed
  std::optional<uint64_t> taken_from;    // generation of whose runner it has
  int64_t state_bytes = 0;               // of a copy of what it trains
  std::vector<WantedBlob> until_loaded;  // named until the runner is being made of them
  std::vector<WantedBlob> lent;          // named for others to fetch, until the first command
  // The runner comes when these have been fetched, or nobody has asked for any of them for a while.
  std::multiset<Digest> to_lend;
  std::optional<Instant> lends_until;
  bool is_heard = true;  // the broker takes its reports now: it assigned or resumed it on this connection

  struct Data {
    bool asked = false;
    uint32_t attempts = 0;
  };
  std::map<MicrobatchKey, Data> data;  // wanted and not here
  ReportLog reports;

  proto::JobNumber run() const { return assignment->run; }
  bool follows() const { return is_follower(*assignment) && !is_loaded; }
  bool trains() const { return ready && !failed; }
  template <typename M>
  bool is_of(const M& message) const {
    return message.run == assignment->run && message.plan_version == assignment->plan_version;
  }
};

struct Peer::State {
  explicit State(PeerOptions given)
      : options(std::move(given)),
        session(options.session),
        pauses(options.transfer_attempts_max, options.transfer_pause),
        stand_bys(shelf, options.bounds.stand_by_runs) {}

  // The broker (peer.cc)
  void apply(SessionEffects effects);
  void tell(proto::Message message);
  void say(std::string line) { out.push_back(Say{std::move(line)}); }
  void on_broker_came();
  void on_broker_went(const std::string& why);
  void on_message(const proto::Message& message);
  void on_invitation(const proto::RelayInvitation& invitation);
  bool may_measure() const;
  void probe(const proto::ProbeLink& link);
  void on_tick(Bytes memory_free);
  void request_drain();
  bool has_work() const;   // that would have to be handed over
  bool all_heard() const;  // of the stages: the broker takes their reports now
  void settle_drain();     // asks to leave, or leaves, if that is wanted and possible
  std::vector<proto::StageHeld> holding() const;

  // The stages held (loading.cc). By the number that the shell hands back; of a message's run and plan.
  HeldStage* find(uint64_t generation);
  // Not failed: what comes for others is of no use.
  HeldStage* find_at_work(uint64_t generation);
  HeldStage* find_of_run(proto::JobNumber run);
  template <typename M>
  HeldStage* find_of(const M& message) {
    HeldStage* stage = find_of_run(message.run);
    return stage != nullptr && stage->is_of(message) ? stage : nullptr;
  }

  void assign(const proto::AssignStage& assign);
  void make_room_for_stage(proto::JobNumber run);
  void release(const proto::ReleaseStage& release);
  void drop_stage(HeldStage& stage);
  void drop_stages();

  // Runners that wait for the next plan (parking.cc)
  void park_or_drop(HeldStage& stage);
  void drop_parked();
  std::optional<uint64_t> take_parked(HeldStage& stage);  // its generation
  void on_earlier_task(uint64_t of_generation, const Result<TaskOutcome>& outcome);
  void cancel_unwanted(HeldStage& stage);

  void begin_lending(HeldStage& stage);
  void on_giving(const Digest& sha256, bool whole);
  void end_lending(HeldStage& stage);
  void end_loading(HeldStage& stage);
  void load_after_lending(HeldStage& stage);
  void give_up();  // what the broker has not come back for is forgotten
  void make_runner_if_loaded(HeldStage& stage);
  void on_runner_made(uint64_t generation, const Result<RunnerSize>& made);
  void load_follower(HeldStage& stage);
  void report_ready(HeldStage& stage);
  void tell_ready(const HeldStage& stage);
  Snapshots& snapshots_of(proto::JobNumber run);
  void forget_snapshots(proto::JobNumber run);
  void retire_snapshots(proto::JobNumber run);
  void forget_retired();
  void make_room_of_retired(const proto::StandBy& list);

  // What comes for its lists (blobs.cc)
  void fetch();
  void on_blob(const Digest& sha256, const Status& fetched);
  void on_arrived(const Digest& sha256, uint64_t size);
  void on_blob_failed(const Digest& sha256, const Error& error);
  void stand_by(const proto::StandBy& list);
  void tell_standing_by(const StandBys::List& list, const std::optional<Error>& failure = {},
                        const std::optional<Digest>& damaged = {});

  // What the peer offers (budget.cc)
  std::optional<int64_t> offered() const;  // bytes; nothing: without a limit
  std::optional<int64_t> room_on_host() const;
  int64_t programs_bytes() const;  // of the stages' executors
  int64_t persistent_bytes_of(const RunnerSize& size) const;
  int64_t runners_on_host() const;
  bool shares_offer() const;                             // one offer for programs and blobs
  size_t copies_that_fit(const HeldStage& stage) const;  // of its state
  size_t copies_max(const HeldStage& stage) const;
  size_t copies_held(const HeldStage& stage) const;
  bool has_room_for_copy(const HeldStage& stage) const;
  void make_room_for_copy(HeldStage& stage);
  std::optional<Error> exceeds_offer(const HeldStage& stage) const;
  std::optional<Error> tensors_exceed_offer(const HeldStage& stage) const;  // wherever they are to lie

  // Reports, and what is uploaded for them (reports.cc)
  void report(HeldStage& stage, uint64_t sequence, proto::Message message, const Task& task = {});
  void resume(const proto::ResumeStage& resume);
  struct Cause {
    std::optional<plan::Seat> unreachable{};
    bool permanent = false;  // whoever takes the stage would fail as well
    bool diverged = false;
    uint64_t step = 0;                // in which it diverged
    std::optional<Digest> damaged{};  // a blob that came with other bytes
  };
  void fail_stage(HeldStage& stage, const Error& error) { fail_stage(stage, error, {}); }
  void fail_stage(HeldStage& stage, const Error& error, const Cause& cause);
  void on_hashed(uint64_t generation, const Task& task, std::vector<proto::TensorReference> tensors);
  bool uploads_are_full(const HeldStage& stage) const;
  void start_uploads();
  void on_missing(uint64_t number, const Result<std::vector<Digest>>& missing);
  void on_stored(uint64_t number, const Digest& sha256, const Status& stored);
  void on_sent(uint64_t number, const Digest& sha256, uint64_t bytes);
  std::optional<proto::StageSaving> saving() const;
  HeldStage* uploader(uint64_t number);
  void end_upload(HeldStage& stage, Uploads::Done done);

  // Work (work.cc)
  void on_command(const proto::Command& command);
  void on_norm(const proto::GradientNorm& norm);
  bool on_tensor(HeldStage& stage, const plan::Seat& from, const proto::TensorHeader& header);
  void on_request(const proto::ServeRequest& request);
  void on_cancel(const proto::CancelRequest& cancel);
  template <typename M>
  void pass_request(const M& message, Result<bool> (*take)(ServeScript&, Instant, const M&));
  void tell_served(HeldStage& stage);
  void serve_on_tick(HeldStage& stage);
  void ask_data();
  void on_data(HeldStage& stage, const MicrobatchKey& key, const Result<uint64_t>& sample_position);
  void on_task_done(uint64_t generation, const Task& task, const Result<TaskOutcome>& outcome);
  void work(HeldStage& stage);

  // The device (device.cc)
  void give(const HeldStage& stage, const Task& task);
  void lose_device(const Error& error);
  void let_device_finish(const HeldStage& stage);  // what it does for a stage that is no more
  void check_device();                             // whether it is overdue, or has been for too long
  void step_away(const Error& late);
  void on_device(const Status& answered);

  bool anything_waits() const;  // for the end of a pause of transfers

  PeerOptions options;
  Session session;
  Instant now{};
  PeerEffects out;

  struct Parked {
    std::shared_ptr<const proto::AssignStage> assignment;
    uint64_t generation = 0;
    RunnerSize size;
    std::optional<ServeRequests> requests;
    Instant until{};
  };
  std::map<uint64_t, HeldStage> stages;  // by generation: the oldest first
  std::optional<Parked> parked;
  uint64_t generation = 0;                // of the newest
  std::multiset<Digest> given_meanwhile;  // to others, whole, before a stage was told to lend it
  std::optional<Instant> orphan_at;

  DeviceWatch watch;
  struct Overdue {
    Error error;
    Duration until{};  // of the watch's awake time
  };
  std::optional<Overdue> overdue;  // away from the broker until the device answers

  BlobShelf shelf;
  std::map<proto::JobNumber, Snapshots> snapshots;  // also of runs whose stage has gone
  struct Retired {
    proto::JobNumber run{};
    Instant until{};
  };
  std::optional<Retired> retired;  // whose run has ended: it may be served next
  TransferPauses pauses;
  uint64_t uploads_numbered = 0;  // of all stages
  StandBys stand_bys;
};

}  // namespace weft::peer
