// Where a parameter's owner alone has the optimizer's slots of it. Each replica is planned as if it had an
// equal part of all slots of its parameters; this is what owners come to beside that.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/agreement.h"
#include "plan/request.h"

namespace weft::plan {

class SharedSlots {
 public:
  // `plans`: one a replica, on devices of its own, made from `pipeline` with so many slots_among.
  SharedSlots(const PlanRequest& pipeline, uint32_t slots_among, std::span<const Plan* const> plans);

  // By device of the cluster: bytes of slots that it can hold.
  const std::vector<int64_t>& room() const { return room_; }
  // Whether each device can hold the slots of what it owns.
  bool fit(std::span<const AgreedLoad> tensors) const;  // AgreedLoad::kept
  // The memory of the same plans, with the slots of what each device owns.
  void settle(std::span<const AgreedLoad> tensors, std::vector<Plan>& plans) const;

 private:
  std::vector<int64_t> owned(std::span<const AgreedLoad> tensors) const;

  std::vector<int64_t> planned_, room_;  // by device
};

}  // namespace weft::plan
