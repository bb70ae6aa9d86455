// Looks through a data set before anything starts: what would stop a run after an hour, or spoil it without a
// word, is told at once with file, row and count.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "data/dataset.h"
#include "train/prepare.h"

namespace weft::train {

enum class DataUse : uint8_t { Train, Test, Predict };

// Reads every column that feeds `prepared` once, in order, a few MiB at a time. Labels and tokens out of
// range and numbers that the graph's type cannot hold are an error, OutOfRange; so is, where the job trains,
// a float that is not finite, InvalidArgument, unless `on_divergence: skip` says what to do with its step. In
// a test set or a prediction the latter are warnings, which are returned. -inf may stand in what is only
// added, as masks are, and anything where the graph asks what is NaN. Cancelled when `stop` was set.
Result<std::vector<std::string>> check_data(const configs::Job& job, DataUse use,
                                            const data::Dataset& dataset, const Prepared& prepared,
                                            const std::atomic<bool>* stop = nullptr);

// What of so many samples batches of this job do not use, or use twice, where that is worth a word.
std::vector<std::string> sample_notes(const configs::Job& job, uint64_t sample_count);
// The same of a test set, whose last short microbatch a loss that the model computes cannot take.
std::vector<std::string> test_notes(const configs::Job& job, const Prepared& evaluation,
                                    uint64_t sample_count);

}  // namespace weft::train
