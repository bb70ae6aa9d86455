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
    of_fragment = steps_since(local, task.key.step, each);
    for (uint32_t replica = 0; task.left_out && replica < of_fragment.size(); ++replica)
      if (task.left_out->has(replica)) of_fragment[replica] = 0;
  }
}

}  // namespace weft::peer
