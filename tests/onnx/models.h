// Small ONNX models, made with the schema's own classes.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dag/onnx/import.h"
#include "dag/onnx/schema.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::onnx::testing {

class ModelMaker {
 public:
  explicit ModelMaker(int64_t opset = 17);

  // dims: a number is fixed, a negative one is the symbol "batch".
  ModelMaker& input(const std::string& name, const std::vector<int64_t>& dims,
                    int32_t type = pb::TensorProto::FLOAT);
  ModelMaker& output(const std::string& name, int32_t type = pb::TensorProto::FLOAT);
  pb::TensorProto& weight(const std::string& name, const std::vector<int64_t>& dims, float value = 0.5f);
  pb::TensorProto& ints(const std::string& name, const std::vector<int64_t>& values);
  pb::NodeProto& node(const std::string& op, const std::vector<std::string>& inputs,
                      const std::vector<std::string>& outputs);

  pb::ModelProto proto;
  pb::GraphProto& graph() { return *proto.mutable_graph(); }
  std::string bytes() const { return proto.SerializeAsString(); }
};

pb::AttributeProto& attribute(pb::NodeProto& node, const std::string& name, int64_t value);
pb::AttributeProto& attribute(pb::NodeProto& node, const std::string& name, float value);
pb::AttributeProto& attribute(pb::NodeProto& node, const std::string& name,
                              const std::vector<int64_t>& values);
pb::AttributeProto& attribute(pb::NodeProto& node, const std::string& name, const std::string& value);

// Its data lies in a file beside the model instead.
void keep_outside(pb::TensorProto& tensor, const std::string& location, std::optional<int64_t> offset = {},
                  std::optional<int64_t> length = {});  // bytes

// y = Relu(x W + b), x of [batch, 4].
ModelMaker linear_model();

// Training-mode options with a batch of 2 and the reference evaluator.
ImportOptions training_options();

Result<OnnxModel> read_bytes(const std::string& bytes, const ImportLimits& limits = {});
Result<ImportedModel> import_bytes(const std::string& bytes,
                                   const ImportOptions& options = training_options());

// How many ops of a kind a graph has.
int count_kind(const dag::Graph& graph, dag::OpKind kind);

// All values of a graph, by the reference kernels.
Result<std::map<std::string, dag::Tensor>> run_graph(const dag::Graph& graph, const dag::Weights& weights,
                                                     const std::map<std::string, dag::Tensor>& inputs);

dag::Tensor from_list(const dag::TensorSpec& spec, const std::vector<double>& values);
// amplitude * sin(0.7 i + phase) as element i: numbers that a script in another language makes as easily.
dag::Tensor wave(const dag::Shape& shape, double phase = 0, double amplitude = 1);
// Angles of rotary positions, [3, 2]: base 100 and heads of four, 3 positions, 2 frequencies.
dag::Tensor cosines();
dag::Tensor sines();
// Adds an input of the tensor's spec.
void add_input(ModelMaker& maker, const std::string& name, const dag::Tensor& tensor);
// Imports the model with these values as its inputs, and computes its outputs.
Result<std::map<std::string, dag::Tensor>> run_model(const ModelMaker& maker,
                                                     const std::map<std::string, dag::Tensor>& inputs,
                                                     const ImportOptions& options = training_options());
// What an operator makes of these operands; absent ones are empty tensors' places: nullopt. `results`: how
// many.
using Operands = std::vector<std::optional<dag::Tensor>>;
Result<std::vector<dag::Tensor>> run_op(int64_t opset, const std::string& domain, const std::string& op,
                                        const Operands& operands,
                                        const std::function<void(pb::NodeProto&)>& attributes = {},
                                        int results = 1, const std::set<size_t>& known = {});
// The first elements are these.
void expect_start(const Result<std::vector<dag::Tensor>>& results, const std::vector<double>& expected,
                  double tolerance = 2e-6);

// An empty folder beneath the build folder's tmp/.
std::filesystem::path fresh_folder(const std::string& name);
void write_bytes(const std::filesystem::path& path, const std::string& bytes);
std::string read_all(const std::filesystem::path& path);
std::string gunzip(const std::filesystem::path& path);

}  // namespace weft::onnx::testing
