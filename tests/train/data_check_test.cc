// What people's columns hold: types that are taken or refused with a cure, faults that are told with row and
// count before anything starts, batches on another axis, inputs with a value.
#include "train/data_check.h"

#include <gtest/gtest.h>

#include <cmath>

#include "configs/job.h"
#include "data/loader.h"
#include "data/npz_writer.h"
#include "peer/backend/reference/reference_backend.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/onnx/models.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"
#include "train/predictor.h"
#include "train/prepare.h"

namespace weft::train {
namespace {

using dag::DType;
using dag::Tensor;
using onnx::testing::ModelMaker;
namespace pb = onnx::pb;
using Arrays = std::vector<data::NpzArray>;

Tensor numbers(DType dtype, dag::Shape shape, const std::vector<double>& values) {
  return dag::from_doubles({dtype, std::move(shape)}, values);
}
// 0, 1, 2, 0, 1, ...
Tensor labels(DType dtype, dag::Shape shape) {
  std::vector<double> values(static_cast<size_t>(dag::checked_element_count(shape).value()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 3);
  return numbers(dtype, std::move(shape), values);
}

// logits = x w, x of [batch, 4], three classes.
ModelMaker classifier() {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("logits");
  maker.weight("w", {4, 3});
  maker.node("MatMul", {"x", "w"}, {"logits"});
  return maker;
}

class Columns : public testing::Test {
 protected:
  // `sets` change a job that trains the classifier on image and label, two samples at a time.
  configs::Job job(const std::vector<std::string>& sets = {}) {
    const auto job =
        configs::parse_job(R"(model: model.onnx
task: train
inputs: {x: image}
loss: {type: cross_entropy, logits: logits, labels: label}
data:
  train: {type: npz, path: train.npz}
batch_size: 4
microbatch_size: 2
steps: 2
shuffle: false
optimizer: {type: sgd, learning_rate: 0.1}
)",
                           sets, {.source = "job.yaml", .folder = scratch_.folder(), .check_files = false});
    EXPECT_TRUE(job.has_value()) << (job ? "" : job.error().message);
    return job.value_or(configs::Job{});
  }
  onnx::OnnxModel model(const ModelMaker& maker) {
    return onnx::read_model(scratch_.write("model.onnx", maker.bytes())).value();
  }
  void write(const Arrays& arrays, const std::string& name = "train.npz") {
    scratch_.write(name, data::npz_bytes(arrays).value());
  }
  // The prepared job, after its data was looked through.
  Result<Prepared> prepare(const configs::Job& job, const ModelMaker& maker) {
    WEFT_TRY(dataset_, data::open_dataset(*job.train));
    WEFT_TRY(Prepared prepared, prepare_training(job, model(maker), *dataset_, peer::evaluate_reference));
    WEFT_TRY(const auto warnings, check_data(job, DataUse::Train, *dataset_, prepared));
    prepared.warnings.insert(prepared.warnings.end(), warnings.begin(), warnings.end());
    return prepared;
  }
  Result<Prepared> prepare(const Arrays& arrays, const std::vector<std::string>& sets = {}) {
    write(arrays);
    return prepare(job(sets), classifier());
  }
  std::string refused(const Arrays& arrays, ErrorCode code, const std::vector<std::string>& sets = {}) {
    const auto prepared = prepare(arrays, sets);
    if (prepared) return "(taken)";
    EXPECT_EQ(prepared.error().code, code);
    return prepared.error().message;
  }
  Tensor fed(const Prepared& prepared, const std::string& input) {
    return data::read_microbatch(*dataset_, prepared.feeds, {1, 0, 2, {0, 1}}).value().tensors.at(input);
  }
  // What is predicted for all samples, by output.
  std::map<std::string, std::vector<double>> predictions(configs::Job job, const ModelMaker& maker) {
    job.output = scratch_.folder() / "predicted.npz";
    const auto backend = peer::make_reference_backend();
    const auto predicted = predict(job, model(maker), *backend);
    EXPECT_TRUE(predicted.has_value()) << (predicted ? "" : predicted.error().message);
    return predicted ? test::read_arrays(job.output) : std::map<std::string, std::vector<double>>{};
  }
  // As `weft predict` makes it, of columns named as the inputs.
  configs::Job options(const std::vector<std::string>& inputs, uint32_t batch) {
    configs::Job job;
    job.source = "model.onnx";
    job.from_options = true;
    job.task = configs::Task::Predict;
    for (const std::string& input : inputs) job.inputs[input] = input;
    job.predict = data::NpzSpec{scratch_.folder() / "train.npz", inputs};
    job.batch_size = job.microbatch_size = batch;
    job.output = scratch_.folder() / "predicted.npz";
    return job;
  }

  test::Scratch scratch_;
  std::unique_ptr<data::Dataset> dataset_;
  const Tensor images_ = labels(DType::F32, {6, 4});
};

::testing::AssertionResult holds(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    if (text.find(part) == std::string::npos)
      return ::testing::AssertionFailure() << "no '" << part << "' in: " << text;
  return ::testing::AssertionSuccess();
}

// ---- types

TEST_F(Columns, LabelsOfAnyTypeAndOnAnAxisOfTheirOwnAreTaken) {
  for (const DType dtype : {DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32, DType::I64,
                            DType::U64, DType::F32, DType::F64, DType::F16})
    for (const dag::Shape& shape : {dag::Shape{6}, dag::Shape{6, 1}}) {
      SCOPED_TRACE(to_string(dag::TensorSpec{dtype, shape}));
      const auto prepared = prepare({{"image", images_}, {"label", labels(dtype, shape)}});
      ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
      const Tensor target = fed(*prepared, "loss.target");
      EXPECT_EQ(target.shape(), dag::Shape{2});
      EXPECT_EQ(to_int64s(target), (std::vector<int64_t>{0, 1}));
    }
}

TEST_F(Columns, ImagesOfOtherTypesBecomeWhatTheModelTakes) {
  for (const DType dtype : {DType::F64, DType::F16, DType::U8, DType::I64}) {
    SCOPED_TRACE(to_string(dtype));
    const auto prepared = prepare({{"image", labels(dtype, {6, 4})}, {"label", labels(DType::I64, {6})}});
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
    const Tensor image = fed(*prepared, "x");
    EXPECT_EQ(image.dtype(), DType::F32);
    EXPECT_EQ(to_doubles(image), (std::vector<double>{0, 1, 2, 0, 1, 2, 0, 1}));
    if (dtype == DType::U8) {
      ASSERT_FALSE(prepared->warnings.empty());
      EXPECT_TRUE(holds(prepared->warnings[0], {"'image'", "image.astype(np.float32) / 255"}));
    }
  }
}

TEST_F(Columns, TargetsOfOtherTypesBecomeWhatTheyAreComparedWith) {
  for (const DType dtype : {DType::F64, DType::F16, DType::U8}) {
    const auto prepared = prepare({{"image", images_}, {"t", labels(dtype, {6, 3})}},
                                  {"loss={type: mse, output: logits, target: t}"});
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
    EXPECT_EQ(fed(*prepared, "loss.target").dtype(), DType::F32);
  }
}

TEST_F(Columns, WhatIsNoNumberOfTheTypeIsRefusedWithRowCountAndCure) {
  std::vector<double> half = to_doubles(labels(DType::F32, {6}));
  half[3] = 0.5;
  half[5] = 1.5;
  const std::string message =
      refused({{"image", images_}, {"label", numbers(DType::F32, {6}, half)}}, ErrorCode::OutOfRange);
  EXPECT_TRUE(holds(message, {"job.yaml:6:", "train.npz: column 'label' holds 0.5 in row 3", "2 of 6 rows",
                              "np.rint(label).astype(np.int64)"}));
}

// ---- faults of the data

TEST_F(Columns, LabelsOutOfRangeAreNamedByRow) {
  for (const double wrong : {3.0, -1.0, 255.0}) {
    std::vector<double> values = to_doubles(labels(DType::I64, {6}));
    values[5] = wrong;
    const std::string message =
        refused({{"image", images_}, {"label", numbers(DType::I64, {6}, values)}}, ErrorCode::OutOfRange);
    EXPECT_TRUE(
        holds(message, {"column 'label' holds " + std::to_string(static_cast<int>(wrong)) + " in row 5",
                        "0 to 2", "1 of 6 rows"}));
  }
  std::vector<double> values = to_doubles(labels(DType::U8, {6}));
  values[5] = 255;
  EXPECT_TRUE(
      prepare({{"image", images_}, {"label", numbers(DType::U8, {6}, values)}}, {"loss.ignore_index=255"})
          .has_value());
}

TEST_F(Columns, TokensOutOfRangeAreNamedByRow) {
  ModelMaker maker;
  maker.input("x", {-1, 2}, pb::TensorProto::INT64).output("logits");
  maker.weight("table", {5, 4});
  maker.weight("w", {4, 3});
  maker.node("Gather", {"table", "x"}, {"e"});
  maker.node("MatMul", {"e", "w"}, {"logits"});
  const auto check = [&](double token) {
    write({{"image", numbers(DType::U16, {3, 2}, {0, 1, 4, 2, 3, token})},
           {"label", labels(DType::I64, {3, 2})}});
    return prepare(job(), maker);
  };
  EXPECT_TRUE(check(4).has_value());
  const auto wrong = check(5);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_TRUE(holds(wrong.error().message, {"column 'image' holds 5 in row 2", "-5 to 4"}));
}

TEST_F(Columns, WhatIsNotFiniteIsRefusedUnlessTheJobSkipsIt) {
  for (const double wrong : {std::nan(""), HUGE_VAL, -HUGE_VAL})
    for (const DType dtype : {DType::F32, DType::F64, DType::F16}) {
      std::vector<double> values = to_doubles(images_);
      values[17] = wrong;
      const Arrays arrays = {{"image", numbers(dtype, {6, 4}, values)}, {"label", labels(DType::I64, {6})}};
      EXPECT_TRUE(
          holds(refused(arrays, ErrorCode::InvalidArgument),
                {"column 'image' holds", "in row 4", "1 of 6 rows is not finite", "on_divergence: skip"}));
      const auto skips = prepare(arrays, {"on_divergence=skip"});
      ASSERT_TRUE(skips.has_value()) << skips.error().message;
      EXPECT_TRUE(holds(skips->warnings.back(), {"row 4", "are skipped"}));
    }
}

TEST_F(Columns, ATestSetsFaultsAreToldToo) {
  write({{"image", images_}, {"label", labels(DType::I64, {6})}});
  const configs::Job with_test =
      job({"data.test={type: npz, path: " + (scratch_.folder() / "test.npz").string() + "}"});
  const auto check = [&](const Tensor& image, const Tensor& label) -> Result<std::vector<std::string>> {
    write({{"image", image}, {"label", label}}, "test.npz");
    WEFT_TRY(const auto test, data::open_dataset(*with_test.test));
    WEFT_TRY(const Prepared prepared,
             prepare_evaluation(with_test, model(classifier()), *test, peer::evaluate_reference));
    return check_data(with_test, DataUse::Test, *test, prepared);
  };
  std::vector<double> values = to_doubles(images_);
  EXPECT_TRUE(check(images_, labels(DType::I64, {6})).value().empty());
  values[23] = std::nan("");
  const auto warned = check(numbers(DType::F32, {6, 4}, values), labels(DType::I64, {6}));
  ASSERT_TRUE(warned.has_value()) << warned.error().message;
  EXPECT_TRUE(holds(warned->at(0), {"test.npz: column 'image' holds nan in row 5", "no evaluation"}));
  const auto wrong = check(images_, numbers(DType::I64, {6}, {0, 0, 0, 7, 0, 9}));
  ASSERT_FALSE(wrong.has_value());
  EXPECT_TRUE(holds(wrong.error().message, {"test.npz: column 'label' holds 7 in row 3", "2 of 6 rows"}));
}

TEST_F(Columns, MinusInfinityIsAMaskWhereItIsOnlyAdded) {
  ModelMaker maker = classifier();
  maker.input("mask", {-1, 3});
  maker.node("Add", {"logits", "mask"}, {"masked"});
  maker.output("masked");
  std::vector<double> mask(18, 0);
  mask[4] = -HUGE_VAL;
  const std::vector<std::string> sets{"inputs.mask=mask", "loss.logits=masked"};
  const auto check = [&] {
    write({{"image", images_},
           {"label", labels(DType::I64, {6})},
           {"mask", numbers(DType::F32, {6, 3}, mask)}});
    return prepare(job(sets), maker);
  };
  EXPECT_TRUE(check().has_value());
  mask[7] = std::nan("");
  const auto wrong = check();
  ASSERT_FALSE(wrong.has_value());
  EXPECT_TRUE(holds(wrong.error().message, {"column 'mask' holds nan in row 2", "1 of 6 rows"}));
}

TEST_F(Columns, NanIsMeantWhereTheModelAsksForIt) {
  ModelMaker maker;
  maker.input("x", {-1, 4}).output("logits");
  maker.weight("w", {4, 3});
  maker.weight("mean", {1, 4});
  maker.node("IsNaN", {"x"}, {"missing"});
  maker.node("Where", {"missing", "mean", "x"}, {"filled"});
  maker.node("MatMul", {"filled", "w"}, {"logits"});
  std::vector<double> values = to_doubles(images_);
  values[17] = std::nan("");
  write({{"image", numbers(DType::F32, {6, 4}, values)}, {"label", labels(DType::I64, {6})}});
  const auto prepared = prepare(job(), maker);
  EXPECT_TRUE(prepared.has_value()) << prepared.error().message;
}

TEST_F(Columns, MoreRowsThanAreReadAtOnceAreCounted) {
  constexpr int64_t kRows = 1'500'000;
  std::vector<int64_t> values(kRows, 1);
  values[kRows - 1] = 9;
  values[kRows / 2] = 5;
  write({{"image", Tensor({DType::F32, {kRows, 4}})}, {"label", dag::make_tensor({kRows}, values)}});
  const auto prepared = prepare(job(), classifier());
  ASSERT_FALSE(prepared.has_value());
  EXPECT_TRUE(
      holds(prepared.error().message, {"holds 5 in row 750000", "2 of 1500000 rows are out of range"}));
}

TEST_F(Columns, AreLookedThroughUntilSomebodyStops) {
  write({{"image", images_}, {"label", labels(DType::I64, {6})}});
  const configs::Job plain = job();
  const auto prepared = prepare(plain, classifier());
  ASSERT_TRUE(prepared.has_value());
  const std::atomic<bool> stop = true;
  EXPECT_EQ(check_data(plain, DataUse::Train, *dataset_, *prepared, &stop).error().code,
            ErrorCode::Cancelled);
}

TEST_F(Columns, TheArithmeticOfSamplesIsSaid) {
  EXPECT_TRUE(sample_notes(job({"steps=10"}), 4).empty());
  EXPECT_TRUE(holds(sample_notes(job({"steps=10"}), 3).at(0), {"4 = 1 x 3 + 1"}));
  EXPECT_TRUE(holds(sample_notes(job({"epochs=1"}), 6).at(0),
                    {"1 epoch of 6 samples is 1 steps of 4 and 2 samples"}));
  EXPECT_TRUE(sample_notes(job({"epochs=2"}), 6).empty());
  EXPECT_TRUE(sample_notes(job({"epochs=1"}), 4002).empty()) << "one in a thousand is not worth a word";
  dag::GraphBuilder builder(dag::op_table());
  builder.output("counted", builder.scalar(DType::F32, 1), dag::OutputRole::Counted);
  Prepared masks, takes_all;
  masks.graph = builder.finish();
  EXPECT_TRUE(test_notes(job(), masks, 3).empty());
  EXPECT_TRUE(holds(test_notes(job(), takes_all, 3).at(0), {"1 microbatches of 2 and 1 samples more"}));
  const auto none = job({"epochs=1"}).total_steps(3);
  ASSERT_FALSE(none.has_value());
  EXPECT_TRUE(holds(none.error().message, {"1 x 3 samples are 3", "batch of 4", "batch_size to 3"}));
}

// ---- shapes

TEST_F(Columns, OfAnotherRankAreToldHowToReshape) {
  EXPECT_TRUE(holds(refused({{"image", labels(DType::F32, {6, 2, 2})}, {"label", labels(DType::I64, {6})}},
                            ErrorCode::InvalidArgument),
                    {"the ranks differ", "image.reshape(-1, 4)"}));
}

// y = x + state[0] - state[1], next = 2 state, state of [2, batch, 3], and x divided by a rate.
ModelMaker with_state() {
  ModelMaker maker;
  maker.input("x", {-1, 3}).input("state", {2, -1, 3}).input("rate", {}, pb::TensorProto::INT64);
  maker.output("y").output("next");
  auto& shape = *maker.graph().mutable_output(1)->mutable_type()->mutable_tensor_type()->mutable_shape();
  shape.add_dim()->set_dim_value(2);
  shape.add_dim()->set_dim_param("batch");
  shape.add_dim()->set_dim_value(3);
  maker.ints("zero", {0}).clear_dims();
  maker.ints("one", {1}).clear_dims();
  maker.weight("w", {3}, 1);
  onnx::testing::attribute(maker.node("Gather", {"state", "zero"}, {"first"}), "axis", int64_t{0});
  onnx::testing::attribute(maker.node("Gather", {"state", "one"}, {"second"}), "axis", int64_t{0});
  onnx::testing::attribute(maker.node("Cast", {"rate"}, {"float_rate"}), "to", int64_t{1});
  maker.node("Div", {"x", "float_rate"}, {"scaled"});
  maker.node("Add", {"scaled", "first"}, {"sum"});
  maker.node("Sub", {"sum", "second"}, {"y"});
  maker.node("Add", {"state", "state"}, {"next"});
  return maker;
}

TEST_F(Columns, HoldSamplesOnTheirFirstAxisWhereverTheModelHasItsBatch) {
  const int64_t samples = 5;
  std::vector<double> state(30), x(15), y, next;
  for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<double>(i * i % 17);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i);
  for (size_t s = 0; s < 5; ++s)
    for (size_t i = 0; i < 3; ++i) y.push_back(x[s * 3 + i] / 4 + state[s * 6 + i] - state[s * 6 + 3 + i]);
  for (const double value : state) next.push_back(2 * value);
  write(
      {{"x", numbers(DType::F32, {samples, 3}, x)}, {"state", numbers(DType::F32, {samples, 2, 3}, state)}});
  configs::Job job = options({"x", "state"}, 2);
  job.input_values["rate"] = {.shape = {}, .numbers = {4}};
  const auto predicted = predictions(job, with_state());
  EXPECT_EQ(predicted.at("y"), y);
  EXPECT_EQ(predicted.at("next"), next);
}

TEST_F(Columns, AnInputMayHaveOneValueForAllSamples) {
  write({{"x", numbers(DType::F32, {2, 3}, {4, 8, 12, 16, 20, 24})}});
  configs::Job job = options({"x"}, 16);
  job.input_values["rate"] = {.shape = {}, .numbers = {4}};
  job.input_values["state"] = {.shape = {}, .numbers = {0.5}};  // fills [2, batch, 3]
  EXPECT_EQ(predictions(job, with_state()).at("y"), (std::vector<double>{1, 2, 3, 4, 5, 6}));

  const auto fails = [&](const configs::InputValue& value, const std::vector<std::string>& words) {
    job.input_values["rate"] = value;
    const auto predicted = predict(job, model(with_state()), *peer::make_reference_backend());
    return !predicted ? holds(predicted.error().message, words) : ::testing::AssertionFailure() << "taken";
  };
  EXPECT_TRUE(fails({.shape = {}, .numbers = {0.5}}, {"'rate' is i64[]", "no number of that type"}));
  EXPECT_TRUE(fails({.shape = {2}, .numbers = {1, 2}}, {"the shape [2]", "the ranks differ"}));
  job.input_values.erase("rate");
  const auto unfed = predict(job, model(with_state()), *peer::make_reference_backend());
  ASSERT_FALSE(unfed.has_value());
  EXPECT_TRUE(holds(unfed.error().message, {"'rate' i64[] gets no data", "--value rate=NUMBER"}));
}

TEST_F(Columns, InputsThatBeginWithDifferentNumbersAreRefusedByName) {
  ModelMaker maker;
  maker.input("x", {4, 3}).input("state", {2, 4, 3}).output("y");
  maker.node("Add", {"x", "state"}, {"y"});
  write({{"x", Tensor({DType::F32, {4, 3}})}, {"state", Tensor({DType::F32, {4, 2, 3}})}});
  const auto refused = predict(options({"x", "state"}, 4), model(maker), *peer::make_reference_backend());
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(
      holds(refused.error().message, {"'x' f32[4,3]", "'state' f32[2,4,3]", "{'state': {1: 'batch'}}"}));
}

// ---- predictions

// y = x w, x of [batch, length, 2], whose length is open: a symbol, -1, or without a name.
ModelMaker open_length(const std::string& form) {
  ModelMaker maker;
  maker.input("x", {-1, 7, 2}).output("y");
  auto& dim =
      *maker.graph().mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(1);
  dim.Clear();
  if (form == "-1")
    dim.set_dim_value(-1);
  else if (!form.empty())
    dim.set_dim_param(form);
  maker.weight("w", {2, 1}, 1);
  maker.node("MatMul", {"x", "w"}, {"y"});
  return maker;
}

TEST_F(Columns, TellTheSizesThatAModelLeavesOpen) {
  write({{"x", labels(DType::F32, {3, 5, 2})}});
  for (const char* form : {"length", "-1", ""}) {
    SCOPED_TRACE(form);
    EXPECT_EQ(predictions(options({"x"}, 2), open_length(form)).at("y").size(), 15u);
  }
  configs::Job job = options({"x"}, 2);
  job.sizes["length"] = 6;
  const auto refused = predict(job, model(open_length("length")), *peer::make_reference_backend());
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(holds(refused.error().message, {"--size says length=6"}));
}

TEST_F(Columns, PredictionsDoNotDependOnHowManyAreMadeAtOnce) {
  write({{"x", labels(DType::F32, {13, 5, 2})}});
  std::string first;
  for (const uint32_t batch : {1, 4, 13, 100}) {
    const configs::Job job = options({"x"}, batch);
    predictions(job, open_length("length"));
    const std::string bytes = test::read_file(job.output);
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << batch;
  }
}

TEST_F(Columns, AnOutputWithoutSamplesIsWrittenWhereAllArePredictedAtOnce) {
  ModelMaker maker = open_length("length");
  maker.node("ReduceSum", {"y"}, {"sum"});
  maker.output("sum");
  write({{"x", labels(DType::F32, {3, 1, 2})}});
  EXPECT_EQ(predictions(options({"x"}, 16), maker).at("sum").size(), 1u);
  const auto refused = predict(options({"x"}, 2), model(maker), *peer::make_reference_backend());
  ASSERT_FALSE(refused.has_value());
  EXPECT_TRUE(holds(refused.error().message, {"'sum'", "--batch 3"}));
}

TEST_F(Columns, APredictionThatFailsLeavesNothingBehind) {
  write({{"x", labels(DType::F32, {3, 5, 2})}});
  configs::Job job = options({"x"}, 2);
  const std::atomic<bool> stop = true;
  EXPECT_EQ(predict(job, model(open_length("length")), *peer::make_reference_backend(),
                    {.samples_max = 2, .stop = &stop})
                .error()
                .code,
            ErrorCode::Cancelled);
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch_.folder())) {
    static_cast<void>(entry);
    ++files;
  }
  EXPECT_EQ(files, 2u) << "the model and the data";
  job.output = scratch_.folder();
  EXPECT_EQ(predict(job, model(open_length("length")), *peer::make_reference_backend()).error().code,
            ErrorCode::InvalidArgument);
  job.output = scratch_.folder() / "none" / "predicted.npz";
  EXPECT_EQ(predict(job, model(open_length("length")), *peer::make_reference_backend()).error().code,
            ErrorCode::NotFound);
}

}  // namespace
}  // namespace weft::train
