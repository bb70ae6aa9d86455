// Trained files: the submitted file with new weights, and its twin in inference mode.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/onnx/model.h"

namespace weft::onnx {

struct WrittenFiles {
  std::filesystem::path trained;    // as asked
  std::filesystem::path inference;  // beside it: name.inference.onnx for name.onnx
};

using ByteSink = std::function<Status(std::span<const std::byte>)>;

// Tensors that are written in place of the model's of the same names, wherever their bytes are.
struct TrainedTensors {
  std::map<std::string, dag::TensorSpec, std::less<>> specs{};
  // Hands on the bytes of one, in order. May be asked for any of them, again too.
  std::function<Status(const std::string& name, const ByteSink& sink)> read{};
};
TrainedTensors in_memory(const dag::Weights& weights);  // which outlive it

// Writes the model with the trained tensors in place of its own of the same names, and nothing else changed,
// but that nodes which stood out of order are sorted: the same file and the same weights give the same bytes.
// A model with external data is written in that form, with one data file (name.onnx.data) that both files
// share. Each file appears whole or not at all. Of weights that the model has not read, one piece at a time
// is held.
//
// The twin predicts in any ONNX runtime: BatchNormalization uses its running statistics and has one output,
// Dropout is gone. Only its graph is changed; it shares names, inputs and outputs with the model.
//
// Weights that the file holds in half precision may be given as F32: they are rounded.
//
// Errors: InvalidArgument for a name that the model does not have or a tensor of another spec; Unsupported
// when an output of the graph exists in training mode only; what reading and writing files return.
Result<WrittenFiles> write_trained_tensors(const OnnxModel& model, const TrainedTensors& trained,
                                           const std::filesystem::path& output);
Result<WrittenFiles> write_trained(const OnnxModel& model, const dag::Weights& trained,
                                   const std::filesystem::path& output);
// The model alone, without a twin.
Status write_model(const OnnxModel& model, const TrainedTensors& tensors,
                   const std::filesystem::path& output);
// The same for a model that is not in memory any more.
Result<WrittenFiles> write_trained(const std::filesystem::path& model, const dag::Weights& trained,
                                   const std::filesystem::path& output);

// Writes the trained model so that external data of which there is no tensor in `trained` is read where the
// model's files have it. `folder`: that of the model's file, which is that of `output` or beneath it;
// otherwise InvalidArgument. A model without external data is written whole.
Result<WrittenFiles> write_beside(const OnnxModel& model, const std::filesystem::path& folder,
                                  const TrainedTensors& trained, const std::filesystem::path& output);
// What such files call the folder: "" or "base/".
Result<std::string> folder_beside(const std::filesystem::path& folder, const std::filesystem::path& output);

// The bytes of a trained file without external data: for tests and for models that came from memory.
Result<std::string> trained_bytes(const OnnxModel& model, const dag::Weights& trained);

std::filesystem::path inference_path(const std::filesystem::path& trained);
// Every name that write_trained() uses for this output, those of files on their way among them.
std::vector<std::filesystem::path> trained_paths(const std::filesystem::path& output);

}  // namespace weft::onnx
