// Reads microbatches ahead of the one who trains, on a thread of its own, a bounded number of them.
//   Loader loader(dataset, {{"x", 0}, {"labels", 1}}, training_requests(sequence, 1, steps, 64, 16));
//   while (auto microbatch = ...loader.next()) ...
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "dag/tensor.h"
#include "data/dataset.h"
#include "data/divisor.h"
#include "data/sample_sequence.h"

namespace weft::data {

// What to read next: `samples` and, beyond them, padding up to microbatch_size rows.
struct Request {
  uint64_t step = 0;             // counted from 1; 0 in an evaluation
  uint64_t sample_position = 0;  // of the first sample: in its batch, or in the evaluation
  uint32_t microbatch_size = 0;
  std::vector<uint32_t> samples;                                // at most microbatch_size
  std::shared_ptr<const std::vector<uint32_t>> step_samples{};  // of training: of the whole step
  std::optional<Draws> draws{};                                 // of training
};
// Called by the loader's thread alone; nothing when there is no more.
using RequestSource = std::function<std::optional<Request>()>;

// The microbatches of the steps first_step .. last_step, in order; `samples_of`: of those whose samples they
// take, by the loader's thread; none: each of itself. REQUIRES: batch_size is a multiple of microbatch_size,
// both positive, first_step >= 1.
RequestSource training_requests(SampleSequence sequence, uint64_t first_step, uint64_t last_step,
                                uint32_t batch_size, uint32_t microbatch_size,
                                std::function<uint64_t(uint64_t step)> samples_of = {});
// Every sample once in file order; the last microbatch may be padded.
RequestSource evaluation_requests(uint32_t sample_count, uint32_t microbatch_size);

// A column of the data set, under the name of the graph input that it feeds.
struct Feed {
  std::string input;
  size_t column = 0;
  // What the graph takes of one sample, where its type or shape are others than the column's: as many
  // elements, converted as in data/convert.h.
  std::optional<dag::TensorSpec> sample{};
};

struct Microbatch {
  uint64_t step = 0;
  uint64_t sample_position = 0;
  uint32_t valid_count = 0;  // rows that are samples; the rest is zeros
  std::map<std::string, dag::Tensor, std::less<>>
      tensors;                    // by graph input, [microbatch_size, sample shape...]; and divisors
  bool is_of_empty_step = false;  // nothing of the step counts in its loss
};

// The spec of one sample as the graph gets it.
const dag::TensorSpec& sample_of(const Dataset& dataset, const Feed& feed);
// Reads samples of the feed's column as the graph gets them, one after the other. Errors: as of
// Dataset::read; OutOfRange for an element that the graph's type cannot hold. REQUIRES: out has their bytes.
Status read_feed(const Dataset& dataset, const Feed& feed, std::span<const uint32_t> samples,
                 std::span<std::byte> out, const std::optional<Draws>& draws = {});

struct LoaderOptions {
  size_t queue_length_max = 4;      // microbatches in memory beside the one in use; at least 1
  std::vector<Divisor> divisors{};  // of training: what the loss of a step is divided by
  size_t loss_terms = 0;            // terms of that loss
  std::function<void()>
      on_start{};  // called first by the reading thread: to leave its maker's processor, say
};

// next() belongs to one thread. Destruction stops and joins the reader, whatever it is doing, after at most
// one read.
class Loader {
 public:
  // REQUIRES: every feed's column is in the data set.
  Loader(std::shared_ptr<const Dataset> dataset, std::vector<Feed> feeds, RequestSource requests,
         LoaderOptions options = {});

  // The next microbatch; nothing after the last. An error of the reader comes in its turn, and again ever
  // after.
  Result<std::optional<Microbatch>> next();
  // The next microbatch where it has been read already; never waits. Ends and errors are next()'s to tell.
  std::optional<Microbatch> next_if_ready();

 private:
  void run(const std::stop_token& stop);
  Result<std::optional<Microbatch>> produce();

  std::shared_ptr<const Dataset> dataset_;
  std::vector<Feed> feeds_;
  RequestSource requests_;
  LoaderOptions options_;
  StepDivisors divisors_;  // the thread's

  Mutex mutex_;
  Condition changed_;
  // An end or an error is its last.
  std::deque<Result<std::optional<Microbatch>>> queue_ WEFT_GUARDED_BY(mutex_);
  std::jthread thread_;  // last: it is joined before the rest goes
};

// The same without a thread: for tests, and for one microbatch.
Result<Microbatch> read_microbatch(const Dataset& dataset, std::span<const Feed> feeds,
                                   const Request& request);

}  // namespace weft::data
