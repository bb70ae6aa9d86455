// Internal to dag/onnx: what an OnnxModel holds.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dag/onnx/files.h"
#include "dag/onnx/model.h"
#include "dag/onnx/schema.h"

namespace weft::onnx {

struct OnnxModel::Structure {
  pb::ModelProto proto;  // raw data of initializers is taken out: weights hold it
  dag::Weights weights;
  // For each initializer of proto.graph(), how the file stores it.
  enum class Form { Raw, Typed, External };
  std::vector<Form> forms;
  int64_t opset = 0;
  // Those that were not read, and where their bytes are: weights hold zeros for them, which take no memory.
  struct Place {
    std::shared_ptr<const RandomAccess> file;  // none: the bytes could not be found
    std::string location;                      // of external data; empty: the model's own file
    int64_t offset = 0;
  };
  std::map<std::string, Place, std::less<>> unread;
};

}  // namespace weft::onnx
