// Graphs that are none, and nodes that ask for much.
#include <cmath>
#include <limits>

#include "dag/onnx/limits.h"
#include "tests/onnx/hostile_parts.h"

namespace weft::onnx::testing::hostile {

std::vector<HostileModel> graph_cases() {
  const auto bad = ErrorCode::InvalidArgument;
  return {
      {"cycle_of_two",
       [] {
         return of([](ModelMaker& m) {
           m.node("Relu", {"p"}, {"q"});
           m.node("Relu", {"q"}, {"p"});
         });
       },
       {bad}},
      {"cycle_of_one", [] { return of([](ModelMaker& m) { m.node("Relu", {"p"}, {"p"}); }); }, {bad}},
      {"input_undefined",
       [] { return of([](ModelMaker& m) { m.node("Relu", {"nothing"}, {"q"}); }); },
       {bad}},
      {"input_missing", [] { return of([](ModelMaker& m) { m.node("MatMul", {"x"}, {"q"}); }); }, {bad}},
      {"input_empty", [] { return of([](ModelMaker& m) {
                             m.node("MatMul", {"x", ""}, {"q"});
                           }); }, {bad}},
      {"inputs_too_many",
       [] { return of([](ModelMaker& m) { m.node("MatMul", std::vector<std::string>(1000, "x"), {"q"}); }); },
       {bad}},
      {"output_missing", [] { return of([](ModelMaker& m) { m.node("Relu", {"x"}, {}); }); }, {bad}},
      {"output_missing_of_a_sequence",
       [] { return of([](ModelMaker& m) { m.node("SequenceConstruct", {"x"}, {}); }); },
       {bad}},
      {"output_missing_of_a_fused_op",
       [] {
         return of([](ModelMaker& m) {
           for (const char* op : {"EmbedLayerNormalization", "FusedGemm", "Attention"})
             m.node(op, std::vector<std::string>(9, "x"), {}).set_domain("com.microsoft");
         });
       },
       {bad}},
      {"output_defined_twice", [] { return of([](ModelMaker& m) { m.node("Relu", {"x"}, {"y"}); }); }, {bad}},
      {"output_hides_a_weight",
       [] { return of([](ModelMaker& m) { m.node("Relu", {"x"}, {"w"}); }); },
       {bad}},
      {"output_hides_an_input",
       [] { return of([](ModelMaker& m) { m.node("Relu", {"x"}, {"x"}); }); },
       {bad}},
      {"outputs_of_one_output_op",
       [] {
         return of([](ModelMaker& m) {
           m.node("Relu", {"x"}, {"q", "r"});
           m.node("Relu", {"r"}, {"s"});
         });
       },
       {bad}},
      {"graph_output_undefined", [] { return of([](ModelMaker& m) { m.output("nothing"); }); }, {bad}},
      {"graph_output_twice", [] { return of([](ModelMaker& m) { m.output("y"); }); }, {bad}},
      {"graph_output_dtype_lies",
       [] {
         return of([](ModelMaker& m) {
           m.graph().clear_output();
           m.output("y", pb::TensorProto::INT64);
         });
       },
       {bad}},
      {"graph_input_twice", [] { return of([](ModelMaker& m) {
                                   m.input("x", {2, 4});
                                 }); }, {bad}},
      {"graph_input_without_name", [] { return of([](ModelMaker& m) {
                                          m.input("", {2, 4});
                                        }); }, {bad}},
      {"graph_input_negative_dim",
       [] {
         return of([](ModelMaker& m) {
           m.input("z", {1});
           m.graph()
               .mutable_input(1)
               ->mutable_type()
               ->mutable_tensor_type()
               ->mutable_shape()
               ->mutable_dim(0)
               ->set_dim_value(-7);
         });
       },
       {ErrorCode::OutOfRange}},
      {"graph_input_huge",
       [] { return of([](ModelMaker& m) {
              m.input("z", {1 << 20, 1 << 20});
            }); },
       {ErrorCode::ResourceExhausted}},
      {"graph_input_unbound_symbol",
       [] {
         return of([](ModelMaker& m) {
           m.input("z", {2, -1, 5});
           m.graph()
               .mutable_input(1)
               ->mutable_type()
               ->mutable_tensor_type()
               ->mutable_shape()
               ->mutable_dim(1)
               ->set_dim_param("time");
         });
       },
       {bad}},
      {"graph_input_sequence",
       [] {
         return of([](ModelMaker& m) {
           m.input("z", {});
           m.graph().mutable_input(1)->mutable_type()->mutable_sequence_type();
         });
       },
       {ErrorCode::Unsupported}},
      {"no_outputs", [] { return of([](ModelMaker& m) { m.graph().clear_output(); }); }, {bad}},
      {"opset_too_new",
       [] { return ModelMaker(linear_model()).bytes() + field(8, "\x10\x63"); },
       {ErrorCode::Corrupted}},
      {"opset_too_old",
       [] { return of([](ModelMaker& m) { m.proto.mutable_opset_import(0)->set_version(5); }); },
       {ErrorCode::Unsupported}},
      {"opset_negative",
       [] { return of([](ModelMaker& m) { m.proto.mutable_opset_import(0)->set_version(-1); }); },
       {ErrorCode::Corrupted}},
      {"opset_missing",
       [] { return of([](ModelMaker& m) { m.proto.clear_opset_import(); }); },
       {ErrorCode::Unsupported}},
      {"domain_of_someone",
       [] { return of([](ModelMaker& m) { m.node("Relu", {"x"}, {"q"}).set_domain("com.acme"); }); },
       {ErrorCode::Unsupported}},
      {"op_unknown",
       [] { return of([](ModelMaker& m) { m.node("LaunchMissiles", {"x"}, {"q"}); }); },
       {ErrorCode::Unsupported}},
      {"op_with_a_subgraph_it_does_not_have",
       [] {
         return of([](ModelMaker& m) {
           auto& a = *m.node("Relu", {"x"}, {"q"}).add_attribute();
           a.set_name("then_branch");
           a.mutable_g();
         });
       },
       {ErrorCode::Unsupported}},
      {"attribute_of_wrong_type",
       [] { return of([](ModelMaker& m) { attribute(m.node("Softmax", {"x"}, {"q"}), "axis", 1.0f); }); },
       {bad}},
      {"attribute_twice",
       [] {
         return of([](ModelMaker& m) {
           auto& n = m.node("Softmax", {"x"}, {"q"});
           attribute(n, "axis", int64_t{1});
           attribute(n, "axis", int64_t{0});
         });
       },
       {bad}},
      {"attribute_nan",
       [] { return of([](ModelMaker& m) { attribute(m.node("LeakyRelu", {"x"}, {"q"}), "alpha", NAN); }); },
       {bad}},
      {"axis_out_of_range",
       [] {
         return of([](ModelMaker& m) {
           attribute(m.node("Softmax", {"x"}, {"q"}), "axis", std::numeric_limits<int64_t>::min());
         });
       },
       {bad}},
  };
}

std::vector<HostileModel> expansion_cases() {
  const auto limit = ErrorCode::ResourceExhausted;
  const auto bad = ErrorCode::InvalidArgument;
  return {
      {"expand_bomb",
       [] {
         return of([](ModelMaker& m) {
           m.ints("s", {1 << 20, 1 << 14, 2, 4});
           m.node("Expand", {"x", "s"}, {"q"});
         });
       },
       {limit}},
      {"expand_overflow",
       [] {
         return of([](ModelMaker& m) {
           m.ints("s", {int64_t{1} << 40, int64_t{1} << 40, 2, 4});
           m.node("Expand", {"x", "s"}, {"q"});
         });
       },
       {ErrorCode::OutOfRange}},
      {"tile_bomb",
       [] {
         return of([](ModelMaker& m) {
           m.ints("r", {int64_t{1} << 39, 1});
           m.node("Tile", {"x", "r"}, {"q"});
         });
       },
       {ErrorCode::OutOfRange}},
      {"tile_overflow",
       [] {
         return of([](ModelMaker& m) {
           m.ints("r", {std::numeric_limits<int64_t>::max(), 3});
           m.node("Tile", {"x", "r"}, {"q"});
         });
       },
       {bad}},
      {"constant_of_shape_bomb",
       [] {
         return of([](ModelMaker& m) {
           m.ints("s", {1 << 20, 1 << 18});
           m.node("ConstantOfShape", {"s"}, {"q"});
         });
       },
       {limit}},
      {"constant_of_shape_negative",
       [] {
         return of([](ModelMaker& m) {
           m.ints("s", {-5});
           m.node("ConstantOfShape", {"s"}, {"q"});
         });
       },
       {bad}},
      {"range_bomb",
       [] {
         return of([](ModelMaker& m) {
           for (const auto& [name, value] :
                {std::pair{"r0", int64_t{0}}, {"r1", int64_t{1} << 50}, {"r2", int64_t{1}}}) {
             m.ints(name, {value}).clear_dims();
           }
           m.node("Range", {"r0", "r1", "r2"}, {"q"});
         });
       },
       {limit}},
      {"range_of_step_zero",
       [] {
         return of([](ModelMaker& m) {
           for (const auto& [name, value] :
                {std::pair{"r0", int64_t{0}}, {"r1", int64_t{5}}, {"r2", int64_t{0}}}) {
             m.ints(name, {value}).clear_dims();
           }
           m.node("Range", {"r0", "r1", "r2"}, {"q"});
         });
       },
       {bad}},
      {"one_hot_bomb",
       [] {
         return of([](ModelMaker& m) {
           m.ints("i", {1});
           m.ints("d", {int64_t{1} << 50});
           m.weight("v", {2});
           m.node("OneHot", {"i", "d", "v"}, {"q"});
         });
       },
       {bad}},
      {"pad_bomb",
       [] {
         return of([](ModelMaker& m) {
           m.ints("p", {0, 0, int64_t{1} << 36, 0});
           m.node("Pad", {"x", "p"}, {"q"});
         });
       },
       {limit}},
      {"pad_overflow",
       [] {
         return of([](ModelMaker& m) {
           m.ints("p", {0, 0, std::numeric_limits<int64_t>::max(), 0});
           m.node("Pad", {"x", "p"}, {"q"});
         });
       },
       {bad, ErrorCode::OutOfRange}},
      {"reshape_wrong_size",
       [] {
         return of([](ModelMaker& m) {
           m.ints("s", {3, 3});
           m.node("Reshape", {"x", "s"}, {"q"});
         });
       },
       {bad}},
      {"reshape_two_open_dims",
       [] {
         return of([](ModelMaker& m) {
           m.ints("s", {-1, -1});
           m.node("Reshape", {"x", "s"}, {"q"});
         });
       },
       {bad}},
      {"reshape_overflow",
       [] {
         return of([](ModelMaker& m) {
           m.ints("s", {int64_t{1} << 32, int64_t{1} << 32, -1});
           m.node("Reshape", {"x", "s"}, {"q"});
         });
       },
       {bad}},
      {"reshape_by_data",
       [] {
         return of([](ModelMaker& m) {
           m.input("s", {2}, pb::TensorProto::INT64);
           m.node("Reshape", {"x", "s"}, {"q"});
         });
       },
       {ErrorCode::Unsupported}},
      {"slice_step_zero",
       [] {
         return of([](ModelMaker& m) {
           m.ints("a", {0});
           m.ints("e", {1});
           m.ints("t", {0});
           m.node("Slice", {"x", "a", "e", "a", "t"}, {"q"});
         });
       },
       {bad}},
      {"split_too_much",
       [] {
         return of([](ModelMaker& m) {
           m.ints("s", {std::numeric_limits<int64_t>::max(), 4});
           attribute(m.node("Split", {"x", "s"}, {"q", "r"}), "axis", int64_t{1});
         });
       },
       {bad}},
      {"transpose_twice_the_same",
       [] {
         return of([](ModelMaker& m) {
           attribute(m.node("Transpose", {"x"}, {"q"}), "perm", std::vector<int64_t>{1, 1});
         });
       },
       {bad}},
      {"unsqueeze_many",
       [] {
         return of([](ModelMaker& m) {
           std::vector<int64_t> axes(4000);
           for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
           m.ints("s", axes);
           m.node("Unsqueeze", {"x", "s"}, {"q"});
         });
       },
       {bad}},
      {"conv_stride_zero",
       [] {
         return of([](ModelMaker& m) {
           m.input("i", {1, 1, 8, 8});
           m.weight("k", {1, 1, 3, 3});
           attribute(m.node("Conv", {"i", "k"}, {"q"}), "strides", std::vector<int64_t>{0, 1});
         });
       },
       {bad}},
      {"conv_pads_huge",
       [] {
         return of([](ModelMaker& m) {
           m.input("i", {1, 1, 8, 8});
           m.weight("k", {1, 1, 3, 3});
           attribute(m.node("Conv", {"i", "k"}, {"q"}), "pads", std::vector<int64_t>(4, int64_t{1} << 62));
         });
       },
       {bad}},
      {"conv_groups_zero",
       [] {
         return of([](ModelMaker& m) {
           m.input("i", {1, 1, 8, 8});
           m.weight("k", {1, 1, 3, 3});
           attribute(m.node("Conv", {"i", "k"}, {"q"}), "group", int64_t{0});
         });
       },
       {bad}},
      {"pool_without_kernel",
       [] {
         return of([](ModelMaker& m) {
           m.input("i", {1, 1, 8, 8});
           m.node("MaxPool", {"i"}, {"q"});
         });
       },
       {bad}},
      {"cast_to_nowhere",
       [] {
         return of([](ModelMaker& m) { attribute(m.node("Cast", {"x"}, {"q"}), "to", int64_t{1} << 60); });
       },
       {ErrorCode::Corrupted}},
      {"chain_of_doubling",
       [] {
         return of([](ModelMaker& m) {
           std::string last = "x";
           for (int i = 0; i < 60; ++i) {
             const std::string next = "c" + std::to_string(i);
             attribute(m.node("Concat", {last, last}, {next}), "axis", int64_t{0});
             last = next;
           }
         });
       },
       {limit, ErrorCode::OutOfRange}},
  };
}

}  // namespace weft::onnx::testing::hostile
