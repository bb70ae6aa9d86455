#include "train/stored_base.h"

#include <set>

#include "base/units.h"
#include "dag/onnx/export.h"
#include "dag/onnx/fewer_bits.h"
#include "dag/onnx/outline.h"
#include "dag/onnx/roles.h"
#include "plan/explain.h"
#include "train/initial_weights.h"

namespace weft::train {
namespace {

using configs::BaseStore;

struct Kept {
  int bits;
  const char* name;
};
std::optional<Kept> kept_in(BaseStore store) {
  switch (store) {
    case BaseStore::Float32:
    case BaseStore::AsIs:
      return std::nullopt;
    case BaseStore::BF16:
      return Kept{16, "bf16"};
    case BaseStore::Int8:
      return Kept{8, "int8"};
    case BaseStore::Int4:
      return Kept{4, "int4"};
  }
  return std::nullopt;
}

Result<std::set<std::string>> frozen_tensors(const configs::Job& job, const onnx::OnnxModel& model) {
  const onnx::RoleOptions options{.train = job.trained, .freeze = job.freeze, .spare = job.spared};
  auto roles = onnx::judge_roles(model, options, onnx::look_at(model));
  if (!roles) return fail(job.error(roles.error().code, "base.store", roles.error().message));
  std::set<std::string> frozen;
  for (const onnx::TensorRow& row : *roles)
    if (row.role == dag::TensorRole::Frozen) frozen.insert(row.name);
  return frozen;
}

// The model with its first weights.
Status write_first(configs::Job& job, const std::filesystem::path& folder) {
  if (!job.init) return {};
  WEFT_TRY(const onnx::OnnxModel model, onnx::open_model(job.model));
  WEFT_TRY(const InitialWeights initial, InitialWeights::open(job, model));
  const std::filesystem::path written = folder / ("first-" + job.model.filename().string());
  WEFT_TRY_STATUS(onnx::write_model(model, initial.tensors(), written));
  job.model = written;
  job.init.reset();
  return {};
}

Result<onnx::FewerBits> how_of(const configs::Job& job, const Kept& kept, const onnx::OnnxModel& model) {
  WEFT_TRY(std::set<std::string> frozen, frozen_tensors(job, model));
  return onnx::FewerBits{
      .bits = kept.bits,
      .block = job.base.block,
      .takes = [frozen = std::move(frozen)](const std::string& name) { return frozen.contains(name); }};
}

// What was done, in words; from now on the job's base is so.
Result<std::optional<std::string>> said_of(configs::Job& job, const Kept& kept,
                                           const onnx::WrittenBits& written) {
  if (written.matrices == 0)
    return fail(job.error(ErrorCode::InvalidArgument, "base.store",
                          std::string("there is no frozen matrix to keep in ") + kept.name +
                              (written.passed.empty() ? "; `adapters` or `freeze` say what is frozen"
                                                      : ": " + written.passed.front())));
  job.base.store = BaseStore::AsIs;
  std::string text = "base: " + std::to_string(written.matrices) + " matrices are kept in " + kept.name +
                     ", " + plan::show(Bytes{static_cast<int64_t>(written.after)}) + " in place of " +
                     plan::show(Bytes{static_cast<int64_t>(written.before)}) +
                     "; their numbers are rounded, so this is another model";
  if (!written.passed.empty())
    text +=
        "; " + std::to_string(written.passed.size()) + " more stay as they are, as " + written.passed.front();
  return std::optional(text);
}

}  // namespace

Result<std::optional<std::string>> store_base(configs::Job& job, const std::filesystem::path& folder) {
  const auto kept = kept_in(job.base.store);
  if (!kept) return std::optional<std::string>();
  WEFT_TRY_STATUS(write_first(job, folder));
  auto model = onnx::open_model(job.model);
  if (!model) return fail(job.error(model.error().code, "model", model.error().message));
  WEFT_TRY(const onnx::FewerBits how, how_of(job, *kept, *model));
  const std::filesystem::path path = folder / job.model.filename();
  WEFT_TRY(const onnx::WrittenBits written, onnx::write_in_fewer_bits(*model, how, path));
  WEFT_TRY(auto said, said_of(job, *kept, written));
  job.model = path;
  return said;
}

Result<std::optional<std::string>> store_base(configs::Job& job, onnx::OnnxModel& outline) {
  const auto kept = kept_in(job.base.store);
  if (!kept) return std::optional<std::string>();
  WEFT_TRY(const onnx::FewerBits how, how_of(job, *kept, outline));
  WEFT_TRY(onnx::InFewerBits made, onnx::outline_in_fewer_bits(outline, how));
  outline = std::move(made.model);
  return said_of(job, *kept, made.bits);
}

Result<std::optional<std::string>> store_base(OpenedJob& opened, const std::filesystem::path& folder) {
  WEFT_TRY(auto said, store_base(opened.job, folder));
  if (said)
    std::erase_if(opened.tree.entries, [](const configs::Entry& entry) { return entry.key == "base"; });
  return said;
}

}  // namespace weft::train
