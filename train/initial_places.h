// Internal to train: which tensor of a file goes to which initializer of a model, and how.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/onnx/model.h"
#include "data/safetensors.h"

namespace weft::train {

struct InitialPlaces {
  data::TensorFiles files;
  std::filesystem::path path;  // as the job names it

  struct Source {
    std::string tensor;      // its name in the file
    dag::TensorSpec spec{};  // of the initializer
    bool is_transposed = false;
  };
  std::map<std::string, Source, std::less<>> sources{};  // by initializer
  std::vector<std::string> transposed_unasked{};         // initializers: they fit no other way
  std::vector<std::string> square{};                     // matrices that would fit both ways, as they are
  size_t ignored = 0, left = 0;                          // tensors
  size_t kept = 0;                                       // weights with the values of the model's own file
};

// Errors as of InitialWeights::open.
Result<InitialPlaces> find_initial_places(const configs::Job& job, const onnx::OnnxModel& model);

}  // namespace weft::train
