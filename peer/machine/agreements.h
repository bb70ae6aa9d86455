// What the seats of other replicas send to a stage whose replica makes local steps, when they agree: to the
// owner of a tensor the others' differences, from it their mean (replicas/agreement.h). It says what may come
// and what is there; the bytes lie with whoever runs the tasks. Pure.
//
// Such a tensor has ProgramKind::Agree, as its step the steps of the run that were agreed before the round,
// as its edge AgreedTensor::number. Forward: a difference; Backward: the mean. Its microbatch is the attempt.
//
// Replicas may be left out of an agreement (proto::CommandKind::LeaveOut). Then it begins again, with an
// attempt of a higher number: as many replicas are left out. Others may know that earlier: what they then
// send takes the place of what they sent before, and waits here.
//
// Bounds: the tensors of two agreements, for a seat that needs nothing of this one may be one ahead, and of
// one before that is not over where rounds overlap; each from each seat once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "proto/agreed_weights.h"
#include "proto/messages.h"
#include "replicas/left_out.h"
#include "replicas/outer_round.h"

namespace weft::peer {

using proto::agreed_weights;
using proto::AgreedWeight;
// Whether such a tensor may come to the stage at all. InvalidArgument: it is another than the assignment
// says.
Status check_agreed_tensor(const proto::AssignStage& assign, const std::vector<AgreedWeight>& weights,
                           const proto::TensorHeader& header);

class Agreements {
 public:
  explicit Agreements(std::shared_ptr<const proto::AssignStage> assignment);

  // `completed`: the steps of the script that the stage has done. InvalidArgument: too late, too early,
  // twice, or another than the assignment says.
  Status on_tensor(const plan::Seat& from, const proto::TensorHeader& header, uint64_t completed);

  // Of another attempt at an agreement that is over here.
  bool is_over(const proto::TensorHeader& header) const {
    return header.program == proto::ProgramKind::Agree && header.microbatch > 0 && finished_ &&
           header.step <= *finished_;
  }

  // For the agreement after that step: all differences for the stage to add up, and all means for it to take.
  bool are_differences_there(uint64_t step) const;
  bool are_means_there(uint64_t step) const;
  // Whether nothing is missing that these replicas were to send for it; of means alone, if it `has_means`.
  bool has_all_of(const std::vector<uint32_t>& replicas, uint64_t step, bool has_means) const;
  // The seat whose tensor was the last of either; nothing where none had to come.
  std::optional<plan::Seat> last_to_come(uint64_t step, bool means) const;
  void finish(uint64_t step);

  // The end of the round after so many steps, if its agreement is under way or the next: what is not finite
  // of it may come. Nothing: it is another's time.
  std::optional<uint64_t> end_of(uint64_t steps_before, uint64_t completed) const;

  // Whether the stage takes the mean of anything then.
  bool takes_means(uint64_t step) const;
  // From now on nothing comes of these replicas, and from the agreement after `first` on they have no part:
  // what they were to add up is another's.
  void leave_out(std::shared_ptr<const replicas::LeftOut> left_out, uint64_t first) {
    left_out_ = std::move(left_out);
    first_without_ = first;
    rounds_.clear();
  }
  // All wait for the agreement after that step, and so it is about all of the model, whatever it was to be.
  void settle(uint64_t step) {
    settled_ = step;
    rounds_.clear();
  }
  const std::shared_ptr<const replicas::LeftOut>& left_out() const { return left_out_; }
  // Of the agreement after that step; nullptr: all have a part in it.
  std::shared_ptr<const replicas::LeftOut> left_out(uint64_t step) const {
    return step >= first_without_ ? left_out_ : nullptr;
  }

 private:
  using Attempts = std::map<std::pair<uint32_t, uint32_t>, uint32_t>;  // by number and replica: the last one
  struct Arrived {
    Attempts differences{}, means{};
    std::optional<plan::Seat> last_difference{}, last_mean{};
  };
  // Of the agreement after a step, as it is known by now: what is asked after each tensor is counted once.
  struct Round {
    replicas::OuterRound dealt{};
    std::vector<std::vector<uint32_t>> makers{};  // by fragment: who has learnt something, whoever was lost
    std::vector<size_t> owned{}, awaited{};  // of weights_: whose mean is taken here, and comes from another
    size_t differences = 0;                  // that come for them
  };
  const Round& round(uint64_t step) const;
  bool is_about(const AgreedWeight& weight, const Round& round, uint64_t step) const {
    return step == settled_ || round.dealt.is_about(weight.tensor->fragment);
  }
  // Whether that replica's difference is added up here.
  bool is_sender(const AgreedWeight& weight, const Round& round, uint64_t step, uint32_t replica) const;
  uint64_t round_before(uint64_t step) const;
  uint32_t owner_of(const AgreedWeight& weight, uint64_t step) const;
  bool has(uint64_t step, Attempts Arrived::*which, const AgreedWeight& weight, uint32_t replica) const;
  bool is_its_time(uint64_t round_before, uint64_t completed) const;
  std::optional<uint64_t> overlapped_end(uint64_t completed) const;
  const Arrived* arrived(uint64_t step) const;

  std::shared_ptr<const proto::AssignStage> assignment_;
  std::vector<AgreedWeight> weights_;
  std::map<uint64_t, Arrived> arrived_;  // by the steps agreed before
  std::optional<uint64_t> finished_;     // the last one, likewise
  std::shared_ptr<const replicas::LeftOut> left_out_;
  uint64_t first_without_ = 0;
  std::optional<uint64_t> settled_;
  mutable std::map<uint64_t, Round> rounds_;  // by step, of those under way
};

}  // namespace weft::peer
