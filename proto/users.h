// What users ask of a broker, and its answers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/units.h"
#include "dag/arithmetic.h"
#include "dag/tensor_role.h"
#include "plan/device.h"
#include "plan/seat.h"
#include "proto/hello.h"
#include "proto/reports.h"
#include "proto/stage.h"

namespace weft::proto {

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
// A checkpoint that its user has, of this job or of one like it: the job goes on after its step. The blobs of
// its tensors were uploaded before.
struct Beginning {
  uint64_t step = 0;  // at least 1
  uint64_t skipped_steps = 0;
  std::vector<TensorReference> tensors{};
  // Of as many replicas with local steps as the job has: of each, steps up to it without an update of its
  // own.
  std::vector<uint64_t> replica_skipped_steps{};
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
  std::string serves{};  // the name of the model that it serves; likewise; empty: it does not
  // Where it begins, if not with the model's own weights.
  std::optional<Beginning> beginning{};
  // Whose it is, for people: the label of the token that was shown, else the key. The broker fills it in.
  std::string submitter{};
  std::vector<BlobRecipe> recipes{};  // of some of its blobs
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
  LinkComparison comparison{};                       // the last
  std::string submitter{};                           // as the submission has it
  int64_t submitted_unix_ms = 0, ended_unix_ms = 0;  // 0: not yet, or not known
  // The last evaluation: after which step, and what it gave. 0: none.
  uint64_t evaluated_step = 0;
  std::map<std::string, double> metrics{};
  // The checkpoint that stages upload now: after which step (0: none), the bytes of its tensors, and how many
  // of them the broker has.
  struct Saving {
    uint64_t step = 0;
    Bytes bytes{}, saved{};
    bool operator==(const Saving&) const = default;
  } saving{};
  // Replicas that make local steps: how many each makes of a round, the step after which all agreed last
  // (0: not yet), and how long ago that was. No steps: of no such run, or nobody is at work.
  struct Replicas {
    std::vector<uint64_t> steps{};
    uint64_t agreed_step = 0;
    double seconds_since_agreement = 0;
    bool operator==(const Replicas&) const = default;
  } replicas{};
};
// How others come to a peer.
enum class Reach : uint8_t {
  Relay = 0,    // it has no address: through the broker
  Untried = 1,  // it has one, which nobody has dialled yet
  Direct = 2,   // somebody dialled it, and it answered
  Closed = 3,   // it has one that does not answer: through the broker
};
std::string_view to_string(Reach reach);
struct PeerStatus {
  PeerId peer{};
  std::string name{}, region{}, device{}, software{},
      state{};  // state: pool, active, suspect, draining, paused, left, gone, banned, left out, other version
  plan::Rates rates{};
  Bytes memory{};
  bool reachable = false;
  double seconds_since_heard = 0;
  std::string owner{};  // as it says; may be empty
  Reach reach = Reach::Relay;
  std::string reason{};           // why it is paused or leaves, as it says; may be empty
  std::vector<JobNumber> jobs{};  // whose stages it has; for admins alone
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
  std::vector<plan::Seat> seats{};   // of a plan with replicas: whose each of `peers` is; else by stage
  // Of a plan with replicas: what they make from here on, until another plan begins where it begins.
  std::optional<replicas::LocalSteps> local_steps{};
  replicas::Inherited inherited{};  // what they begin with
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
struct RemoveJob {  // one that has ended, with all that is kept of it
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
  // Of the broker's own disk: what its blobs take, what is free there, how large it is. All 0: not known yet,
  // or it is no admin who asks.
  Bytes blob_bytes{}, disk_free{}, disk_size{};
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
  bool relayed = false;      // through the broker, when it was seen last
  double seconds_since = 0;  // it was measured
  bool in_use = false;       // a run's tensors go over it now, `relayed` or not
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

}  // namespace weft::proto
