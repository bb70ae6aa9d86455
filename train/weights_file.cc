#include "train/weights_file.h"

#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "dag/onnx/export.h"
#include "dag/onnx/outline.h"
#include "dag/onnx/roles.h"
#include "dag/onnx/stored_weights.h"
#include "data/safetensors.h"
#include "storage/files.h"
#include "train/adapters.h"
#include "train/loss_warnings.h"
#include "train/outputs.h"

namespace weft::train {
namespace {
namespace fs = std::filesystem;

fs::path plain(const fs::path& path) {
  std::error_code code;
  const fs::path whole = fs::absolute(path, code);
  return (code ? path : whole).lexically_normal();
}

Status check_name(const fs::path& weights, const fs::path& output) {
  if (weights.extension() != ".safetensors")
    return fail(ErrorCode::InvalidArgument,
                weights.string() +
                    ": the name of a file of weights ends in .safetensors, which is the form "
                    "that is written");
  for (const fs::path& path : onnx::trained_paths(output))
    if (plain(path) == plain(weights))
      return fail(ErrorCode::InvalidArgument, weights.string() + " is the output; name another file");
  return {};
}

Status said_of_option(const Status& status) {
  return status ? Status{} : fail(status.error().within("--also"));
}

struct Weights {
  std::vector<data::NamedSpec> tensors{};
  std::function<Status(const std::string& name, const data::ByteSink& sink)> read{};
};

// What the model keeps in fewer bits goes by the weight's own name, and not by those of its parts: integers
// as the floats that they stand for, halves as they are. What was exchanged for it is as it was before.
Weights weights_of(const onnx::OnnxModel& model, std::set<std::string> names) {
  Weights all;
  const onnx::TrainedTensors tensors = tensors_of(model);
  std::map<std::string, std::string> half_of;
  for (const auto& [name, weight] : onnx::stored_weights(model)) {
    for (const auto* part : {&weight.form.numbers, &weight.form.scale, &weight.form.zero})
      names.erase(part->name);
    const bool is_half = weight.form.matrix.is_half();
    all.tensors.push_back({name, is_half ? weight.form.numbers.spec : tensors.specs.at(name)});
    if (is_half) half_of[name] = weight.form.numbers.name;
  }
  for (const auto& [name, tensor] : model.weights())
    if (names.contains(name)) all.tensors.push_back({name, tensor.spec()});
  const std::set<std::string> exchanged = onnx::exchanged_weights(model);
  std::set<std::string> turned;
  for (data::NamedSpec& tensor : all.tensors) {
    if (!exchanged.contains(tensor.name) || tensor.spec.rank() != 2) continue;
    turned.insert(tensor.name);
    std::swap(tensor.spec.shape[0], tensor.spec.shape[1]);
  }
  all.read = [tensors, half_of, turned](const std::string& name, const data::ByteSink& sink) -> Status {
    const auto half = half_of.find(name);
    const std::string& from = half == half_of.end() ? name : half->second;
    if (!turned.contains(name)) return tensors.read(from, sink);
    WEFT_TRY(const dag::Tensor whole, read_tensor(tensors, from));
    return sink(transposed(whole).bytes());
  };
  return all;
}

}  // namespace

dag::Tensor transposed(const dag::Tensor& tensor) {
  const int64_t rows = tensor.shape()[0], columns = tensor.shape()[1];
  const auto size = static_cast<size_t>(element_size(tensor.dtype()));
  dag::Tensor result(dag::TensorSpec{tensor.dtype(), {columns, rows}});
  const std::byte* from = tensor.bytes().data();
  std::byte* to = result.mutable_bytes().data();
  for (int64_t column = 0; column < columns; ++column)
    for (int64_t row = 0; row < rows; ++row, to += size)
      std::memcpy(to, from + static_cast<size_t>(row * columns + column) * size, size);
  return result;
}

Status check_weights_output(const fs::path& weights, const fs::path& output) {
  Status status = check_name(weights, output);
  if (status) status = check_output_file(weights, {});
  return said_of_option(status);
}

Status check_weights_output(const fs::path& weights, const configs::Job& job) {
  if (job.task != configs::Task::Train)
    return fail(ErrorCode::InvalidArgument, "--also writes what is learnt, and goes with `task: train`");
  Status status = check_name(weights, job.output);
  if (status) status = check_output_file(weights, files_of_job(job));
  return said_of_option(status);
}

Result<std::vector<std::string>> learnt_names(const configs::Job& job, const fs::path& model) {
  if (job.trained.empty() && job.losses.empty()) return std::vector<std::string>{};
  WEFT_TRY(const onnx::OnnxModel opened, onnx::open_model(model));
  const onnx::RoleOptions asked{
      .train = job.trained, .freeze = job.freeze, .spare = job.spared, .read = values_read(job.losses)};
  WEFT_TRY(const onnx::RoleTable roles, onnx::judge_roles(opened, asked, onnx::look_at(opened)));
  std::vector<std::string> names;
  for (const onnx::TensorRow& row : roles)
    if (row.role != onnx::TensorRole::Constant) names.push_back(row.name);
  return names;
}

Result<size_t> write_weights(const fs::path& model, std::span<const std::string> learnt,
                             const fs::path& weights) {
  WEFT_TRY(const onnx::OnnxModel opened, onnx::open_model(model));
  WEFT_TRY(const onnx::RoleTable roles, onnx::judge_roles(opened, {}, onnx::look_at(opened)));
  std::set<std::string> names(learnt.begin(), learnt.end());
  for (const onnx::TensorRow& row : roles)
    if (row.role != onnx::TensorRole::Constant) names.insert(row.name);
  const Weights all = weights_of(opened, names);
  storage::Files files;
  WEFT_TRY_STATUS(files.write_atomic_pieces(
      weights,
      [&](const storage::Files::Sink& sink) { return data::write_safetensors(all.tensors, all.read, sink); },
      {.mode = 0644}));
  return all.tensors.size();
}

}  // namespace weft::train
