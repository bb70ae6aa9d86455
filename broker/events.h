// What happens to the broker's core, and what it wants done. The core itself (broker/broker.h) has no socket,
// disk, clock or thread: whoever drives it hands it events and carries its effects out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "broker/records.h"
#include "broker/run/planned_run.h"
#include "plan/cluster.h"
#include "proto/encoded.h"
#include "proto/messages.h"

namespace weft::broker {

using ConnectionId = uint64_t;

struct Now {
  Instant monotonic{};
  int64_t unix_ms = 0;  // for records that people read; nothing is decided by it
};

// ---- events

// A Hello came; the store was asked about its token.
enum class TokenVerdict : uint8_t { None, Valid, Unknown, Expired, Used, Revoked };
struct Introduced {
  ConnectionId connection = 0;
  PeerId who{};
  std::string address{};  // for people
  proto::Hello hello{};
  TokenVerdict verdict = TokenVerdict::None;
  std::optional<proto::Role> token_role{};  // of a valid token: an admin's is good for a submitter, too
};
struct Received {
  ConnectionId connection = 0;
  std::shared_ptr<const proto::Message> message{};
  proto::EncodedBytes bytes{};  // of a SubmitJob, as it came
  // Of a CheckpointReport: tensors whose blobs are not here.
  uint32_t blobs_missing = 0;
};
// Of a peer, by its gate, which answers heartbeats itself: when something last came from it, and what the
// newest heartbeat said of its work and of what it saves.
struct Heard {
  ConnectionId connection = 0;
  Instant at{};
  std::optional<proto::StageWork> work{};
  std::optional<proto::StageSaving> saving{};
};
struct Disconnected {
  ConnectionId connection = 0;
  std::string reason{};
};
// A submission was looked at: its blobs are there and its job file parses. `name` for people.
struct SubmissionChecked {
  ConnectionId connection = 0;
  proto::Encoded<proto::SubmitJob> submission{};
  Status verdict;
};
struct PlanningDone {
  proto::JobNumber job = 0;
  proto::PlanVersion plan_version = 0;
  Result<std::shared_ptr<const PlannedRun>> plan;
};
// A run that goes on was looked at: a step of it as it is and of a plan made anew, both as predicted under
// what was believed when it was asked.
struct Reconsidered {
  struct Other {
    Duration as_it_is{}, as_planned{};  // a step of the run
    uint32_t replicas = 1;              // of the other plan
    std::vector<PeerId> peers{};        // that the other plan needs
  };
  proto::JobNumber job = 0;
  proto::PlanVersion plan_version = 0;
  Result<Other> other;
};
struct JobReopened {  // as it was stored; errors: NotFound, InvalidArgument when it cannot go on
  ConnectionId connection = 0;
  Result<std::shared_ptr<const StoredJob>> job;
};
struct BlobsVerified {
  proto::JobNumber job = 0;
  uint64_t step = 0;  // of the recovery point
  size_t bad = 0;     // of its blobs: not there, or with other bytes than their name says
};
struct BlobsKept {  // all of them are durable, or why they are not
  proto::JobNumber job = 0;
  uint64_t step = 0;
  Status kept;
};
// Tokens that were revoked since the last time. What is revoked when the broker starts it never hears of.
struct TokensRevoked {
  std::set<uint64_t> tokens{};
};
struct RelayWaiting {  // one side of a granted ticket has come
  proto::Secret ticket{};
};
// Of the disk that the broker's data is on. All 0: nobody has looked yet.
struct DiskState {
  Bytes blobs{}, free{}, size{};
};
struct Tick {
  // Whatever came from peers until then has been told: nobody has been silent for longer than until there.
  // Nothing: until now.
  std::optional<Instant> heard_until{};
  std::optional<DiskState> disk{};  // nothing: as before
};
struct Leaving {};  // the last: the broker is ended, as somebody asked
using Event =
    std::variant<Introduced, Received, Heard, Disconnected, SubmissionChecked, PlanningDone, Reconsidered,
                 JobReopened, BlobsVerified, BlobsKept, TokensRevoked, RelayWaiting, Tick, Leaving>;

// ---- effects

struct Send {
  ConnectionId connection = 0;
  std::shared_ptr<const proto::Message> message{};
  proto::EncodedBytes bytes{};  // of it, where they are at hand
};
struct Admit {  // what this connection may do from now on
  ConnectionId connection = 0;
  proto::Role role = proto::Role::Peer;
};
struct Close {  // after what was sent has gone
  ConnectionId connection = 0;
};
struct CloseAll {  // connections of this key, of whatever kind, after what was sent has gone
  PeerId who{};
};
struct CheckSubmission {
  ConnectionId connection = 0;
  proto::Encoded<proto::SubmitJob> submission{};
};
// A peer that may be used.
struct Candidate {
  PeerId peer{};
  std::string name{};
  proto::DeviceReport device{};
  // In which it had a part, and what it learnt it holds still: of those that the job goes on from.
  std::optional<uint32_t> replica{};
};
struct StartPlanning {
  proto::JobNumber job = 0;
  proto::PlanVersion plan_version = 0;
  proto::Encoded<proto::SubmitJob> submission = proto::SubmitJob{};
  std::vector<Candidate> candidates{};
  plan::ClusterView cluster{};                      // of the candidates, in that order
  std::optional<CheckpointCommitted> checkpoint{};  // go on from here; nothing: from the submitted weights
  uint32_t microbatch_size = 0;                     // of a run before, which it keeps; 0: none has run
  bool checkpoint_is_direct = false;                // peers alone have it
  bool may_follow = false;         // who lacks it may follow those that have it (replicas::ReplicaTerms)
  replicas::ChosenTerms chosen{};  // by a plan of a run before, which it keeps
  uint32_t gentler = 0;            // than the planner's links would be (plan::Compression)
  // When only peers change: the plan before, whose stages stay as they are; stage s goes to
  // candidates[placed[s]].
  std::shared_ptr<const PlannedRun> previous{};
  std::vector<uint32_t> placed{};
};
struct Reconsider {  // answered by Reconsidered
  StartPlanning request{};
  std::shared_ptr<const PlannedRun> current{};
  std::vector<uint32_t> placed{};  // by stage of the current one, an index into the candidates
};
// Of the blobs that need not survive the broker, those that are still spoken of. It comes with every
// snapshot, so it is a plain list, in which one may stand several times.
struct KeepTransient {
  std::vector<Digest> blobs{};
  // What was written or asked about so lately stays: nobody has reported it yet, but its round is under way.
  Duration young{};
};
struct OpenFeed {  // peers that show the key may fetch microbatches of the job
  proto::JobNumber job = 0;
  proto::Secret data_key{};
  // For a run that goes on after a restart, whose job nobody has at hand yet.
  std::optional<proto::Encoded<proto::SubmitJob>> submission{};
  uint32_t microbatch_size = 0;  // of that run
};
struct CloseFeed {
  proto::JobNumber job = 0;
};
struct GrantRelay {
  proto::Secret ticket{};
};
// Of a job that serves, when it changed. Nothing: it has ended.
struct ServedState {
  proto::ServedModel model{};
  proto::Encoded<proto::SubmitJob> submission = proto::SubmitJob{};
  int64_t created = 0;  // seconds since 1970
  proto::PlanVersion plan_version = 0;
  std::optional<PeerId> entry{};  // the peer of stage 0, where requests go; nothing: `unavailable` says why
  std::string unavailable{};
};
struct PublishServed {
  proto::JobNumber job = 0;
  std::optional<ServedState> state{};
};
struct RevokeRelay {
  proto::Secret ticket{};
};
struct ForgetJob {  // it has ended: what is at hand of it may go
  proto::JobNumber job = 0;
};
struct PublishPeers {
  proto::PeerList peers{};
};
// Of a job of `whose`, or anybody's: past events to a client, then new ones when asked for.
struct SendEvents {
  ConnectionId connection = 0;
  std::optional<PeerId> whose{};
  proto::GetEvents request{};
};
// A question about a job that is not open, or not theirs: GetJob, GetResult, StopJob, RemoveJob.
struct AnswerFromStore {
  ConnectionId connection = 0;
  std::optional<PeerId> whose{};
  proto::Message request;
};
// Answered with a JobList: the newest `count` below `before` (0: of all) of these and those in the store.
struct SendJobs {
  ConnectionId connection = 0;
  std::optional<PeerId> whose{};
  proto::JobNumber before = 0;
  uint32_t count = 0;
  std::vector<proto::JobStatus> open{};  // newest first, one more than `count` at most
};
struct ReopenJob {  // answered by JobReopened
  ConnectionId connection = 0;
  std::optional<PeerId> whose{};
  proto::JobNumber job = 0;
};
struct VerifyBlobs {  // answered by BlobsVerified
  proto::JobNumber job = 0;
  uint64_t step = 0;
  std::set<Digest> blobs{};
};
// Blobs of a copy that need not survive the broker are made durable, for its job has no peers that would make
// another one. Answered by BlobsKept.
struct KeepBlobs {
  proto::JobNumber job = 0;
  uint64_t step = 0;
  std::set<Digest> blobs{};
};
struct Log {
  std::string line{};  // "level event key=value ..."
};
using Effect =
    std::variant<Send, Admit, Close, CloseAll, CheckSubmission, StartPlanning, Reconsider, OpenFeed,
                 CloseFeed, GrantRelay, RevokeRelay, ForgetJob, PublishPeers, PublishServed, SendEvents,
                 AnswerFromStore, SendJobs, ReopenJob, VerifyBlobs, KeepBlobs, KeepTransient, Log>;

// Records are made durable, all together, before any effect is carried out; then effects in order.
struct Effects {
  std::vector<Record> records{};
  std::vector<Effect> effects{};
};

}  // namespace weft::broker
