// Internal to peer/machine: what a Peer knows. Every public call sets `now`, runs, and takes `out` away.
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
            const StageMachine::Options& options)
      : assignment(std::move(assigned)), generation(number), machine(assignment, options) {}

  std::shared_ptr<const proto::AssignStage> assignment;
  uint64_t generation = 0;
  StageMachine machine;
  BlobList tensors;
  bool runner_asked = false, links_up = false, ready = false, failed = false;
  std::optional<RunnerSize> runner;
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
  void probe(const proto::ProbeLink& link);
  void on_tick(Bytes memory_free);
  bool has_work() const { return stage && !stage->failed; }  // that would have to be handed over
  void settle_drain();  // asks to leave, or leaves, if that is wanted and possible
  std::optional<proto::StageHeld> holding() const;
  bool is_current(uint64_t generation) const { return stage && stage->generation == generation; }
  // Not current, or failed: what comes for it is of no use.
  bool is_at_work(uint64_t generation) const { return is_current(generation) && !stage->failed; }

  // The stage (loading.cc)
  void assign(const proto::AssignStage& assign);
  void release(const proto::ReleaseStage& release);
  void drop_stage();
  void begin_lending(const std::vector<Digest>& lends);
  void on_giving(const Digest& sha256, bool whole);
  void end_lending();
  void end_loading();
  void load_after_lending();
  void give_up();  // the broker is not expected back: everything is forgotten
  void make_runner_if_loaded();
  void report_ready();

  // What comes for its lists (blobs.cc)
  void fetch();
  void on_blob(const Digest& sha256, const Status& fetched);
  void on_arrived(const Digest& sha256, uint64_t size);
  void on_blob_failed(const Digest& sha256, const Error& error);
  void stand_by(const proto::StandBy& list);
  void tell_standing_by(const StandBys::List& list, const std::optional<Error>& failure = {});

  // What the peer offers (budget.cc)
  std::optional<int64_t> offered() const;  // bytes; nothing: without a limit
  std::optional<int64_t> room_on_host() const;
  int64_t programs_bytes() const;  // of the stage's executors
  bool shares_offer() const;       // one offer for programs and blobs
  size_t copies_that_fit() const;  // of the stage's state
  size_t copies_max() const;
  size_t copies_held() const;
  bool has_room_for_copy() const;
  void make_room_for_copy();
  std::optional<Error> exceeds_offer() const;
  std::optional<Error> tensors_exceed_offer() const;  // of the stage: wherever they are to lie

  // Reports, and what is uploaded for them (reports.cc)
  void report(uint64_t sequence, proto::Message message, const Task& task = {});
  void resume(const proto::ResumeStage& resume);
  void fail_stage(const Error& error, std::optional<plan::Seat> unreachable = {}, bool permanent = false,
                  bool diverged = false, uint64_t step = 0);
  void on_hashed(uint64_t generation, const Task& task, std::vector<proto::TensorReference> tensors);
  bool uploads_are_full() const;
  void start_uploads();
  void on_missing(uint64_t number, const Result<std::vector<Digest>>& missing);
  void on_stored(uint64_t number, const Digest& sha256, const Status& stored);
  void end_upload(Uploads::Done done);

  // Work (work.cc)
  void on_command(const proto::Command& command);
  void on_norm(const proto::GradientNorm& norm);
  bool on_tensor(const plan::Seat& from, const proto::TensorHeader& header);
  void ask_data();
  void on_data(const MicrobatchKey& key, const Result<uint64_t>& sample_position);
  void on_task_done(const Task& task, const Result<TaskOutcome>& outcome);
  void work();

  // The device (device.cc)
  void give(const Task& task);
  void lose_device(const Error& error);
  void let_device_finish();  // what it does for a stage that is no more
  void check_device();       // whether it is overdue, or has been for too long
  void step_away(const Error& late);
  void on_device(const Status& answered);

  bool anything_waits() const;  // for the end of a pause of transfers

  PeerOptions options;
  Session session;
  Instant now{};
  PeerEffects out;

  std::optional<HeldStage> stage;
  uint64_t generation = 0;
  std::optional<Instant> orphan_at;

  DeviceWatch watch;
  struct Overdue {
    Error error;
    Duration until{};  // of the watch's awake time
  };
  std::optional<Overdue> overdue;  // away from the broker until the device answers

  BlobShelf shelf;
  Snapshots snapshots{shelf};
  TransferPauses pauses;
  Uploads uploads{shelf, pauses};  // of the stage
  StandBys stand_bys;
};

}  // namespace weft::peer
