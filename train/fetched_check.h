// The check of train/adapter_check.h for a job that peers have trained: of what was fetched.
#pragma once

#include <filesystem>
#include <optional>

#include "base/result.h"
#include "configs/job.h"
#include "peer/backend/backend.h"
#include "train/adapter_check.h"

namespace weft::train {

// `merged`, `adapter`: as they were written. Nothing where the model is larger than kFetchedCheckMax, for
// this machine need not be one that could hold it.
Result<std::optional<MergeCheck>> check_fetched(const configs::Job& job, const std::filesystem::path& merged,
                                                const std::filesystem::path& adapter, peer::Backend& backend);
inline constexpr int64_t kFetchedCheckMax = int64_t{2} << 30;  // bytes of weights

}  // namespace weft::train
