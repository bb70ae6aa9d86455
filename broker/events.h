// What happens to the broker's core, and what it wants done. The core itself (broker/broker.h) has no socket,
// disk, clock or thread: whoever drives it hands it events and carries its effects out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "broker/records.h"
#include "proto/messages.h"

namespace weft::broker {

using ConnectionId = uint64_t;

struct Now {
  Instant monotonic{};
  int64_t unix_ms = 0;  // for records that people read; nothing is decided by it
};

// One stage of a planned run, ready to be sent.
struct PlannedStage {
  PeerId peer{};
  std::shared_ptr<const proto::AssignStage> assignment{};
  std::vector<uint32_t> parameters{};  // of the whole graph, in this stage's order: where its squares belong
};

// What planning a job gives.
struct PlannedRun {
  std::vector<PlannedStage> stages{};
  uint64_t steps = 0;  // 0: prediction
  uint32_t batch_size = 0;
  uint32_t microbatches = 0;  // a step
  uint32_t parameter_count = 0;
  dag::OptimizerSpec optimizer{};
  dag::ScheduleSpec schedule{};
  double clip_norm = 0;
  uint64_t evaluate_every = 0;
  std::optional<Duration> checkpoint_every{};
  std::optional<uint64_t> checkpoint_steps{};
  // Evaluation, or prediction: microbatches in all and the samples in each but the last; 0: none.
  uint32_t forward_microbatches = 0;
  uint64_t forward_samples = 0;
  uint32_t microbatch_size = 0;
  bool masked = false;  // the evaluation graph leaves padding out and counts what counted
  bool accuracy = false;
  uint32_t prediction_stages = 0;  // how many stages report outputs
  bool equal_bits = true;          // all peers of one fingerprint
  std::string fingerprint{};
  std::vector<std::string> explanation{};
  std::vector<proto::Secret> relay_tickets{};  // of its links
  proto::Secret data_key{};
  Duration predicted_step{};
};

// ---- events
// ----------------------------------------------------------------------------------------------------

// A Hello came; the store was asked about its token.
enum class TokenVerdict : uint8_t { None, Valid, Unknown, Expired, Used, Revoked };
struct Introduced {
  ConnectionId connection = 0;
  PeerId who{};
  std::string address{};  // for people
  proto::Hello hello{};
  TokenVerdict verdict = TokenVerdict::None;
};
struct Received {
  ConnectionId connection = 0;
  std::shared_ptr<const proto::Message> message{};
};
struct Disconnected {
  ConnectionId connection = 0;
  std::string reason{};
};
// A submission was looked at: its blobs are there and its job file parses. `name` for people.
struct SubmissionChecked {
  ConnectionId connection = 0;
  proto::SubmitJob submission{};
  Status verdict;
};
struct PlanningDone {
  proto::JobNumber job = 0;
  proto::PlanVersion plan_version = 0;
  Result<std::shared_ptr<const PlannedRun>> plan;
};
struct RelayWaiting {  // one side of a granted ticket has come
  proto::Secret ticket{};
};
struct Tick {};
using Event =
    std::variant<Introduced, Received, Disconnected, SubmissionChecked, PlanningDone, RelayWaiting, Tick>;

// ---- effects
// ---------------------------------------------------------------------------------------------------

struct Send {
  ConnectionId connection = 0;
  std::shared_ptr<const proto::Message> message{};
};
struct Admit {  // what this connection may do from now on
  ConnectionId connection = 0;
  proto::Role role = proto::Role::Peer;
};
struct Close {  // after what was sent has gone
  ConnectionId connection = 0;
};
struct CheckSubmission {
  ConnectionId connection = 0;
  proto::SubmitJob submission{};
};
// A peer that may be used.
struct Candidate {
  PeerId peer{};
  std::string name{};
  proto::DeviceReport device{};
};
struct StartPlanning {
  proto::JobNumber job = 0;
  proto::PlanVersion plan_version = 0;
  proto::SubmitJob submission{};
  std::vector<Candidate> candidates{};
  std::optional<CheckpointCommitted> checkpoint{};  // go on from here; nothing: from the submitted weights
};
struct OpenFeed {  // peers that show the key may fetch microbatches of the job
  proto::JobNumber job = 0;
  proto::Secret data_key{};
};
struct CloseFeed {
  proto::JobNumber job = 0;
};
struct GrantRelay {
  proto::Secret ticket{};
};
struct RevokeRelay {
  proto::Secret ticket{};
};
struct PublishStatus {
  proto::JobStatus status{};
};
struct PublishPeers {
  proto::PeerList peers{};
};
struct SendEvents {  // past events to a client, then new ones when asked for
  ConnectionId connection = 0;
  proto::GetEvents request{};
};
struct Log {
  std::string line{};  // "level event key=value ..."
};
using Effect = std::variant<Send, Admit, Close, CheckSubmission, StartPlanning, OpenFeed, CloseFeed,
                            GrantRelay, RevokeRelay, PublishStatus, PublishPeers, SendEvents, Log>;

// Records are made durable, all together, before any effect is carried out; then effects in order.
struct Effects {
  std::vector<Record> records{};
  std::vector<Effect> effects{};
};

}  // namespace weft::broker
