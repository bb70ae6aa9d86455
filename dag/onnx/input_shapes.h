// Which static shape each input has: the file's, with sizes in place of its symbols, as the caller gave them.
// A symbol that stood for the batch of one input is the batch wherever it comes again, so inputs are asked
// for in the file's order.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "dag/onnx/import.h"
#include "dag/onnx/model.h"
#include "dag/onnx/structure.h"

namespace weft::onnx {

class InputShapes {
 public:
  // `options` outlive it.
  InputShapes(const OnnxModel& model, const ImportOptions& options);

  // As the graph has it: with the batch first, if that is wanted. InvalidArgument: a dim that nothing binds.
  // REQUIRES: an input of the model.
  Result<dag::Shape> of(const pb::ValueInfoProto& info);
  // Where the file has the batch. REQUIRES: an input of the model.
  size_t batch_axis_of(const std::string& input) const { return batch_axes_.at(input); }

 private:
  Result<dag::Shape> in_file(const pb::ValueInfoProto& info);

  const ImportOptions& options_;
  std::map<std::string, size_t> batch_axes_;  // of inputs, by name
  std::map<std::string, int64_t> bound_symbols_;
};

}  // namespace weft::onnx
