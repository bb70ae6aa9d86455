#include "plan/model_cache.h"

#include <utility>

#include "plan/constraints.h"

namespace weft::plan {

std::shared_ptr<const Model> ModelCache::get(const PlanRequest& request, uint32_t positions_max) {
  std::shared_ptr<const Model>& model = models_[positions_max];
  if (!model)
    model = std::make_shared<const Model>(make_model(*request.graph, request.classes, positions_max));
  if (request.pins.empty()) return model;
  auto ring = find_ring(*model, pinned_ranges(request.pins, *model));
  if (!ring) return model;
  Model pinned = *model;
  pinned.ring = std::move(ring);
  return std::make_shared<const Model>(std::move(pinned));
}

}  // namespace weft::plan
