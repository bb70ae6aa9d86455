// What `weft inspect` shows of a model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/onnx/import.h"

namespace weft::onnx {

struct ModelInfo {
  std::string producer;
  int64_t opset = 0;
  std::vector<OnnxModel::Port> inputs, outputs;
  std::map<std::string, int64_t> op_counts;  // nodes of the file

  struct Entry {
    std::string name;
    dag::TensorSpec spec;
    std::string why = {};   // of what is not trained
    int readers = 0;        // nodes that read it and let a gradient through
    bool held = false;      // a running statistic that does not move
    bool looked_at = true;  // false: its values might have told more
  };
  // In the file's order. `constants`: integers too.
  std::vector<Entry> parameters, frozen, running_statistics, constants;
  int64_t parameter_elements = 0;
  std::vector<std::string> warnings, notes;

  // Symbols of the inputs' shapes that nothing binds here; data, or sizes, do. Nothing is imported then, and
  // what stands above is taken from the file alone, as where there is a problem.
  std::vector<std::string> open_sizes;

  // Set when the model cannot be imported: why. What stands above is then taken from the file alone; of a
  // graph that is not well-formed every float initializer counts as a parameter.
  std::string problem;
};

// With options.batch unset, a batch of one is assumed. `read`: the outputs that a loss reads, where that is
// known; what it does not reach is then warned of.
ModelInfo inspect_model(const OnnxModel& model, const ImportOptions& options, const dag::OpTable& table,
                        std::span<const std::string> read = {});

}  // namespace weft::onnx
