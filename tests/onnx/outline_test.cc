#include "dag/onnx/outline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "dag/onnx/roles.h"
#include "dag/text.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

// Puts the tensor's bytes into another file.
void move_out(pb::TensorProto& tensor, const std::string& location = "absent.bin") {
  tensor.clear_float_data();
  tensor.clear_int64_data();
  tensor.clear_raw_data();
  tensor.set_data_location(pb::TensorProto::EXTERNAL);
  auto* entry = tensor.add_external_data();
  entry->set_key("location");
  entry->set_value(location);
}

pb::TensorProto& initializer(ModelMaker& maker, const std::string& name) {
  for (auto& tensor : *maker.graph().mutable_initializer())
    if (tensor.name() == name) return tensor;
  throw std::runtime_error("no initializer " + name);
}

class Outline : public ::testing::Test {
 protected:
  Result<OnnxModel> outline_of(const ModelMaker& maker) const {
    write_bytes(folder_ / "model.onnx", maker.bytes());
    return read_outline(folder_ / "model.onnx");
  }
  const std::filesystem::path folder_ =
      fresh_folder(std::string("outline_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

// x W of [batch, 4], then a Reshape whose target is the initializer "shape".
ModelMaker reshaping_model() {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("y");
  maker.weight("w", {4, 4});
  maker.node("MatMul", {"x", "w"}, {"m"});
  maker.ints("shape", {-1, 2, 2});
  maker.node("Reshape", {"m", "shape"}, {"y"});
  return maker;
}

// x, of [batch, 4], through a small weight and one of 2 MiB, which holds 0, 1, 2, ...
ModelMaker large_model(bool typed = false) {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("y");
  maker.weight("small", {4, 4}, 0.5f);
  pb::TensorProto& large = maker.weight("large", {4, 1 << 17});
  std::string bytes(size_t{4} << 19, '\0');
  for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    const auto value = static_cast<float>(i);
    bytes.replace(i * sizeof(float), sizeof(float), reinterpret_cast<const char*>(&value), sizeof(float));
    if (typed) large.add_float_data(value);
  }
  typed ? large.clear_raw_data() : large.set_raw_data(bytes);
  maker.node("MatMul", {"x", "small"}, {"m"});
  maker.node("MatMul", {"m", "large"}, {"y"});
  return maker;
}

std::string bytes_of(const OnnxModel& model, const std::string& name) {
  std::string bytes;
  const Status read = model.read_weight(name, [&](std::span<const std::byte> piece) -> Status {
    EXPECT_LE(piece.size(), size_t{1} << 20);
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return {};
  });
  EXPECT_TRUE(read.has_value()) << read.error().message;
  return bytes;
}

TEST_F(Outline, LargeWeightsAreNamedAndSizedAndStayWhereTheyLie) {
  const std::string whole = large_model().graph().initializer(1).raw_data();
  for (const bool typed : {false, true}) {
    const auto model = outline_of(large_model(typed));
    ASSERT_TRUE(model.has_value()) << model.error().message;
    EXPECT_TRUE(model->is_read("small"));
    EXPECT_EQ(model->weights().at("small").as<float>()[0], 0.5f);
    EXPECT_FALSE(model->is_read("large"));
    EXPECT_EQ(model->weights().at("large").spec().shape, (dag::Shape{4, 1 << 17}));
    EXPECT_EQ(bytes_of(*model, "large"), whole) << "typed: " << typed;
    ASSERT_TRUE(model->place_of("large").has_value());
    EXPECT_EQ(model->place_of("large")->location, "");
    EXPECT_EQ(read_all(folder_ / "model.onnx")
                  .substr(static_cast<size_t>(model->place_of("large")->offset), whole.size()),
              whole);
  }
}

TEST_F(Outline, WeightsOutsideStayThereAndNeedNotBeThere) {
  ModelMaker maker = large_model();
  const std::string whole = initializer(maker, "large").raw_data();
  move_out(initializer(maker, "large"), "large.bin");
  move_out(initializer(maker, "small"));
  write_bytes(folder_ / "large.bin", whole);
  const auto model = outline_of(maker);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_TRUE(model->has_external_data());
  EXPECT_EQ(bytes_of(*model, "large"), whole);
  EXPECT_FALSE(model->is_read("small"));
  EXPECT_FALSE(model->place_of("small").has_value());
  EXPECT_EQ(model->read_weight("small", [](auto) { return Status{}; }).error().code, ErrorCode::NotFound);
  EXPECT_EQ(open_model(folder_ / "model.onnx").error().code, ErrorCode::NotFound)
      << "whoever needs the bytes is told";
}

TEST_F(Outline, IsTheModelThatIsReadAsAWhole) {
  write_bytes(folder_ / "model.onnx", large_model().bytes());
  const auto whole = read_model(folder_ / "model.onnx");
  const auto outline = open_model(folder_ / "model.onnx");
  ASSERT_TRUE(whole.has_value() && outline.has_value());
  EXPECT_TRUE(whole->is_read("large"));
  const auto of_whole = import_model(*whole, training_options(), dag::op_table());
  const auto of_outline = import_model(*outline, training_options(), dag::op_table());
  ASSERT_TRUE(of_whole.has_value() && of_outline.has_value());
  EXPECT_EQ(dag::to_text(of_whole->graph), dag::to_text(of_outline->graph));
  EXPECT_EQ(of_whole->roles, of_outline->roles);
}

// A table of 2 MiB that nothing trains: its values are the graph's to read, not the import's to fold.
TEST_F(Outline, WhatIsLargeAndConstantIsNeverFolded) {
  ModelMaker maker;
  maker.input("i", {-1}, pb::TensorProto::INT64).output("y", pb::TensorProto::INT64);
  pb::TensorProto& table = maker.ints("table", {});
  table.set_dims(0, 1 << 18);
  table.clear_int64_data();
  table.set_raw_data(std::string(size_t{8} << 18, '\1'));
  maker.node("Neg", {"table"}, {"turned"});
  maker.node("Gather", {"turned", "i"}, {"y"});
  write_bytes(folder_ / "model.onnx", maker.bytes());
  for (const auto& model : {read_model(folder_ / "model.onnx"), read_outline(folder_ / "model.onnx")}) {
    ASSERT_TRUE(model.has_value()) << model.error().message;
    const auto imported = import_model(*model, training_options(), dag::op_table());
    ASSERT_TRUE(imported.has_value()) << imported.error().message;
    EXPECT_EQ(count_kind(imported->graph, dag::OpKind::Initializer), 1);
    EXPECT_EQ(imported->graph.initializers().front().role, dag::InitializerRole::Buffer);
  }
}

TEST_F(Outline, WhatWasSeenOfAWeightCountsAsItsValues) {
  write_bytes(folder_ / "model.onnx", large_model().bytes());
  const auto outline = open_model(folder_ / "model.onnx");
  ASSERT_TRUE(outline.has_value());
  ValueTraits traits;
  traits.nan = 7;
  const auto imported =
      import_model(with_traits(*outline, {{"large", traits}}), training_options(), dag::op_table());
  ASSERT_FALSE(imported.has_value());
  EXPECT_NE(imported.error().message.find("'large' has a NaN at element 7"), std::string::npos)
      << imported.error().message;
}

TEST_F(Outline, ATableOfRolesIsOfThisModelOrRefused) {
  const auto model = outline_of(large_model());
  ASSERT_TRUE(model.has_value());
  const auto refusal = [&](RoleTable table) {
    const auto imported =
        import_model(with_roles(*model, std::move(table)), training_options(), dag::op_table());
    return imported ? std::string() : imported.error().message;
  };
  EXPECT_EQ(refusal({{.name = "small", .role = TensorRole::Frozen}, {.name = "large"}}), "");
  EXPECT_NE(refusal({{.name = "small"}, {.name = "large"}, {.name = "none"}}).find("'none'"),
            std::string::npos);
  EXPECT_NE(refusal({{.name = "small"}}).find("lacks 'large'"), std::string::npos);
  EXPECT_NE(refusal({{.name = "small", .role = TensorRole::Statistic}, {.name = "large"}})
                .find("running statistic, which it is not"),
            std::string::npos);
}

TEST_F(Outline, NumbersThatMaySayAShapeAreRead) {
  const auto numbers = [](const Result<OnnxModel>& model) {
    return dag::to_int64s(model->weights().at("shape"));
  };
  ModelMaker maker = reshaping_model();
  const auto inside = outline_of(maker);
  ASSERT_TRUE(inside.has_value()) << inside.error().message;
  EXPECT_EQ(numbers(inside), (std::vector<int64_t>{-1, 2, 2}));

  move_out(initializer(maker, "shape"), "shape.bin");
  const int64_t shape[] = {-1, 2, 2};
  write_bytes(folder_ / "shape.bin", std::string(reinterpret_cast<const char*>(shape), sizeof shape));
  const auto outside = outline_of(maker);
  ASSERT_TRUE(outside.has_value()) << outside.error().message;
  EXPECT_EQ(numbers(outside), (std::vector<int64_t>{-1, 2, 2}));

  write_bytes(folder_ / "shape.bin", "short");
  EXPECT_EQ(outline_of(maker).error().code, ErrorCode::Corrupted);
}

TEST_F(Outline, NumbersThatMaySayAShapeMustBeThere) {
  ModelMaker maker = reshaping_model();
  move_out(initializer(maker, "shape"));
  const auto model = outline_of(maker);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::NotFound);
  EXPECT_NE(model.error().message.find("'shape'"), std::string::npos) << model.error().message;
}

TEST_F(Outline, WhatIsReadOutsideLiesBeneathTheModel) {
  ModelMaker maker = reshaping_model();
  move_out(initializer(maker, "shape"), "../shape.bin");
  EXPECT_EQ(outline_of(maker).error().code, ErrorCode::PermissionDenied);
}

TEST_F(Outline, ClaimsAreBounded) {
  ModelMaker maker = reshaping_model();
  for (const char* name : {"a", "b"}) {
    move_out(maker.weight(name, {1, 1}));
    initializer(maker, name).set_dims(0, int64_t{1} << 36);  // 256 GiB each
  }
  EXPECT_EQ(outline_of(maker).error().code, ErrorCode::ResourceExhausted);
}

}  // namespace
}  // namespace weft::onnx::testing
