#include "broker/service/feeder.h"

#include <algorithm>

#include "dag/loss.h"
#include "dag/narrow.h"
#include "data/loader.h"

namespace weft::broker {

using proto::ProgramKind;

namespace {
constexpr size_t kOpenMax = 64;                          // data sets: each has files open
constexpr uint64_t kResidentMax = 2 * kDataInMemoryMax;  // bytes that all of them take in memory

bool is_divisor(const std::string& input) { return input.starts_with(dag::kDivisorInput); }
}  // namespace

// A data set is opened when a stage asks for it, and again when others were asked for so much that it had to
// give way. What it holds was compared with its checksums when the job was planned.
Result<std::shared_ptr<const data::Dataset>> Feeder::dataset_of(const Key& key,
                                                                const JobFeed::Program& program) {
  auto at = opened_.find(key);
  if (at == opened_.end()) {
    make_room(kDataInMemoryMax);
    WEFT_TRY(std::shared_ptr<const data::Dataset> dataset,
             data::open_dataset(program.data, {.resident_max = kDataInMemoryMax, .checks_sums = false}));
    at = opened_.emplace(key, Opened{std::move(dataset)}).first;
  }
  at->second.used = ++uses_;
  const auto columns = at->second.dataset->columns();
  const auto is_there = [&](size_t column) -> Status {
    if (column < columns.size()) return {};
    return fail(ErrorCode::Corrupted, "the data has no column " + std::to_string(column));
  };
  for (const data::Feed& feed : program.feeds) {
    WEFT_TRY_STATUS(is_there(feed.column));
    if (feed.sample && feed.sample->element_count() != columns[feed.column].sample.element_count())
      return fail(ErrorCode::Corrupted, "column '" + columns[feed.column].name + "' has another shape");
  }
  for (const data::Divisor& divisor : program.divisors)
    for (const auto& column : {divisor.labels, divisor.weights})
      if (column) WEFT_TRY_STATUS(is_there(*column));
  return at->second.dataset;
}

// For so many bytes more: first what jobs had that are over, then what was not asked for the longest.
void Feeder::make_room(uint64_t bytes) {
  std::erase_if(opened_, [&](const auto& entry) { return feeds_.find(entry.first.first) == nullptr; });
  const auto resident = [&] {
    uint64_t sum = 0;
    for (const auto& [key, opened] : opened_) sum += opened.dataset->resident_bytes();
    return sum;
  };
  while (!opened_.empty() && (opened_.size() >= kOpenMax || resident() + bytes > kResidentMax))
    opened_.erase(std::min_element(opened_.begin(), opened_.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    }));
}

Result<Feeder::Fed> Feeder::read(const proto::GetMicrobatch& request) {
  const auto job = feeds_.find(request.run);
  if (!job || !job->programs.contains(request.program))
    return fail(ErrorCode::NotFound, "there is no data for job " + std::to_string(request.run));
  const JobFeed::Program& program = job->programs.at(request.program);
  const uint32_t size = job->microbatch_size;
  WEFT_TRY(const auto dataset, dataset_of({request.run, request.program}, program));

  data::Request wanted;
  const std::map<std::string, dag::Tensor, std::less<>>* divisors = nullptr;
  wanted.microbatch_size = size;
  uint64_t batches_before = 0;  // in samples
  if (request.program == ProgramKind::Train) {
    const uint32_t microbatch = proto::is_comparison(request.microbatch) ? 0 : request.microbatch;
    if (request.step == 0 || request.step > job->steps || microbatch >= job->batch_size / size)
      return fail(ErrorCode::NotFound, "there is no such microbatch");
    if (sequences_.size() > 64) sequences_.clear();
    auto sequence = sequences_.find(request.run);
    if (sequence == sequences_.end())
      sequence = sequences_
                     .emplace(request.run,
                              Sequence{data::SampleSequence(dataset->sample_count(), job->shuffle, job->seed),
                                       data::StepDivisors(program.divisors, job->loss_terms)})
                     .first;
    wanted.step = request.step;
    wanted.sample_position = uint64_t{microbatch} * size;
    wanted.samples.resize(size);
    batches_before = (request.step - 1) * job->batch_size;
    wanted.draws = data::Draws{job->seed, batches_before + wanted.sample_position};
    sequence->second.samples.fill(batches_before + wanted.sample_position, wanted.samples);
    if (std::any_of(request.inputs.begin(), request.inputs.end(), is_divisor)) {
      const auto batch = sequence->second.samples.indices(request.step, job->batch_size);
      WEFT_TRY(const data::StepDivisors::Step* step,
               sequence->second.divisors.of(*dataset, request.step, batch));
      divisors = &step->tensors;
    }
  } else {
    const uint64_t first = uint64_t{request.microbatch} * size;
    if (first >= dataset->sample_count()) return fail(ErrorCode::NotFound, "there is no such microbatch");
    const uint64_t end = std::min<uint64_t>(first + size, dataset->sample_count());
    wanted.sample_position = first;
    for (uint64_t sample = first; sample < end; ++sample)
      wanted.samples.push_back(static_cast<uint32_t>(sample));
  }

  std::vector<data::Feed> feeds;
  for (const std::string& input : request.inputs) {
    if (divisors != nullptr && divisors->contains(input)) continue;
    if (input == dag::kMaskInput && request.program == ProgramKind::Evaluate) continue;
    const auto feed = std::find_if(program.feeds.begin(), program.feeds.end(),
                                   [&](const data::Feed& f) { return f.input == input; });
    if (feed == program.feeds.end())
      return fail(ErrorCode::NotFound, "no data feeds the input '" + input + "'");
    feeds.push_back(*feed);
  }
  WEFT_TRY(data::Microbatch read, data::read_microbatch(*dataset, feeds, wanted));
  WEFT_TRY_STATUS(train::check_bounds(program.bounds, read));
  Fed result{.sample_position = batches_before + wanted.sample_position,
             .valid_count = read.valid_count,
             .tensors = {}};
  for (const std::string& input : request.inputs) {
    if (divisors != nullptr && divisors->contains(input)) {
      result.tensors.push_back(divisors->find(input)->second);
    } else if (input == dag::kMaskInput && request.program == ProgramKind::Evaluate) {
      dag::Tensor mask({dag::DType::F32, {size}});
      for (uint32_t i = 0; i < read.valid_count; ++i) mask.mutable_as<float>()[i] = 1.0f;
      result.tensors.push_back(std::move(mask));
    } else {
      result.tensors.push_back(read.tensors.at(input));
    }
    if (request.narrows) result.tensors.back() = dag::narrowed(result.tensors.back());
  }
  return result;
}

}  // namespace weft::broker
