#include "data/loader.h"

#include <algorithm>
#include <exception>
#include <new>

#include "base/check.h"
#include "data/convert.h"

namespace weft::data {
RequestSource training_requests(SampleSequence sequence, uint64_t first_step, uint64_t last_step,
                                uint32_t batch_size, uint32_t microbatch_size,
                                std::function<uint64_t(uint64_t step)> samples_of) {
  WEFT_CHECK(first_step >= 1 && batch_size > 0 && microbatch_size > 0 && batch_size % microbatch_size == 0);
  return [sequence = std::move(sequence), next = first_step, position = uint32_t{0}, last_step, batch_size,
          microbatch_size, samples_of = std::move(samples_of),
          batch = std::shared_ptr<const std::vector<uint32_t>>()]() mutable -> std::optional<Request> {
    if (next > last_step) return std::nullopt;
    const uint64_t step = samples_of ? samples_of(next) : next;
    if (position == 0)
      batch = std::make_shared<const std::vector<uint32_t>>(sequence.indices(step, batch_size));
    Request request{step, position, microbatch_size, {}, batch, {}};
    request.draws = Draws{sequence.seed(), (step - 1) * batch_size + position};
    request.samples.assign(batch->begin() + position, batch->begin() + position + microbatch_size);
    position += microbatch_size;
    if (position == batch_size) {
      position = 0;
      ++next;
    }
    return request;
  };
}

RequestSource evaluation_requests(uint32_t sample_count, uint32_t microbatch_size) {
  WEFT_CHECK(microbatch_size > 0);
  return [sample_count, microbatch_size, next = uint32_t{0}]() mutable -> std::optional<Request> {
    if (next == sample_count) return std::nullopt;
    Request request{0, next, microbatch_size, {}, {}, {}};
    const uint32_t count = std::min(microbatch_size, sample_count - next);
    for (uint32_t i = 0; i < count; ++i) request.samples.push_back(next + i);
    next += count;
    return request;
  };
}

const dag::TensorSpec& sample_of(const Dataset& dataset, const Feed& feed) {
  WEFT_CHECK(feed.column < dataset.columns().size());
  return feed.sample ? *feed.sample : dataset.columns()[feed.column].sample;
}

Status read_feed(const Dataset& dataset, const Feed& feed, std::span<const uint32_t> samples,
                 std::span<std::byte> out, const std::optional<Draws>& draws) {
  const auto read = [&](std::span<std::byte> into) {
    return draws ? dataset.read_drawn(feed.column, samples, *draws, into)
                 : dataset.read(feed.column, samples, into);
  };
  const Column& column = dataset.columns()[feed.column];
  const dag::TensorSpec& sample = sample_of(dataset, feed);
  if (sample.dtype == column.sample.dtype) return read(out);
  dag::TensorSpec stored = column.sample;
  stored.shape.insert(stored.shape.begin(), static_cast<int64_t>(samples.size()));
  dag::Tensor tensor(stored);
  WEFT_TRY_STATUS(read(tensor.mutable_bytes()));
  const auto misfit = convert_elements(stored.dtype, tensor.bytes(), sample.dtype, out);
  if (!misfit) return {};
  return fail(ErrorCode::OutOfRange,
              "column '" + column.name + "' holds " + element_text(stored.dtype, tensor.bytes(), *misfit) +
                  ", which is no " + std::string(to_string(sample.dtype)) + ", as '" + feed.input + "' is");
}

Result<Microbatch> read_microbatch(const Dataset& dataset, std::span<const Feed> feeds,
                                   const Request& request) {
  WEFT_CHECK(request.samples.size() <= request.microbatch_size);
  Microbatch microbatch{
      request.step, request.sample_position, static_cast<uint32_t>(request.samples.size()), {}, false};
  for (const Feed& feed : feeds) {
    const dag::TensorSpec& sample = sample_of(dataset, feed);
    dag::TensorSpec spec = sample;
    spec.shape.insert(spec.shape.begin(), int64_t{request.microbatch_size});
    const auto count = dag::checked_element_count(spec.shape);
    if (!count) return fail(count.error().within("a microbatch for input '" + feed.input + "'"));
    dag::Tensor tensor(std::move(spec));
    const size_t size = request.samples.size() * static_cast<size_t>(sample.bytes().value);
    WEFT_TRY_STATUS(
        read_feed(dataset, feed, request.samples, tensor.mutable_bytes().first(size), request.draws));
    microbatch.tensors.emplace(feed.input, std::move(tensor));
  }
  return microbatch;
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, std::vector<Feed> feeds, RequestSource requests,
               LoaderOptions options)
    : dataset_(std::move(dataset)),
      feeds_(std::move(feeds)),
      requests_(std::move(requests)),
      options_(std::move(options)),
      divisors_(options_.divisors, options_.loss_terms) {
  WEFT_CHECK(options_.queue_length_max >= 1);
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void Loader::run(const std::stop_token& stop) {
  if (options_.on_start) options_.on_start();
  for (;;) {
    auto item = produce();
    const bool last = !item || !*item;
    const MutexLock lock(mutex_);
    const auto has_room = [this]()
                              WEFT_REQUIRES(mutex_) { return queue_.size() < options_.queue_length_max; };
    if (!changed_.wait(mutex_, stop, has_room)) return;
    queue_.push_back(std::move(item));
    changed_.notify_all();
    if (last || stop.stop_requested()) return;
  }
}

Result<std::optional<Microbatch>> Loader::produce() {
  try {
    const auto request = requests_();
    if (!request) return std::nullopt;
    WEFT_TRY(auto microbatch, read_microbatch(*dataset_, feeds_, *request));
    if (request->step_samples && !divisors_.empty()) {
      WEFT_TRY(const StepDivisors::Step* step,
               divisors_.of(*dataset_, request->step, *request->step_samples));
      microbatch.tensors.insert(step->tensors.begin(), step->tensors.end());
      microbatch.is_of_empty_step = step->is_empty;
    }
    return std::optional<Microbatch>(std::move(microbatch));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::ResourceExhausted,
                "no memory for the next microbatch; take a smaller microbatch_size");
  } catch (const std::exception& problem) {
    return fail(ErrorCode::Internal, std::string("reading the next microbatch failed: ") + problem.what());
  }
}

Result<std::optional<Microbatch>> Loader::next() {
  const MutexLock lock(mutex_);
  changed_.wait(mutex_, [this]() WEFT_REQUIRES(mutex_) { return !queue_.empty(); });
  const bool last = !queue_.front() || !*queue_.front();
  if (last) return queue_.front();  // stays, so that every later call hears the same
  auto item = std::move(queue_.front());
  queue_.pop_front();
  changed_.notify_all();
  return item;
}

std::optional<Microbatch> Loader::next_if_ready() {
  const MutexLock lock(mutex_);
  if (queue_.empty() || !queue_.front() || !*queue_.front()) return std::nullopt;
  std::optional<Microbatch> item = std::move(*queue_.front());
  queue_.pop_front();
  changed_.notify_all();
  return item;
}

}  // namespace weft::data
