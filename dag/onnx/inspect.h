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
    bool is_looked_at = true;  // its values were
  };
  std::vector<Entry> parameters, frozen, running_statistics, buffers;  // in the file's order
  int64_t parameter_elements = 0;
  std::vector<std::string> warnings;

  // Set when the model cannot be imported: why. What stands above is then taken from the file alone, and
  // every float initializer counts as a parameter or frozen.
  std::string problem;
};

// With options.batch unset, a batch of one is assumed. `read`: the outputs that a loss reads, where that is
// known; what it does not reach is then warned of.
ModelInfo inspect_model(const OnnxModel& model, const ImportOptions& options, const dag::OpTable& table,
                        std::span<const std::string> read = {});

}  // namespace weft::onnx
