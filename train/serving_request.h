// What the planner is asked of a job that serves: the parts of its model with what they cost and hold.
#pragma once

#include <span>

#include "configs/job.h"
#include "dag/backend_traits.h"
#include "plan/serving.h"
#include "train/decoder.h"

namespace weft::train {

// `classes`: DeviceView::device_class is an index into it. Weights are numbered as the graph's initializers.
// Errors: Unsupported for a model of too many parts.
Result<plan::ServingRequest> serving_request(const configs::Job& job, const ServedDecoder& decoder,
                                             const plan::ClusterView& cluster,
                                             std::span<const dag::BackendTraits> classes);

}  // namespace weft::train
