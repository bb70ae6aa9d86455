#include "broker/service/place_again.h"

#include <set>

#include "broker/place/assembly.h"
#include "broker/service/random_secret.h"
#include "proto/codec/codec.h"

namespace weft::broker {

Result<std::shared_ptr<const PlannedRun>> place_again(const StartPlanning& request, const JobFeed* feed,
                                                      const storage::BlobStore& blobs, uint64_t copy_rate) {
  if (feed != nullptr && !request.previous->serves() &&
      feed->microbatch_size != request.previous->training.microbatch_size)
    return fail(ErrorCode::Unavailable, "the job's microbatches were chosen anew since");
  WEFT_TRY(const auto placed,
           place_stages_again(request, feed != nullptr ? &feed->initial : nullptr, copy_rate, random_secret));
  std::set<Digest> lent;  // by peers
  if (request.checkpoint_is_direct)
    for (const auto& tensor : request.checkpoint->tensors) lent.insert(tensor.sha256);
  for (const PlannedStage& stage : placed->stages)
    for (const auto& tensor : stage.assignment->tensors)
      if (!lent.contains(tensor.sha256) && !blobs.has(tensor.sha256))
        return fail(ErrorCode::Unavailable, "the tensor of '" + tensor.key.name + "' was collected");
  // They are stored and sent: encoded here, on this thread, and once.
  auto run = std::make_shared<PlannedRun>(*placed);
  for (PlannedStage& stage : run->stages) stage.assignment = proto::with_bytes(stage.assignment);
  return run;
}

}  // namespace weft::broker
