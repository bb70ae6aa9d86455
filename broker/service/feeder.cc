#include "broker/service/feeder.h"

#include <algorithm>

#include "dag/loss.h"
#include "data/loader.h"

namespace weft::broker {

using proto::ProgramKind;

Result<Feeder::Microbatch> Feeder::read(const proto::GetMicrobatch& request) {
  const auto context = contexts_.find(request.run);
  if (!context || !context->programs.contains(request.program))
    return fail(ErrorCode::NotFound, "there is no data for job " + std::to_string(request.run));
  const JobContext::Program& program = context->programs.at(request.program);
  const configs::Job& job = context->job;
  const uint32_t size = job.microbatch_size;

  data::Request wanted;
  wanted.microbatch_size = size;
  uint64_t batches_before = 0;  // in samples
  if (request.program == ProgramKind::Train) {
    const uint32_t microbatch = proto::is_comparison(request.microbatch) ? 0 : request.microbatch;
    if (request.step == 0 || request.step > context->steps || microbatch >= job.batch_size / size)
      return fail(ErrorCode::NotFound, "there is no such microbatch");
    if (sequences_.size() > 64) sequences_.clear();
    auto sequence = sequences_.find(request.run);
    if (sequence == sequences_.end())
      sequence = sequences_
                     .emplace(request.run,
                              data::SampleSequence(program.dataset->sample_count(), job.shuffle, job.seed))
                     .first;
    wanted.step = request.step;
    wanted.sample_position = uint64_t{microbatch} * size;
    wanted.samples.resize(size);
    batches_before = (request.step - 1) * job.batch_size;
    sequence->second.fill(batches_before + wanted.sample_position, wanted.samples);
  } else {
    const uint64_t first = uint64_t{request.microbatch} * size;
    if (first >= program.dataset->sample_count())
      return fail(ErrorCode::NotFound, "there is no such microbatch");
    const uint64_t end = std::min<uint64_t>(first + size, program.dataset->sample_count());
    wanted.sample_position = first;
    for (uint64_t sample = first; sample < end; ++sample)
      wanted.samples.push_back(static_cast<uint32_t>(sample));
  }

  std::vector<data::Feed> feeds;
  for (const std::string& input : request.inputs) {
    if (input == dag::kMaskInput && request.program == ProgramKind::Evaluate) continue;
    const auto feed = std::find_if(program.feeds.begin(), program.feeds.end(),
                                   [&](const data::Feed& f) { return f.input == input; });
    if (feed == program.feeds.end())
      return fail(ErrorCode::NotFound, "no data feeds the input '" + input + "'");
    feeds.push_back(*feed);
  }
  WEFT_TRY(data::Microbatch read, data::read_microbatch(*program.dataset, feeds, wanted));
  WEFT_TRY_STATUS(train::check_bounds(program.bounds, read));
  Microbatch result{.sample_position = batches_before + wanted.sample_position,
                    .valid_count = read.valid_count,
                    .tensors = {}};
  for (const std::string& input : request.inputs) {
    if (input == dag::kMaskInput && request.program == ProgramKind::Evaluate) {
      dag::Tensor mask({dag::DType::F32, {size}});
      for (uint32_t i = 0; i < read.valid_count; ++i) mask.mutable_as<float>()[i] = 1.0f;
      result.tensors.push_back(std::move(mask));
    } else {
      result.tensors.push_back(read.tensors.at(input));
    }
  }
  return result;
}

}  // namespace weft::broker
