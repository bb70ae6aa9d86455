// What a step's loss is divided by, term by term, counted from the data: labels that count, weights of their
// classes, weights of samples. Known before any of the step is computed, and the same for all of its
// microbatches, so that the loss is that of the whole step however it is cut up.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dag/loss.h"
#include "data/dataset.h"
#include "data/sample_sequence.h"

namespace weft::data {

// As dag::Divisor, of columns of a data set.
struct Divisor {
  std::string input{};              // that it feeds: F32, one number
  std::optional<size_t> labels{};   // column of integers; nothing: every element counts
  std::optional<size_t> weights{};  // column: one number a sample, or one for each element
  dag::CountRule rule{};
};

// What each divisor comes to over the samples, in their order. OutOfRange for a label that has no class
// weight, or a weight that is negative or not finite, with the column and the row of the file, counted from
// 0; what reading says. REQUIRES: the columns are in the data set.
Result<std::vector<double>> count(const Dataset& dataset, std::span<const Divisor> divisors,
                                  std::span<const uint32_t> samples);

// Whether all weights in the column are such. Errors: as of count().
Status check_weights(const Dataset& dataset, size_t column);

// Of steps, one after the other. Belongs to one thread.
class StepDivisors {
 public:
  // `terms`: of the loss; those without a divisor always count.
  StepDivisors(std::vector<Divisor> divisors, size_t terms) : divisors_(std::move(divisors)), terms_(terms) {}

  bool empty() const { return divisors_.empty(); }
  struct Step {
    // By input: the divisor, or 1 where nothing of its term counts, which then is 0.
    std::map<std::string, dag::Tensor, std::less<>> tensors;
    bool is_empty = false;  // nothing counts in any term: the step is skipped
  };
  // Of the step whose samples these are; counted once, however often the step is asked for in a row.
  Result<const Step*> of(const Dataset& dataset, uint64_t step, std::span<const uint32_t> samples);

 private:
  std::vector<Divisor> divisors_;
  size_t terms_;
  uint64_t number_ = 0;
  Step step_;
};

// More of them are an error: whoever has so many samples that count for nothing leaves them out.
inline constexpr size_t kEmptyStepsMax = 1 << 16;
// The steps of 1 .. `steps` in which nothing counts, ascending. `terms`: of the loss; where some have no
// divisor none is empty. Looks through the whole data set once, and through the order of its samples only
// where enough of them count for nothing. Errors: as count() and ResourceExhausted for too many of them.
Result<std::vector<uint64_t>> find_empty_steps(const Dataset& dataset, std::span<const Divisor> divisors,
                                               size_t terms, SampleSequence sequence, uint32_t batch_size,
                                               uint64_t steps);

}  // namespace weft::data
