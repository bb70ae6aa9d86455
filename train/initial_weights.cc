#include "train/initial_weights.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "dag/onnx/outline.h"
#include "train/adapter_files.h"
#include "train/initial_places.h"
#include "train/weights_file.h"

namespace weft::train {
namespace {
namespace fs = std::filesystem;

using Source = InitialPlaces::Source;

// The nearest numbers of another float type.
dag::Tensor converted(const dag::Tensor& tensor, dag::DType dtype) {
  if (dag::is_half(tensor.dtype()) && dtype == dag::DType::F32) return widen_half(tensor);
  if (tensor.dtype() == dag::DType::F32 && dag::is_half(dtype)) return round_to_half(tensor, dtype);
  return dag::from_doubles({dtype, tensor.shape()}, to_doubles(tensor));
}

dag::DType stored_dtype(const InitialPlaces& places, const Source& source) {
  return places.files.tensors().find(source.tensor)->second.spec.dtype;
}

Result<dag::Tensor> tensor_of(const InitialPlaces& places, const Source& source) {
  WEFT_TRY(dag::Tensor tensor, places.files.whole(source.tensor));
  if (source.is_transposed) tensor = transposed(tensor);
  if (tensor.dtype() != source.spec.dtype) tensor = converted(tensor, source.spec.dtype);
  return tensor;
}

Status read_tensor(const InitialPlaces& places, const std::string& name, const onnx::ByteSink& sink) {
  const Source& source = places.sources.find(name)->second;
  if (!source.is_transposed && stored_dtype(places, source) == source.spec.dtype)
    return places.files.read(source.tensor, sink);
  WEFT_TRY(const dag::Tensor tensor, tensor_of(places, source));
  return sink(tensor.bytes());
}

std::string some_of(const std::vector<std::string>& names) {
  return "'" + names.front().substr(0, 128) + "'" +
         (names.size() == 1 ? "" : " and " + std::to_string(names.size() - 1) + " more");
}

}  // namespace

Result<InitialWeights> InitialWeights::open(const configs::Job& job, const onnx::OnnxModel& model) {
  WEFT_CHECK(job.init.has_value());
  WEFT_TRY(InitialPlaces places, find_initial_places(job, model));
  return InitialWeights(std::make_shared<const InitialPlaces>(std::move(places)));
}

onnx::TrainedTensors InitialWeights::tensors() const {
  onnx::TrainedTensors tensors;
  for (const auto& [name, source] : places_->sources) tensors.specs.emplace(name, source.spec);
  tensors.read = [places = places_](const std::string& name, const onnx::ByteSink& sink) {
    return read_tensor(*places, name, sink);
  };
  return tensors;
}

Result<onnx::OnnxModel> InitialWeights::in(const onnx::OnnxModel& model) const {
  dag::Weights values;
  for (const auto& [name, source] : places_->sources) {
    WEFT_TRY(values[name], tensor_of(*places_, source));
  }
  return model.with_weights(std::move(values));
}

std::string InitialWeights::note() const {
  size_t turned = 0;
  std::map<std::string, size_t> conversions;
  for (const auto& [name, source] : places_->sources) {
    turned += source.is_transposed;
    const dag::DType dtype = stored_dtype(*places_, source);
    if (dtype != source.spec.dtype)
      ++conversions[std::string(to_string(dtype)) + " to " + std::string(to_string(source.spec.dtype))];
  }
  std::string text = "init: " + std::to_string(places_->sources.size()) +
                     (places_->sources.size() == 1 ? " tensor" : " tensors") + " of the model came from " +
                     places_->path.string();
  if (turned > 0) text += ", " + std::to_string(turned) + " of them transposed";
  for (const auto& [what, number] : conversions) text += ", " + std::to_string(number) + " from " + what;
  if (places_->kept > 0)
    text += "; " + std::to_string(places_->kept) + " of its weights keep the values of the model's file";
  const size_t unused = places_->ignored + places_->left;
  if (unused > 0) text += "; " + std::to_string(unused) + " in the file were not taken";
  return text;
}

std::vector<std::string> InitialWeights::warnings() const {
  const auto& unasked = places_->transposed_unasked;
  const auto& square = places_->square;
  if (unasked.empty()) return {};
  std::string text = "init: " + some_of(unasked) + " fit only transposed, and were taken so";
  if (!square.empty())
    text += "; " + some_of(square) + " of as many rows as columns " + (square.size() == 1 ? "was" : "were") +
            " taken as written: if the file has these transposed, too, name them in `transpose`";
  return {text};
}

Result<onnx::OnnxModel> read_job_model(const configs::Job& job, std::optional<InitialWeights>& initial) {
  auto model = onnx::read_model(job.model);
  if (!model) return fail(job.error(model.error().code, "model", model.error().message));
  if (!job.init) return model;
  WEFT_TRY(initial, InitialWeights::open(job, *model));
  return initial->in(*model);
}

Result<onnx::WrittenFiles> write_result(const configs::Job& job, const std::optional<InitialWeights>& initial,
                                        const Adapters& adapters, const dag::Weights& trained) {
  WEFT_TRY(const onnx::OnnxModel model, onnx::open_model(job.model));
  onnx::TrainedTensors tensors = onnx::in_memory(trained), base = tensors_of(model);
  if (!adapters.empty())
    WEFT_TRY_STATUS(
        write_adapters(adapter_folder(job.output), adapters, tensors, job.model.filename().string()));
  if (initial) {
    base = put_over(base, initial->tensors());
    tensors = put_over(initial->tensors(), tensors);
  }
  return write_merged(model, adapters, base, tensors, {job.output, job.output_form, job.model.parent_path()});
}

std::vector<fs::path> files_of_init(const configs::Job& job) {
  if (!job.init) return {};
  std::vector<fs::path> files{job.init->file};
  if (const auto opened = data::TensorFiles::open(job.init->file))
    files.insert(files.end(), opened->paths().begin(), opened->paths().end());
  return files;
}

Result<InitialModel> write_initial_model(OpenedJob& opened, const fs::path& folder) {
  configs::Job& job = opened.job;
  auto model = onnx::open_model(job.model);
  if (!model) return fail(job.error(model.error().code, "model", model.error().message));
  WEFT_TRY(const InitialWeights initial, InitialWeights::open(job, *model));
  const fs::path written = folder / job.model.filename();
  WEFT_TRY_STATUS(onnx::write_model(*model, initial.tensors(), written));
  job.model = written;
  job.init.reset();
  std::erase_if(opened.tree.entries, [](const configs::Entry& entry) { return entry.key == "init"; });
  return InitialModel{initial.note(), initial.warnings()};
}

}  // namespace weft::train
