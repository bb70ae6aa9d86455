#include "broker/service/job_context.h"

#include <algorithm>

#include "peer/backend/reference/reference_kernels.h"
#include "storage/package.h"

namespace weft::broker {

namespace fs = std::filesystem;
using proto::ProgramKind;

namespace {

// Relative, downwards, made of plain names.
bool is_safe(const std::string& path) {
  if (path.empty() || path.size() > 512) return false;
  const fs::path parts(path);
  if (parts.is_absolute()) return false;
  return std::all_of(parts.begin(), parts.end(),
                     [](const fs::path& part) { return !part.empty() && part != "." && part != ".."; });
}

Status check_inside(const fs::path& path, const fs::path& folder) {
  std::error_code code;
  const fs::path real = fs::weakly_canonical(path, code), root = fs::weakly_canonical(folder, code);
  const auto [end, rest] = std::mismatch(root.begin(), root.end(), real.begin(), real.end());
  if (end == root.end() && !fs::is_symlink(path, code)) return {};
  return fail(ErrorCode::PermissionDenied,
              "the submitted job names '" + path.string() +
                  "', which is not one of its files: submit it with weft submit");
}

Status check_data(const data::DataSpec& spec, const fs::path& folder) {
  return std::visit(
      [&](const auto& s) -> Status {
        using Spec = std::decay_t<decltype(s)>;
        if constexpr (std::is_same_v<Spec, data::IdxSpec>) {
          WEFT_TRY_STATUS(check_inside(s.images, folder));
          return check_inside(s.labels, folder);
        } else {
          return check_inside(s.path, folder);
        }
      },
      spec);
}

}  // namespace

Result<configs::Job> unpack_submission(const proto::SubmitJob& submission, storage::BlobStore& blobs,
                                       const fs::path& folder) {
  std::error_code code;
  for (const proto::PackedFile& file : submission.files) {
    if (!is_safe(file.path))
      return fail(ErrorCode::InvalidArgument, "a submitted file has the name '" + file.path + "'");
    const fs::path target = folder / file.path;
    if (fs::exists(target, code)) continue;
    std::vector<storage::Piece> pieces;
    for (const proto::FilePiece& piece : file.pieces) {
      const auto* bytes = reinterpret_cast<const std::byte*>(piece.bytes.data());
      pieces.push_back(
          {.bytes = {bytes, bytes + piece.bytes.size()}, .sha256 = piece.sha256, .size = piece.size});
    }
    fs::create_directories(target.parent_path(), code);
    WEFT_TRY_STATUS(storage::unpack(pieces, blobs, target));
  }
  WEFT_TRY(configs::Job job,
           configs::parse_job(submission.job, {}, {.source = submission.name, .folder = folder}));
  WEFT_TRY_STATUS(check_inside(job.model, folder));
  for (const auto* spec : {&job.train, &job.test, &job.predict})
    if (*spec) WEFT_TRY_STATUS(check_data(**spec, folder));
  return job;
}

Result<OpenedJob> open_submission(const proto::SubmitJob& submission, storage::BlobStore& blobs,
                                  const fs::path& folder) {
  WEFT_TRY(configs::Job job, unpack_submission(submission, blobs, folder));
  WEFT_TRY(onnx::OnnxModel model, onnx::read_model(job.model));
  WEFT_TRY(std::shared_ptr<const data::Dataset> dataset,
           data::open_dataset(job.task == configs::Task::Predict ? *job.predict : *job.train));
  OpenedJob opened{std::move(job), std::move(model), std::move(dataset), {}};
  if (opened.job.task == configs::Task::Train && opened.job.test) {
    WEFT_TRY(opened.test, data::open_dataset(*opened.job.test));
  }
  return opened;
}

Result<train::Prepared> prepare_main(const OpenedJob& opened, uint32_t microbatch_size) {
  const configs::Job job = opened.job.with_microbatch_size(microbatch_size);
  const auto prepare =
      job.task == configs::Task::Predict ? train::prepare_prediction : train::prepare_training;
  return prepare(job, opened.model, *opened.dataset, peer::evaluate_reference);
}

Result<std::shared_ptr<JobContext>> make_job_context(proto::JobNumber number, const OpenedJob& opened,
                                                     uint32_t microbatch_size, storage::BlobStore& blobs) {
  auto context = std::make_shared<JobContext>();
  context->number = number;
  context->job = opened.job.with_microbatch_size(microbatch_size);
  const configs::Job& job = context->job;
  const bool trains = job.task == configs::Task::Train;
  const auto add = [&](ProgramKind kind, train::Prepared prepared,
                       const std::shared_ptr<const data::Dataset>& dataset) -> Status {
    for (const dag::Initializer& initializer : prepared.graph.initializers()) {
      if (context->initial.contains(initializer.name)) continue;
      const dag::Tensor& tensor = prepared.weights.at(initializer.name);
      WEFT_TRY(const Digest sha256, blobs.put(tensor.bytes()));
      context->initial[initializer.name] = {weight_key(initializer), tensor.spec(), sha256};
    }
    context->warnings.insert(context->warnings.end(), prepared.warnings.begin(), prepared.warnings.end());
    context->programs[kind] = {std::move(prepared.graph), std::move(prepared.feeds),
                               std::move(prepared.bounds), dataset};
    return {};
  };
  if (trains) {
    WEFT_TRY(context->steps, job.total_steps(opened.dataset->sample_count()));
  }
  WEFT_TRY(auto prepared, prepare_main(opened, microbatch_size));
  WEFT_TRY_STATUS(
      add(trains ? ProgramKind::Train : ProgramKind::Predict, std::move(prepared), opened.dataset));
  if (opened.test) {
    WEFT_TRY(auto evaluation,
             train::prepare_evaluation(job, opened.model, *opened.test, peer::evaluate_reference));
    WEFT_TRY_STATUS(add(ProgramKind::Evaluate, std::move(evaluation), opened.test));
  }
  return context;
}

}  // namespace weft::broker
