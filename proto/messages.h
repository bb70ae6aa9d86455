// What broker, peers and users say to each other, as plain values. proto/codec turns them into frames and
// back, and checks every bound while it decodes, so that a message at hand is within them. docs/PROTOCOL.md
// tells who sends what, when, and what is refused.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "base/units.h"
#include "compress/codec.h"
#include "dag/arithmetic.h"
#include "dag/backend_traits.h"
#include "dag/graph.h"
#include "dag/metrics.h"
#include "dag/state.h"
#include "dag/tensor_role.h"
#include "dag/training.h"
#include "plan/device.h"
#include "plan/seat.h"

namespace weft::proto {

// Another major version is refused by name; another minor one is spoken to.
inline constexpr uint32_t kProtocolMajor = 1;
inline constexpr uint32_t kProtocolMinor = 9;
// The first minor version whose peers measure links; others are not asked to.
inline constexpr uint32_t kProtocolMinorOfProbes = 2;
// The first whose peers read tensors as today's codecs write them; others get no stage of a job that
// compresses.
inline constexpr uint32_t kProtocolMinorOfCodecs = 4;
// The first whose brokers unpack blobs (storage/packed.h); others get them as they are.
inline constexpr uint32_t kProtocolMinorOfPacking = 5;
// The first whose peers give each other blobs; copies of the others' state go through the broker.
inline constexpr uint32_t kProtocolMinorOfDirectCopies = 6;
// The first whose brokers know ErrorCode::DeviceLost; others are told Unavailable.
inline constexpr uint32_t kProtocolMinorOfDeviceLost = 7;
// The first whose peers can skip a step's update; others get no stage of a job that may have to.
inline constexpr uint32_t kProtocolMinorOfSkippedSteps = 8;
// The first whose peers know empty steps and groups of parameters; others get no stage of a job that has any.
inline constexpr uint32_t kProtocolMinorOfEmptySteps = 9;

// A job is what was submitted; the number names its run too. Counted from 1 by the broker.
using JobNumber = uint64_t;
// Which plan of a run: counted from 1, one more with every change of stages or peers. What is older is
// dropped.
using PlanVersion = uint32_t;
using Secret = std::array<uint8_t, 16>;

// ---- who speaks

enum class Role : uint8_t {
  Peer = 1,       // a peer's control connection
  Submitter = 2,  // a user's client
  PeerBulk = 3,   // a peer's second connection: tensors by hash, microbatches of data
  Admin = 4,      // a user's client that may see and end everybody's jobs, and ban peers
};
inline bool is_user(Role role) { return role == Role::Submitter || role == Role::Admin; }
// Whether who was admitted as one may come as the other.
inline bool includes(Role admitted, Role wanted) {
  return admitted == wanted || (admitted == Role::Admin && wanted == Role::Submitter);
}

struct TokenProof {
  uint64_t id = 0;
  Secret secret{};
};

// Devices that run the same ops and make the same bits of them.
struct DeviceClass {
  dag::BackendTraits traits{};
  std::string fingerprint{};  // peer::Backend::numerics_fingerprint
  bool operator==(const DeviceClass&) const = default;
};

// What a peer says of itself. Rates are measured by the peer, or its catalogue's for a null device.
struct DeviceReport {
  std::string device{};  // "cpu:2", "null:rtx3080"
  plan::Rates rates{};
  Bytes memory{};             // what the peer offers of the device's
  Bytes host_memory{};        // and of the host's; 0: the device's memory is the host's
  std::string fingerprint{};  // peer::Backend::numerics_fingerprint
  dag::BackendTraits traits{};
  std::string region{};                  // where its owner says it is; empty: unknown
  std::string owner{};                   // whose it says it is; empty: nobody's who has another
  std::vector<std::string> addresses{};  // "host:port" where other peers reach it; empty: only by relay
  std::vector<dag::Arithmetic> arithmetic{dag::Arithmetic::F32};  // that it has; never empty

  bool has(dag::Arithmetic wanted) const {
    return std::find(arithmetic.begin(), arithmetic.end(), wanted) != arithmetic.end();
  }
  DeviceClass device_class() const { return {traits, fingerprint}; }
};

// The stage that a peer still runs when it comes back to its broker.
struct StageHeld {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  plan::Seat seat{};
};

// The first message on any connection to the broker. Until the answer nothing else is sent.
struct Hello {
  uint32_t major = kProtocolMajor;
  uint32_t minor = kProtocolMinor;
  std::string software{};  // "0.1.0"
  Role role = Role::Peer;
  std::optional<TokenProof> token{};     // needed until the broker knows this key
  std::string name{};                    // for people; peers only
  std::optional<DeviceReport> device{};  // Role::Peer
  uint64_t instance = 0;  // drawn at each start of a peer: tells its next connection from a second process
  std::optional<StageHeld> holding{};  // Role::Peer
};
struct HelloAck {
  uint32_t major = kProtocolMajor;
  uint32_t minor = kProtocolMinor;
  std::string software{};
  std::string name{};  // what the broker calls this peer
  Duration heartbeat_interval{};
  Duration lease{};  // without a heartbeat for so long the peer is given up
};
// The answer to a Hello or a request that is not granted. After a refused Hello the connection is closed.
struct Refusal {
  ErrorCode code = ErrorCode::Internal;
  std::string message{};
  bool retry = false;  // whether trying again later, unchanged, may succeed
};

// ---- a stage

enum class ProgramKind : uint8_t { Train = 0, Evaluate = 1, Predict = 2 };

// One end of a cut edge, at this stage. `edge` is the same number at both ends.
struct EdgeEnd {
  uint32_t edge = 0;
  dag::ValueId value{};  // in the stage's graph
  uint32_t stage = 0;    // the other end's
  // How its tensors travel; both ends have the same. Of other values than float32, and of tensors with an
  // infinity or a NaN: dense.
  compress::Codec codec{};
};

// Which seat of the other stage has that microbatch: stages have one replica for now.
inline plan::Seat other_end(const EdgeEnd& end, [[maybe_unused]] uint32_t microbatch) {
  return {end.stage, 0};
}

// What one stage runs of a job's graph.
struct StageProgram {
  ProgramKind kind = ProgramKind::Train;
  std::shared_ptr<const dag::Graph> graph{};
  std::vector<uint32_t> segment_of_op{};
  uint32_t segment_count = 1;
  std::vector<EdgeEnd> receives{}, sends{};
  std::vector<std::string> data_inputs{};  // graph inputs that the broker feeds
};

struct TensorReference {
  dag::StateKey key{};
  dag::TensorSpec spec{};
  Digest sha256{};
};

// How to reach the peer of another seat with which this one shares cut edges.
struct LinkRoute {
  plan::Seat seat{};
  PeerId peer{};
  bool dials = false;                    // this side opens the connection
  std::vector<std::string> addresses{};  // tried in order by the side that dials, each with a deadline
  Secret relay_ticket{};                 // when none of them answers, or there are none
  std::string region{};                  // of the other peer, as it says
};

// A peer that has some of the tensors of a list and gives their blobs to who asks (GetBlob). The broker has
// the others, or all of them where the peer does not.
struct BlobSource {
  PeerId peer{};
  std::vector<std::string> addresses{};  // tried in order, each with a deadline
  std::string region{};                  // of the peer, as it says
  std::vector<uint32_t> tensors{};       // of the list, by index
};

struct AssignStage {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  plan::Seat seat{};
  uint32_t stage_count = 0;
  dag::TrainingSpec training{};  // for Predict: only the batch sizes count
  std::vector<StageProgram> programs{};
  std::vector<TensorReference>
      tensors{};  // every initializer's value, and the optimizer's slots unless they are zero
  std::vector<LinkRoute> links{};
  uint32_t microbatches_in_flight = 1;  // how many forwards may be ahead of their backwards here
  uint64_t after_step = 0;              // the state that `tensors` is: steps already done
  Secret data_key{};                    // shown with each request for a microbatch
  // What snapshots may take of the peer's uplink, bytes a second; 0: no limit.
  uint64_t replication_rate = 0;
  DeviceClass device_class{};         // that the programs were lowered for
  std::vector<BlobSource> sources{};  // each tensor at most once
  std::vector<Digest> lends{};        // blobs that others fetch here, each as often as it is fetched
  dag::Arithmetic arithmetic = dag::Arithmetic::F32;  // of its kernels; the peer's device has it
  // Predicted: computing one microbatch, forward and backward; 0: unknown.
  double microbatch_seconds = 0;
  uint64_t skipped_steps = 0;  // of those up to `after_step`: without an update
};
// The initializers that no program of the assignment changes, by name; the names are the assignment's.
std::set<std::string_view> fixed_initializers(const AssignStage& assign);

// ---- broker to peer

// What a stage does next; a stage carries its commands out strictly in the order in which they come.
enum class CommandKind : uint8_t {
  Advance = 0,     // run training steps up to and including `step`
  Checkpoint = 1,  // upload the state after `step`, which is the last one granted
  Evaluate =
      2,  // the evaluation program over [first_microbatch, + microbatches), with the weights after `step`
  Predict = 3,  // the prediction program over these microbatches
  Finish = 4,   // nothing more: keep quiet until ReleaseStage
  // Copy the state after `step`, which is the last one granted, keep it, and upload it to where it need not
  // survive the broker: what a run goes back to when a peer is lost.
  Replicate = 5,
  // The first microbatch of the step after `step`, which is the last one granted, forward and backward with
  // the weights as they are, over dense links and over the codecs: what they do to the loss and to the
  // gradient. Nothing is updated. Only where a step has several microbatches.
  Compare = 6,
};
// The passes of a Compare, in order, as microbatches of that step. The gradient of Added is added to Dense's;
// Compressed is the same as Added, to the bit, with a gradient of its own.
enum class ComparisonPass : uint32_t { Dense = 0, Added = 1, Compressed = 2 };
inline constexpr uint32_t kComparisonPasses = 3;
inline constexpr uint32_t kComparisonMicrobatch = 1u << 31;  // of the first pass
constexpr bool is_comparison(uint32_t microbatch) {
  return microbatch - kComparisonMicrobatch < kComparisonPasses;
}
constexpr ComparisonPass comparison_pass(uint32_t microbatch) {  // REQUIRES: is_comparison
  return static_cast<ComparisonPass>(microbatch - kComparisonMicrobatch);
}
// The commands of one plan version are a script: counted from 1, each stage gets all of them, in order. The
// broker makes a command durable before it sends it, and a stage that comes back says how far it has got, so
// that a broker that was restarted goes on where it was.
struct Command {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  CommandKind kind = CommandKind::Advance;
  uint64_t step = 0;
  uint32_t microbatches = 0;
  uint32_t first_microbatch = 0;
  uint64_t sequence = 0;  // in the script
  // What the broker will never ask about again: StepReports up to `committed`; other reports on commands up
  // to `settled`; snapshots of steps before `keep_from`.
  uint64_t committed = 0, settled = 0, keep_from = 0;
  // Of a Replicate: the copy stays with the stage, for the peers that stand by for it to fetch, and is
  // reported as soon as it is there.
  bool direct = false;
};
// With clip_norm, and where steps may be skipped: the norm of the whole gradient of `step`, for the update.
struct GradientNorm {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  double norm = 0;    // of the mean gradient, before clipping
  bool skip = false;  // no update: not all of the step is finite (dag::OnDivergence::Skip)
};
struct ReleaseStage {
  JobNumber run = 0;
  PlanVersion plan_version = 0;  // this one and all before it
  std::string reason{};
};
// Somebody waits at the relay with this ticket: come there.
struct RelayInvitation {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  Secret ticket{};
};
// To a peer that came back holding a stage: go on with it.
struct ResumeStage {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
};
// To a peer of the pool: have these tensors at hand, fetched within the rate, for they may be needed at once.
// The list before stays until this one is complete. No tensors: forget the run's.
struct StandBy {
  JobNumber run = 0;
  uint64_t step = 0;
  std::vector<TensorReference> tensors{};
  uint64_t rate = 0;                  // bytes a second; 0: no limit
  std::vector<BlobSource> sources{};  // each tensor at most once
  uint64_t list = 0;                  // counts the lists that the peer was given
};
struct HeartbeatAck {
  uint64_t sequence = 0;
};
// To a peer of the pool: measure the link to that one, which is told the same. Ends what was asked before.
struct ProbeLink {
  uint64_t round = 0;  // the broker's number for it, shown by all that is said about it
  PeerId peer{};       // the other end
  bool dials = false;  // this side opens the connection
  std::vector<std::string> addresses{};
  Secret relay_ticket{};
  std::string region{};    // of the other peer, as it says
  uint64_t bytes_max = 0;  // to send, and to receive
  Duration time_max{};     // for each way, once there is a connection
  Duration deadline{};     // for all of it
};

// ---- peer to broker

// How far a stage's compute has come, the task at hand included: what a peer is as fast as.
struct StageWork {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t segments_done = 0;  // of the training program, since the stage began
  double seconds_busy = 0;     // computing them
};
struct Heartbeat {
  uint64_t sequence = 0;
  Bytes memory_free{};
  std::optional<StageWork> work{};
};
struct Drain {};  // give me no more work, and take mine away when you can

struct StageReady {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  Bytes persistent{}, microbatch{};  // device memory taken; of one microbatch in flight
};
// The answer to ResumeStage. Every report that may not have been settled follows, in order.
struct StageResumed {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t last_sequence = 0;  // of the commands that came
};
// All tensors of a StandBy are here; or, from minor version 6 on, they cannot be had.
struct StandingBy {
  JobNumber run = 0;
  uint64_t step = 0;
  std::optional<Error> failure{};  // instead
  uint64_t list = 0;               // as the StandBy said
};
// The stage cannot go on: kernels, memory, data out of bounds, a neighbour that cannot be reached.
struct StageFailed {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  Error error{};
  std::optional<plan::Seat> unreachable{};  // the fault is that link's
  bool permanent = false;                   // of the job, not of this peer: another one would fail as well
  bool diverged = false;                    // numbers that are not finite would have come to be learnt from
  uint64_t step = 0;                        // in which they came, over the link to `unreachable`; 0: unknown
};

struct LinkUse {
  plan::Seat seat{};           // the other end
  uint64_t bytes_sent = 0;     // since the last report
  double seconds_waiting = 0;  // compute idle because nothing had come from there
  // Of the tensors that came from there since the last report and were large enough to be timed, from their
  // first bytes to their last: all together, and the fastest. 0: there were none.
  uint64_t bytes_timed = 0;
  double seconds_timed = 0;
  double fastest_bytes_per_second = 0;
  // Of the tensors that a codec encoded for it since the last report: their bytes before and after, and of
  // those that were looked at (the first microbatch of each step) how many there were and the sum of their
  // relative errors, ||x - decoded|| / ||x||.
  uint64_t bytes_dense = 0, bytes_encoded = 0;
  uint32_t errors = 0;
  double error_sum = 0;
};
struct StepReport {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  std::vector<double> losses{};   // by microbatch; from the stage that owns the loss
  std::vector<double> squares{};  // sums of squares of gradients, in the order of this stage's parameters
  bool updated = false;           // false: squares only, waiting for GradientNorm
  double seconds_busy = 0;        // compute
  double seconds = 0;             // since the step before
  std::vector<LinkUse> links{};
  // The ledger: where in the endless sequence of samples each microbatch began, from stages that read data.
  std::vector<uint64_t> sample_positions{};
  bool statistics_diverged = false;  // a running statistic of this stage is not finite
};
// The answer to ProbeLink: how fast bytes came from there.
struct ProbeReport {
  uint64_t round = 0;
  PeerId peer{};
  double bytes_per_second = 0;
  Duration round_trip{};  // the least of several
  bool relayed = false;
  std::optional<Error> failure{};  // instead; Unavailable and Timeout: there was no way between the two
};
struct CheckpointReport {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  std::vector<TensorReference> tensors{};  // all uploaded, or, of a direct copy, all here
  std::optional<Error> failure{};          // instead: why it could not be uploaded; the stage goes on
  uint64_t skipped_steps = 0;              // of those up to `step`: without an update
};
struct EvaluationReport {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  uint32_t first_microbatch = 0;
  // By microbatch of the command, from the stage that owns the output; empty elsewhere. `loss` and `counted`
  // have a number for each term of the loss.
  std::vector<double> loss{}, correct{}, counted{};
};
// Of a Compare: a number for each pass.
struct ComparisonReport {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;              // as in the command
  std::vector<double> losses{};   // from the stage that owns the loss; empty elsewhere
  std::vector<double> squares{};  // sums over the stage's parameters of what gradients then were
};
struct PredictionReport {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint32_t microbatch = 0;
  std::vector<TensorReference> outputs{};  // key: the output's name, slot None; uploaded
};
struct PeerLog {
  std::string text{};  // one line for the broker's operator
};

// ---- bulk connection: requests and answers, any number under way, told apart by `request`

// To the broker, or to a peer that was named as a source. What follows is for peers; the broker gives blobs
// as they are.
struct GetBlob {
  uint64_t request = 0;
  Digest sha256{};
  uint64_t rate = 0;             // bytes a second, for what is not urgent; 0: at once
  std::optional<Digest> base{};  // that the asker has, of as many bytes
};
struct PutBlob {
  uint64_t request = 0;
  Digest sha256{};
  uint64_t size = 0;
  bool durable = true;           // false: need not survive the broker
  bool packed = false;           // chunks carry its units (storage/packed.h)
  std::optional<Digest> base{};  // of as many bytes, that the other side has: packed are the differences
};
struct BlobAnswer {  // to GetBlob: chunks of `size` bytes in all follow; to PutBlob: stored, or there already
  uint64_t request = 0;
  ErrorCode code = ErrorCode::Internal;
  std::string message{};  // empty: granted
  uint64_t size = 0;
  bool packed = false;    // from a peer: chunks carry its units (storage/packed.h)
  bool has_base = false;  // packed are the differences to the base that was named
};
struct HaveBlobs {
  uint64_t request = 0;
  std::vector<Digest> blobs{};
  bool durable = true;  // what is there is made durable before the answer
};
struct MissingBlobs {
  uint64_t request = 0;
  std::vector<Digest> blobs{};
};
struct GetMicrobatch {
  uint64_t request = 0;
  JobNumber run = 0;
  Secret data_key{};
  ProgramKind program = ProgramKind::Train;
  uint64_t step = 0;  // Train
  uint32_t microbatch = 0;
  std::vector<std::string> inputs{};
};
struct MicrobatchAnswer {
  uint64_t request = 0;
  ErrorCode code = ErrorCode::Internal;
  std::string message{};  // empty: a tensor frame for each input follows, in the order asked
  uint64_t sample_position = 0;
  uint32_t valid_count = 0;
};

// ---- users

// A file as a sequence of pieces: bytes, or a blob (a tensor of a model, or the whole of a data file).
struct FilePiece {
  std::string bytes{};
  std::optional<Digest> sha256{};
  uint64_t size = 0;  // of the piece
};
struct PackedFile {
  std::string path{};  // relative, no "..": "model.onnx", "data/train-images.gz"
  std::vector<FilePiece> pieces{};
};
// What a tensor of the model is to training: whoever had its values has decided.
struct ModelTensor {
  std::string name{};  // of an initializer, or of what a Constant node returns
  dag::TensorRole role = dag::TensorRole::Trained;
  dag::RoleReason reason = dag::RoleReason::Free;  // one that is not known, from a later version: Free
  int32_t axis = -1;                               // along which it is constant
  bool frozen = false;                             // the job freezes it: a statistic then does not move
};
struct SubmitJob {
  std::string name{};   // for people: the job file's
  std::string job{};    // YAML, after --set, its paths those of `files`
  uint32_t stages = 0;  // as the job file says; 0: auto
  std::vector<PackedFile> files{};
  std::vector<std::string> excluded{};  // peers by name that get no part of it, as the job file says
  bool compresses = false;              // links may have codecs: as the broker reads the job file
  dag::Arithmetic arithmetic = dag::Arithmetic::F32;  // likewise
  bool skips_steps = false;                           // that diverge; likewise
  uint32_t peer_minor = 0;  // of the oldest protocol whose peers can serve it; likewise
  // Of every float tensor of the model, in its order. None, as clients before minor version 9 say: whoever
  // plans decides.
  std::vector<ModelTensor> tensors{};
};
struct JobAccepted {
  JobNumber job = 0;
};
enum class JobState : uint8_t {
  Queued = 0,   // waits for its turn
  Waiting = 1,  // waits for peers
  Planning = 2,
  Loading = 3,  // stages fetch their tensors
  Running = 4,
  Stopping = 5,
  Finished = 6,
  Stopped = 7,  // by its user
  Failed = 8,
};
std::string_view to_string(JobState state);

struct StageStatus {
  plan::Seat seat{};
  PeerId peer{};
  std::string peer_name{}, region{};
  double busy = 0;  // of the last step's time, computing
  std::vector<LinkUse> links{};
  uint64_t step = 0;
};
// What the codecs of links do to one microbatch (CommandKind::Compare).
struct LinkComparison {
  uint64_t step = 0;  // 0: none yet
  double loss_dense = 0, loss = 0;
  // Of the gradient: ||compressed - dense|| / ||dense||, and the cosine between the two.
  double gradient_error = 0, gradient_cosine = 0;
};
struct JobStatus {
  JobNumber job = 0;
  std::string name{};
  JobState state = JobState::Queued;
  std::string reason{};  // what it waits for, or why it failed
  PlanVersion plan_version = 0;
  uint64_t step = 0, steps = 0;
  double loss = 0, samples_per_second = 0, seconds_left = 0;
  uint64_t checkpoint_step = 0;
  uint64_t recovery_step = 0;  // where the run would go on from if a peer were lost now
  uint64_t recoveries = 0;
  bool equal_bits = true;           // all stages of one fingerprint so far
  std::vector<std::string> plan{};  // the planner's explanation
  std::vector<StageStatus> stages{};
  LinkComparison comparison{};  // the last
};
struct PeerStatus {
  PeerId peer{};
  std::string name{}, region{}, device{}, software{},
      state{};  // state: pool, active, suspect, draining, gone, other version
  plan::Rates rates{};
  Bytes memory{};
  bool reachable = false;
  double seconds_since_heard = 0;
  std::string owner{};  // as it says; may be empty
};

enum class JobEventKind : uint8_t {
  State = 0,  // `text`: the reason
  Step = 1,
  Evaluation = 2,
  Checkpoint = 3,
  Plan = 4,    // `text`: the explanation
  Notice = 5,  // `text`: something a person should know: a peer lost, bits no longer promised
  Result = 6,
};
struct JobEvent {
  JobNumber job = 0;
  uint64_t sequence = 0;  // within the job, from 1
  int64_t unix_ms = 0;
  JobEventKind kind = JobEventKind::State;
  JobState state = JobState::Queued;
  uint64_t step = 0;
  // Of a plan, as predicted: seconds (a step) and samples_per_second.
  double loss = 0, learning_rate = 0, seconds = 0, samples_per_second = 0, gradient_norm = 0;
  uint64_t samples = 0;
  std::map<std::string, double> metrics{};
  std::string text{};                // of an evaluation: the codecs of its links; empty: all dense
  std::vector<std::string> peers{};  // of a plan: by stage, the peer's name
  bool diverged = false;             // of a state: the job failed because its numbers were not finite
  bool skipped = false;              // of a step: it was not finite, and nothing was updated; it has no loss
};

// One's own; an admin gets everybody's. The newest first.
struct ListJobs {
  JobNumber before = 0;  // those of lower numbers; 0: all
  uint32_t count = 0;    // at most; 0: as many as the broker likes
};
struct JobList {
  std::vector<JobStatus> jobs{};
  bool more = false;  // there are older ones
};
struct GetJob {
  JobNumber job = 0;
};
// Past events from `from_sequence` on, then, when `follow`, new ones as they come; ends after the job's end
// with EventsEnd.
struct GetEvents {
  JobNumber job = 0;
  uint64_t from_sequence = 1;
  bool follow = false;
};
struct EventsEnd {
  JobNumber job = 0;
};
struct StopJob {
  JobNumber job = 0;
};
struct ResumeJob {  // one that failed or was stopped: on from its last checkpoint
  JobNumber job = 0;
};
struct BanPeer {       // an admin's
  std::string peer{};  // its name or its key
  bool lift = false;   // the ban
};
struct Done {};  // what was asked has been done
struct ListPeers {};
struct PeerList {
  std::vector<PeerStatus> peers{};
};
// What the broker believes of the links between its peers.
struct ListLinks {};
struct LinkEnd {
  PeerId peer{};
  std::string name{}, region{};
  uint32_t site = 0;                // peers of one site have the same links to others, their own lines aside
  double uplink = 0, downlink = 0;  // bytes a second, for all its links together; 0: no limit was found
};
struct LinkFigure {  // one direction, the ends' lines aside
  uint32_t from = 0, to = 0;
  double bytes_per_second = 0;
  Duration latency{};
  bool assumed = false;      // nobody has measured it
  bool relayed = false;      // through the broker
  double seconds_since = 0;  // it was measured
};
struct LinkList {
  std::vector<LinkEnd> ends{};
  std::vector<LinkFigure> between{};  // by site
  std::vector<LinkFigure> links{};    // by index in `ends`: all, of a few; of many none
};
struct GetResult {
  JobNumber job = 0;
};
struct JobResult {
  JobNumber job = 0;
  uint64_t step = 0;
  std::vector<TensorReference> tensors{};  // trained parameters and running statistics
  std::vector<PackedFile> model{};         // the submitted model, for who has it not
  // Prediction: by microbatch, the outputs.
  std::vector<PredictionReport> predictions{};
  uint64_t sample_count = 0;
};

// ---- between peers

// A link outlives its connections: each side counts the tensors that it has received over it, keeps what it
// sent until that is acknowledged, and sends the rest again over the next connection.
struct LinkHello {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  plan::Seat seat{};      // the sender's
  uint64_t received = 0;  // tensors, over all connections of this link: all numbers below it
  // Tensors may come in pieces, over so many connections; 0, as peers before minor version 5 say: whole, over
  // this one.
  uint32_t streams = 0;
  uint32_t stream = 0;   // which of them this is; of all but the first:
  uint64_t session = 0;  // as the first one's LinkReady named it
};
struct LinkReady {  // the answer; tensors may come
  uint64_t received = 0;
  uint32_t streams = 0;  // as in LinkHello: both sides keep to the smaller
  uint64_t session = 0;  // drawn at random; what belongs to another one is refused
};
struct LinkAck {  // now and then, and when nothing else goes, as a sign of life
  uint64_t received = 0;
};

// The first message over a connection that measures: from the side that dials, then from the other.
struct ProbeHello {
  uint64_t round = 0;
};
enum class ProbeWord : uint8_t {
  Ping = 0,  // answer at once, with the same number
  Pong = 1,
  Ask = 2,   // send probe frames until they are `number` bytes in all
  Turn = 3,  // I have measured: now you, or done
};
struct ProbeSay {
  ProbeWord word = ProbeWord::Ping;
  uint64_t number = 0;
};

// ---- kept by the broker alone

// A plan that runs, but for its assignments, which are messages of their own: what a broker that was
// restarted goes on with.
struct RunStage {
  PeerId peer{};
  std::vector<uint32_t> parameters{};  // of the whole graph, in this stage's order: where its squares belong
  double microbatch_seconds = 0;       // predicted: computing one microbatch, forward and backward
  bool pinned = false;                 // nobody else may have it
  std::string owner{};                 // not empty: only this owner's machines may have it
};
// Of RunTerms::gentler: links are dense long before.
inline constexpr uint32_t kGentlerMax = 16;
// What a planned run comes to beside its stages. Its job says the first block, its planner the second; the
// broker has it in memory (broker/planned_run.h), on its planner's pipe and in its rows.
struct RunTerms {
  // In a RunPlan the steps and the sizes of its batches alone: each stage's assignment has all of it.
  dag::TrainingSpec training{};
  dag::Borders borders{};
  dag::LossTerms loss_terms{};       // of what evaluation reports
  bool equal_bits_required = false;  // then a stage goes to nobody of another fingerprint

  uint32_t microbatches = 0;  // a step
  uint32_t parameter_count = 0;
  // Evaluation, or prediction: microbatches in all and the samples in each but the last; 0: none.
  uint32_t forward_microbatches = 0;
  uint64_t forward_samples = 0;
  bool masked = false;  // the evaluation graph leaves padding out and counts what counted
  bool accuracy = false;
  uint32_t prediction_stages = 0;  // how many stages report outputs
  bool equal_bits = true;          // all peers of one fingerprint
  std::string fingerprint{};
  std::vector<std::string> explanation{};
  std::vector<Secret> relay_tickets{};  // of its links
  Secret data_key{};
  Duration predicted_step{};
  // Of links whose codecs the planner chose: how much gentler they had to become (plan::Compression).
  std::optional<uint32_t> gentler{};
};
struct RunPlan {
  std::vector<RunStage> stages{};
  uint64_t after_step = 0;
  RunTerms terms{};
  // The run before went back because of this step, which was not finite: if it is so again, the job ends. 0:
  // it did not, or has got past it.
  uint64_t diverged_at = 0;
};

using AnyMessage =
    std::variant<Hello, HelloAck, Refusal, AssignStage, Command, GradientNorm, ReleaseStage, RelayInvitation,
                 HeartbeatAck, Heartbeat, Drain, StageReady, StageFailed, StepReport, CheckpointReport,
                 EvaluationReport, PredictionReport, PeerLog, GetBlob, PutBlob, BlobAnswer, HaveBlobs,
                 MissingBlobs, GetMicrobatch, MicrobatchAnswer, SubmitJob, JobAccepted, JobStatus, JobEvent,
                 ListJobs, JobList, GetJob, GetEvents, EventsEnd, StopJob, Done, ListPeers, PeerList,
                 GetResult, JobResult, LinkHello, LinkReady, ResumeStage, StageResumed, StandBy, StandingBy,
                 LinkAck, RunPlan, ProbeLink, ProbeReport, ProbeHello, ProbeSay, ListLinks, LinkList,
                 ComparisonReport, ResumeJob, BanPeer>;

template <typename T, typename Variant>
inline constexpr bool is_alternative_of = false;
template <typename T, typename... Types>
inline constexpr bool is_alternative_of<T, std::variant<Types...>> = (std::is_same_v<T, Types> || ...);

// One of them. A type of its own, so that how one is made, copied, moved and let go is compiled once and not
// in each file that holds one: it was a third of the time that those took.
struct Message : AnyMessage {
  Message() noexcept;  // a Hello
  template <typename T>
  requires is_alternative_of<T, AnyMessage> Message(
      T message);  // NOLINT(google-explicit-constructor): a message is one of them
  Message(const Message& other);
  Message(Message&& other) noexcept;
  Message& operator=(const Message& other);
  Message& operator=(Message&& other) noexcept;
  ~Message();
};

// For logs: "AssignStage".
std::string_view name_of(const Message& message);

// ---- tensors

enum class Direction : uint8_t {
  Forward = 0,   // an activation
  Backward = 1,  // a cotangent
};

// What stands before a tensor's payload, fixed in size but for the dims (proto/codec/tensor_header.cc). A
// dense one is its raw bytes.
struct TensorHeader {
  JobNumber run = 0;
  PlanVersion plan_version = 0;
  uint64_t step = 0;
  uint32_t microbatch = 0;
  uint32_t edge = 0;  // for an answer to GetMicrobatch: the index of the input
  ProgramKind program = ProgramKind::Train;
  Direction direction = Direction::Forward;
  uint16_t replica = 0;     // the sender's
  dag::TensorSpec spec{};   // of the tensor, whatever its payload is
  compress::Codec codec{};  // of the payload
  bool operator==(const TensorHeader&) const = default;
};

// A codec is the sender's to leave where a tensor is not finite, and only then.
inline bool may_come_as(const compress::Codec& codec, const compress::Codec& assigned) {
  return codec == assigned || codec.kind == compress::Kind::Dense;
}
// What a tensor takes on the wire without its header; where that is not fixed, the most.
inline Bytes payload_bytes(const dag::TensorSpec& spec, const compress::Codec& codec) {
  if (codec.kind == compress::Kind::Dense) return spec.bytes();
  return {static_cast<int64_t>(compress::wire_bytes(codec, static_cast<size_t>(spec.element_count())))};
}

}  // namespace weft::proto
