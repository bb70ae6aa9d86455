// A model of a chosen size, for measurements: tokens, an embedding, LAYERS square layers with a shortcut,
// logits.
//   weft_bench_model WIDTH LAYERS LENGTH OUT.onnx
// Each layer has WIDTH * WIDTH parameters; input `tokens` i64[batch, LENGTH], output `logits` f32[batch,
// LENGTH, 256].
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/rng.h"
#include "bench/numbers.h"
#include "dag/onnx/schema.h"

namespace {
namespace pb = weft::onnx::pb;
constexpr int64_t kVocabulary = 256;

void add_weight(pb::GraphProto& graph, const std::string& name, int64_t rows, int64_t columns,
                double deviation) {
  weft::Rng rng(1, static_cast<uint64_t>(graph.initializer_size()));
  pb::TensorProto& weight = *graph.add_initializer();
  weight.set_name(name);
  weight.set_data_type(pb::TensorProto::FLOAT);
  weight.add_dims(rows);
  weight.add_dims(columns);
  std::string bytes(static_cast<size_t>(rows * columns) * sizeof(float), '\0');
  for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    const auto value = static_cast<float>((rng.uniform() - 0.5) * std::sqrt(12.0) * deviation);
    bytes.replace(at, sizeof(float), reinterpret_cast<const char*>(&value), sizeof(float));
  }
  weight.set_raw_data(std::move(bytes));
}
std::string add_node(pb::GraphProto& graph, const std::string& op, std::initializer_list<std::string> inputs,
                     const std::string& output) {
  pb::NodeProto& node = *graph.add_node();
  node.set_op_type(op);
  node.set_name(output);
  for (const std::string& input : inputs) node.add_input(input);
  node.add_output(output);
  return output;
}
void add_port(pb::ValueInfoProto& port, const std::string& name, int32_t type,
              std::initializer_list<int64_t> dims) {
  port.set_name(name);
  auto& tensor = *port.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(type);
  tensor.mutable_shape()->add_dim()->set_dim_param("batch");
  for (const int64_t dim : dims) tensor.mutable_shape()->add_dim()->set_dim_value(dim);
}
}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: weft_bench_model WIDTH LAYERS LENGTH OUT.onnx\n");
    return 2;
  }
  const auto width = weft::bench::number_of<int64_t>(argv[1]),
             layers = weft::bench::number_of<int64_t>(argv[2]),
             length = weft::bench::number_of<int64_t>(argv[3]);
  pb::ModelProto model;
  model.set_ir_version(8);
  model.set_producer_name("weft bench");
  model.add_opset_import()->set_version(17);
  pb::GraphProto& graph = *model.mutable_graph();
  graph.set_name("squares");
  add_port(*graph.add_input(), "tokens", pb::TensorProto::INT64, {length});
  add_weight(graph, "embedding", kVocabulary, width, 1.0);
  std::string x = add_node(graph, "Gather", {"embedding", "tokens"}, "embedded");
  const double deviation = 1.0 / std::sqrt(static_cast<double>(width));
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string name = "layer." + std::to_string(layer);
    add_weight(graph, name, width, width, deviation);
    const std::string y =
        add_node(graph, "Tanh", {add_node(graph, "MatMul", {x, name}, name + "/product")}, name + "/bent");
    x = add_node(graph, "Add", {x, y}, name + "/sum");
  }
  add_weight(graph, "head", width, kVocabulary, deviation);
  add_node(graph, "MatMul", {x, "head"}, "logits");
  add_port(*graph.add_output(), "logits", pb::TensorProto::FLOAT, {length, kVocabulary});
  std::ofstream out(argv[4], std::ios::binary);
  return model.SerializeToOstream(&out) && out.flush() ? 0 : 1;
}
