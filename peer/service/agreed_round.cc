#include "peer/service/agreed_round.h"

namespace weft::peer {

void AgreedRound::begin(const Task& task, const replicas::LocalSteps& local, size_t tensors) {
  fragment.reset();
  if (!task.settles) fragment = round_of(local, task.key.step).fragment;
  means.assign(tensors, {});
  steps.clear();
  for (uint32_t each = 0; each < local.terms.fragments; ++each) {
    if (fragment && each != *fragment) continue;
    std::vector<uint64_t>& of_fragment = steps[each];
    for (uint32_t replica = 0; replica < local.terms.count; ++replica) {
      const bool is_lost = task.left_out && task.left_out->has(replica);
      of_fragment.push_back(is_lost ? 0 : steps_since(local, replica, task.key.step, each));
    }
  }
}

}  // namespace weft::peer
