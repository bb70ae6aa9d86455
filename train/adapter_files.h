// Adapters as files: a folder that the library PEFT reads, adapter_config.json and adapter_model.safetensors,
// and beside them adapters.json, which says of each adapter beside which initializer it stands. That one also
// travels with a submitted model.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"
#include "train/adapters.h"

namespace weft::train {

// Beside the trained model: "trained.adapter" of trained.onnx.
std::filesystem::path adapter_folder(const std::filesystem::path& output);
// Of adapters.json in a submission.
inline constexpr std::string_view kTravellingAdapters = "model/weft-adapters.json";

// What says where adapters stand, as JSON, and back. Corrupted where it is none.
std::string to_json(const Adapters& adapters);
Result<Adapters> parse_adapters(std::string_view json);

// Writes the folder. `trained`: the factors, and what was trained whole. `base`: the name of the model's
// file. Each file appears whole or not at all. Errors: what writing says.
Status write_adapters(const std::filesystem::path& folder, const Adapters& adapters,
                      const onnx::TrainedTensors& trained, const std::string& base);
// Whether that could be done now.
Status check_adapter_folder(const std::filesystem::path& folder);

// The values of these adapters from such a file of tensors, and of initializers that `full` names, into
// `weights`. NotFound for one that is missing; InvalidArgument for another shape, and for tensors that have
// no place.
Status take_adapters(const std::filesystem::path& file, const Adapters& adapters,
                     std::span<const std::string> full, dag::Weights& weights);

// A folder of adapters for a model: where they stand, and their tensors by the names of initializers. Without
// an adapters.json the model's initializer MODULE.weight is meant, or MODULE.
struct AdapterFolder {
  Adapters adapters;
  onnx::TrainedTensors tensors;
};
Result<AdapterFolder> read_adapter_folder(const std::filesystem::path& folder, const onnx::OnnxModel& model);

// Writes the model with the folder's adapters merged into it. How many they are.
Result<size_t> merge_files(const std::filesystem::path& model, const std::filesystem::path& folder,
                           const std::filesystem::path& output, const configs::OutputForm& form = {});

}  // namespace weft::train
