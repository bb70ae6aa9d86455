// Small models as exporters write them, and what is trained of each. The networks are alike (a convolution, a
// normalisation, a GELU, a dense layer); what differs is where weights, biases and numbers stand in the file.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/onnx/models.h"

namespace weft::onnx::testing {

struct ExportedModel {
  std::string exporter;
  ModelMaker maker;
  std::set<std::string> trained, statistics;  // everything else that is a float is constant
};

ExportedModel as_torch_writes_it();         // TorchScript, in training mode: numbers in Constant nodes
ExportedModel as_torch_dynamo_writes_it();  // numbers as initializers val_N, and the program's signature
ExportedModel as_old_torch_writes_it();     // 1.2: initializers among the inputs, Transpose before MatMul
ExportedModel as_tf2onnx_writes_it();      // NHWC, numbers as initializers, a bias as an Add behind Transpose
ExportedModel as_keras_writes_it();        // numbers as initializers, normalisation by hand
ExportedModel as_paddle2onnx_writes_it();  // all weights in Constant nodes, scalars of one axis
ExportedModel as_spox_writes_it();         // weights in Constant nodes behind Transpose and Identity

std::vector<ExportedModel> as_all_write_it();

// The signature of the exported program, which PyTorch's newer exporter leaves in the file: "p_x: PARAMETER
// target='x'" for each parameter.
void add_signature(ModelMaker& maker, const std::string& signature);

// A Constant node with a tensor of these dims, as ModelMaker::weight makes it. `raw`: or in its typed field.
void constant_node(ModelMaker& maker, const std::string& name, const std::vector<int64_t>& dims,
                   float value = 0.5f, bool raw = true);

}  // namespace weft::onnx::testing
