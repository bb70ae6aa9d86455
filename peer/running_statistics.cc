#include "peer/running_statistics.h"

#include <utility>

#include "base/check.h"

namespace weft::peer {

RunningStatistics::RunningStatistics(std::vector<TensorView> statistics, std::vector<View> kept)
    : statistics_(std::move(statistics)), kept_(std::move(kept)) {
  WEFT_CHECK(kept_.empty() || kept_.size() == statistics_.size());
}

Status RunningStatistics::keep(Backend& backend) const {
  WEFT_CHECK_MSG(kept_.size() == statistics_.size(), "nothing was taken to keep statistics in");
  for (size_t i = 0; i < kept_.size(); ++i)
    WEFT_TRY_STATUS(backend.copy(statistics_[i].view, kept_[i], statistics_[i].spec));
  return {};
}

Status RunningStatistics::undo(Backend& backend) const {
  WEFT_CHECK_MSG(kept_.size() == statistics_.size(), "nothing was taken to keep statistics in");
  for (size_t i = 0; i < kept_.size(); ++i)
    WEFT_TRY_STATUS(backend.copy(kept_[i], statistics_[i].view, statistics_[i].spec));
  return {};
}

Result<std::unique_ptr<Download>> RunningStatistics::begin_squares(Backend& backend) const {
  if (statistics_.empty()) return std::unique_ptr<Download>();
  return backend.begin_sums_of_squares(statistics_);
}

}  // namespace weft::peer
