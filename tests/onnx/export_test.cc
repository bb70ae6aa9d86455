#include "dag/onnx/export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "dag/onnx/outline.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

OnnxModel must_read(const std::string& bytes) {
  auto model = read_bytes(bytes);
  if (!model) throw std::runtime_error(model.error().message);
  return std::move(*model);
}

dag::Weights changed(const OnnxModel& model, float by) {
  dag::Weights weights;
  for (const auto& [name, tensor] : model.weights()) {
    if (tensor.dtype() != dag::DType::F32) continue;
    auto values = to_doubles(tensor);
    for (double& value : values) value += static_cast<double>(by);
    weights[name] = from_doubles(tensor.spec(), values);
  }
  return weights;
}

TEST(Export, UnchangedWeightsGiveTheSubmittedFile) {
  for (const char* path : {"examples/fashion-mnist/model.onnx", "examples/gpt/model.onnx"}) {
    SCOPED_TRACE(path);
    const std::string bytes = read_all(path);
    const auto written = trained_bytes(must_read(bytes), {});
    ASSERT_TRUE(written.has_value()) << written.error().message;
    EXPECT_TRUE(*written == bytes);
  }
}

TEST(Export, NewWeightsComeBack) {
  const OnnxModel model = must_read(read_all("examples/fashion-mnist/model.onnx"));
  const dag::Weights weights = changed(model, 0.25f);
  const auto written = trained_bytes(model, weights);
  ASSERT_TRUE(written.has_value());
  const OnnxModel again = must_read(*written);
  for (const auto& [name, tensor] : weights)
    EXPECT_TRUE(std::ranges::equal(tensor.bytes(), again.weights().find(name)->second.bytes())) << name;
  EXPECT_EQ(*trained_bytes(model, weights), *written) << "the same bytes every time";
}

TEST(Export, TypedFieldsStayTypedFields) {
  ModelMaker maker = linear_model();
  auto& tensor = *maker.graph().mutable_initializer(1);
  tensor.clear_raw_data();
  for (int i = 0; i < 3; ++i) tensor.add_float_data(static_cast<float>(i));
  const OnnxModel model = must_read(maker.bytes());
  EXPECT_EQ(*trained_bytes(model, {}), maker.bytes());
  pb::ModelProto written;
  ASSERT_TRUE(written.ParseFromString(*trained_bytes(model, changed(model, 1))));
  EXPECT_EQ(written.graph().initializer(1).float_data(2), 3.0f);
  EXPECT_FALSE(written.graph().initializer(1).has_raw_data());
}

TEST(Export, ANameThatTheModelLacksIsRefused) {
  const OnnxModel model = must_read(linear_model().bytes());
  const auto written = trained_bytes(model, {{"other", dag::make_scalar(dag::DType::F32, 1)}});
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::InvalidArgument);
  EXPECT_FALSE(trained_bytes(model, {{"w", dag::make_scalar(dag::DType::F32, 1)}}).has_value())
      << "another shape";
}

TEST(Export, TheTwinHasNoTrainingModeLeft) {
  const auto folder = fresh_folder("twin");
  const auto files =
      write_trained(std::filesystem::path("examples/fashion-mnist/model.onnx"), {}, folder / "trained.onnx");
  ASSERT_TRUE(files.has_value()) << files.error().message;
  EXPECT_EQ(files->inference, folder / "trained.inference.onnx");
  pb::ModelProto twin;
  ASSERT_TRUE(twin.ParseFromString(read_all(files->inference)));
  for (const auto& node : twin.graph().node()) {
    EXPECT_NE(node.op_type(), "Dropout");
    if (node.op_type() != "BatchNormalization") continue;
    EXPECT_EQ(node.output_size(), 1);
    for (const auto& attribute : node.attribute()) EXPECT_NE(attribute.name(), "training_mode");
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()),
            2)
      << "nothing else is left behind";
}

TEST(Export, TheTwinComputesWhatInferenceComputes) {
  const OnnxModel model = must_read(read_all("examples/gpt/model.onnx"));
  const auto folder = fresh_folder("twin_gpt");
  ASSERT_TRUE(write_trained(model, {}, folder / "t.onnx").has_value());
  ImportOptions options = training_options();
  options.batch = 1;
  const auto twin =
      import_bytes(read_all(folder / "t.inference.onnx"), options);  // training: as the file says
  ASSERT_TRUE(twin.has_value()) << twin.error().message;
  EXPECT_EQ(count_kind(twin->graph, dag::OpKind::Dropout), 0);
  options.training = false;
  const auto predicting = import_model(model, options, dag::op_table());
  ASSERT_TRUE(predicting.has_value());
  EXPECT_EQ(twin->graph.ops().size(), predicting->graph.ops().size());
}

TEST(Export, ADropoutAtTheEndBecomesACopy) {
  ModelMaker maker;
  maker.input("x", {2, 3}).output("y");
  maker.weight("w", {3});
  maker.node("Add", {"x", "w"}, {"h"});
  maker.node("Dropout", {"h"}, {"d"});
  maker.node("Relu", {"d"}, {"r"});
  maker.node("Dropout", {"r"}, {"y"});
  const auto folder = fresh_folder("copy");
  ASSERT_TRUE(write_trained(must_read(maker.bytes()), {}, folder / "m.onnx").has_value());
  pb::ModelProto twin;
  ASSERT_TRUE(twin.ParseFromString(read_all(folder / "m.inference.onnx")));
  ASSERT_EQ(twin.graph().node_size(), 3);
  EXPECT_EQ(twin.graph().node(1).input(0), "h");
  EXPECT_EQ(twin.graph().node(2).op_type(), "Identity");
}

TEST(Export, ExternalDataIsWrittenInThatForm) {
  const auto folder = fresh_folder("external_export");
  ModelMaker maker = linear_model();
  auto& tensor = *maker.graph().mutable_initializer(0);
  write_bytes(folder / "w.bin", tensor.raw_data());
  tensor.clear_raw_data();
  tensor.set_data_location(pb::TensorProto::EXTERNAL);
  auto* entry = tensor.add_external_data();
  entry->set_key("location");
  entry->set_value("w.bin");
  write_bytes(folder / "model.onnx", maker.bytes());
  const auto model = read_model(folder / "model.onnx");
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const auto files = write_trained(*model, changed(*model, 2), folder / "trained.onnx");
  ASSERT_TRUE(files.has_value()) << files.error().message;
  for (const auto& path : {files->trained, files->inference}) {
    const auto again = read_model(path);
    ASSERT_TRUE(again.has_value()) << again.error().message;
    EXPECT_TRUE(again->has_external_data());
    EXPECT_EQ(again->weights().find("w")->second.as<float>()[0], 2.5f);
  }
  EXPECT_EQ(read_all(folder / "w.bin"), linear_model().graph().initializer(0).raw_data())
      << "the submitted data are untouched";
}

// A weight of 4 MiB that is written without being held, and small ones beside it, in every form.
ModelMaker model_of_all_forms() {
  ModelMaker maker = linear_model();
  maker.weight("w2", {4, 1 << 18}, 1.5f);
  auto& typed = maker.weight("w3", {1 << 15}, 0);
  typed.clear_raw_data();
  for (int i = 0; i < 1 << 15; ++i) typed.add_float_data(static_cast<float>(i));
  maker.graph().mutable_initializer(0)->set_doc_string("behind the data");
  maker.graph().set_doc_string("behind the initializers");
  return maker;
}

TEST(Export, AFileIsWhatProtobufWritesThoughItIsWrittenInPieces) {
  const ModelMaker maker = model_of_all_forms();
  EXPECT_EQ(trained_bytes(must_read(maker.bytes()), {}).value(), maker.bytes());
  const auto folder = fresh_folder("pieces");
  write_bytes(folder / "model.onnx", maker.bytes());
  const auto opened = open_model(folder / "model.onnx");
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  ASSERT_FALSE(opened->is_read("w2"));
  const dag::Weights trained = changed(must_read(maker.bytes()), 2);
  ASSERT_TRUE(write_trained(*opened, trained, folder / "t.onnx").has_value());
  EXPECT_EQ(read_all(folder / "t.onnx"), trained_bytes(must_read(maker.bytes()), trained).value());
}

// Of the data outside only what is new is written; the rest is read where the model has it.
TEST(Export, WhatIsNotTrainedMayStayInTheModelsFiles) {
  const auto folder = fresh_folder("linked_data");
  std::filesystem::create_directories(folder / "base" / "deeper");
  ModelMaker maker = model_of_all_forms();
  for (auto& tensor : *maker.graph().mutable_initializer()) {
    if (!tensor.has_raw_data()) continue;
    write_bytes(folder / "base" / (tensor.name() + ".bin"), tensor.raw_data());
    tensor.clear_raw_data();
    keep_outside(tensor, tensor.name() + ".bin");
  }
  write_bytes(folder / "base" / "model.onnx", maker.bytes());
  const auto opened = open_model(folder / "base" / "model.onnx");
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  const OnnxModel before = *read_model(folder / "base" / "model.onnx");
  const dag::Weights trained{{"w", changed(before, 2).at("w")}};
  for (const auto& output : {folder / "t.onnx", folder / "base" / "t.onnx"}) {
    const auto files = write_beside(*opened, folder / "base", in_memory(trained), output);
    ASSERT_TRUE(files.has_value()) << files.error().message;
    EXPECT_EQ(std::filesystem::file_size(output.string() + ".data"), trained.at("w").bytes().size());
    for (const auto& path : {files->trained, files->inference}) {
      const auto again = read_model(path);
      ASSERT_TRUE(again.has_value()) << again.error().message;
      for (const auto& [name, tensor] : before.weights()) {
        const auto& want = name == "w" ? trained.at("w") : tensor;
        EXPECT_TRUE(std::ranges::equal(again->weights().at(name).bytes(), want.bytes())) << name;
      }
    }
  }
  ASSERT_TRUE(write_beside(*opened, folder / "base", in_memory({}), folder / "same.onnx").has_value());
  EXPECT_FALSE(std::filesystem::exists(folder / "same.onnx.data")) << "there is nothing new";
  const auto beyond =
      write_beside(*opened, folder / "base", in_memory(trained), folder / "base" / "deeper" / "t.onnx");
  ASSERT_FALSE(beyond.has_value());
  EXPECT_EQ(beyond.error().code, ErrorCode::InvalidArgument);
}

TEST(Export, WhatLiesOutsideIsWrittenOnceForBothFiles) {
  const auto folder = fresh_folder("shared_data");
  ModelMaker maker = model_of_all_forms();
  for (auto& tensor : *maker.graph().mutable_initializer()) {
    if (!tensor.has_raw_data()) continue;
    write_bytes(folder / (tensor.name() + ".bin"), tensor.raw_data());
    tensor.clear_raw_data();
    keep_outside(tensor, tensor.name() + ".bin");
  }
  write_bytes(folder / "model.onnx", maker.bytes());
  const auto files = write_trained(folder / "model.onnx", {}, folder / "t.onnx");
  ASSERT_TRUE(files.has_value()) << files.error().message;
  EXPECT_TRUE(std::filesystem::exists(folder / "t.onnx.data"));
  EXPECT_FALSE(std::filesystem::exists(folder / "t.inference.onnx.data"));
  const OnnxModel before = *read_model(folder / "model.onnx");
  for (const auto& path : {files->trained, files->inference}) {
    const auto again = read_model(path);
    ASSERT_TRUE(again.has_value()) << again.error().message;
    for (const auto& [name, tensor] : before.weights()) {
      const auto bytes = again->weights().at(name).bytes();
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), tensor.bytes().begin(), tensor.bytes().end()))
          << name;
    }
  }
}

TEST(Export, AFolderThatIsNotThereIsNamed) {
  const auto written =
      write_trained(must_read(linear_model().bytes()), {}, fresh_folder("gone") / "no/such/folder/m.onnx");
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::NotFound);
}

}  // namespace
}  // namespace weft::onnx::testing
