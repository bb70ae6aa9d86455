// A stage, as a peer is assigned it: programs, edges, tensors, links.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "compress/codec.h"
#include "dag/arithmetic.h"
#include "dag/graph.h"
#include "dag/made_value.h"
#include "dag/recipe.h"
#include "dag/state.h"
#include "dag/tensor.h"
#include "dag/training.h"
#include "plan/seat.h"
#include "proto/hello.h"
#include "proto/serving.h"
#include "replicas/local_steps.h"

namespace weft::proto {

// Serve, Agree and Sum are of no StageProgram: AssignStage::serve, ::local and ::exact have them.
enum class ProgramKind : uint8_t { Train = 0, Evaluate = 1, Predict = 2, Serve = 3, Agree = 4, Sum = 5 };

// One end of a cut edge, at this stage. `edge` is the same number at both ends.
struct EdgeEnd {
  uint32_t edge = 0;
  dag::ValueId value{};  // in the stage's graph
  uint32_t stage = 0;    // the other end's
  // How its tensors travel; both ends have the same. Values that are not float32, and tensors holding Inf or
  // NaN, always travel dense.
  compress::Codec codec{};
};

// Which seat of the other stage has that microbatch: that of one's own replica, which computes all of its
// step.
inline plan::Seat other_end(const EdgeEnd& end, const plan::Seat& own) { return {end.stage, own.replica}; }

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

// A tensor of a list whose value no file has: a peer may make it, and then fetches no blob.
struct MadeTensor {
  uint32_t tensor = 0;  // of the list, by index
  dag::MadeValue how{};
};

// How somebody comes to a blob who has another tensor on his disk. Who has not, or to whom it is not known
// what is asked of him, fetches the blob.
struct BlobRecipe {
  Digest sha256{};
  dag::Recipe recipe{};  // dag::bytes_of() knows how many bytes it makes
};

inline constexpr size_t kRecipesMax = 20'000;  // of a message

// What replicas agree about: with local steps a parameter that is trained or a running statistic, else the
// gradient of a parameter.
struct AgreedTensor {
  uint32_t number = 0;             // of the whole graph (replicas/parts.h)
  std::string name{};              // the initializer's
  uint32_t owner = 0;              // the replica whose seat takes the mean, or adds up
  std::vector<uint32_t> stages{};  // by replica: which of its stages has it
  // Of local steps, minor version 30: of a part of the tensor, how many numbers; 0: it is whole.
  uint64_t elements = 0;
  uint32_t fragment = 0;  // of local steps, minor version 31: replicas/fragments.h
};
// Of a run whose replicas make local steps: then the steps of assignments, commands and reports are inner
// steps (replicas/local_steps.h), and those of `training` as well.
struct LocalTerms {
  replicas::LocalSteps steps{};
  std::vector<AgreedTensor> tensors{};  // that the stage has, in their order (replicas::is_before)
  // How many times the usual one the norm of what a replica sends may be (replicas/norm_guard.h); 0: whatever
  // comes is added up.
  double norm_bound = 0;
};

// Of a run whose replicas add each step's gradients: each computes whole neighbouring ranges of the step's
// microbatches (dag/gradient_order.h), and all update by the same sums: as those that did not add them up
// read them. So each has the same state. With shared slots a parameter's owner alone has the optimizer's
// slots of it, and makes its update; the others take the weights that come of that.
struct ExactTerms {
  std::vector<uint32_t> ranges{};       // by replica, how many; in all the gradient_ranges of `training`
  std::vector<AgreedTensor> tensors{};  // that the stage trains, by number
  // How sums of gradients travel, of ranges and of the step (replicas::gradient_codec); running statistics,
  // and what is not finite, are dense. One that passed replicas::check_gradient_codec.
  compress::Codec codec{};
  bool shared_slots = false;
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
  uint64_t copy_rate = 0;
  DeviceClass device_class{};         // that the programs were lowered for
  std::vector<BlobSource> sources{};  // each tensor at most once
  std::vector<Digest> lends{};        // blobs that others fetch here, each as often as it is fetched
  dag::Arithmetic arithmetic = dag::Arithmetic::F32;  // of its kernels; the peer's device has it
  // Predicted: computing one microbatch, forward and backward; 0: unknown.
  double microbatch_seconds = 0;
  uint64_t skipped_steps = 0;           // of those up to `after_step`: without an update
  std::optional<ServeProgram> serve{};  // instead of `programs`
  // For the people whose machine it is: what the job is called, and who gave it.
  std::string job_name{}, submitter{};
  std::optional<LocalTerms> local{};
  std::optional<ExactTerms> exact{};
  std::vector<MadeTensor> made{};     // each tensor at most once
  std::vector<BlobRecipe> recipes{};  // of some of the tensors
};

// The microbatches of a step that the seat's replica computes.
struct MicrobatchShare {
  uint32_t first = 0, count = 0;
};
MicrobatchShare microbatches_of(const AssignStage& assign);
// Whether the optimizer's slots of a parameter lie with its owner's seat alone.
inline bool shares_slots(const AssignStage& assign) { return assign.exact && assign.exact->shared_slots; }
// What the stage updates, by name, in the order of dag::trained_parameters of its training program: all that
// it trains, or with shared slots what it owns. Empty for a stage that trains nothing.
std::vector<std::string> updated_parameters(const AssignStage& assign);
// What a snapshot of the stage holds of what its training program changes, in the order of
// dag::trained_state. With shared slots that is what it owns, weights and slots.
std::vector<dag::StateKey> copied_state(const AssignStage& assign);
// Whether snapshots are made of the stage: where all replicas have the same state, of those of the first one;
// with shared slots of those that own something.
bool keeps_state(const AssignStage& assign);
// Of a replica that makes no step yet: what the others have is still on its way.
inline bool is_follower(const AssignStage& assign) {
  return assign.local && assign.local->steps.terms.follows(assign.seat.replica);
}
// Some replica of the run is: what it fetches is lent to it for as long as that takes.
inline bool is_followed(const AssignStage& assign) {
  return assign.local && !assign.local->steps.terms.followers.empty();
}
// Whether it makes a copy that stays with the stages, or goes elsewhere: each of those replicas keeps its
// own; a follower only `with_followers`.
inline bool keeps_copy(const AssignStage& assign, bool stays, bool with_followers) {
  return (stays || keeps_state(assign)) && (with_followers || !is_follower(assign));
}
// Which step of the run the seat's replica makes in a step of its script: that one, or with local steps its
// own of that inner step; nothing where it has none left.
struct StepOfRun {
  uint64_t step = 0;       // names its samples, and what is drawn at random
  uint64_t scheduled = 0;  // where the schedule of the learning rate is read,
  uint64_t steps = 0;      // of so many
};
std::optional<StepOfRun> step_of_run(const AssignStage& assign, uint64_t step);
// Whether a round of replicas with local steps ends with it; and whether all have the same weights then.
bool ends_round(const AssignStage& assign, uint64_t step);
bool agrees_after(const AssignStage& assign, uint64_t step);

// The initializers that no program of the assignment changes, by name; the names are the assignment's.
std::set<std::string_view> fixed_initializers(const AssignStage& assign);

}  // namespace weft::proto
