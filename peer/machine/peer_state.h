// Internal to peer/machine: what a Peer knows. Every public call sets `now`, runs, and takes `out` away.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "peer/machine/blob_shelf.h"
#include "peer/machine/peer.h"

namespace weft::peer {

struct StandByList {
  uint64_t step = 0, rate = 0;
  BlobList blobs;
};
struct StandByRun {
  std::optional<StandByList> complete, loading;
};

// What a snapshot or a segment's predictions gave, on its way to the broker: waits (number 0), is offered,
// and then put.
struct Upload {
  Task task{};
  std::vector<proto::TensorReference> tensors{};
  std::vector<WantedBlob> blobs{};  // of the tensors, each once
  uint64_t number = 0;
  std::set<Digest> to_put{};
  uint32_t attempts = 0;

  bool is_snapshot() const { return task.kind == TaskKind::Snapshot; }
};

struct KeptReport {
  uint64_t sequence = 0;  // of the command that it answers; kNeverSettled: while the stage is held
  Task task;              // of a CheckpointReport
  proto::Message message;
  static constexpr uint64_t kNeverSettled = UINT64_MAX;
};

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
  int64_t state_bytes = 0;  // of a copy of what it trains
  bool is_heard = true;     // the broker takes its reports now: it assigned or resumed it on this connection

  struct Data {
    bool asked = false;
    uint32_t attempts = 0;
  };
  std::map<MicrobatchKey, Data> data;  // wanted and not here
  std::deque<KeptReport> reports;
  std::deque<Upload> uploads;
  size_t hashing = 0;  // snapshots whose hashes are awaited

  template <typename M>
  bool is_of(const M& message) const {
    return message.run == assignment->run && message.plan_version == assignment->plan_version;
  }
};

struct Peer::State {
  explicit State(PeerOptions given) : options(std::move(given)), session(options.session) {}

  // The broker (peer.cc)
  void apply(SessionEffects effects);
  void tell(proto::Message message) { out.push_back(TellBroker{std::move(message)}); }
  void say(std::string line) { out.push_back(Say{std::move(line)}); }
  void on_broker_came();
  void on_broker_went(const std::string& why);
  void on_message(const proto::Message& message);
  void on_tick(Bytes memory_free);
  void settle_drain();  // asks to leave, or leaves, if that is wanted and possible
  std::optional<proto::StageHeld> holding() const;
  bool is_current(uint64_t generation) const { return stage && stage->generation == generation; }
  // Not current, or failed: what comes for it is of no use.
  bool is_at_work(uint64_t generation) const { return is_current(generation) && !stage->failed; }

  // The stage (loading.cc)
  void assign(const proto::AssignStage& assign);
  void release(const proto::ReleaseStage& release);
  void drop_stage();
  void give_up();  // the broker is not expected back: everything is forgotten
  void make_runner_if_loaded();
  void report_ready();

  // What comes for its lists (blobs.cc)
  void forget_unnamed();
  void fetch();
  void on_blob(const Digest& sha256, const Status& fetched);
  void on_arrived(const Digest& sha256, uint64_t size);
  void on_blob_failed(const Digest& sha256, const Error& error);
  // After so many attempts that failed: whether another one makes sense, and then when.
  bool try_again(uint32_t attempts, ErrorCode code);

  // What the peer offers (budget.cc)
  std::optional<int64_t> offered() const;  // bytes; nothing: without a limit
  std::optional<int64_t> room_on_host() const;
  int64_t programs_bytes() const;  // of the stage's executors
  size_t copies_max() const;       // of the stage's state
  std::optional<Error> exceeds_offer() const;

  // Stand-by (stand_by.cc)
  void stand_by(const proto::StandBy& list);
  void forget_stand_by(proto::JobNumber run);
  void complete_if_here(proto::JobNumber run);

  // Uploads (uploads.cc)
  void on_hashed(uint64_t generation, const Task& task, std::vector<proto::TensorReference> tensors);
  void queue_upload(const Task& task, std::vector<proto::TensorReference> tensors);
  void start_uploads();
  void finish_upload(uint64_t number, const std::optional<Error>& failure = {});
  void on_upload_failed(Upload& upload, const Error& error);
  Upload* find_upload(uint64_t number);
  void drop_settled_uploads();
  bool uploads_are_full() const;
  bool may_copy() const;
  void on_missing(uint64_t number, const Result<std::vector<Digest>>& missing);
  void on_uploaded(uint64_t number, const Digest& sha256, const Status& stored);

  // Reports (reports.cc)
  void report(uint64_t sequence, proto::Message message, const Task& task = {});
  void trim_reports();
  void resume(const proto::ResumeStage& resume);
  void fail_stage(const Error& error, std::optional<uint32_t> unreachable = {}, bool permanent = false);

  // Work (work.cc)
  void on_command(const proto::Command& command);
  void on_norm(const proto::GradientNorm& norm);
  bool on_tensor(uint32_t from_stage, const proto::TensorHeader& header);
  void ask_data();
  void on_data(const MicrobatchKey& key, const Result<uint64_t>& sample_position);
  void on_task_done(const Task& task, const Result<TaskOutcome>& outcome);
  void work();

  bool anything_waits() const;  // for the end of a pause of transfers

  PeerOptions options;
  Session session;
  Instant now{};
  PeerEffects out;

  std::optional<HeldStage> stage;
  uint64_t generation = 0;
  std::optional<Instant> orphan_at;

  BlobShelf shelf;
  Snapshots snapshots{shelf};
  Instant transfers_paused_until{};

  std::map<proto::JobNumber, StandByRun> stand_bys;
  uint64_t last_upload = 0;
};

}  // namespace weft::peer
