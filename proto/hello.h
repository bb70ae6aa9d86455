// The protocol's version, and who speaks: the first message of each connection and its answer.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "dag/arithmetic.h"
#include "dag/backend_traits.h"
#include "dag/op_set.h"
#include "plan/device.h"
#include "plan/seat.h"

namespace weft::proto {

// Another major version is refused by name; another minor one is spoken to.
inline constexpr uint32_t kProtocolMajor = 1;
inline constexpr uint32_t kProtocolMinor = 31;
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
// The first whose peers serve; others get no stage of a job that does.
inline constexpr uint32_t kProtocolMinorOfServing = 10;
// The first whose peers compute a model that guesses beside the one they serve; others get no stage of a job
// that has one. They leave out other guesses, which changes no text.
inline constexpr uint32_t kProtocolMinorOfDrafts = 11;
// From 12 on peers say how many stages they hold at once, which ones they still hold when they come back, and
// what a resumed one takes. Others hold one.
// From 13 on peers say why they leave and whether they come back, how a stage's tensors travel, and learn
// whose job a stage is of; brokers say in HelloAck what time it is there, and where they see the other side,
// take a job that begins at a checkpoint, and remove a job that has ended. From 14 on peers say how far the
// upload of a checkpoint is.
inline constexpr uint32_t kProtocolMinorOfBeginnings = 13;
// The first whose peers make local steps beside those of other replicas, and begin an agreement again where
// one of these is lost; others get no stage of a job whose replicas do. Those of 14 knew no shares of a
// round, those before 17 left nobody out, those before 22 knew no rounds that overlap, and left nobody out of
// them, those before 27 showed nothing of the means that they had taken.
inline constexpr uint32_t kProtocolMinorOfLocalSteps = 27;
// The first whose peers measure a link also while they train a replica that makes local steps: with one that
// came, and may become a replica of the same run.
inline constexpr uint32_t kProtocolMinorOfProbesAtWork = 16;
// From 18 on peers refuse to add up what is out of all proportion, where the assignment says a bound.
// The first whose peers add the gradients of each step to those of other replicas, and come to the same
// running statistics; others get no stage of a job that may have several. Those of 19 had no statistics.
inline constexpr uint32_t kProtocolMinorOfExactReplicas = 20;
// The first whose peers keep copies of such a replica themselves, whichever it is; where others are among
// them the first replica's are uploaded.
inline constexpr uint32_t kProtocolMinorOfKeptCopies = 21;
// The first whose peers keep optimizer slots in eight bits; others get no stage of a job that has any.
inline constexpr uint32_t kProtocolMinorOfCodedSlots = 23;
// The first whose peers can leave the optimizer's slots of a parameter to its owner; others get no stage of a
// job that shares them.
inline constexpr uint32_t kProtocolMinorOfSharedSlots = 29;
// The first whose peers agree about parts of a large tensor, each with an owner of its own; others get no
// stage of a job with local steps that was submitted to a broker of 30 or later, unless its codec needs whole
// tensors.
inline constexpr uint32_t kProtocolMinorOfParts = 30;
// The first whose peers agree about fragments of the model in turn; others get no stage of a job that has any.
inline constexpr uint32_t kProtocolMinorOfFragments = 31;
// From 24 on peers say which ops they know (dag/op_set.h); others are taken to know those of before.
// The first whose peers write sums of gradients by a codec; others get no stage of a job that names one.
inline constexpr uint32_t kProtocolMinorOfCodedGradients = 28;

// A job is what was submitted; the number names its run too. Counted from 1 by the broker.
using JobNumber = uint64_t;
// Which plan of a run: counted from 1, one more with every change of stages or peers. What is older is
// dropped.
using PlanVersion = uint32_t;
using Secret = std::array<uint8_t, 16>;

enum class Role : uint8_t {
  Peer = 1,       // a peer's control connection
  Submitter = 2,  // a user's client
  PeerBulk = 3,   // a peer's second connection: tensors by hash, microbatches of data
  Admin = 4,      // a user's client that may see and end everybody's jobs, and ban peers
  Caller = 5,     // of tokens alone, for the broker's HTTP door: no connection comes as one
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

// A stage that trains and one that serves; the rest is for peers to come.
inline constexpr uint32_t kStagesHeldMax = 16;

// What a peer says of itself. Rates are measured by the peer, or its catalogue's for a null device.
struct DeviceReport {
  std::string device{};  // "cpu:2", "null:rtx3080"
  // Of a processor: the threads that compute and serve its links, too. 0: others serve them, or it is
  // unknown.
  uint32_t threads = 0;
  plan::Rates rates{};
  Bytes memory{};             // what the peer offers of the device's
  Bytes host_memory{};        // and of the host's; 0: the device's memory is the host's
  std::string fingerprint{};  // peer::Backend::numerics_fingerprint
  dag::BackendTraits traits{};
  std::string region{};                  // where its owner says it is; empty: unknown
  std::string owner{};                   // whose it says it is; empty: nobody's who has another
  std::vector<std::string> addresses{};  // "host:port" where other peers reach it; empty: only by relay
  std::vector<dag::Arithmetic> arithmetic{dag::Arithmetic::F32};  // that it has; never empty
  uint32_t stages = 1;            // of different runs, that it holds at once: 1 to kStagesHeldMax
  uint32_t op_set = dag::kOpSet;  // of its program, as dag/op_set.h counts them; at least 1

  bool has(dag::Arithmetic wanted) const {
    return std::find(arithmetic.begin(), arithmetic.end(), wanted) != arithmetic.end();
  }
  DeviceClass device_class() const { return {traits, fingerprint}; }
};

// A stage that a peer still runs when it comes back to its broker.
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
  std::vector<StageHeld> holding{};  // Role::Peer; each of another run, at most kStagesHeldMax
};
struct HelloAck {
  uint32_t major = kProtocolMajor;
  uint32_t minor = kProtocolMinor;
  std::string software{};
  std::string name{};  // what the broker calls this peer
  Duration heartbeat_interval{};
  Duration lease{};       // without a heartbeat for so long the peer is given up
  int64_t unix_ms = 0;    // the broker's time of day; 0: it does not say
  std::string address{};  // where the broker sees this connection come from, "192.0.2.1:4711"; may be empty
};
// The answer to a Hello or a request that is not granted. After a refused Hello the connection is closed.
struct Refusal {
  ErrorCode code = ErrorCode::Internal;
  std::string message{};
  bool retry = false;  // whether trying again later, unchanged, may succeed
};

}  // namespace weft::proto
