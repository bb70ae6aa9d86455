#include "dag/onnx/outline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

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

TEST_F(Outline, WeightsAreNamedAndSizedAndNotRead) {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("y");
  maker.weight("here", {4, 4}, 0.5f);
  move_out(maker.weight("absent", {4, 1 << 20}));
  maker.node("MatMul", {"x", "here"}, {"m"});
  maker.node("MatMul", {"m", "absent"}, {"y"});
  const auto model = outline_of(maker);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  ASSERT_EQ(model->weights().size(), 2u);
  EXPECT_EQ(model->weights().at("absent").spec().shape, (dag::Shape{4, 1 << 20}));
  for (const char* name : {"here", "absent"}) {
    const auto bytes = model->weights().at(name).bytes();
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }))
        << name;
  }
  EXPECT_TRUE(model->has_external_data());
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
