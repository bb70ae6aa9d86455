#include "data/divisor.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "dag/metrics.h"

namespace weft::data {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;        // of a column, read at once
constexpr uint64_t kPositionsMax = uint64_t{1} << 30;  // of the sequence, looked through for empty steps

using dag::Tensor;

Result<Tensor> read_column(const Dataset& dataset, size_t column, std::span<const uint32_t> samples) {
  WEFT_CHECK(column < dataset.columns().size());
  dag::TensorSpec spec = dataset.columns()[column].sample;
  spec.shape.insert(spec.shape.begin(), static_cast<int64_t>(samples.size()));
  Tensor tensor(std::move(spec));
  WEFT_TRY_STATUS(dataset.read(column, samples, tensor.mutable_bytes()));
  return tensor;
}

size_t elements_of(const Dataset& dataset, size_t column) {
  return static_cast<size_t>(dataset.columns()[column].sample.element_count());
}

tl::unexpected<Error> wrong_value(const Dataset& dataset, size_t column, uint32_t sample,
                                  const std::string& what) {
  return fail(ErrorCode::OutOfRange,
              "column '" + dataset.columns()[column].name + "', row " + std::to_string(sample) + ": " + what);
}

// The weights of some samples, checked; by element where there is one for each, else by sample.
struct Weights {
  std::vector<double> values;
  size_t of_sample = 1;

  double at(size_t sample, size_t element) const {
    if (values.empty()) return 1;
    return values[sample * of_sample + (of_sample == 1 ? 0 : element)];
  }
};

Result<Weights> read_weights(const Dataset& dataset, const Divisor& divisor,
                             std::span<const uint32_t> samples) {
  Weights weights;
  if (!divisor.weights) return weights;
  WEFT_TRY(const Tensor tensor, read_column(dataset, *divisor.weights, samples));
  weights.values = to_doubles(tensor);
  weights.of_sample = elements_of(dataset, *divisor.weights);
  for (size_t i = 0; i < weights.values.size(); ++i)
    if (!(weights.values[i] >= 0 && weights.values[i] <= dag::kCountWeightMax))
      return wrong_value(
          dataset, *divisor.weights, samples[i / weights.of_sample],
          "a weight of " + std::to_string(weights.values[i]) + ", which must be 0 or more, and finite");
  return weights;
}

// Adds each sample's part of the divisor to `sums`, which has one number a sample.
Status add_samples(const Dataset& dataset, const Divisor& divisor, std::span<const uint32_t> samples,
                   std::span<double> sums) {
  const dag::CountRule& rule = divisor.rule;
  WEFT_TRY(const Weights weights, read_weights(dataset, divisor, samples));
  if (!divisor.labels) {
    for (size_t s = 0; s < samples.size(); ++s) {
      if (weights.of_sample == 1) sums[s] += weights.at(s, 0) * static_cast<double>(rule.elements);
      for (size_t e = 0; weights.of_sample > 1 && e < weights.of_sample; ++e) sums[s] += weights.at(s, e);
    }
    return {};
  }
  WEFT_TRY(const Tensor tensor, read_column(dataset, *divisor.labels, samples));
  const std::vector<int64_t> labels = to_int64s(tensor);
  const size_t each = elements_of(dataset, *divisor.labels);
  if (!rule.reads.empty() && rule.reads.size() != each)
    return fail(ErrorCode::InvalidArgument, "labels of another shape than the loss reads");
  for (size_t s = 0; s < samples.size(); ++s)
    for (size_t e = 0; e < each; ++e) {
      const int64_t label = labels[s * each + e];
      if (rule.ignore_index == label) continue;
      double weight = rule.reads.empty() ? 1.0 : static_cast<double>(rule.reads[e]);
      if (!rule.class_weights.empty()) {
        if (weight == 0) continue;
        if (label < 0 || label >= static_cast<int64_t>(rule.class_weights.size()))
          return wrong_value(dataset, *divisor.labels, samples[s],
                             "label " + std::to_string(label) + " is none of the " +
                                 std::to_string(rule.class_weights.size()) + " classes");
        weight *= rule.class_weights[static_cast<size_t>(label)];
      }
      sums[s] += weight * weights.at(s, e);
    }
  return {};
}

// What a divisor comes to in each of the samples, a chunk at a time.
Status count_samples(const Dataset& dataset, const Divisor& divisor, std::span<const uint32_t> samples,
                     std::span<double> sums) {
  size_t bytes = 1;
  for (const auto& column : {divisor.labels, divisor.weights})
    if (column) bytes += static_cast<size_t>(dataset.columns()[*column].sample.bytes().value);
  const size_t chunk = std::max<size_t>(1, kChunkBytes / bytes);
  for (size_t first = 0; first < samples.size(); first += chunk) {
    const size_t size = std::min(chunk, samples.size() - first);
    WEFT_TRY_STATUS(add_samples(dataset, divisor, samples.subspan(first, size), sums.subspan(first, size)));
  }
  return {};
}

}  // namespace

Result<std::vector<double>> count(const Dataset& dataset, std::span<const Divisor> divisors,
                                  std::span<const uint32_t> samples) {
  std::vector<double> counts;
  for (const Divisor& divisor : divisors) {
    std::vector<double> of_samples(samples.size(), 0.0);
    WEFT_TRY_STATUS(count_samples(dataset, divisor, samples, of_samples));
    counts.push_back(std::accumulate(of_samples.begin(), of_samples.end(), 0.0));
  }
  return counts;
}

Status check_weights(const Dataset& dataset, size_t column) {
  const size_t bytes = static_cast<size_t>(dataset.columns()[column].sample.bytes().value);
  std::vector<uint32_t> rows;
  for (uint32_t first = 0; first < dataset.sample_count();) {
    rows.resize(std::min<size_t>(std::max<size_t>(1, kChunkBytes / bytes), dataset.sample_count() - first));
    std::iota(rows.begin(), rows.end(), first);
    WEFT_TRY(const Weights weights, read_weights(dataset, {.input = {}, .weights = column}, rows));
    first += static_cast<uint32_t>(rows.size());
  }
  return {};
}

Result<const StepDivisors::Step*> StepDivisors::of(const Dataset& dataset, uint64_t step,
                                                   std::span<const uint32_t> samples) {
  WEFT_CHECK(step > 0);
  if (number_ == step) return &step_;
  number_ = 0;
  WEFT_TRY(const std::vector<double> counts, count(dataset, divisors_, samples));
  step_ = {};
  step_.is_empty = !counts.empty() && counts.size() == terms_;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) step_.is_empty = false;
    step_.tensors.insert_or_assign(divisors_[i].input,
                                   dag::make_scalar(dag::DType::F32, counts[i] == 0 ? 1.0 : counts[i]));
  }
  number_ = step;
  return &step_;
}

Result<std::vector<uint64_t>> find_empty_steps(const Dataset& dataset, std::span<const Divisor> divisors,
                                               size_t terms, SampleSequence sequence, uint32_t batch_size,
                                               uint64_t steps) {
  std::vector<uint64_t> empty;
  if (divisors.empty() || divisors.size() < terms) return empty;
  std::vector<uint32_t> all(dataset.sample_count());
  std::iota(all.begin(), all.end(), 0U);
  std::vector<bool> counts(all.size(), false);
  for (const Divisor& divisor : divisors) {
    std::vector<double> sums(all.size(), 0.0);
    WEFT_TRY_STATUS(count_samples(dataset, divisor, all, sums));
    for (size_t i = 0; i < sums.size(); ++i)
      if (sums[i] != 0) counts[i] = true;
  }
  const auto without = static_cast<uint64_t>(std::count(counts.begin(), counts.end(), false));
  // So often a sample may be there in a batch, which may lie across the borders of epochs.
  if (without * (batch_size / all.size() + 2) < batch_size) return empty;
  if (steps > kPositionsMax / batch_size)
    return fail(ErrorCode::ResourceExhausted,
                std::to_string(without) +
                    " samples count for nothing in the loss, and the run has too many steps "
                    "to tell which of them take no other; leave these samples out of the data");
  std::vector<uint32_t> samples(batch_size);
  for (uint64_t step = 1; step <= steps; ++step) {
    sequence.fill((step - 1) * batch_size, samples);
    if (std::any_of(samples.begin(), samples.end(), [&](uint32_t sample) { return counts[sample]; }))
      continue;
    if (empty.size() == kEmptyStepsMax)
      return fail(ErrorCode::ResourceExhausted, "in more than " + std::to_string(kEmptyStepsMax) +
                                                    " steps no label counts: " + std::to_string(without) +
                                                    " of " + std::to_string(all.size()) +
                                                    " samples have none; leave them out of the data");
    empty.push_back(step);
  }
  return empty;
}

}  // namespace weft::data
