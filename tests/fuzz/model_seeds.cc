// Seeds of models: an operator each, what someone made to hurt, and tensors beside a file.
#include "dag/onnx/import.h"
#include "tests/fuzz/seed_list.h"
#include "tests/onnx/hostile_models.h"
#include "tests/onnx/models.h"

namespace weft::fuzz {
namespace {

using weft::onnx::testing::ModelMaker;

// A node of the operator on operands of a few kinds, as many as it may want.
ModelMaker one_node(const std::string& domain, const std::string& op,
                    const std::vector<std::string>& operands) {
  ModelMaker maker;
  maker.input("x", {2, 4}).input("image", {1, 4, 5, 5}).output("y", 0);
  maker.weight("w", {4, 4});
  maker.weight("v", {4});
  maker.weight("kernel", {4, 4, 3, 3});
  maker.ints("i", {1, 0});
  maker.ints("one", {1});
  maker.node(op, operands, {"y"}).set_domain(domain);
  return maker;
}

// For each operator a model of one node, with operands that it takes where some of these are.
void operators(Seeds& seeds, const std::string& domain) {
  static const std::vector<std::vector<std::string>> kOperands = {{"x"},
                                                                  {"x", "w"},
                                                                  {"x", "v"},
                                                                  {"x", "i"},
                                                                  {"x", "one"},
                                                                  {"x", "x"},
                                                                  {"x", "x", "x"},
                                                                  {"x", "v", "v"},
                                                                  {"image"},
                                                                  {"image", "kernel"},
                                                                  {"image", "v", "v"},
                                                                  {"image", "v", "v", "v", "v"},
                                                                  {"x", "i", "x"},
                                                                  {"x", "i", "i"},
                                                                  {"x", "one", "one", "one"},
                                                                  {"i"},
                                                                  {"one"},
                                                                  {"one", "one", "one"},
                                                                  {}};
  for (const std::string& op : weft::onnx::imported_operators(domain)) {
    Bytes first;
    for (const auto& operands : kOperands) {
      const std::string bytes = one_node(domain, op, operands).bytes();
      if (first.empty()) first = bytes_of(bytes);
      if (!weft::onnx::testing::import_bytes(bytes)) continue;
      first = bytes_of(bytes);
      break;
    }
    seeds.add("op_" + domain + op, std::move(first));
  }
}

}  // namespace

void onnx_seeds(Seeds& seeds) {
  seeds.add("linear", weft::onnx::testing::linear_model().bytes());
  operators(seeds, "");
  operators(seeds, "com.microsoft");
  for (const auto& hostile : weft::onnx::testing::hostile_models()) {
    if (hostile.name.starts_with("bomb_")) continue;  // of many MB
    const std::string bytes = hostile.bytes();
    if (bytes.size() <= 4096) seeds.add("hostile_" + hostile.name, bytes);
  }
}

// The cases, each as it stands; the changes are the fuzzer's.
void node_seeds(Seeds& seeds) {
  for (uint64_t i = 0; i < 250; ++i) seeds.add("case_" + std::to_string(i), number(i, 2));
}

void onnx_file_seeds(Seeds& seeds) {
  for (const auto& hostile : weft::onnx::testing::hostile_models())
    if (hostile.name.starts_with("external_")) seeds.add(hostile.name, hostile.bytes());
  ModelMaker apart = weft::onnx::testing::linear_model();
  int64_t offset = 0;
  for (auto& tensor : *apart.graph().mutable_initializer()) {
    const auto size = static_cast<int64_t>(tensor.raw_data().size());
    weft::onnx::testing::keep_outside(tensor, "data", offset, size);
    offset += size;
  }
  seeds.add("apart", apart.bytes());
  seeds.add("linear", weft::onnx::testing::linear_model().bytes());
  seeds.add("lone_tensor", apart.weight("t", {2, 3}).SerializeAsString());
}

}  // namespace weft::fuzz
