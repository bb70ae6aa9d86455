// What a stage whose replica follows the others is told before it has what they have: which rounds they
// agreed on, and the means of each. Taken in the same order once it has, that makes the same weights, bit for
// bit. The numbers lie in a file without a name, for they may be many times what the stage holds.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "peer/machine/task.h"
#include "peer/service/seat_agreement.h"
#include "peer/service/share.h"

namespace weft::peer {

class FollowedMeans {
 public:
  // `state`: of the stage; 64 times that may be kept, which some hundred rounds in four bits do not take
  // longer to send than the state itself.
  explicit FollowedMeans(Bytes state) : bytes_max_{kStatesMax * (state.value + (1 << 20))} {}

  // A task of an agreement, with what it would have read. ResourceExhausted: there is no room for it.
  Status add(const Task& task, const std::vector<AgreedShare>& means);
  // Each of them, in order; then there are none. Errors: those of `to`, and of the disk.
  Status take_all(SeatAgreement& to);
  size_t tasks() const { return kept_.size(); }

 private:
  struct Kept {
    Task task;
    std::vector<AgreedShare> means;  // without their numbers
    std::vector<dag::TensorSpec> specs;
  };
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  static constexpr int64_t kStatesMax = 64;
  const Bytes bytes_max_;
  std::vector<Kept> kept_;
  std::unique_ptr<std::FILE, Close> file_;
  int64_t bytes_ = 0;
};

}  // namespace weft::peer
