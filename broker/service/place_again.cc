#include "broker/service/place_again.h"

#include "broker/place/assembly.h"
#include "broker/service/random_secret.h"

namespace weft::broker {

Result<std::shared_ptr<const PlannedRun>> place_again(const StartPlanning& request, const JobFeed* feed,
                                                      const storage::BlobStore& blobs, uint64_t copy_rate) {
  if (feed != nullptr && feed->microbatch_size != request.previous->training.microbatch_size)
    return fail(ErrorCode::Unavailable, "the job's microbatches were chosen anew since");
  WEFT_TRY(const auto run,
           place_stages_again(request, feed != nullptr ? &feed->initial : nullptr, copy_rate, random_secret));
  for (const PlannedStage& stage : run->stages)
    for (const auto& tensor : stage.assignment->tensors)
      if (!blobs.has(tensor.sha256))
        return fail(ErrorCode::Unavailable, "the tensor of '" + tensor.key.name + "' was collected");
  return run;
}

}  // namespace weft::broker
