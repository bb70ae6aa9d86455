#include "tests/onnx/hostile_models.h"

#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "dag/onnx/limits.h"
#include "tests/onnx/hostile_parts.h"

namespace weft::onnx::testing {
namespace hostile {

std::string of(const std::function<void(ModelMaker&)>& change) {
  ModelMaker maker = linear_model();
  change(maker);
  return maker.bytes();
}

pb::TensorProto& first_weight(ModelMaker& maker) { return *maker.graph().mutable_initializer(0); }

std::string varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>((value & 0x7F) | 0x80);
  return text + static_cast<char>(value);
}
std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}

namespace {

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

std::string repeat(const std::string& part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

}  // namespace

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

}  // namespace hostile

std::vector<HostileModel> hostile_models() {
  std::vector<HostileModel> all;
  for (const auto& part :
       {hostile::wire_cases(), hostile::external_cases(), hostile::tensor_cases(), hostile::graph_cases(),
        hostile::expansion_cases(), hostile::function_cases(), hostile::loop_cases()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace weft::onnx::testing
