// Small ONNX models, made with the schema's own classes.
#pragma once

#include <filesystem>
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

// An empty folder beneath the build folder's tmp/.
std::filesystem::path fresh_folder(const std::string& name);
void write_bytes(const std::filesystem::path& path, const std::string& bytes);
std::string read_all(const std::filesystem::path& path);
std::string gunzip(const std::filesystem::path& path);

}  // namespace weft::onnx::testing
