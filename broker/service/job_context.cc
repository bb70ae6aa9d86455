#include "broker/service/job_context.h"

#include "base/check.h"
#include "broker/service/submitted_files.h"
#include "dag/onnx/roles.h"
#include "peer/backend/reference/reference_kernels.h"
#include "storage/sha256.h"
#include "train/plan_request.h"

namespace weft::broker {

namespace fs = std::filesystem;
using proto::ProgramKind;

namespace {

constexpr data::OpenOptions kOpen{.resident_max = kDataInMemoryMax};

std::vector<proto::ColumnTransform> transforms_of(const data::Transforms& transforms) {
  std::vector<proto::ColumnTransform> list;
  for (const auto& [column, one] : transforms)
    list.push_back({column, one.scale, one.mean, one.deviation, one.flip, one.crop});
  return list;
}

proto::DataSource source_of(const data::DataSpec& spec, const fs::path& folder) {
  const auto name = [&](const fs::path& path) { return path.lexically_relative(folder).generic_string(); };
  return std::visit(
      [&](const auto& from) -> proto::DataSource {
        using Spec = std::decay_t<decltype(from)>;
        if constexpr (std::is_same_v<Spec, data::IdxSpec>)
          return {.format = proto::DataFormat::Idx,
                  .path = name(from.images),
                  .labels = name(from.labels),
                  .scale = from.scale,
                  .mean = from.mean,
                  .deviation = from.deviation};
        else if constexpr (std::is_same_v<Spec, data::NpzSpec>)
          return {.format = proto::DataFormat::Npz,
                  .path = name(from.path),
                  .columns = from.columns,
                  .transforms = transforms_of(from.transforms)};
        else if constexpr (std::is_same_v<Spec, data::TextSpec>)
          return {.format = proto::DataFormat::Text,
                  .path = name(from.path),
                  .sequence_length = from.sequence_length,
                  .token_bytes = from.token_bytes,
                  .validation = from.validation,
                  .is_validation = from.part == data::TextSpec::Part::Validation};
        else
          WEFT_CHECK_MSG(false, "check_submission lets no such data pass");
      },
      spec);
}

// A weight that was not read and is no blob of its own: its bytes become one, without being held.
Result<Digest> put_unread(const onnx::OnnxModel& model, const dag::Initializer& initializer,
                          const dag::TensorSpec& spec, storage::BlobStore& blobs) {
  storage::Sha256 hash;
  const auto add = [&](std::span<const std::byte> bytes) -> Status {
    hash.update(bytes);
    return {};
  };
  WEFT_TRY_STATUS(model.read_weight(initializer.name, add));
  const Digest sha256 = *digest_from_hex(hash.hex());
  WEFT_TRY(const auto writer, blobs.begin(sha256, static_cast<uint64_t>(spec.bytes().value)));
  WEFT_TRY_STATUS(model.read_weight(initializer.name,
                                    [&](std::span<const std::byte> bytes) { return writer->write(bytes); }));
  WEFT_TRY_STATUS(writer->finish());
  return sha256;
}

Result<Digest> blob_of(const onnx::OnnxModel& model, const SubmittedModel& files,
                       const dag::Initializer& initializer, const dag::Tensor& tensor,
                       storage::BlobStore& blobs) {
  if (model.is_read(initializer.name)) return blobs.put(tensor.bytes());
  if (model.weights().at(initializer.name).spec() != tensor.spec())
    return fail(ErrorCode::Unsupported,
                "initializer '" + initializer.name + "' is trained in another type than its file has");
  if (const auto place = model.place_of(initializer.name))
    if (const auto blob = files.blob_at(*place)) return *blob;
  return put_unread(model, initializer, tensor.spec(), blobs);
}

// Where the first values of a graph's initializers are.
Status add_initial(const OpenedJob& opened, const dag::Graph& graph, const dag::Weights& weights,
                   storage::BlobStore& blobs, JobContext& context) {
  for (const dag::Initializer& initializer : graph.initializers()) {
    if (context.initial.contains(initializer.name)) continue;
    const dag::Tensor& tensor = weights.at(initializer.name);
    WEFT_TRY(const Digest sha256, blob_of(opened.model, *opened.files, initializer, tensor, blobs));
    context.initial[initializer.name] = {weight_key(initializer), tensor.spec(), sha256};
  }
  return {};
}

// The model that guesses, of the same submission.
Status read_draft(const OpenedJob& opened, storage::BlobStore& blobs, train::ServedDecoder& served,
                  JobContext& context) {
  WEFT_TRY(served.draft, train::open_draft(context.job, *opened.draft, served));
  const train::DecoderModel& model = served.draft->model;
  for (const dag::Initializer& initializer : model.graph->initializers()) {
    const dag::Tensor& tensor = model.weights.at(initializer.name);
    proto::TensorReference reference{weight_key(initializer), tensor.spec(), {}};
    reference.key.name = proto::draft_name(initializer.name);
    WEFT_TRY(reference.sha256, blob_of(*opened.draft, *opened.draft_files, initializer, tensor, blobs));
    if (!context.initial.emplace(reference.key.name, reference).second)
      return fail(
          context.job.error(ErrorCode::Unsupported, "serve.draft",
                            "the model that it guesses for has an initializer '" + reference.key.name + "'"));
  }
  context.warnings.insert(context.warnings.end(), model.warnings.begin(), model.warnings.end());
  return {};
}

Status read_served(const OpenedJob& opened, storage::BlobStore& blobs, JobContext& context) {
  const configs::Job& job = context.job;
  WEFT_TRY(train::ServedDecoder served, train::open_decoder(job, opened.model));
  const int64_t vocabulary = served.parts->logits().width;
  WEFT_TRY_STATUS(train::check_text(job, opened.tokenizer ? &*opened.tokenizer : nullptr, vocabulary));
  WEFT_TRY_STATUS(add_initial(opened, *served.model.graph, served.model.weights, blobs, context));
  context.warnings = served.model.warnings;
  if (opened.draft) WEFT_TRY_STATUS(read_draft(opened, blobs, served, context));
  context.served_model = {.name = job.serve->name,
                          .tokenizer = opened.tokenizer_path,
                          .chat_template = job.serve->chat_template,
                          .context = static_cast<uint64_t>(served.parts->context()),
                          .vocabulary = static_cast<uint64_t>(vocabulary),
                          .positions_max = 0,
                          .sequences_max = job.serve->sequences_max,
                          .fingerprint = {}};
  context.served = std::make_shared<const train::ServedDecoder>(std::move(served));
  return {};
}

}  // namespace

Result<OpenedJob> open_submission(const proto::SubmitJob& submission, const storage::BlobStore& blobs,
                                  const fs::path& folder) {
  WEFT_TRY(configs::Job job, check_submission(submission, blobs, folder));
  WEFT_TRY_STATUS(train::check_for_peers(job));
  WEFT_TRY_STATUS(place_files(submission, job, blobs, folder));
  const auto files = std::make_shared<SubmittedModel>(submission, model_path(job, folder), blobs);
  WEFT_TRY(onnx::OnnxModel model, open_submitted(submission, *files));
  if (job.task == configs::Task::Serve) {
    OpenedJob opened{std::move(job), files, std::move(model), {}, {}, {}, {}};
    opened.tokenizer_path = tokenizer_path(opened.job, folder);
    WEFT_TRY(opened.tokenizer, submitted_tokenizer(submission, opened.job, blobs, folder));
    if (const std::string draft = draft_path(opened.job, folder); !draft.empty()) {
      const auto beside = std::make_shared<SubmittedModel>(submission, draft, blobs);
      WEFT_TRY(opened.draft, onnx::open_model(*beside));
      opened.draft_files = beside;
    }
    return opened;
  }
  WEFT_TRY(std::shared_ptr<const data::Dataset> dataset,
           data::open_dataset(job.task == configs::Task::Predict ? *job.predict : *job.train, kOpen));
  OpenedJob opened{std::move(job), files, std::move(model), std::move(dataset), {}, {}, {}};
  if (opened.job.task == configs::Task::Train && opened.job.test) {
    WEFT_TRY(opened.test, data::open_dataset(*opened.job.test, kOpen));
  }
  return opened;
}

Result<onnx::OnnxModel> open_submitted(const proto::SubmitJob& submission, SubmittedModel& files,
                                       int64_t read_max) {
  WEFT_TRY(onnx::OnnxModel model, onnx::open_model(files, read_max));
  if (submission.tensors.empty()) return model;  // of a client that does not decide it
  onnx::RoleTable table;
  for (const proto::ModelTensor& tensor : submission.tensors) {
    onnx::TensorRow& row = table.emplace_back();
    row.name = tensor.name;
    row.role = tensor.role;
    row.reason = tensor.reason;
    row.axis = tensor.axis;
    row.frozen = tensor.frozen;
  }
  WEFT_TRY_STATUS(check_roles(model, table));
  return with_roles(model, std::move(table));
}

Result<std::optional<std::string>> submitted_tokenizer(const proto::SubmitJob& submission,
                                                       const configs::Job& job,
                                                       const storage::BlobStore& blobs,
                                                       const fs::path& folder) {
  const std::string path = tokenizer_path(job, folder);
  if (path.empty()) return std::optional<std::string>();
  WEFT_TRY(std::string text, read_submitted(submission, path, blobs, train::kTokenizerMax));
  return std::optional(std::move(text));
}

Result<train::Prepared> prepare_main(const OpenedJob& opened, uint32_t microbatch_size) {
  const configs::Job job = opened.job.with_microbatch_size(microbatch_size);
  if (job.task == configs::Task::Predict)
    return train::prepare_prediction(job, opened.model, *opened.dataset, peer::evaluate_reference);
  return train::prepare_training(job, opened.model, *opened.dataset, peer::evaluate_reference);
}

Result<std::shared_ptr<JobContext>> make_job_context(proto::JobNumber number, const OpenedJob& opened,
                                                     uint32_t microbatch_size, storage::BlobStore& blobs) {
  auto context = std::make_shared<JobContext>();
  context->number = number;
  context->job = opened.job.with_microbatch_size(microbatch_size);
  const configs::Job& job = context->job;
  if (job.task == configs::Task::Serve) {
    WEFT_TRY_STATUS(read_served(opened, blobs, *context));
    return context;
  }
  const bool trains = job.task == configs::Task::Train;
  const auto add = [&](ProgramKind kind, train::Prepared prepared, const data::Dataset& dataset) -> Status {
    WEFT_TRY_STATUS(add_initial(opened, prepared.graph, prepared.weights, blobs, *context));
    context->made.insert(prepared.made.begin(), prepared.made.end());
    context->warnings.insert(context->warnings.end(), prepared.warnings.begin(), prepared.warnings.end());
    context->programs[kind] = {std::move(prepared.graph), std::move(prepared.feeds),
                               std::move(prepared.bounds), std::move(prepared.divisors),
                               dataset.sample_count()};
    return {};
  };
  if (trains) {
    WEFT_TRY(context->steps, job.total_steps(opened.dataset->sample_count()));
  }
  WEFT_TRY(auto prepared, prepare_main(opened, microbatch_size));
  if (trains) WEFT_TRY_STATUS(train::check_agreed(job, prepared.graph));
  WEFT_TRY_STATUS(
      add(trains ? ProgramKind::Train : ProgramKind::Predict, std::move(prepared), *opened.dataset));
  if (trains && job.may_have_empty_steps()) {
    const data::SampleSequence sequence(opened.dataset->sample_count(), job.shuffle, job.seed);
    WEFT_TRY(context->empty_steps,
             data::find_empty_steps(*opened.dataset, context->programs.at(ProgramKind::Train).divisors,
                                    job.losses.size(), sequence, job.batch_size, context->steps));
  }
  if (opened.test) {
    WEFT_TRY(auto evaluation,
             train::prepare_evaluation(job, opened.model, *opened.test, peer::evaluate_reference));
    WEFT_TRY_STATUS(add(ProgramKind::Evaluate, std::move(evaluation), *opened.test));
  }
  return context;
}

proto::JobFeed feed_of(const JobContext& context, const fs::path& folder) {
  const configs::Job& job = context.job;
  proto::JobFeed feed{.steps = context.steps,
                      .batch_size = job.batch_size,
                      .microbatch_size = job.microbatch_size,
                      .shuffle = job.shuffle,
                      .seed = job.seed,
                      .programs = {},
                      .initial = {},
                      .loss_terms = static_cast<uint32_t>(job.losses.size()),
                      .serves = context.served != nullptr};
  for (const auto& [kind, program] : context.programs) {
    const auto& spec = kind == ProgramKind::Train      ? job.train
                       : kind == ProgramKind::Evaluate ? job.test
                                                       : job.predict;
    proto::ProgramFeed& into = feed.programs.emplace_back();
    into.program = kind;
    into.data = source_of(*spec, folder);
    for (const data::Feed& input : program.feeds)
      into.inputs.push_back({input.input, static_cast<uint32_t>(input.column), input.sample});
    for (const train::IntegerBounds& bound : program.bounds)
      into.bounds.push_back({bound.input, bound.low, bound.high, bound.also});
    const auto column = [](const std::optional<size_t>& from) {
      return from ? std::optional(static_cast<uint32_t>(*from)) : std::nullopt;
    };
    for (const data::Divisor& divisor : program.divisors)
      into.divisors.push_back({divisor.input, column(divisor.labels), column(divisor.weights), divisor.rule});
  }
  for (const auto& [name, tensor] : context.initial) feed.initial.push_back(tensor);
  return feed;
}

}  // namespace weft::broker
