// Models of one graph, made once for all plans of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "plan/model.h"
#include "plan/request.h"

namespace weft::plan {

class ModelCache {
 public:
  // Of at most so many positions, with the ring that the request's pins ask for. REQUIRES: all requests have
  // the same graph and the same classes.
  std::shared_ptr<const Model> get(const PlanRequest& request, uint32_t positions_max);

 private:
  std::map<uint32_t, std::shared_ptr<const Model>> models_;  // without pins, by positions_max
};

}  // namespace weft::plan
