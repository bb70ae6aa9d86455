#include "tests/onnx/exporters.h"

namespace weft::onnx::testing {
namespace {

using Dims = std::vector<int64_t>;

// x -> 0.5 x (1 + erf(x / sqrt 2)), over numbers of these names.
void gelu(ModelMaker& maker, const std::string& x, const std::string& y, const std::string& root,
          const std::string& one, const std::string& half) {
  maker.node("Div", {x, root}, {y + "_a"});
  maker.node("Erf", {y + "_a"}, {y + "_e"});
  maker.node("Add", {y + "_e", one}, {y + "_e1"});
  maker.node("Mul", {x, y + "_e1"}, {y + "_m"});
  maker.node("Mul", {y + "_m", half}, {y});
}

// (x - mean) / sqrt(mean((x - mean)^2) + epsilon) over the last axis.
void normalise(ModelMaker& maker, const std::string& x, const std::string& y, const std::string& two,
               const std::string& epsilon) {
  attribute(maker.node("ReduceMean", {x}, {y + "_mu"}), "axes", Dims{-1});
  maker.node("Sub", {x, y + "_mu"}, {y + "_c"});
  maker.node("Pow", {y + "_c", two}, {y + "_sq"});
  attribute(maker.node("ReduceMean", {y + "_sq"}, {y + "_va"}), "axes", Dims{-1});
  maker.node("Add", {y + "_va", epsilon}, {y + "_ve"});
  maker.node("Sqrt", {y + "_ve"}, {y + "_sd"});
  maker.node("Div", {y + "_c", y + "_sd"}, {y});
}

pb::NodeProto& conv(ModelMaker& maker, const std::vector<std::string>& inputs, const std::string& y) {
  pb::NodeProto& node = maker.node("Conv", inputs, {y});
  attribute(node, "pads", Dims{1, 1, 1, 1});
  return node;
}

void flatten(ModelMaker& maker, const std::string& x, const std::string& y) {
  maker.node("GlobalAveragePool", {x}, {y + "_pool"});
  maker.node("Flatten", {y + "_pool"}, {y});
}

}  // namespace

void add_signature(ModelMaker& maker, const std::string& signature) {
  pb::StringStringEntryProto entry;
  entry.set_key("pkg.torch.export.ExportedProgram.graph_signature");
  entry.set_value(signature);
  maker.graph()
      .GetReflection()
      ->MutableUnknownFields(&maker.graph())
      ->AddLengthDelimited(16, entry.SerializeAsString());  // GraphProto.metadata_props
}

void constant_node(ModelMaker& maker, const std::string& name, const std::vector<int64_t>& dims, float value,
                   bool raw) {
  pb::TensorProto tensor = maker.weight(name, dims, value);
  maker.graph().mutable_initializer()->RemoveLast();
  tensor.clear_name();
  if (!raw) {
    const std::string bytes = tensor.raw_data();
    tensor.clear_raw_data();
    for (size_t i = 0; i < bytes.size() / sizeof(float); ++i)
      tensor.add_float_data(reinterpret_cast<const float*>(bytes.data())[i]);
  }
  auto& node = maker.node("Constant", {}, {name});
  auto& attribute = *node.add_attribute();
  attribute.set_name("value");
  attribute.set_type(pb::AttributeProto::TENSOR);
  *attribute.mutable_t() = tensor;
}

ExportedModel as_torch_writes_it() {
  ModelMaker maker;
  maker.input("x", {-1, 3, 6, 6}).output("y");
  maker.weight("conv.weight", {4, 3, 3, 3});
  maker.weight("conv.bias", {4}, 0.0f);
  for (const char* name : {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"})
    maker.weight(name, {4}, 1.0f);
  maker.weight("norm.weight", {4}, 1.0f);
  maker.weight("norm.bias", {4}, 0.0f);
  maker.weight("fc.weight", {2, 4});
  maker.weight("fc.bias", {2}, 0.0f);
  conv(maker, {"x", "conv.weight", "conv.bias"}, "c");
  auto& norm =
      maker.node("BatchNormalization", {"c", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"},
                 {"n", "/bn/mean", "/bn/var"});
  attribute(norm, "training_mode", int64_t{1});
  for (const auto& [name, value] :
       {std::pair{"root", 1.414f}, {"one", 1.0f}, {"half", 0.5f}, {"two", 2.0f}, {"eps", 1e-5f}})
    constant_node(maker, name, {}, value);
  gelu(maker, "n", "g", "root", "one", "half");
  flatten(maker, "g", "f");
  normalise(maker, "f", "h", "two", "eps");
  maker.node("Mul", {"h", "norm.weight"}, {"hs"});
  maker.node("Add", {"hs", "norm.bias"}, {"hb"});
  attribute(maker.node("Gemm", {"hb", "fc.weight", "fc.bias"}, {"y"}), "transB", int64_t{1});
  return {"torch",
          std::move(maker),
          {"conv.weight", "conv.bias", "bn.weight", "bn.bias", "norm.weight", "norm.bias", "fc.weight",
           "fc.bias"},
          {"bn.running_mean", "bn.running_var"}};
}

ExportedModel as_torch_dynamo_writes_it() {
  ModelMaker maker(18);
  maker.input("x", {-1, 4}).output("y");
  maker.weight("fc.weight", {4, 4});
  maker.weight("fc.bias", {4}, 0.0f);
  maker.weight("logit_scale", {}, 2.6f);
  maker.weight("table", {1, 4}, 0.3f);
  for (const auto& [name, value] :
       {std::pair{"val_3", 1.414f}, {"val_5", 1.0f}, {"scalar_tensor_default", 0.5f}})
    maker.weight(name, {}, value);
  attribute(maker.node("Gemm", {"x", "fc.weight", "fc.bias"}, {"z"}), "transB", int64_t{1});
  gelu(maker, "z", "g", "val_3", "val_5", "scalar_tensor_default");
  maker.node("Add", {"g", "table"}, {"t"});
  maker.node("Mul", {"t", "logit_scale"}, {"y"});
  std::string signature = "# inputs\n";
  for (const char* name : {"fc.weight", "fc.bias", "logit_scale"})
    signature += "p_x: PARAMETER target='" + std::string(name) + "'\n";
  add_signature(maker, signature + "b_table: BUFFER target='table' persistent=True\nx: USER_INPUT\n");
  return {"torch.export", std::move(maker), {"fc.weight", "fc.bias", "logit_scale"}, {}};
}

ExportedModel as_old_torch_writes_it() {
  ModelMaker maker(9);
  maker.proto.set_ir_version(3);
  maker.input("input.1", {-1, 3, 6, 6}).output("21");
  const auto listed = [&](const std::string& name, const Dims& dims, float value = 0.5f) {
    maker.weight(name, dims, value);
    maker.input(name, dims);
  };
  listed("1.weight", {4, 3, 3, 3});
  for (const char* name : {"2.weight", "2.bias", "2.running_mean", "2.running_var"}) listed(name, {4}, 1.0f);
  listed("3.weight", {2, 4});
  listed("3.bias", {2}, 0.0f);
  conv(maker, {"input.1", "1.weight"}, "9");
  maker.node("BatchNormalization", {"9", "2.weight", "2.bias", "2.running_mean", "2.running_var"},
             {"10", "11", "12", "13", "14"});
  attribute(maker.node("Clip", {"10"}, {"15"}), "max", 6.0f);
  constant_node(maker, "16", {}, 127.5f);
  maker.node("Div", {"15", "16"}, {"17"});
  flatten(maker, "17", "18");
  attribute(maker.node("Transpose", {"3.weight"}, {"19"}), "perm", Dims{1, 0});
  maker.node("MatMul", {"18", "19"}, {"20"});
  maker.node("Add", {"20", "3.bias"}, {"21"});
  return {"torch 1.2",
          std::move(maker),
          {"1.weight", "2.weight", "2.bias", "3.weight", "3.bias"},
          {"2.running_mean", "2.running_var"}};
}

ExportedModel as_tf2onnx_writes_it() {
  ModelMaker maker(13);
  maker.input("x:0", {-1, 6, 6, 3}).output("Identity:0");
  maker.weight("model/conv/Conv2D/ReadVariableOp:0", {4, 3, 3, 3});
  maker.weight("model/bn/scale:0", {1, 4, 1, 1}, 1.0f);
  maker.weight("model/bn/shift:0", {1, 4, 1, 1}, 0.0f);
  maker.weight("model/dense/MatMul/ReadVariableOp:0", {4, 1});
  maker.weight("model/dense/BiasAdd/ReadVariableOp:0", {1}, 0.0f);
  for (const auto& [name, value] : {std::pair{"const_fold_opt__12", 0.00784f},
                                    {"const_low", 0.0f},
                                    {"const_six", 6.0f},
                                    {"pow_y:0", 2.0f},
                                    {"batchnorm/add/y:0", 1e-3f}})
    maker.weight(name, {}, value);
  maker.weight("reshape_one", {1}, 1.0f);
  maker.node("Mul", {"x:0", "const_fold_opt__12"}, {"s"});
  maker.node("Sub", {"s", "reshape_one"}, {"s1"});
  attribute(maker.node("Transpose", {"s1"}, {"t"}), "perm", Dims{0, 3, 1, 2});
  conv(maker, {"t", "model/conv/Conv2D/ReadVariableOp:0"}, "c");
  maker.node("Mul", {"c", "model/bn/scale:0"}, {"cs"});
  maker.node("Add", {"cs", "model/bn/shift:0"}, {"cb"});
  maker.node("Clip", {"cb", "const_low", "const_six"}, {"r"});
  maker.node("Pow", {"r", "pow_y:0"}, {"p"});
  maker.node("Add", {"p", "batchnorm/add/y:0"}, {"pe"});
  flatten(maker, "pe", "f");
  maker.node("MatMul", {"f", "model/dense/MatMul/ReadVariableOp:0"}, {"d"});
  maker.node("Add", {"d", "model/dense/BiasAdd/ReadVariableOp:0"}, {"Identity:0"});
  return {"tf2onnx",
          std::move(maker),
          {"model/conv/Conv2D/ReadVariableOp:0", "model/bn/scale:0", "model/bn/shift:0",
           "model/dense/MatMul/ReadVariableOp:0", "model/dense/BiasAdd/ReadVariableOp:0"},
          {}};
}

ExportedModel as_keras_writes_it() {
  ModelMaker maker(15);
  maker.input("x", {-1, 5, 4}).output("y");
  for (const char* name : {"q/kernel", "k/kernel", "v/kernel"}) maker.weight(name, {4, 4}, 0.1f);
  maker.weight("norm/gamma", {1, 1, 4}, 1.0f);
  maker.weight("norm/beta", {1, 1, 4}, 0.0f);
  maker.weight("prelu/alpha", {1, 4}, 0.25f);
  maker.weight("keras/two", {}, 2.0f);
  maker.weight("keras/epsilon", {1, 1, 1}, 1e-3f);
  maker.weight("keras/scale", {}, 0.5f);
  maker.weight("keras/causal", {1, 5, 5}, -1e9f);
  maker.weight("keras/window", {5, 4}, 0.5f);
  auto& window = *maker.graph().mutable_initializer(maker.graph().initializer_size() - 1);
  std::vector<float> rows(20);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i / 4);  // constant along axis 1
  window.set_raw_data(rows.data(), rows.size() * sizeof(float));
  normalise(maker, "x", "n", "keras/two", "keras/epsilon");
  maker.node("Mul", {"n", "norm/gamma"}, {"ns"});
  maker.node("Add", {"ns", "norm/beta"}, {"nb"});
  maker.node("Mul", {"nb", "keras/window"}, {"nw"});
  maker.node("MatMul", {"nw", "q/kernel"}, {"q"});
  maker.node("MatMul", {"nw", "k/kernel"}, {"k"});
  maker.node("MatMul", {"nw", "v/kernel"}, {"v"});
  attribute(maker.node("Transpose", {"k"}, {"kt"}), "perm", Dims{0, 2, 1});
  maker.node("MatMul", {"q", "kt"}, {"s"});
  maker.node("Add", {"s", "keras/causal"}, {"sm"});
  maker.node("Mul", {"sm", "keras/scale"}, {"ss"});
  attribute(maker.node("Softmax", {"ss"}, {"a"}), "axis", int64_t{-1});
  maker.node("MatMul", {"a", "v"}, {"o"});
  maker.node("PRelu", {"o", "prelu/alpha"}, {"y"});
  return {"keras",
          std::move(maker),
          {"q/kernel", "k/kernel", "v/kernel", "norm/gamma", "norm/beta", "prelu/alpha"},
          {}};
}

ExportedModel as_paddle2onnx_writes_it() {
  ModelMaker maker(11);
  maker.input("x", {-1, 3, 6, 6}).output("y");
  constant_node(maker, "conv2d_0.w_0", {4, 3, 3, 3});
  constant_node(maker, "conv2d_0.b_0", {1, 4, 1, 1}, 0.0f);
  for (const char* name : {"bn.w_0", "bn.b_0", "bn.w_1", "bn.w_2"}) constant_node(maker, name, {4}, 1.0f);
  constant_node(maker, "linear_0.w_0", {4, 2}, 0.5f, /*raw=*/false);
  constant_node(maker, "linear_0.b_0", {2}, 0.0f, /*raw=*/false);
  for (const auto& [name, value] :
       {std::pair{"Constant_0", 1.414f}, {"Constant_1", 1.0f}, {"Constant_2", 0.5f}})
    constant_node(maker, name, {1}, value);
  constant_node(maker, "std", {1, 3, 1, 1}, 0.2f);
  maker.node("Div", {"x", "std"}, {"xs"});
  conv(maker, {"xs", "conv2d_0.w_0"}, "c");
  maker.node("Add", {"c", "conv2d_0.b_0"}, {"cb"});
  maker.node("BatchNormalization", {"cb", "bn.w_0", "bn.b_0", "bn.w_1", "bn.w_2"}, {"n"});
  gelu(maker, "n", "g", "Constant_0", "Constant_1", "Constant_2");
  flatten(maker, "g", "f");
  maker.node("MatMul", {"f", "linear_0.w_0"}, {"d"});
  maker.node("Add", {"d", "linear_0.b_0"}, {"y"});
  return {"paddle2onnx",
          std::move(maker),
          {"conv2d_0.w_0", "conv2d_0.b_0", "bn.w_0", "bn.b_0", "linear_0.w_0", "linear_0.b_0"},
          {"bn.w_1", "bn.w_2"}};
}

ExportedModel as_spox_writes_it() {
  ModelMaker maker(17);
  maker.input("x", {-1, 4}).output("y");
  constant_node(maker, "Constant_0_output", {3, 4});
  constant_node(maker, "Constant_1_output", {3}, 0.0f);
  constant_node(maker, "Constant_2_output", {3, 1});
  constant_node(maker, "Constant_3_output", {1}, 0.0f);
  constant_node(maker, "Constant_4_output", {1}, 2.0f);
  constant_node(maker, "Constant_5_output", {3}, 1.5f);
  attribute(maker.node("Transpose", {"Constant_0_output"}, {"Transpose_0_Y"}), "perm", Dims{1, 0});
  maker.node("MatMul", {"x", "Transpose_0_Y"}, {"MatMul_0_Y"});
  maker.node("Add", {"MatMul_0_Y", "Constant_1_output"}, {"Add_0_C"});
  maker.node("Relu", {"Add_0_C"}, {"Relu_0_Y"});
  maker.node("Pow", {"Relu_0_Y", "Constant_4_output"}, {"Pow_0_Z"});
  maker.node("Mul", {"Pow_0_Z", "Constant_5_output"}, {"Mul_0_C"});
  maker.node("Identity", {"Constant_2_output"}, {"Identity_0_Y"});
  maker.node("MatMul", {"Mul_0_C", "Identity_0_Y"}, {"MatMul_1_Y"});
  maker.node("Add", {"MatMul_1_Y", "Constant_3_output"}, {"y"});
  return {"spox",
          std::move(maker),
          {"Constant_0_output", "Constant_1_output", "Constant_2_output", "Constant_3_output"},
          {}};
}

std::vector<ExportedModel> as_all_write_it() {
  std::vector<ExportedModel> all;
  all.push_back(as_torch_writes_it());
  all.push_back(as_torch_dynamo_writes_it());
  all.push_back(as_old_torch_writes_it());
  all.push_back(as_tf2onnx_writes_it());
  all.push_back(as_keras_writes_it());
  all.push_back(as_paddle2onnx_writes_it());
  all.push_back(as_spox_writes_it());
  return all;
}

}  // namespace weft::onnx::testing
