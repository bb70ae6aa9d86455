// Whether a model with merged adapters computes what was trained: its outputs beside those of the base with
// the adapters apart, and of the base alone.
#pragma once

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "configs/job.h"
#include "dag/graph.h"
#include "dag/onnx/model.h"
#include "data/dataset.h"
#include "peer/backend/backend.h"

namespace weft::train {

// Over the first samples of the data, in inference mode: the largest differences between any two outputs.
struct MergeCheck {
  double merged = 0;   // of the merged model from the base with adapters
  double base = 0;     // of the base without them
  double largest = 0;  // magnitude of an output
  bool is_good() const { return merged <= base && merged < INFINITY; }
};
// "1.2e-06 from the adapters' own, 0.31 from the base's": of the merged outputs.
std::string describe(const MergeCheck& check);

// `job`: its size of microbatches settled; its model is read again. `trained`: the factors, and what was
// trained whole. `merged`: the file that was written. Each of the three is alone on the device while it runs.
Result<MergeCheck> check_merge(const configs::Job& job, const dag::Weights& trained,
                               const std::filesystem::path& merged,
                               const std::shared_ptr<const data::Dataset>& dataset, peer::Backend& backend);
// The same for a job that peers have trained: `merged` and `adapter` as they were fetched and written.
// Nothing where the model is larger than kFetchedCheckMax, for this machine need not be one that could hold
// it.
Result<std::optional<MergeCheck>> check_fetched(const configs::Job& job, const std::filesystem::path& merged,
                                                const std::filesystem::path& adapter, peer::Backend& backend);
inline constexpr int64_t kFetchedCheckMax = int64_t{2} << 30;  // bytes of weights

// Corrupted where it is not good.
Status refuse_merge(const MergeCheck& check, const std::filesystem::path& merged);

}  // namespace weft::train
