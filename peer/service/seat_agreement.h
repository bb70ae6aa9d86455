// How a stage whose replica makes local steps comes to the same weights as the seats of the others: the sums
// of replicas/agreement.h, each at the seat that owns the tensor. What a seat sends others are owed is kept
// here; the weights lie in the stage's state, and are the agreed ones between agree() and the next step, of a
// round that does not overlap.
//
// In host memory: of each tensor the agreed values, and as the terms have it outer momentum and residues; of
// one agreement, or of two where rounds overlap, the differences as they were sent. Of a large tensor each
// part (replicas/parts.h) has its own of all these. Where others' means are looked at a second time, what
// replicas/mean_evidence.h says, and these differences of one agreement more, or two.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "peer/machine/agreements.h"
#include "peer/machine/task.h"
#include "peer/service/agreed_round.h"
#include "peer/service/agreed_state.h"
#include "peer/service/share.h"
#include "peer/service/shown_rounds.h"
#include "peer/state.h"
#include "proto/messages.h"
#include "replicas/agreement.h"
#include "replicas/mean_evidence.h"
#include "replicas/norm_guard.h"

namespace weft::peer {

class SeatAgreement {
 public:
  struct Means {
    std::vector<SentShare> sent{};
    // Whose differences are out of all proportion, by the assignment's bound: then nothing was added up.
    std::optional<replicas::Outlier> refused{};
  };
  using Kept = KeptBetweenAgreements;
  // Takes the weights that `state` holds as agreed; `kept` may have OuterMomentum, Residue and ReturnResidue,
  // which else are zero; of a part of a tensor also what is owed of all of it. Unsupported: a weight that is
  // not float32; InvalidArgument: a tensor of another shape. `state` outlives this.
  static Result<std::unique_ptr<SeatAgreement>> create(std::shared_ptr<const proto::AssignStage> assignment,
                                                       State& state, const Kept& kept);

  // Of the task's round, in this order; again from the first with another attempt: then what was sent before
  // goes once more to who takes the means now, and nobody owes anything of these, for some of that went with
  // who was left out. Two rounds may be under way, of which the first overlaps the second: agree() of the
  // first comes after differ() of the second. OutOfRange: something is not finite; not_finite() says what,
  // and nothing else may be asked any more.
  Result<std::vector<SentShare>> differ(const Task& task);
  // REQUIRES: every difference that Agreements waits for is there, once.
  Result<Means> take_means(const Task& task, const std::vector<AgreedShare>& differences);
  // REQUIRES: the same of means. Whose is out of all proportion, by the assignment's bound, to what this
  // replica has learnt of the same tensors. Before agree(), and where the assignment has a bound.
  std::optional<replicas::Outlier> weigh(const Task& task, const std::vector<AgreedShare>& means);
  // Of others than a tensor's owner, and of another attempt, nothing is taken.
  Status agree(const Task& task, const std::vector<AgreedShare>& means);
  // What is owed of the means of the agreement that agree() has just ended, as StepReport::owed; nothing
  // where nothing is, or nobody looks a second time.
  std::optional<Digest> owed() const { return shown_.owed(); }
  // Of the last agreement, or one of three where rounds overlap. NotFound: it is none of them, or of a tensor
  // that the stage has not.
  Result<replicas::ShownPiece> show(const proto::MeanCheck& check) const;
  // None of it is asked for any more, where rounds do not overlap: another one begins.
  void begin_round() {
    if (!local().terms.overlap()) shown_.clear();
  }
  const std::optional<dag::StateKey>& not_finite() const { return not_finite_; }

  // For a snapshot after agree().
  std::vector<std::pair<dag::StateKey, dag::Tensor>> tensors() const;
  Bytes bytes() const;

 private:
  using Held = AgreedState;
  using UnderWay = AgreedRound;
  SeatAgreement(std::shared_ptr<const proto::AssignStage> assignment, State& state)
      : assignment_(std::move(assignment)), state_(state) {}
  const replicas::LocalSteps& local() const { return assignment_->local->steps; }
  replicas::OuterRound round(const Task& task) const;
  UnderWay& under_way(const Task& task);
  uint32_t owner_of(const Held& held, const Task& task) const;
  bool is_ours(const Held& held, const Task& task) const {
    return owner_of(held, task) == assignment_->seat.replica;
  }
  void go_on(Held& held, std::span<const float> difference);
  Status differ_in(const Task& task, UnderWay& here, size_t begin, bool goes_on);
  Status take_next(size_t begin, const UnderWay& here, const UnderWay* next);
  void send(const Task& task, const UnderWay& round, std::vector<SentShare>& to) const;
  std::optional<replicas::Outlier> find_outlier(const Task& task,
                                                const std::vector<AgreedShare>& differences);
  using Came = std::map<std::pair<uint32_t, uint32_t>, const dag::Tensor*>;  // by number and replica
  Result<std::vector<float>> mean_of(const Task& task, size_t index, const Came& came);
  size_t find(uint32_t number) const;
  Result<dag::Tensor> payload_of(Held& held, uint64_t before, bool is_mean, std::vector<float>& values);
  SentShare share(const Held& held, const Task& task, bool is_mean, uint32_t to, dag::Tensor payload) const;
  bool are_looked_at() const { return assignment_->local->norm_bound > 0 && local().terms.makers() > 1; }
  void keep_evidence(const Task& task, UnderWay& round, const std::vector<AgreedShare>& differences);
  tl::unexpected<Error> diverged(const Held& held, const char* what);

  std::shared_ptr<const proto::AssignStage> assignment_;
  State& state_;
  std::vector<Held> held_;  // in the order of the assignment
  std::optional<dag::StateKey> not_finite_;
  std::deque<UnderWay> under_way_;                  // two at most
  ShownRounds shown_;                               // likewise
  std::shared_ptr<const replicas::HashTree> owed_;  // after the last means that were taken here
  std::map<uint32_t, replicas::NormGuard> guards_, guards_of_means_;  // by what an agreement is about
  replicas::PassScratch scratch_;
};

}  // namespace weft::peer
