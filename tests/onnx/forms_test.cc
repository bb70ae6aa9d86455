// How files are written by those who write them otherwise: nodes in any order, imports twice, batches and
// links where others have none.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "dag/autodiff.h"
#include "dag/loss.h"
#include "dag/onnx/pack.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {

namespace fs = std::filesystem;

std::string message_of(const Status& status) { return status ? "" : status.error().message; }
Status import_of(const ModelMaker& maker, std::optional<int64_t> batch = 2) {
  ImportOptions options = training_options();
  options.batch = batch;
  return import_bytes(maker.bytes(), options).map([](const auto&) {});
}

void reverse_nodes(pb::GraphProto& graph) {
  for (int i = 0; i < graph.node_size() / 2; ++i)
    graph.mutable_node()->SwapElements(i, graph.node_size() - 1 - i);
}

// ---- the order of nodes

TEST(NodeOrder, NodesOutOfOrderAreSorted) {
  const dag::Tensor x = wave({2, 4});
  const auto expected = run_model(linear_model(), {{"x", x}});
  ASSERT_TRUE(expected.has_value());
  ModelMaker reversed = linear_model();
  reverse_nodes(reversed.graph());
  const auto values = run_model(reversed, {{"x", x}});
  ASSERT_TRUE(values.has_value()) << values.error().message;
  EXPECT_EQ(to_doubles(values->at("y")), to_doubles(expected->at("y")));
}

TEST(NodeOrder, ALongChainFromItsEnd) {
  ModelMaker maker;
  maker.input("x0", {-1, 2}).output("x20000");
  for (int i = 20'000; i-- > 0;)
    maker.node("Identity", {"x" + std::to_string(i)}, {"x" + std::to_string(i + 1)});
  EXPECT_EQ(message_of(import_of(maker)), "");
}

TEST(NodeOrder, ACycleIsNamedNodeByNode) {
  ModelMaker maker;
  maker.input("x", {-1, 2}).output("c");
  maker.node("Add", {"x", "c"}, {"a"}).set_name("first");
  maker.node("Relu", {"a"}, {"b"}).set_name("second");
  maker.node("Neg", {"b"}, {"c"}).set_name("third");
  maker.node("Relu", {"x"}, {"d"}).set_name("beside");
  const Status status = import_of(maker);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::InvalidArgument);
  for (const char* name : {"first", "second", "third", "cycle"})
    EXPECT_NE(status.error().message.find(name), std::string::npos) << status.error().message;
  EXPECT_EQ(status.error().message.find("beside"), std::string::npos) << status.error().message;
}

// A branch whose result has the name of the If's own, and reads what stands behind it in the file.
TEST(NodeOrder, SubgraphsReadWhatStandsAroundThem) {
  ModelMaker maker;
  maker.input("x", {-1, 2}).output("y");
  auto& c = maker.weight("c", {});
  c.set_data_type(pb::TensorProto::BOOL);
  c.set_raw_data("\1", 1);
  auto& node = maker.node("If", {"c"}, {"y"});
  for (const char* branch : {"then_branch", "else_branch"}) {
    auto& body = *node.add_attribute();
    body.set_name(branch);
    body.set_type(pb::AttributeProto::GRAPH);
    ModelMaker inside;
    inside.node("Relu", {"later"}, {"z"});
    inside.node("Neg", {"z"}, {"y"});
    reverse_nodes(inside.graph());
    inside.output("y", 0);
    *body.mutable_g() = inside.graph();
  }
  maker.node("Abs", {"x"}, {"later"});
  EXPECT_EQ(message_of(import_of(maker)), "");
}

// ---- imports of operator sets

TEST(OperatorSets, TheSameVersionTwiceIsHarmless) {
  ModelMaker maker = linear_model();
  maker.proto.add_opset_import()->set_version(17);
  auto* named = maker.proto.add_opset_import();
  named->set_domain("ai.onnx");
  named->set_version(17);
  EXPECT_EQ(message_of(import_of(maker)), "");
  named->set_version(16);
  const std::string message = message_of(import_of(maker));
  EXPECT_NE(message.find("17"), std::string::npos) << message;
  EXPECT_NE(message.find("16"), std::string::npos) << message;
}

// ---- a batch written down in a Reshape

ModelMaker literal_model(const std::vector<int64_t>& shape) {
  ModelMaker maker;
  maker.input("x", {-1, 2, 8}).output("y");
  maker.ints("shape", shape);
  maker.weight("w", {16, 3});
  maker.node("Reshape", {"x", "shape"}, {"flat"}).set_name("view");
  maker.node("MatMul", {"flat", "w"}, {"y"}).set_name("fc");
  return maker;
}

TEST(LiteralBatch, IsToldWithTheSizeThatTrains) {
  for (const auto& [shape, size] :
       {std::pair{std::vector<int64_t>{1, 16}, 1}, {{8, 16}, 8}, {{8, -1, 16}, 8}, {{1, -1}, 1}}) {
    const ModelMaker maker = literal_model(shape);
    const std::string message = message_of(import_of(maker, 3));
    SCOPED_TRACE(message);
    EXPECT_NE(message.find("view"), std::string::npos);
    EXPECT_NE(message.find("microbatch_size: " + std::to_string(size) + ","), std::string::npos);
    EXPECT_EQ(message_of(import_of(maker, size)), "");
  }
}

// As an image classifier puts its own token before those of each image.
TEST(LiteralBatch, InAnExpandIsToldToo) {
  ModelMaker maker;
  maker.input("x", {-1, 2, 8}).output("y");
  maker.ints("shape", {4, 1, 8});
  maker.weight("token", {1, 1, 8});
  maker.node("Expand", {"token", "shape"}, {"tokens"}).set_name("spread");
  attribute(maker.node("Concat", {"tokens", "x"}, {"y"}), "axis", int64_t{1});
  const std::string message = message_of(import_of(maker, 3));
  EXPECT_NE(message.find("spread"), std::string::npos) << message;
  EXPECT_NE(message.find("microbatch_size: 4,"), std::string::npos) << message;
  EXPECT_EQ(message_of(import_of(maker, 4)), "");
}

TEST(LiteralBatch, IsNotBlamedWhereTheBatchIsTheFilesOwn) {
  ModelMaker maker = literal_model({1, 16});
  maker.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_value(3);
  const std::string message = message_of(import_of(maker, 3));
  EXPECT_NE(message, "");
  EXPECT_EQ(message.find("microbatch_size"), std::string::npos) << message;
}

// ---- a Hugging Face cache

class Cache : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root_ / "blobs");
    fs::create_directories(snapshot_);
    ModelMaker maker = linear_model();
    keep_outside(*maker.graph().mutable_initializer(0), "model.onnx.data", 0, 48);
    write_bytes(root_ / "blobs/0001", maker.bytes());
    write_bytes(root_ / "blobs/0002", std::string(48, '\0'));
    write_bytes(root_ / "outside", std::string(48, '\0'));
  }
  void TearDown() override { fs::remove_all(root_); }

  ErrorCode code() const {
    const auto model = read_model(snapshot_ / "model.onnx");
    const auto files = list_external_files(snapshot_ / "model.onnx");
    EXPECT_EQ(model.has_value(), files.has_value());
    if (!model) {
      EXPECT_EQ(model.error().code, files.error().code) << files.error().message;
    } else {
      EXPECT_EQ(files->at(0).size, 48u);
    }
    return model ? ErrorCode{} : model.error().code;
  }
  bool opens() const { return read_model(snapshot_ / "model.onnx").has_value() && (code(), true); }

  const fs::path root_ = fresh_folder("cache"), snapshot_ = root_ / "snapshots/abc/onnx";
};

TEST_F(Cache, SymbolicLinksAreFollowedBeneathItsRoot) {
  fs::create_symlink("../../../blobs/0001", snapshot_ / "model.onnx");
  fs::create_symlink("../../../blobs/0002", snapshot_ / "model.onnx.data");
  EXPECT_TRUE(opens());
}

TEST_F(Cache, HardLinksAreFollowedBeneathItsRoot) {
  fs::create_hard_link(root_ / "blobs/0001", snapshot_ / "model.onnx");
  fs::create_hard_link(root_ / "blobs/0002", snapshot_ / "model.onnx.data");
  EXPECT_TRUE(opens());
  fs::create_hard_link(root_ / "blobs/0002", root_ / "elsewhere");
  EXPECT_EQ(code(), ErrorCode::PermissionDenied) << "it has a name that the cache does not know";
}

TEST_F(Cache, LinksThatLeadOutOfItAreRefused) {
  fs::create_symlink("../../../blobs/0001", snapshot_ / "model.onnx");
  for (const char* to :
       {"/etc/passwd", "../../../outside", "../../../blobs/../outside", "/proc/self/environ"}) {
    fs::create_symlink(to, snapshot_ / "model.onnx.data");
    EXPECT_EQ(code(), ErrorCode::PermissionDenied) << to;
    fs::remove(snapshot_ / "model.onnx.data");
  }
  fs::create_symlink(root_ / "outside", root_ / "blobs/0003");
  fs::create_symlink("../../../blobs/0003", snapshot_ / "model.onnx.data");
  EXPECT_EQ(code(), ErrorCode::PermissionDenied) << "through two links";
  fs::remove(snapshot_ / "model.onnx.data");
  fs::create_symlink("../../../blobs/gone", snapshot_ / "model.onnx.data");
  EXPECT_EQ(code(), ErrorCode::NotFound);
}

TEST_F(Cache, WithoutItsFoldersALinkIsRefused) {
  fs::rename(root_ / "snapshots", root_ / "versions");
  const fs::path folder = root_ / "versions/abc/onnx";
  fs::create_symlink("../../../blobs/0001", folder / "model.onnx");
  fs::create_symlink("../../../blobs/0002", folder / "model.onnx.data");
  const auto model = read_model(folder / "model.onnx");
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::PermissionDenied);
  EXPECT_NE(model.error().message.find("cp "), std::string::npos) << "a cure: " << model.error().message;
}

// ---- BatchNormalization that does not list what it makes

TEST(BatchNorm, StatisticsMoveWhetherOrNotTheNodeListsThem) {
  const auto model = [](const std::vector<std::string>& outputs) {
    ModelMaker maker;
    maker.input("x", {-1, 3}).output("y");
    for (const char* name : {"scale", "bias", "mean", "var"}) maker.weight(name, {3}, 1);
    attribute(maker.node("BatchNormalization", {"x", "scale", "bias", "mean", "var"}, outputs),
              "training_mode", int64_t{1});
    return maker;
  };
  const dag::Tensor x = wave({2, 3});
  const auto all = run_model(model({"y", "new_mean", "new_var"}), {{"x", x}});
  ASSERT_TRUE(all.has_value()) << all.error().message;
  for (const std::vector<std::string>& outputs :
       {std::vector<std::string>{"y"}, {"y", "new_mean"}, {"y", "", "new_var"}}) {
    const auto some = run_model(model(outputs), {{"x", x}});
    ASSERT_TRUE(some.has_value()) << some.error().message;
    for (const char* name : {"y", "mean", "var"})
      EXPECT_EQ(to_doubles(some->at(name)), to_doubles(all->at(name)));
  }
}

// ---- a row of zeros

TEST(LpNormalization, OfZerosIsZeroAndSoIsItsGradient) {
  for (const int64_t p : {1, 2}) {
    ModelMaker maker(22);
    maker.input("x", {2, 3}).output("y");
    auto& weight = maker.weight("w", {2, 3});
    const float values[] = {0, 0, 0, 3, 0, -4};
    weight.set_raw_data(values, sizeof(values));
    maker.node("Mul", {"x", "w"}, {"xw"});
    auto& node = maker.node("LpNormalization", {"xw"}, {"y"});
    attribute(node, "p", p);
    const dag::Tensor ones = from_list({dag::DType::F32, {2, 3}}, {1, 1, 1, 1, 1, 1});
    const auto made = run_model(maker, {{"x", ones}});
    ASSERT_TRUE(made.has_value()) << made.error().message;
    const double norm = p == 1 ? 7 : 5;
    const std::vector<double> expected{0, 0, 0, 3 / norm, 0, -4 / norm};
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(dag::to_doubles(made->at("y"))[i], expected[i], 1e-7);

    const auto imported = import_bytes(maker.bytes());
    dag::LossSpec loss;
    loss.type = dag::LossType::Mse;
    loss.prediction = "y";
    loss.target = "t";
    const dag::TermColumns columns{.target = ones.spec()};
    const auto with_loss = dag::attach_training_loss(imported->graph, {&loss, 1}, {&columns, 1},
                                                     /*microbatches=*/1, dag::op_table());
    const auto graph = dag::differentiate(with_loss->graph, dag::op_table());
    const auto gradients = run_graph(*graph, imported->weights, {{"x", ones}, {"loss.target", ones}});
    ASSERT_TRUE(gradients.has_value());
    for (const double value : dag::to_doubles(gradients->at("w"))) EXPECT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace weft::onnx::testing
