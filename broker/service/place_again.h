// A plan for other peers: its stages stay as they are. Nothing that a stranger wrote is read for it, so that
// the broker does it by itself and no recovery waits for a process or behind anybody's import.
#pragma once

#include <memory>

#include "broker/events.h"
#include "broker/service/job_feeds.h"
#include "storage/blob_store.h"

namespace weft::broker {

// `feed`: of the job, nullptr where it is not at hand. `copy_rate`: 0 for none. REQUIRES:
// request.previous, and a candidate for each of its stages. Errors: Unavailable when it takes more than the
// plan before (its first values are not known any more, or their blobs are gone): then it is planned anew.
Result<std::shared_ptr<const PlannedRun>> place_again(const StartPlanning& request, const JobFeed* feed,
                                                      const storage::BlobStore& blobs, uint64_t copy_rate);

}  // namespace weft::broker
