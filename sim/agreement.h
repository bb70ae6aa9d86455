// How the simulated seats of replicas with local steps come to the same weights: what peer/service has as
// sums of floats (seat_agreement.h) over hashes, in the same order and with the same memory, so that a
// difference too many, one too few or one out of its turn changes everything after it. The rules by which a
// single value goes on are shared with the plain loop over the rounds of a run (sim/rounds_alone.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peer/machine/agreements.h"
#include "peer/machine/task.h"
#include "replicas/mean_evidence.h"
#include "replicas/norm_guard.h"
#include "sim/bugs.h"
#include "sim/network.h"

namespace weft::sim {

// ---- the rules

uint64_t difference_of(uint64_t now, uint64_t begun);
// What is sent, through the run's codec: what its reader makes of it, and what is owed then.
struct PassedHash {
  uint64_t read = 0, residue = 0;
};
PassedHash pass_through(const compress::Codec& codec, uint64_t draw, uint64_t value, uint64_t residue);
uint64_t draw_of(uint64_t seed, uint64_t steps_before, uint32_t number, uint32_t replica);
// Of a difference that a replica learnt in so many steps: as such are, the more the longer it learnt.
double square_of_difference(uint64_t read, uint64_t steps);

// What a replica that has gone on from `start` has of a tensor once it is agreed on.
uint64_t move_on(uint64_t now, uint64_t start, uint64_t agreed);

class HashMean {
 public:
  void add(uint64_t value, uint64_t weight) { sum_ = mix(sum_, mix(value, weight)); }
  uint64_t take() const { return mix(sum_, 0x6d65616e); }

 private:
  uint64_t sum_ = 0;
};
// Of the mean as read. The agreed value, and the momentum where the rule has one.
void take_outer_step(const replicas::OuterSpec& outer, uint64_t mean, uint64_t& momentum, uint64_t& agreed);

// How means are looked at a second time (replicas/mean_check.h): a value is the first two numbers of a piece,
// and a tensor has one value, whichever piece is asked for. REQUIRES: a piece of two numbers at least.
std::vector<float> piece_of(uint64_t value, size_t count);
Digest hash_of_bytes(std::span<const std::byte> bytes);
std::optional<replicas::TakenPiece> take_piece(const replicas::CheckedPiece& piece,
                                               std::span<const std::span<const float>> differences,
                                               const replicas::ShownPiece& owner);

// ---- a seat

// A difference or a mean, as read, of the tensor of that number.
struct HashShare {
  uint32_t number = 0, replica = 0;  // the sender's
  uint64_t value = 0;
  double square = 0;  // of its norm
  uint32_t attempt = 0;
};

class HashAgreement {
 public:
  using Kept = std::map<dag::StateKey, uint64_t>;
  using Weights = std::map<std::string, uint64_t>;  // by initializer
  // `kept`: what the assignment names, by its keys; what is not there is zero.
  HashAgreement(std::shared_ptr<const proto::AssignStage> assignment, const Kept& kept, Bug bug = Bug::None);

  struct Sent {
    plan::Seat to{};
    TensorPacket packet{};
  };
  // Of the task's round. What goes to other seats, again with another attempt.
  // Where that round is the first that overlaps the next one, `weights` are then those that it goes on with.
  std::vector<Sent> differ(const peer::Task& task, Weights& weights);
  struct Means {
    std::vector<Sent> sent{};
    std::optional<replicas::Outlier> refused{};
  };
  Result<Means> take_means(const peer::Task& task, const std::vector<HashShare>& differences);
  std::optional<replicas::Outlier> weigh(const peer::Task& task, const std::vector<HashShare>& means);
  // What the stage is to hold: the agreed weights, or, where another round has been made meanwhile, those
  // that it goes on with; none where that one is agreed on at once. `now`: what it has.
  Result<Weights> agree(const peer::Task& task, const std::vector<HashShare>& means, const Weights& now);
  // As SeatAgreement.
  std::optional<Digest> owed() const;
  Result<replicas::ShownPiece> show(const proto::MeanCheck& check) const;
  void begin_round() {
    if (!local().terms.overlap()) agreed_.clear();
  }
  // From now on it takes other means than it should, when that says so, and goes on from them itself.
  void distort_means(std::function<bool()> now) { distorts_ = std::move(now); }
  const std::vector<peer::AgreedWeight>& weights() const { return weights_; }
  // For a snapshot after agree().
  struct Named {
    dag::StateKey key;
    dag::TensorSpec spec;
    uint64_t value = 0;
  };
  std::vector<Named> tensors() const;

 private:
  struct Difference {
    uint64_t value = 0;
    double square = 0;
  };
  struct Held {
    uint64_t agreed = 0, momentum = 0, residue = 0, return_residue = 0;
    bool owes_returns = false;
    std::optional<uint64_t> start{};  // of its round, where the one before overlaps it
  };
  struct UnderWay {  // as peer/service has it
    uint64_t step = 0;
    std::optional<uint32_t> fragment{};
    std::vector<std::optional<Difference>> sent{};
    std::vector<std::optional<Difference>> means{};
    replicas::MeanEvidence evidence{};
    bool is_about(const peer::AgreedWeight& weight) const {
      return !fragment || weight.tensor->fragment == *fragment;
    }
    bool has_sent() const;
  };
  const replicas::LocalSteps& local() const { return assignment_->local->steps; }
  uint32_t seat() const { return assignment_->seat.replica; }
  replicas::OuterRound round(const peer::Task& task) const;
  UnderWay& under_way(const peer::Task& task);
  uint64_t steps_of(size_t index, const peer::Task& task, uint32_t replica) const;
  uint32_t guard_of(const UnderWay& round) const;
  void take_next(size_t index, const UnderWay& here, const UnderWay& next, Weights& weights);
  Result<Difference> mean_of(size_t index, const peer::Task& task, const UnderWay& here,
                             const std::vector<HashShare>& differences) const;
  uint32_t owner_of(size_t index, const peer::Task& task) const;
  uint64_t go_on(Held& held, uint64_t difference) const;
  Sent packet(size_t index, const peer::Task& task, bool is_mean, uint32_t to, const Difference& of) const;
  std::vector<float> whole(size_t index, uint64_t value) const;
  void keep_evidence(const peer::Task& task, UnderWay& round, const std::vector<HashShare>& differences);
  std::optional<replicas::Outlier> find_outlier(const peer::Task& task,
                                                const std::vector<HashShare>& differences);

  std::shared_ptr<const proto::AssignStage> assignment_;
  Bug bug_;
  std::vector<peer::AgreedWeight> weights_;  // by number
  std::vector<Held> held_;                   // of each
  std::deque<UnderWay> under_way_, agreed_;
  std::shared_ptr<const replicas::HashTree> owed_;
  std::function<bool()> distorts_;
  std::map<uint32_t, replicas::NormGuard> guards_, guards_of_means_;
};

}  // namespace weft::sim
