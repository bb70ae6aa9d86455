// How a stage whose replica makes local steps comes to the same weights as the seats of the others: the sums
// of replicas/agreement.h, each at the seat that owns the tensor. What a seat sends others are owed is kept
// here; the weights lie in the stage's state, and are the agreed ones between agree() and the next step, of a
// round that does not overlap.
//
// In host memory: of each tensor the agreed values, and as the terms have it outer momentum and residues.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "peer/machine/agreements.h"
#include "peer/service/share.h"
#include "peer/state.h"
#include "proto/messages.h"
#include "replicas/agreement.h"
#include "replicas/left_out.h"
#include "replicas/norm_guard.h"

namespace weft::peer {

class SeatAgreement {
 public:
  struct Means {
    std::vector<SentShare> sent{};
    // Whose differences are out of all proportion, by the assignment's bound: then nothing was added up.
    std::optional<replicas::Outlier> refused{};
  };
  using Kept = std::map<dag::StateKey, dag::Tensor>;
  // Takes the weights that `state` holds as agreed; `kept` may have OuterMomentum, Residue and ReturnResidue,
  // which else are zero. Unsupported: a weight that is not float32; InvalidArgument: a tensor of another
  // shape. `state` outlives this.
  static Result<std::unique_ptr<SeatAgreement>> create(std::shared_ptr<const proto::AssignStage> assignment,
                                                       State& state, const Kept& kept);

  // Who has no part in the next agreement, which is the last one of this stage. Nothing of what they sent is
  // looked at, and nobody owes anything of the means, for some of that went with them. nullptr: all have.
  void leave_out(std::shared_ptr<const replicas::LeftOut> left_out) { left_out_ = std::move(left_out); }

  // In this order, for the agreement after that step; again from the first where somebody was left out since:
  // then it is what now goes to others than before. OutOfRange: something is not finite; not_finite() says
  // what, and nothing else may be asked any more.
  Result<std::vector<SentShare>> differ(uint64_t step);
  // REQUIRES: every difference that Agreements waits for is there, once; where means were refused, what has
  // come since.
  Result<Means> take_means(uint64_t step, std::vector<AgreedShare> differences);
  // REQUIRES: the same of means; of others than a tensor's owner nothing is taken.
  // Of a round that overlaps the next one, after that one's differ().
  Status agree(uint64_t step, const std::vector<AgreedShare>& means);
  const std::optional<dag::StateKey>& not_finite() const { return not_finite_; }

  // For a snapshot after agree(), in the order of numbers.
  std::vector<std::pair<dag::StateKey, dag::Tensor>> tensors() const;
  Bytes bytes() const;

 private:
  struct Held {
    AgreedWeight weight;
    std::vector<float> agreed, momentum{}, residue{}, return_residue{};
    // Until the mean is taken, and where rounds overlap until the next one has begun: this replica's
    // difference, as others would read it.
    std::vector<float> own{};
    // Until the weights are agreed: the same as it was sent, should its owner be lost.
    std::optional<dag::Tensor> sent{};
    uint32_t sent_to = 0;
    std::vector<float> mean{};  // until the weights are agreed: as others read it
    // What the replica's round began with, where the one before it overlaps it; empty: what was agreed.
    std::vector<float> start{};
  };
  SeatAgreement(std::shared_ptr<const proto::AssignStage> assignment, State& state)
      : assignment_(std::move(assignment)), state_(state) {}
  const replicas::LocalSteps& local() const { return assignment_->local->steps; }
  replicas::OuterRound round(uint64_t step) const;
  uint32_t owner_of(const Held& held) const;
  bool is_ours(const Held& held) const { return owner_of(held) == assignment_->seat.replica; }
  Status read_own(Held& held, uint64_t before);
  Status go_on(Held& held);
  Result<std::vector<SentShare>> send_again(uint64_t before);
  std::optional<replicas::Outlier> find_outlier(const replicas::OuterRound& now,
                                                const std::vector<AgreedShare>& differences);
  Held* find(uint32_t number);
  Result<dag::Tensor> payload_of(Held& held, uint64_t before, bool is_mean, std::vector<float>& values);
  SentShare share(const Held& held, uint64_t before, bool is_mean, uint32_t to, dag::Tensor payload) const;
  tl::unexpected<Error> diverged(const Held& held, const char* what);

  std::shared_ptr<const proto::AssignStage> assignment_;
  State& state_;
  std::vector<Held> held_;  // by number
  std::optional<dag::StateKey> not_finite_;
  std::shared_ptr<const replicas::LeftOut> left_out_;
  std::optional<uint64_t> differed_;  // the last step with differ()
  bool is_late_ = false;              // a round overlapped the one under way, and is not agreed on
  replicas::NormGuard guard_;
  std::vector<AgreedShare> kept_;  // that had come when means were refused
  replicas::PassScratch scratch_;
};

}  // namespace weft::peer
