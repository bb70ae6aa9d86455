// Internal to dag/onnx: what an OnnxModel holds.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dag/onnx/files.h"
#include "dag/onnx/model.h"
#include "dag/onnx/roles.h"
#include "dag/onnx/schema.h"

namespace weft::onnx {

struct OnnxModel::Structure {
  pb::ModelProto proto;  // raw data of what weights hold is taken out
  dag::Weights weights;
  // For each initializer of proto.graph(), how the file stores it.
  enum class Form { Raw, Typed, External };
  std::vector<Form> forms;
  // Float tensors of the graph's own Constant nodes, by the name of what the node returns: they are in
  // `weights` too, for an exporter may write what is trained so.
  std::map<std::string, Form> constants;
  int64_t opset = 0;
  // Those that were not read, and where their bytes are: weights hold zeros for them, which take no memory.
  struct Place {
    std::shared_ptr<const RandomAccess> file;  // none: the bytes could not be found
    std::string location;                      // of external data; empty: the model's own file
    int64_t offset = 0;
  };
  std::map<std::string, Place, std::less<>> unread;
};

// What is known of a model's tensors beside what the file says.
struct OnnxModel::Learnt {
  std::map<std::string, ValueTraits> traits;  // of some that were not read
  std::optional<RoleTable> roles;
};

}  // namespace weft::onnx
