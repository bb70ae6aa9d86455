// A whole peer but for its sockets, disk, threads and arithmetic: its standing with the broker (session.h),
// the stage it loads and runs (stage.h), the snapshots it keeps and uploads, the tensors it holds for a stage
// that it may have to take over, and what it does while its broker is away. Pure: a shell (peer/service, or
// the simulator) tells it what happened and carries its effects out, in order.
//
// The machine holds no tensor. The shell keeps bytes by SHA-256 (fetched, or copied by a snapshot) until it
// is told to forget them, and tensors of a stage that works by the machine's keys.
//
// A peer may hold several stages, of different runs (Bounds::stages). What begins with a generation belongs
// to one of them: the shell hands the number back, and what comes for a stage that has gone is dropped here.
// They share the device, which does the tasks of each in the order in which they were handed out, the memory
// offered and the blobs. A heartbeat has room for the work of one, the oldest that trains, and for the
// checkpoint of one.
//
// When the broker is lost the stage goes on with the commands it has, keeps what it could not report, and
// asks again for what it was fetching or uploading once the broker has answered ResumeStage. Not before
// `orphan_deadline` has passed, or the broker has answered with anything else, is the stage given up.
//
// A served model's runner is kept for a while when its stage is released, or assigned anew (parking.cc):
// where somebody else's peer was lost the same stage soon comes back, and what it keeps is still worth
// something.
//
// A device that is gone (DeviceLost) takes the peer with it: it fails its stage and leaves, waiting for
// nothing. One that does not answer (device_watch.h) takes the stage and the connection; the peer comes back
// if the device does within `device_patience`.
//
// Bounds: PeerOptions::Bounds, and those of stage.h. No queue is longer; what is beyond is refused, waits, or
// fails the stage, as said there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "peer/machine/session.h"
#include "peer/machine/stage.h"
#include "proto/messages.h"

namespace weft::peer {

struct PeerOptions {
  struct Bounds {
    size_t stages = 1;               // held; beyond: the oldest gives way
    size_t reports = 16384;          // kept until they are settled; beyond: the stage fails
    size_t snapshots = 8;            // copies of a state; beyond: the oldest but one is forgotten
    size_t copies_fit = SIZE_MAX;    // the most that fit at once, where memory says more; at least 1
    size_t snapshot_uploads = 4;     // not through; with as many the stage starts no task
    size_t prediction_uploads = 64;  // likewise
    size_t stand_by_runs = 16;       // beyond: not stood by for; nor is what the memory offered cannot hold
  };
  SessionOptions session;
  StageMachine::Options stage;
  Duration orphan_deadline = std::chrono::minutes(10);
  Duration retired_deadline = std::chrono::minutes(5);  // what a run learnt is kept so long after its end
  // How long a device that was overdue is waited for; then the peer leaves.
  Duration device_patience = std::chrono::minutes(5);
  // How long a served model's runner is kept for the next plan to take it over.
  Duration park_for = std::chrono::seconds(30);
  uint32_t fetches_at_once = 8;
  // Of one blob, upload or microbatch, while the broker is there, with pauses that double in between.
  uint32_t transfer_attempts_max = 5;
  Duration transfer_pause = std::chrono::milliseconds(250);
  Bounds bounds{};
};

// ---- effects, beside ConnectToBroker, DropBroker, TellBroker, Leave and Say of session.h

// Connections to the stage's neighbours, all that the assignment names. Answer: on_links_up, on_link_failed.
struct OpenLinks {
  uint64_t generation = 0;
  std::shared_ptr<const proto::AssignStage> assignment;
};
struct CloseLinks {
  uint64_t generation = 0;
};
struct InviteLink {  // somebody waits at the relay
  proto::Secret ticket{};
};
// The link to a peer is measured; OpenLinks ends that. Answer: on_probed.
struct Probe {
  proto::ProbeLink link{};
};
// The bytes of a blob into the shell's memory, at once or within `rate` bytes a second (0: no limit). Asked
// for again without a limit, it is needed at once. From the broker, or from the peer that is named; then
// `base` is an earlier copy of the same tensor, which the shell has. Answer: on_blob.
struct FetchBlob {
  Digest sha256{};
  uint64_t rate = 0;
  uint64_t size = 0;  // as its tensor is described; other bytes are of no use
  std::shared_ptr<const proto::BlobSource> source{};
  std::optional<Digest> base{};
};
struct ForgetBlobs {
  std::vector<Digest> blobs;
};
// Executors for the stage, from blobs that are in memory; a follower's without any. Answer: on_runner_made.
struct MakeRunner {
  uint64_t generation = 0;
  std::shared_ptr<const proto::AssignStage> assignment;
};
// A follower's runner is given its blobs, which are in memory now. Answer: on_runner_made, once more.
struct LoadRunner {
  uint64_t generation = 0;
  std::shared_ptr<const proto::AssignStage> assignment;
};
struct DropRunner {  // after the task at hand; its outcome is not wanted
  uint64_t generation = 0;
};
// Of a served model: it is given no task any more, those that it was given and has not begun are dropped;
// what the one at hand comes to is told. DropRunner or TakeRunner follows.
struct ParkRunner {
  uint64_t generation = 0;
};
// The one that is parked is this stage's from here on, with what it keeps. Answer: on_runner_made.
struct TakeRunner {
  uint64_t generation = 0;
  uint64_t from = 0;
  std::shared_ptr<const proto::AssignStage> assignment;
};
// Say when the device has done all that it was given, also for runners that were dropped. Answer: on_device.
struct AskDevice {};
// Tensors it reads are given to it, tensors it makes are sent over the links. Answer: on_task_done.
struct RunTask {
  uint64_t generation = 0;
  Task task;
};
// At the entry of a served model: for its runner. A task follows in which it is taken up.
struct PassRequest {
  uint64_t generation = 0;
  std::variant<proto::ServeRequest, proto::CancelRequest> what;
};
// A microbatch of data from the broker. Answer: on_data.
struct FetchData {
  uint64_t generation = 0;
  MicrobatchKey key;
};
struct DropMicrobatches {  // tensors and data that came for them and are not needed any more
  uint64_t generation = 0;
  std::vector<MicrobatchKey> keys;
};
// The broker is asked which of these it lacks. Answer: on_missing.
struct OfferBlobs {
  uint64_t upload = 0;
  std::vector<Digest> blobs;
  bool durable = true;
};
// One of them to the broker, within `rate` bytes a second. Answer: on_uploaded.
// `packs`: the broker unpacks; `base`: it was seen to have this one, an earlier copy of the same tensor.
struct UploadBlob {
  uint64_t generation = 0;
  uint64_t upload = 0;
  Digest sha256{};
  bool durable = true;
  uint64_t rate = 0;
  bool packs = false;
  std::optional<Digest> base{};
};
using PeerEffect =
    std::variant<ConnectToBroker, DropBroker, TellBroker, Leave, Say, OpenLinks, CloseLinks, InviteLink,
                 Probe, FetchBlob, ForgetBlobs, MakeRunner, LoadRunner, DropRunner, ParkRunner, TakeRunner,
                 AskDevice, RunTask, PassRequest, FetchData, DropMicrobatches, OfferBlobs, UploadBlob>;
using PeerEffects = std::vector<PeerEffect>;

struct RunnerSize {
  Bytes persistent{}, microbatch{};
  std::vector<dag::RowSpec> edges{};  // of one that serves: what comes on each
  Bytes on_host{};                    // whatever the device is
};

class Peer {
 public:
  explicit Peer(PeerOptions options);

  // The control connection.
  PeerEffects start(Instant now);
  PeerEffects on_connected(Instant now);
  PeerEffects on_connect_failed(Instant now, const Error& error);
  PeerEffects on_lost(Instant now, const Error& error);
  PeerEffects on_message(Instant now, const proto::Message& message);
  // About four times a second.
  PeerEffects on_tick(Instant now, Bytes memory_free);
  // `goodbye`: what the broker is told.
  PeerEffects request_drain(Instant now, proto::Drain goodbye = {});

  // Loading.
  PeerEffects on_blob(Instant now, const Digest& sha256, const Status& fetched);
  // Another peer is given some of a blob; `whole`: with that all of it.
  PeerEffects on_giving(Instant now, const Digest& sha256, bool whole);
  PeerEffects on_runner_made(Instant now, uint64_t generation, const Result<RunnerSize>& made);
  PeerEffects on_links_up(Instant now, uint64_t generation);
  // The link cannot be had again: its own deadline has passed.
  PeerEffects on_link_failed(Instant now, uint64_t generation, const plan::Seat& seat, const Error& error);

  // A tensor that came from there for that step's training is not finite and was not handed over; or, from
  // the stage's own seat, one of its state after that step is not. The stage cannot go on.
  PeerEffects on_not_finite(Instant now, uint64_t generation, const plan::Seat& from, uint64_t step,
                            const Error& error);

  // A difference that came from there, for the agreement of the round after so many steps, is not finite.
  PeerEffects on_difference_not_finite(Instant now, uint64_t generation, const plan::Seat& from,
                                       uint64_t steps_before, const Error& error);

  PeerEffects on_probed(Instant now, const proto::ProbeReport& report);

  // Work. on_tensor: `accepted` says whether the shell keeps the bytes.
  PeerEffects on_tensor(Instant now, uint64_t generation, const plan::Seat& from,
                        const proto::TensorHeader& header, bool& accepted);
  // The data's first sample, in the endless sequence.
  PeerEffects on_data(Instant now, uint64_t generation, const MicrobatchKey& key,
                      const Result<uint64_t>& sample_position);
  // After a Snapshot, and after a segment that made predictions, the shell hashes what was copied, beside the
  // next tasks, keeps the bytes under their hashes, and calls on_hashed().
  // DeviceLost, here or when a runner was made, ends the peer, whatever stage it is of.
  PeerEffects on_task_done(Instant now, uint64_t generation, const Task& task,
                           const Result<TaskOutcome>& outcome);
  PeerEffects on_device(Instant now, const Status& answered);
  PeerEffects on_hashed(Instant now, uint64_t generation, const Task& task,
                        std::vector<proto::TensorReference> tensors);
  PeerEffects on_missing(Instant now, uint64_t upload, const Result<std::vector<Digest>>& missing);
  PeerEffects on_uploaded(Instant now, uint64_t upload, const Digest& sha256, const Status& stored);
  // Of a blob that is uploaded so much has left this machine; said now and then, for people.
  PeerEffects on_sent(Instant now, uint64_t upload, const Digest& sha256, uint64_t bytes);

  Session::State state() const;
  // Of the newest stage held, if any; for tests and statistics.
  const std::shared_ptr<const proto::AssignStage>& assignment() const;
  uint64_t generation() const;
  const StageMachine* stage() const;
  size_t stages() const;
  // Those that are held and have not failed; `ready`: it was reported.
  struct Held {
    std::shared_ptr<const proto::AssignStage> assignment;
    bool ready = false;
  };
  std::vector<Held> at_work() const;
  std::set<Digest> held() const;            // blobs that the shell holds for it
  std::optional<Instant> retry_at() const;  // when on_tick has something to do although it is Offline
  // Nothing but a tick or an event changes anything before this.
  std::optional<Instant> next_deadline(Instant now) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::peer
