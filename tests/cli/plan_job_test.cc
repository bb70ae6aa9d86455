// A job as `weft plan` reads it: without weights and data, and yet the graph that is trained.
#include <gtest/gtest.h>

#include "dag/text.h"
#include "data/dataset.h"
#include "data/npz_writer.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/cli/planned.h"
#include "tests/train/reference_files.h"
#include "train/prepare.h"

namespace weft::cli {
namespace {

namespace pb = onnx::pb;

TEST_F(Plan, ABareModelNeedsNoWeights) {
  const auto job = open(write(hollow_chain(3)));
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->job.batch_size, 1u);
  EXPECT_EQ(job->request().optimizer_slots, 2u) << "adamw";
  for (const char* name : {"w0", "w1", "w2"})
    EXPECT_TRUE(job->graph.find_output(dag::OutputRole::Gradient, name)) << name;
}

TEST_F(Plan, AnyBatchSizeAndAnyKeyOfAJobCanBeSet) {
  const auto job = open(write(hollow_chain(2)), {"batch_size=32", "microbatch_size=8", "freeze=[w0]",
                                                 "optimizer={type: sgd, learning_rate: 1}"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->microbatches, 4u);
  EXPECT_EQ(job->graph.spec(job->graph.inputs()[0]).shape, (dag::Shape{8, 64}));
  EXPECT_EQ(job->request().optimizer_slots, 0u);
  EXPECT_FALSE(job->graph.find_output(dag::OutputRole::Gradient, "w0"));
  EXPECT_TRUE(job->graph.find_output(dag::OutputRole::Gradient, "w1"));
  EXPECT_FALSE(open(write(hollow_chain(2)), {"freeze=[nothing*]"}).has_value());
}

TEST_F(Plan, TheSizeOfAMicrobatchMayBeOpen) {
  const std::vector<std::string> sets{"batch_size=8", "microbatch_size=auto"};
  const auto path = write(hollow_chain(2));
  EXPECT_EQ(open_microbatch_sizes(path, sets).value(), (std::vector<uint32_t>{1, 2, 4, 8}));
  const auto job = open(path, sets);
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->microbatches, 8u) << "the smallest until one is chosen";
  const auto two = open_planned_job(write(hollow_chain(2)), sets, {}, 2);
  ASSERT_TRUE(two.has_value()) << two.error().message;
  EXPECT_EQ(two->microbatches, 4u);
  EXPECT_TRUE(open_microbatch_sizes(path, std::vector<std::string>{"batch_size=8"})->empty());
  EXPECT_EQ(open_microbatch_sizes(write(hollow_chain(2, 64, 4)), sets).value(), (std::vector<uint32_t>{4}))
      << "as it was exported";
  EXPECT_EQ(open(write(hollow_chain(2, 64, 4)), sets)->microbatches, 2u);
  const auto wrong = open(write(hollow_chain(2, 64, 3)), sets);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("fixed batch of 3"), std::string::npos) << wrong.error().message;
}

TEST_F(Plan, OfABareModelSpeaksOfNoLinesOrFilesThatNobodyWrote) {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("y");
  maker.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(1)
      ->set_dim_param("length");
  maker.node("Relu", {"x"}, {"y"});
  const auto path = write(maker);
  const auto open_size = open(path);
  ASSERT_FALSE(open_size.has_value());
  EXPECT_EQ(open_size.error().message,
            path.string() +
                ": input 'x' of the model: nothing says how large 'length' is: say --size length=N, "
                "or give a job file, whose data tell it");
  const auto set = open(path, {"microbatch_size=3"});
  ASSERT_FALSE(set.has_value());
  EXPECT_NE(set.error().message.find("--set microbatch_size"), std::string::npos) << set.error().message;
}

// y = x + state[0], state of [2, batch, 3], and a scalar that divides it.
TEST_F(Plan, KnowsBatchesOnOtherAxesAndInputsWithAValue) {
  ModelMaker maker;
  maker.input("x", {-1, 3}).input("state", {2, -1, 3}).input("rate", {}).output("y");
  maker.ints("zero", {0}).clear_dims();
  maker.weight("w", {3, 3});
  onnx::testing::attribute(maker.node("Gather", {"state", "zero"}, {"first"}), "axis", int64_t{0});
  maker.node("MatMul", {"x", "w"}, {"m"});
  maker.node("Add", {"m", "first"}, {"sum"});
  maker.node("Div", {"sum", "rate"}, {"y"});
  write(maker);
  const auto job = open(scratch_.write("job.yaml", R"(model: model.onnx
task: train
inputs: {x: x, state: state, rate: {value: 16000}}
loss: {type: mse, output: y, target: t}
data: {train: {type: npz, path: absent.npz}}
batch_size: 8
microbatch_size: 4
steps: 1
optimizer: {type: sgd, learning_rate: 1}
)"));
  ASSERT_TRUE(job.has_value()) << job.error().message;
  for (const dag::ValueId input : job->graph.inputs()) {
    EXPECT_EQ(job->graph.spec(input).shape[0], 4) << job->graph.value(input).name;
    EXPECT_NE(job->graph.value(input).name, "rate");
  }
}

TEST_F(Plan, LooksThroughDataThatAreThere) {
  ModelMaker maker;
  maker.input("x", {-1, 2}).output("logits");
  maker.weight("w", {2, 3});
  maker.node("MatMul", {"x", "w"}, {"logits"});
  write(maker);
  const auto file = scratch_.write("job.yaml", R"(model: model.onnx
task: train
inputs: {x: image}
loss: {type: cross_entropy, logits: logits, labels: label}
data: {train: {type: npz, path: data.npz}}
batch_size: 2
steps: 1
optimizer: {type: sgd, learning_rate: 1}
)");
  const auto job = open(file);
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_TRUE(look_at_data(*job)->empty()) << "there are none";
  const auto write_labels = [&](std::vector<double> labels) {
    const std::vector<data::NpzArray> arrays = {{"image", dag::Tensor({dag::DType::F64, {3, 2}})},
                                                {"label", dag::from_doubles({dag::DType::U8, {3}}, labels)}};
    scratch_.write("data.npz", data::npz_bytes(arrays).value());
  };
  write_labels({0, 1, 2});
  EXPECT_TRUE(look_at_data(*job)->empty());
  write_labels({0, 1, 3});
  const auto wrong = look_at_data(*job);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("column 'label' holds 3 in row 2"), std::string::npos)
      << wrong.error().message;
}

TEST_F(Plan, AFixedBatchIsTakenAndNoOther) {
  const auto path = write(hollow_chain(2, 64, 4));
  EXPECT_EQ(open(path)->job.batch_size, 4u);
  const auto other = open(path, {"batch_size=6"});
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message.find("fixed batch of 4"), std::string::npos) << other.error().message;
  ModelMaker maker = hollow_chain(2, 64, 4);
  maker.input("bias", {1, 64});
  maker.node("Add", {"y", "bias"}, {"z"});
  maker.output("z");
  EXPECT_TRUE(open(write(maker)).has_value()) << "other inputs need not begin with the batch";
}

TEST_F(Plan, AnOpenDimIsAskedForByName) {
  ModelMaker maker = hollow_chain(1);
  maker.graph()
      .mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(1)
      ->set_dim_param("width");
  const auto path = write(maker);
  const auto job = open(path);
  ASSERT_FALSE(job.has_value());
  EXPECT_NE(job.error().message.find("--size width=N"), std::string::npos) << job.error().message;
  EXPECT_TRUE(open(path, {}, {{"width", 64}}).has_value());
}

TEST_F(Plan, AJobNeedsNoData) {
  write(hollow_chain(2));
  const auto path = scratch_.write("job.yaml", std::string_view(R"(
model: model.onnx
task: train
inputs: {x: image}
loss: {type: cross_entropy, logits: y, labels: label}
data: {train: {type: npz, path: nowhere/train.npz}, test: {type: npz, path: nowhere/test.npz}}
batch_size: 8
epochs: 3
optimizer: {type: adam}
output: nowhere/trained.onnx
)"));
  const auto job = open(path);
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_TRUE(job->request().evaluates);
  EXPECT_TRUE(job->notes.empty()) << job->notes.front();
}

// Weights that are zeros, shapes from the model alone: and yet the very graph that is trained.
TEST_F(Plan, TheGraphIsTheOneThatIsTrained) {
  for (const char* name : {"resnet18w16", "gpt3", "unet", "two_heads"}) {
    const auto folder = scratch_.folder() / name;
    std::filesystem::create_directories(folder);
    const auto path = test::unpack_case(name, folder);
    const auto job = configs::load_job(path);
    ASSERT_TRUE(job.has_value()) << job.error().message;
    const auto model = onnx::read_model(job->model);
    const auto dataset = data::open_dataset(*job->train);
    ASSERT_TRUE(model.has_value() && dataset.has_value()) << name;
    const auto prepared = train::prepare_training(*job, *model, **dataset, peer::evaluate_reference);
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
    std::filesystem::remove(folder / "data.npz");
    const auto planned = open(path);
    ASSERT_TRUE(planned.has_value()) << planned.error().message;
    EXPECT_EQ(dag::to_text(planned->graph), dag::to_text(prepared->graph)) << name;
  }
}

}  // namespace
}  // namespace weft::cli
