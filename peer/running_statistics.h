// The initializers that running a graph changes: looked at, kept, and put back as they were.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "peer/backend/backend.h"

namespace weft::peer {

class RunningStatistics {
 public:
  RunningStatistics() = default;
  // `kept`: a place for each, or none where nothing has to be undone.
  RunningStatistics(std::vector<TensorView> statistics, std::vector<View> kept);

  // As they are now, and back to them. REQUIRES: places to keep them.
  Status keep(Backend& backend) const;
  Status undo(Backend& backend) const;
  // f64[statistics]; nothing where there are none.
  Result<std::unique_ptr<Download>> begin_squares(Backend& backend) const;

 private:
  std::vector<TensorView> statistics_;
  std::vector<View> kept_;
};

}  // namespace weft::peer
