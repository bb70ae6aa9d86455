// Internal to dag/onnx: which weights a node reads in fewer bits.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "dag/onnx/schema.h"
#include "dag/onnx/stored_weights.h"
#include "dag/onnx/structure.h"

namespace weft::onnx {

// An initializer, under its own name or behind a Reshape that gives its numbers other dims. So does a table
// that is multiplied with, too, come from its exporter: once.
struct HeldTensor {
  std::string initializer;
  const pb::TensorProto* proto = nullptr;
  dag::TensorSpec spec;       // of what the model holds
  std::vector<int64_t> dims;  // as a node sees them
};

// All of a model. It is to live longer.
class HeldTensors {
 public:
  explicit HeldTensors(const OnnxModel::Structure& model);

  const HeldTensor* find(std::string_view name) const;  // nullptr: there is none of that name
  // Whether the graph has a value of that name.
  bool is_taken(const std::string& name) const { return taken_.contains(name); }

 private:
  // `constant` has the shape, unless an initializer has it.
  void add_reshaped(const OnnxModel::Structure& model, const pb::NodeProto& node,
                    const pb::NodeProto* constant);

  std::map<std::string, HeldTensor, std::less<>> tensors_;
  std::unordered_set<std::string> taken_;
};

// What exchanged_weights() says is to be told of these too, or no more. REQUIRES: no name has a line feed.
void exchange_weights(const std::set<std::string>& names, OnnxModel::Structure& model);

// What the node reads in such a form; nothing for every other node, and for those whose operands are not
// initializers, or lie otherwise.
std::optional<StoredWeight> stored_weight_of(const HeldTensors& held, const pb::NodeProto& node);

}  // namespace weft::onnx
