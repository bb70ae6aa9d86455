#include "broker/service/job_feeds.h"

#include "broker/service/submitted_files.h"

namespace weft::broker {

namespace {

data::Transforms transforms_of(const proto::DataSource& source) {
  data::Transforms transforms;
  for (const proto::ColumnTransform& one : source.transforms)
    transforms[one.column] = {one.scale, one.mean, one.deviation, one.flip, one.crop};
  return transforms;
}

Result<data::DataSpec> data_of(const proto::DataSource& source, const std::filesystem::path& folder) {
  const bool has_labels = source.format == proto::DataFormat::Idx;
  if (!is_safe_path(source.path) || (has_labels && !is_safe_path(source.labels)))
    return fail(ErrorCode::Corrupted, "data that is no file of the job");
  const std::filesystem::path path = folder / source.path;
  switch (source.format) {
    case proto::DataFormat::Idx:
      return data::IdxSpec{.images = path,
                           .labels = folder / source.labels,
                           .scale = source.scale,
                           .mean = source.mean,
                           .deviation = source.deviation};
    case proto::DataFormat::Npz:
      return data::NpzSpec{path, source.columns, transforms_of(source)};
    case proto::DataFormat::Text:
      break;
  }
  if (source.sequence_length < 1 || source.sequence_length > data::kSequenceLengthMax)
    return fail(ErrorCode::Corrupted, "text in sequences of " + std::to_string(source.sequence_length));
  return data::TextSpec{
      .path = path,
      .sequence_length = source.sequence_length,
      .validation = source.validation,
      .part = source.is_validation ? data::TextSpec::Part::Validation : data::TextSpec::Part::Training,
      .token_bytes = source.token_bytes};
}

}  // namespace

Result<std::shared_ptr<const JobFeed>> from_message(const proto::JobFeed& feed,
                                                    const std::filesystem::path& folder) {
  auto result = std::make_shared<JobFeed>(JobFeed{.steps = feed.steps,
                                                  .batch_size = feed.batch_size,
                                                  .microbatch_size = feed.microbatch_size,
                                                  .shuffle = feed.shuffle,
                                                  .seed = feed.seed,
                                                  .loss_terms = feed.loss_terms});
  for (const proto::ProgramFeed& from : feed.programs) {
    JobFeed::Program& program = result->programs[from.program];
    WEFT_TRY(program.data, data_of(from.data, folder));
    for (const proto::InputFeed& input : from.inputs)
      program.feeds.push_back({input.input, input.column, input.sample});
    for (const proto::InputBounds& bound : from.bounds)
      program.bounds.push_back({bound.input, bound.low, bound.high, bound.also});
    for (const proto::StepDivisor& divisor : from.divisors)
      program.divisors.push_back({divisor.input, divisor.labels, divisor.weights, divisor.rule});
  }
  for (const proto::TensorReference& tensor : feed.initial) result->initial[tensor.key.name] = tensor;
  return result;
}

}  // namespace weft::broker
