#include "tests/onnx/hostile_models.h"

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "dag/onnx/limits.h"

namespace weft::onnx::testing {
namespace {

std::string of(const std::function<void(ModelMaker&)>& change) {
  ModelMaker maker = linear_model();
  change(maker);
  return maker.bytes();
}

pb::TensorProto& first_weight(ModelMaker& maker) { return *maker.graph().mutable_initializer(0); }

void external(ModelMaker& maker, const std::string& location, std::optional<int64_t> offset = {},
              std::optional<int64_t> length = {}) {
  keep_outside(first_weight(maker), location, offset, length);
}

// All of them lie at the same place, or begin within the one before.
std::string overlapping(const std::vector<std::string>& locations, int64_t distance) {
  ModelMaker maker = linear_model();
  int64_t offset = 0;
  for (const std::string& location : locations) {
    auto& tensor = maker.weight(
        "w" + std::to_string(offset) + "_" + std::to_string(maker.graph().initializer_size()), {256});
    keep_outside(tensor, location, offset, 1024);
    offset += distance;
  }
  return maker.bytes();
}

// A field of protobuf's wire format, for what its classes would not write.
std::string varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>((value & 0x7F) | 0x80);
  return text + static_cast<char>(value);
}
std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string repeat(const std::string& part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

std::vector<HostileModel> wire_cases() {
  const auto bad = ErrorCode::Corrupted;
  const auto limit = ErrorCode::ResourceExhausted;
  return {
      {"wire_empty_file", [] { return std::string(); }, {bad}},
      {"wire_text", [] { return std::string("this is no model at all, but some text"); }, {bad}},
      {"wire_zeros", [] { return std::string(100000, '\0'); }, {bad}},
      {"wire_ones", [] { return std::string(100000, '\xFF'); }, {bad}},
      {"wire_cut_off",
       [] {
         const std::string b = linear_model().bytes();
         return b.substr(0, b.size() - 20);
       },
       {bad}},
      {"wire_length_beyond_end", [] { return std::string("\x3A") + varint(uint64_t{1} << 40); }, {bad}},
      {"wire_length_of_64_bits",
       [] { return std::string("\x3A") + varint(std::numeric_limits<uint64_t>::max()); },
       {bad}},
      {"wire_varint_of_11_bytes",
       [] { return std::string("\x08") + std::string(11, '\x80') + '\x01'; },
       {bad}},
      {"wire_group", [] { return std::string("\x0B\x0C"); }, {bad}},
      {"wire_field_number_zero", [] { return std::string("\x02\x01x"); }, {bad}},
      {"wire_field_longer_than_its_message", [] { return field(7, "\x0A\x7F"); }, {bad}},
      {"bomb_empty_nodes", [] { return field(7, repeat(field(1, ""), 2'000'000)); }, {limit}},
      {"bomb_empty_initializers", [] { return field(7, repeat(field(5, ""), 2'000'000)); }, {limit}},
      {"bomb_empty_attributes", [] { return field(7, field(1, repeat(field(5, ""), 2'000'000))); }, {limit}},
      {"bomb_empty_strings", [] { return field(7, field(1, repeat(field(1, ""), 2'000'000))); }, {limit}},
      {"bomb_value_infos", [] { return field(7, repeat(field(13, ""), 2'000'000)); }, {limit}},
      {"bomb_metadata", [] { return repeat(field(14, ""), 2'000'000); }, {limit}},
      {"bomb_packed_integers",
       [] { return field(7, field(5, field(7, std::string(30'000'000, '\x01')))); },
       {limit}},
      {"bomb_dims", [] { return field(7, field(5, field(1, std::string(30'000'000, '\x01')))); }, {limit}},
      {"bomb_unknown_fields", [] { return repeat(field(1000, ""), 2'000'000); }, {limit}},
      {"recursion_of_subgraphs",
       [] {
         std::string graph;
         for (int i = 0; i < 2000; ++i) graph = field(1, field(5, field(6, graph)));
         return field(7, graph);
       },
       {limit}},
      {"recursion_of_types",
       [] {
         std::string type;
         for (int i = 0; i < 5000; ++i) type = field(4, field(1, type));
         return field(7, field(11, field(2, type)));
       },
       {limit}},
      {"bomb_functions", [] { return repeat(field(25, ""), 2'000'000); }, {limit}},
      {"bomb_defaults_of_functions", [] { return field(25, repeat(field(11, ""), 2'000'000)); }, {limit}},
      {"no_graph", [] { return std::string("\x08\x08"); }, {bad}},
  };
}

std::vector<HostileModel> external_cases() {
  const auto denied = ErrorCode::PermissionDenied;
  const auto location = [](const std::string& path) {
    return [path] { return of([&](ModelMaker& m) { external(m, path); }); };
  };
  return {
      {"external_parent", location("../secret"), {denied}},
      {"external_parent_inside", location("a/../../secret"), {denied}},
      {"external_absolute", location("/etc/passwd"), {denied}},
      {"external_device", location("/dev/zero"), {denied}},
      {"external_empty", location(""), {denied}},
      {"external_dot", location("."), {denied}},
      {"external_nul", location(std::string("a\0b", 3)), {denied}},
      {"external_backslash", location("..\\secret"), {denied}},
      {"external_drive", location("C:secret"), {denied}},
      {"external_missing_file", location("nowhere.bin"), {ErrorCode::NotFound}},
      {"external_symlink", location("link"), {denied}},
      {"external_folder_symlink", location("folder_link/data"), {denied}},
      {"external_hard_link", location("hard_link"), {denied}},
      {"external_fifo", location("fifo"), {denied}},
      {"external_folder", location("folder"), {denied}},
      {"external_too_short", location("short"), {ErrorCode::Corrupted}},
      {"external_the_model_itself_too_short_after_offset",
       [] { return of([](ModelMaker& m) { external(m, "data", std::numeric_limits<int64_t>::max()); }); },
       {ErrorCode::Corrupted}},
      {"external_negative_offset",
       [] { return of([](ModelMaker& m) { external(m, "data", -1); }); },
       {ErrorCode::Corrupted}},
      {"external_length_lies",
       [] { return of([](ModelMaker& m) { external(m, "data", {}, 1'000'000'000'000); }); },
       {ErrorCode::Corrupted}},
      {"external_without_location",
       [] {
         return of([](ModelMaker& m) {
           external(m, "data");
           first_weight(m).mutable_external_data(0)->set_key("place");
         });
       },
       {ErrorCode::Corrupted}},
      // 3 KB that claim one KiB of a file fifty times over, each time as memory of its own: of a large file
      // that was more than a broker has.
      {"external_one_range_for_all",
       [] { return overlapping(std::vector<std::string>(50, "data"), 0); },
       {ErrorCode::Corrupted}},
      {"external_ranges_that_overlap",
       [] { return overlapping(std::vector<std::string>(3, "data"), 1020); },
       {ErrorCode::Corrupted}},
      {"external_one_range_by_two_names",
       [] {
         return overlapping({"data", ".//./data"}, 0);
       },
       {ErrorCode::Corrupted}},
      // An outline takes the claim: it must not look for what is not there, element by element.
      {"external_eight_gigabytes_of_halves",
       [] {
         return of([](ModelMaker& m) {
           auto& claim = m.weight("claim", {1});
           claim.set_data_type(pb::TensorProto::FLOAT16);
           claim.set_dims(0, int64_t{1} << 32);
           keep_outside(claim, "data");
         });
       },
       {ErrorCode::Corrupted}},
      {"external_constant",
       [] {
         return of([](ModelMaker& m) {
           auto& node = m.node("Constant", {}, {"c"});
           auto& value = *node.add_attribute();
           value.set_name("value");
           value.set_type(pb::AttributeProto::TENSOR);
           value.mutable_t()->set_data_type(pb::TensorProto::FLOAT);
           value.mutable_t()->set_data_location(pb::TensorProto::EXTERNAL);
         });
       },
       {denied}},
  };
}

std::vector<HostileModel> tensor_cases() {
  const auto bad = ErrorCode::Corrupted;
  const auto tensor = [](const std::function<void(pb::TensorProto&)>& change) {
    return [change] { return of([&](ModelMaker& m) { change(first_weight(m)); }); };
  };
  return {
      {"dims_negative", tensor([](auto& t) { t.set_dims(0, -4); }), {ErrorCode::OutOfRange}},
      {"dims_huge", tensor([](auto& t) { t.set_dims(0, int64_t{1} << 62); }), {ErrorCode::OutOfRange}},
      {"dims_overflow",
       tensor([](auto& t) { t.set_dims(0, int64_t{1} << 33), t.set_dims(1, int64_t{1} << 33); }),
       {ErrorCode::OutOfRange}},
      {"dims_huge_behind_zero",
       tensor([](auto& t) { t.set_dims(0, 0), t.set_dims(1, int64_t{1} << 62), t.set_raw_data(""); }),
       {ErrorCode::OutOfRange}},
      {"dims_too_many",
       tensor([](auto& t) {
         for (int i = 0; i < 100; ++i) t.add_dims(1);
       }),
       {ErrorCode::OutOfRange}},
      {"dims_claim_a_terabyte",
       tensor([](auto& t) { t.set_dims(0, int64_t{1} << 38), t.set_dims(1, 1); }),
       {bad}},
      {"data_missing", tensor([](auto& t) { t.clear_raw_data(); }), {bad}},
      {"data_too_short", tensor([](auto& t) { t.set_raw_data("1234"); }), {bad}},
      {"data_too_long", tensor([](auto& t) { t.set_raw_data(std::string(1000, 'x')); }), {bad}},
      {"data_twice", tensor([](auto& t) { t.add_float_data(1); }), {bad}},
      {"dtype_lies_wider", tensor([](auto& t) { t.set_data_type(pb::TensorProto::DOUBLE); }), {bad}},
      {"dtype_lies_other_field",
       tensor([](auto& t) {
         t.clear_raw_data();
         for (int i = 0; i < 12; ++i) t.add_int64_data(1);
       }),
       {bad}},
      {"dtype_undefined", tensor([](auto& t) { t.set_data_type(0); }), {bad}},
      {"dtype_does_not_exist", tensor([](auto& t) { t.set_data_type(12345); }), {bad}},
      {"dtype_string",
       tensor([](auto& t) { t.set_data_type(pb::TensorProto::STRING); }),
       {ErrorCode::Unsupported}},
      {"dtype_complex",
       tensor([](auto& t) { t.set_data_type(pb::TensorProto::COMPLEX64); }),
       {ErrorCode::Unsupported}},
      {"value_out_of_range_of_its_dtype",
       tensor([](auto& t) {
         t.clear_raw_data(), t.set_data_type(pb::TensorProto::INT8);
         for (int i = 0; i < 12; ++i) t.add_int32_data(300);
       }),
       {bad}},
      {"segment", tensor([](auto& t) { t.mutable_segment()->set_begin(0); }), {ErrorCode::Unsupported}},
      {"nan_in_weights",
       tensor([](auto& t) {
         const std::vector<float> v(12, NAN);
         t.set_raw_data(v.data(), 48);
       }),
       {ErrorCode::InvalidArgument}},
      {"weight_without_name", tensor([](auto& t) { t.clear_name(); }), {bad}},
      {"weight_twice", [] { return of([](ModelMaker& m) {
                              m.weight("w", {4, 3});
                            }); }, {bad}},
      {"weight_name_of_a_megabyte",
       tensor([](auto& t) { t.set_name(std::string(1 << 20, 'n')); }),
       {ErrorCode::OutOfRange}},
      {"weight_dtype_not_floats_in_matmul",
       tensor([](auto& t) { t.set_data_type(pb::TensorProto::INT32); }),
       {ErrorCode::InvalidArgument}},
      {"sparse_initializer",
       [] { return of([](ModelMaker& m) { m.graph().add_sparse_initializer(); }); },
       {ErrorCode::Unsupported}},
  };
}

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

// ---- functions and subgraphs: small files that stand for much ----

pb::FunctionProto& function(ModelMaker& m, int number) {
  auto& f = *m.proto.add_functions();
  f.set_domain("f");
  f.set_name("f" + std::to_string(number));
  f.add_input("a");
  f.add_output("b");
  return f;
}
template <typename Nodes>
pb::NodeProto& add_node(Nodes& nodes, const std::string& op, const std::vector<std::string>& inputs,
                        const std::vector<std::string>& outputs, const std::string& domain = "") {
  auto& node = *nodes.add_node();
  node.set_op_type(op);
  node.set_domain(domain);
  for (const auto& name : inputs) node.add_input(name);
  for (const auto& name : outputs) node.add_output(name);
  return node;
}
pb::GraphProto& body(pb::NodeProto& node, const std::string& name) {
  auto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(pb::AttributeProto::GRAPH);
  return *attribute.mutable_g();
}
// Calls f0, where each function calls the next `times` times.
std::string chain_of_functions(int length, int times) {
  return of([&](ModelMaker& m) {
    for (int i = 0; i < length; ++i) {
      auto& f = function(m, i);
      std::string last = "a";
      const bool leaf = i + 1 == length;
      for (int k = 0; k < times; ++k) {
        const std::string next = k + 1 == times ? "b" : "t" + std::to_string(k);
        add_node(f, leaf ? "Relu" : "f" + std::to_string(i + 1), {last}, {next}, leaf ? "" : "f");
        last = next;
      }
    }
    m.node("f0", {"x"}, {"q"}).set_domain("f");
  });
}

// A loop over h in the graph `nodes`, with h handed on by what the caller puts into its body as h_next.
template <typename Nodes>
pb::GraphProto& loop(Nodes& nodes, const std::string& trips, const std::string& from, const std::string& to) {
  auto& graph = body(add_node(nodes, "Loop", {trips, "", from}, {to}), "body");
  for (const char* name : {"i", "go", "h"}) graph.add_input()->set_name(name);
  for (const char* name : {"go", "h_next"}) graph.add_output()->set_name(name);
  return graph;
}
void trips(ModelMaker& m, int64_t count) { m.ints("trips", {count}).clear_dims(); }

std::vector<HostileModel> function_cases() {
  const auto limit = ErrorCode::ResourceExhausted;
  const auto bad = ErrorCode::InvalidArgument;
  return {
      {"functions_doubling", [] { return chain_of_functions(40, 2); }, {limit}},
      {"functions_in_a_long_chain", [] { return chain_of_functions(5000, 1); }, {limit}},
      {"functions_with_a_large_constant",
       [] {
         return of([](ModelMaker& m) {
           auto& f = function(m, 0);
           auto& value = *add_node(f, "Constant", {}, {"c"}).add_attribute();
           value.set_name("value");
           value.set_type(pb::AttributeProto::TENSOR);
           value.mutable_t()->set_data_type(pb::TensorProto::FLOAT);
           value.mutable_t()->add_dims(1 << 18);
           value.mutable_t()->set_raw_data(std::string(1 << 20, '\0'));
           add_node(f, "Add", {"a", "c"}, {"b"});
           for (int i = 0; i < 1000; ++i) m.node("f0", {"x"}, {"q" + std::to_string(i)}).set_domain("f");
         });
       },
       {limit}},
      {"function_calls_itself",
       [] {
         return of([](ModelMaker& m) {
           add_node(function(m, 0), "f1", {"a"}, {"b"}, "f");
           add_node(function(m, 1), "f0", {"a"}, {"b"}, "f");
           m.node("f0", {"x"}, {"q"}).set_domain("f");
         });
       },
       {bad}},
      {"function_calls_itself_within_a_branch",
       [] {
         return of([](ModelMaker& m) {
           auto& branch = body(add_node(function(m, 0), "If", {"a"}, {"b"}), "then_branch");
           add_node(branch, "f0", {"a"}, {"r"}, "f");
           branch.add_output()->set_name("r");
           m.node("f0", {"x"}, {"q"}).set_domain("f");
         });
       },
       {bad}},
      {"function_of_branches_doubling",
       [] {
         return of([](ModelMaker& m) {
           for (int i = 0; i < 40; ++i) {
             auto& node = add_node(function(m, i), "If", {"a"}, {"b"});
             for (const char* name : {"then_branch", "else_branch"}) {
               auto& branch = body(node, name);
               add_node(branch, "f" + std::to_string(i + 1), {"a"}, {"r"}, "f");
               branch.add_output()->set_name("r");
             }
           }
           m.node("f0", {"x"}, {"q"}).set_domain("f");
         });
       },
       {limit}},
      {"function_twice",
       [] {
         return of([](ModelMaker& m) {
           function(m, 0);
           function(m, 0);
         });
       },
       {bad}},
      {"function_without_its_result",
       [] {
         return of([](ModelMaker& m) {
           add_node(function(m, 0), "Relu", {"a"}, {"other"});
           m.node("f0", {"x"}, {"q"}).set_domain("f");
         });
       },
       {bad}},
      {"function_reads_what_stands_outside",
       [] {
         return of([](ModelMaker& m) {
           add_node(function(m, 0), "MatMul", {"a", "w"}, {"b"});
           m.node("f0", {"x"}, {"q"}).set_domain("f");
         });
       },
       {bad}},
      {"function_of_more_operands_than_it_has",
       [] {
         return of([](ModelMaker& m) {
           add_node(function(m, 0), "Relu", {"a"}, {"b"});
           m.node("f0", {"x", "x"}, {"q"}).set_domain("f");
         });
       },
       {bad}},
      {"attribute_refers_outside_of_a_function",
       [] {
         return of([](ModelMaker& m) {
           function(m, 0);
           auto& a = *m.node("LeakyRelu", {"x"}, {"q"}).add_attribute();
           a.set_name("alpha");
           a.set_ref_attr_name("slope");
         });
       },
       {bad}},
      {"function_default_that_is_no_attribute",
       [] {
         return of([](ModelMaker& m) {
           auto& f = function(m, 0);
           f.GetReflection()->MutableUnknownFields(&f)->AddLengthDelimited(11, "\x0A");
         });
       },
       {ErrorCode::Corrupted}},
  };
}

std::vector<HostileModel> loop_cases() {
  const auto limit = ErrorCode::ResourceExhausted;
  const auto bad = ErrorCode::InvalidArgument;
  return {
      {"loop_of_many_trips",
       [] {
         return of([](ModelMaker& m) {
           trips(m, std::numeric_limits<int64_t>::max());
           add_node(loop(m.graph(), "trips", "x", "q"), "Relu", {"h"}, {"h_next"});
         });
       },
       {limit}},
      {"loop_without_an_end",
       [] {
         return of([](ModelMaker& m) { add_node(loop(m.graph(), "", "x", "q"), "Relu", {"h"}, {"h_next"}); });
       },
       {bad}},
      {"loop_whose_condition_stays_true",
       [] {
         return of([](ModelMaker& m) {
           auto& graph = loop(m.graph(), "", "x", "q");
           add_node(graph, "Relu", {"h"}, {"h_next"});
           add_node(graph, "Equal", {"i", "i"}, {"same"});
           graph.mutable_output(0)->set_name("same");
         });
       },
       {limit}},
      {"loops_in_loops",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 100);
           pb::GraphProto* graph = &loop(m.graph(), "trips", "x", "q");
           for (int i = 0; i < 3; ++i) graph = &loop(*graph, "trips", "h", "h_next");
           add_node(*graph, "Relu", {"h"}, {"h_next"});
         });
       },
       {limit}},
      {"loop_that_doubles",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 60);
           auto& graph = loop(m.graph(), "trips", "x", "q");
           attribute(add_node(graph, "Concat", {"h", "h"}, {"h_next"}), "axis", int64_t{0});
         });
       },
       {limit, ErrorCode::OutOfRange}},
      {"loop_of_large_constants",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 10'000);
           for (const auto& [name, value] :
                {std::pair{"r0", int64_t{0}}, {"r1", int64_t{1'000'000}}, {"r2", int64_t{1}}})
             m.ints(name, {value}).clear_dims();
           auto& graph = loop(m.graph(), "trips", "x", "q");
           add_node(graph, "Range", {"r0", "r1", "r2"}, {"unused"});
           add_node(graph, "Relu", {"h"}, {"h_next"});
         });
       },
       {limit}},
      {"loop_body_of_fewer_results",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 2);
           loop(m.graph(), "trips", "x", "q").mutable_output()->RemoveLast();
         });
       },
       {bad}},
      {"loop_body_reads_what_comes_of_the_loop",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 2);
           add_node(loop(m.graph(), "trips", "x", "q"), "Add", {"h", "later"}, {"h_next"});
           m.node("Relu", {"q"}, {"later"});
         });
       },
       {bad}},
      {"loop_body_defines_a_name_twice",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 2);
           auto& graph = loop(m.graph(), "trips", "x", "q");
           add_node(graph, "Relu", {"h"}, {"h_next"});
           add_node(graph, "Relu", {"h"}, {"h_next"});
         });
       },
       {bad}},
      {"loop_that_hands_on_another_type",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 3);
           add_node(loop(m.graph(), "trips", "x", "q"), "Add", {"h", "i"}, {"h_next"});
         });
       },
       {bad}},
      {"loop_over_a_map",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 2);
           auto& graph = loop(m.graph(), "trips", "x", "q");
           add_node(graph, "Relu", {"h"}, {"h_next"});
           graph.mutable_input(2)->mutable_type()->mutable_map_type();
         });
       },
       {ErrorCode::Unsupported}},
      {"scan_of_many_elements",
       [] {
         return of([](ModelMaker& m) {
           m.input("long", {1'000'000});
           auto& node = m.node("Scan", {"long"}, {"q"});
           attribute(node, "num_scan_inputs", int64_t{1});
           auto& graph = body(node, "body");
           graph.add_input()->set_name("e");
           add_node(graph, "Relu", {"e"}, {"r"});
           graph.add_output()->set_name("r");
         });
       },
       {limit}},
      {"if_without_branches", [] { return of([](ModelMaker& m) { m.node("If", {"x"}, {"q"}); }); }, {bad}},
      {"if_of_many_numbers",
       [] {
         return of([](ModelMaker& m) {
           auto& node = m.node("If", {"x"}, {"q"});
           for (const char* name : {"then_branch", "else_branch"}) {
             auto& graph = body(node, name);
             add_node(graph, "Relu", {"x"}, {"r"});
             graph.add_output()->set_name("r");
           }
         });
       },
       {bad}},
  };
}

}  // namespace

std::vector<HostileModel> hostile_models() {
  std::vector<HostileModel> all;
  for (const auto& part : {wire_cases(), external_cases(), tensor_cases(), graph_cases(), expansion_cases(),
                           function_cases(), loop_cases()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace weft::onnx::testing
