#include "configs/job.h"

#include <gtest/gtest.h>

#include "tests/configs/small_job.h"
#include "tests/support/scratch.h"

namespace weft::configs {
namespace {

using test::Scratch;
using namespace std::chrono_literals;

TEST(Job, DefaultsAreTheDocumentedOnes) {
  const Job job = job_of(kSmall);
  EXPECT_EQ(job.model, "dir/model.onnx");
  EXPECT_EQ(job.inputs, (std::map<std::string, std::string>{{"x", "image"}}));
  ASSERT_EQ(job.losses.size(), 1u);
  EXPECT_EQ(job.losses[0].prediction, "logits");
  EXPECT_EQ(job.losses[0].ignore_index, -100);
  EXPECT_EQ(job.losses[0].weight, 1);
  EXPECT_EQ(std::get<data::NpzSpec>(*job.train).path, "dir/train.npz");
  EXPECT_FALSE(job.test.has_value());
  EXPECT_EQ(job.microbatch_size, 64u);
  EXPECT_TRUE(job.shuffle);
  EXPECT_EQ(job.seed, 0u);
  EXPECT_TRUE(job.freeze.empty());
  EXPECT_EQ(job.schedule.type, dag::ScheduleType::Constant);
  EXPECT_EQ(job.clip_norm, 0);
  EXPECT_EQ(job.on_divergence, dag::OnDivergence::Stop);
  EXPECT_FALSE(job.decides_together());
  EXPECT_EQ(job.evaluate_every, 0u);
  EXPECT_FALSE(job.checkpoint.every || job.checkpoint.steps);
  EXPECT_EQ(job.output, "dir/trained.onnx");
  EXPECT_FALSE(job.placement.stages.has_value());
  EXPECT_EQ(job.placement.equal_bits, plan::EqualBits::Prefer);
  EXPECT_EQ(job.compression.policy, plan::CompressionPolicy::None);
}

TEST(Job, OutputSaysHowTheFileIsWritten) {
  const Job plain = job_of(kSmall, {"output=t.onnx"});
  EXPECT_FALSE(plain.output_form.links_base);
  EXPECT_FALSE(plain.output_form.merged.has_value());
  const Job linked = job_of(kSmall, {"output={base: link}"});
  EXPECT_EQ(linked.output.filename(), "trained.onnx");
  EXPECT_TRUE(linked.output_form.links_base);
  const Job merged =
      job_of(kSmall, {"output={path: t.onnx, merged: bfloat16}", "adapters={type: lora, targets: [\"*\"]}"});
  EXPECT_EQ(merged.output.filename(), "t.onnx");
  EXPECT_EQ(merged.output_form.merged, dag::DType::BF16);
}

TEST(Job, AnInputMayHaveAValue) {
  const Job job = job_of(kSmall, {"inputs.sr={value: 16000}", "inputs.scale={value: [[1, 2.5], [-3, 4e2]]}",
                                  "inputs.flag={value: true}"});
  EXPECT_EQ(job.inputs, (std::map<std::string, std::string>{{"x", "image"}}));
  ASSERT_EQ(job.input_values.size(), 3u);
  EXPECT_EQ(job.input_values.at("sr").shape, dag::Shape{});
  EXPECT_EQ(job.input_values.at("sr").numbers, std::vector<double>{16000});
  EXPECT_EQ(job.input_values.at("scale").shape, (dag::Shape{2, 2}));
  EXPECT_EQ(job.input_values.at("scale").numbers, (std::vector<double>{1, 2.5, -3, 400}));
  EXPECT_EQ(job.input_values.at("flag").numbers, std::vector<double>{1});
}

TEST(Job, OnlyColumnsThatItNamesAreRead) {
  const std::vector<std::string> sets{
      "inputs.y=extra", "inputs.sr={value: 1}", "data.test={type: npz, path: t.npz}",
      "loss=[{type: mse, output: o, target: extra}, {type: output, name: l}]"};
  const Job job = job_of(kSmall, sets);
  const std::vector<std::string> columns{"extra", "image"};
  EXPECT_EQ(job.columns(), columns);
  EXPECT_EQ(std::get<data::NpzSpec>(*job.train).columns, columns);
  EXPECT_EQ(std::get<data::NpzSpec>(*job.test).columns, columns);
}

TEST(Job, TheSizeOfAMicrobatchMayBeLeftToThePlanner) {
  const Job job = job_of(kSmall, {"microbatch_size=auto"});
  EXPECT_EQ(job.microbatch_size, 0u);
  EXPECT_EQ(job.microbatch_sizes(), (std::vector<uint32_t>{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(job.with_microbatch_size(8).microbatch_size, 8u);
  const auto of = [](uint32_t batch, uint32_t ranges) {
    return job_of(kSmall, {"microbatch_size=auto", "batch_size=" + std::to_string(batch),
                           "gradient_ranges=" + std::to_string(ranges)})
        .microbatch_sizes();
  };
  EXPECT_EQ(of(60, 1), (std::vector<uint32_t>{1, 2, 4, 10, 20, 60}));
  EXPECT_EQ(of(60, 4), (std::vector<uint32_t>{1, 3, 15}));
  EXPECT_EQ(of(7, 1), (std::vector<uint32_t>{1, 7}));
  EXPECT_EQ(of(1, 1), (std::vector<uint32_t>{1}));
  EXPECT_EQ(of(4099, 1), (std::vector<uint32_t>{4099})) << "a prime: one at a time is too many";
  EXPECT_EQ(of(1u << 22, 1).size(), 10u) << "at most 512 microbatches";
}

TEST(Job, OptimizerDefaultsArePyTorchs) {
  const auto sgd = job_of(kSmall).optimizer;
  EXPECT_EQ(sgd.momentum, 0);
  EXPECT_EQ(sgd.weight_decay, 0);
  const auto adam = job_of(kSmall, {"optimizer={type: adam}"}).optimizer;
  EXPECT_EQ(adam.learning_rate, 1e-3);
  EXPECT_EQ(adam.weight_decay, 0);
  EXPECT_EQ(adam.beta1, 0.9);
  EXPECT_EQ(adam.beta2, 0.999);
  EXPECT_EQ(adam.epsilon, 1e-8);
  EXPECT_EQ(job_of(kSmall, {"optimizer={type: adamw}"}).optimizer.weight_decay, 0.01);
}

TEST(Job, EveryKeyOfTheSpecIsRead) {
  const Job job = job_of(R"(format: 1
model: /abs/resnet.onnx
task: train
inputs: {x: image, "a.b": extra}
loss: {type: cross_entropy, logits: logits, labels: label, axis: 1, ignore_index: -1}
data:
  train: {type: idx, images: i.gz, labels: l.gz, scale: 0.00392156862745098, mean: 0.286, deviation: 0.353}
  test:  {type: npz, path: test.npz}
batch_size: 64
microbatch_size: 16
epochs: 3
shuffle: false
seed: 18446744073709551615
freeze: ["*.cos", "mask*"]
optimizer: {type: adamw, learning_rate: 1e-3, weight_decay: 0.1, betas: [0.8, 0.99], epsilon: 1e-6}
schedule: {type: cosine, warmup_steps: 50, final: 0.1}
clip_norm: 1.0
on_divergence: skip
precision: fp32
evaluate_every: 100
checkpoint: {every: 60s}
output: out/trained.onnx
placement: {stages: 4, equal_bits: require, exclude: [attic, lab 2], pin: [{ops: inputs, peer: lab}, {ops: fc1, peer: gpu}]}
compression: {policy: adatopk}
)");
  EXPECT_EQ(job.model, "/abs/resnet.onnx");
  EXPECT_EQ(job.inputs.at("a.b"), "extra");
  EXPECT_EQ(job.losses.at(0).axis, 1);
  EXPECT_EQ(job.losses.at(0).ignore_index, -1);
  const auto& idx = std::get<data::IdxSpec>(*job.train);
  EXPECT_EQ(idx.labels, "dir/l.gz");
  EXPECT_EQ(idx.deviation, 0.353);
  EXPECT_EQ(std::get<data::NpzSpec>(*job.test).path, "dir/test.npz");
  EXPECT_EQ(job.microbatch_size, 16u);
  EXPECT_EQ(job.epochs, 3u);
  EXPECT_FALSE(job.steps.has_value());
  EXPECT_FALSE(job.shuffle);
  EXPECT_EQ(job.seed, 18446744073709551615u);
  EXPECT_EQ(job.freeze, (std::vector<std::string>{"*.cos", "mask*"}));
  EXPECT_EQ(job.optimizer.type, dag::OptimizerType::AdamW);
  EXPECT_EQ(job.optimizer.beta1, 0.8);
  EXPECT_EQ(job.optimizer.epsilon, 1e-6);
  EXPECT_EQ(job.schedule.warmup_steps, 50u);
  EXPECT_EQ(job.schedule.final_fraction, 0.1);
  EXPECT_EQ(job.clip_norm, 1);
  EXPECT_EQ(job.on_divergence, dag::OnDivergence::Skip);
  EXPECT_EQ(job.evaluate_every, 100u);
  EXPECT_EQ(job.checkpoint.every, Duration(60s));
  EXPECT_EQ(job.output, "dir/out/trained.onnx");
  EXPECT_EQ(job.placement.stages, 4u);
  EXPECT_EQ(job.placement.equal_bits, plan::EqualBits::Require);
  EXPECT_EQ(job.placement.exclude, (std::vector<std::string>{"attic", "lab 2"}));
  ASSERT_EQ(job.placement.pins.size(), 2u);
  EXPECT_EQ(job.placement.pins[1].ops, "fc1");
  EXPECT_EQ(job.placement.pins[1].peer, "gpu");
  EXPECT_EQ(job.compression.policy, plan::CompressionPolicy::AdaTopK);
  EXPECT_EQ(job.arithmetic, dag::Arithmetic::F32);
}

TEST(Job, PrecisionIsTheArithmeticOfProducts) {
  const auto of = [](const std::string& text) { return job_of(kSmall, {"precision=" + text}).arithmetic; };
  EXPECT_EQ(job_of(kSmall).arithmetic, dag::Arithmetic::F32);
  EXPECT_EQ(of("fp32"), dag::Arithmetic::F32);
  EXPECT_EQ(of("tf32"), dag::Arithmetic::TF32);
  EXPECT_EQ(of("bf16"), dag::Arithmetic::BF16);
}

TEST(Job, CompressionSaysHowMuchAndAsWhat) {
  const auto of = [](const std::string& text) { return job_of(kSmall, {"compression=" + text}).compression; };
  EXPECT_EQ(of("{policy: none}").policy, plan::CompressionPolicy::None);
  EXPECT_EQ(of("{policy: uniform, codec: int4z}").codec, compress::parse("int4z").value());
  EXPECT_EQ(of("{policy: uniform, codec: 'topk:0.01:fp16+int4'}").codec->floor_bits, 4);
  const plan::Compression adaptive = of("{policy: adatopk, ratio: 30, values: int8}");
  EXPECT_EQ(adaptive.ratio, 30);
  EXPECT_EQ(adaptive.values, compress::Values::I8);
  EXPECT_EQ(of("{policy: adatopk}").ratio, 100);
}

TEST(Job, OtherLossesNameTheirParts) {
  const auto mse = job_of(kSmall, {"loss={type: mse, output: y, target: t, weight: 0.25}"}).losses.at(0);
  EXPECT_EQ(mse.type, dag::LossType::Mse);
  EXPECT_EQ(mse.prediction, "y");
  EXPECT_EQ(mse.target, "t");
  EXPECT_EQ(mse.weight, 0.25);
  const auto output = job_of(kSmall, {"loss={type: output, name: loss}"}).losses.at(0);
  EXPECT_EQ(output.type, dag::LossType::Output);
  EXPECT_EQ(output.prediction, "loss");
}

TEST(Job, ALossSaysWhatCountsHowMuch) {
  const auto of = [](const std::string& keys) {
    return job_of(kSmall, {"loss={type: cross_entropy, logits: y, labels: t" + keys + "}"}).losses.at(0);
  };
  EXPECT_EQ(of("").ignore_index, -100);
  EXPECT_TRUE(of("").class_weights.empty() && of("").sample_weights.empty() && of("").label_smoothing == 0);
  EXPECT_EQ(of(", class_weights: [1, 0, 2.5]").class_weights, (std::vector<double>{1, 0, 2.5}));
  EXPECT_EQ(of(", label_smoothing: 0.1").label_smoothing, 0.1);
  EXPECT_EQ(of(", sample_weights: w").sample_weights, "w");
  EXPECT_EQ(of(", axis: -1").axis, -1);
  EXPECT_EQ(
      job_of(kSmall, {"loss={type: l1, output: y, target: t, sample_weights: w}"}).losses[0].sample_weights,
      "w");
  for (const char* wrong :
       {", class_weights: 3", ", class_weights: []", ", class_weights: [1, -1]", ", class_weights: [1, .nan]",
        ", class_weights: [1, .inf]", ", label_smoothing: 1", ", label_smoothing: -0.1", ", axis: 0.5"})
    EXPECT_FALSE(
        parse_text(kSmall, {std::string("loss={type: cross_entropy, logits: y, labels: t") + wrong + "}"})
            .has_value())
        << wrong;
}

TEST(Job, GroupsOfParametersHaveTermsOfTheirOwn) {
  const auto optimizer =
      job_of(kSmall, {"optimizer={type: adamw, groups: [{parameters: ['*.bias', '*norm*'], weight_decay: 0, "
                      "learning_rate_factor: 0.1}, {parameters: [head]}]}"})
          .optimizer;
  ASSERT_EQ(optimizer.groups.size(), 2u);
  EXPECT_EQ(optimizer.groups[0].parameters, (std::vector<std::string>{"*.bias", "*norm*"}));
  EXPECT_EQ(optimizer.groups[0].weight_decay, 0.0);
  EXPECT_EQ(optimizer.groups[0].learning_rate_factor, 0.1);
  EXPECT_FALSE(optimizer.groups[1].weight_decay.has_value());
  EXPECT_EQ(optimizer.groups[1].learning_rate_factor, 1);
  for (const char* wrong : {"3", "[{weight_decay: 0}]", "[{parameters: x}]", "[{parameters: []}]",
                            "[{parameters: [x], weight_decay: -1}]", "[{parameters: [x], momentum: 1}]"})
    EXPECT_FALSE(parse_text(kSmall, {std::string("optimizer.groups=") + wrong}).has_value()) << wrong;
}

TEST(Job, SeveralLossesKeepTheirOrderAndPlaces) {
  const Job job = job_of(R"(model: model.onnx
task: train
inputs: {x: image}
loss:
  - {type: cross_entropy, logits: fine, labels: label}
  - {type: cross_entropy, logits: coarse, labels: group, ignore_index: 7, weight: 0.5}
  - {type: output, name: penalty, weight: -1e-3}
data:
  train: {type: npz, path: train.npz}
batch_size: 64
steps: 500
optimizer: {type: sgd, learning_rate: 0.1}
)");
  ASSERT_EQ(job.losses.size(), 3u);
  EXPECT_EQ(job.losses[0].prediction, "fine");
  EXPECT_EQ(job.losses[0].weight, 1);
  EXPECT_EQ(job.losses[1].ignore_index, 7);
  EXPECT_EQ(job.losses[1].weight, 0.5);
  EXPECT_EQ(job.losses[2].type, dag::LossType::Output);
  EXPECT_EQ(job.losses[2].weight, -1e-3);
  EXPECT_EQ(to_string(job.where(job.loss_path(1) + ".labels")), "job.yaml:6:51");
  EXPECT_EQ(to_string(job.where(job.loss_path(2) + ".labels")), "job.yaml:7:5");  // the nearest that is there
  EXPECT_EQ(job_of(kSmall).loss_path(0), "loss");
}

TEST(Job, ItemsOfListsHavePlaces) {
  const Job job = job_of(kSmall + "freeze: [\"a*\", b]\n");
  EXPECT_EQ(to_string(job.where("freeze[1]")), "job.yaml:10:16");
}

TEST(Job, ValidationOfATextBecomesTheTestData) {
  const Job job = job_of(
      kSmall,
      {"data.train={type: text, path: c.txt, sequence_length: 128, validation: 0.1}", "evaluate_every=5"});
  const auto& train = std::get<data::TextSpec>(*job.train);
  const auto& test = std::get<data::TextSpec>(*job.test);
  EXPECT_EQ(train.part, data::TextSpec::Part::Training);
  EXPECT_EQ(test.part, data::TextSpec::Part::Validation);
  EXPECT_EQ(test.validation, 0.1);
  EXPECT_EQ(test.sequence_length, 128);
}

TEST(Job, CheckpointsByTimeOrSteps) {
  EXPECT_EQ(job_of(kSmall, {"checkpoint.every=5m"}).checkpoint.every, Duration(5min));
  EXPECT_EQ(job_of(kSmall, {"checkpoint.every=2h"}).checkpoint.every, Duration(2h));
  EXPECT_EQ(job_of(kSmall, {"checkpoint.steps=20"}).checkpoint.steps, 20u);
}

TEST(Job, PredictNeedsNoTraining) {
  const Job job = job_of(R"(model: m.onnx
task: predict
inputs: {x: image}
data: {predict: {type: npz, path: p.npz}}
batch_size: 10
output: y.npz
)");
  EXPECT_EQ(job.task, Task::Predict);
  EXPECT_TRUE(job.predict.has_value());
  EXPECT_EQ(job.output, "dir/y.npz");
}

TEST(Job, PathsOfTheCommandLineAreRelativeToTheCurrentFolder) {
  EXPECT_EQ(job_of(kSmall, {"output=here.onnx"}).output, "here.onnx");
  EXPECT_EQ(job_of(kSmall, {"model=../other.onnx"}).model, "../other.onnx");
  EXPECT_EQ(std::get<data::NpzSpec>(*job_of(kSmall, {"data.train={type: npz, path: a/./b.npz}"}).train).path,
            "a/b.npz");
  EXPECT_EQ(job_of(kSmall).model.parent_path(), "dir") << "what the file says is relative to it";
}

TEST(Job, LaterSetsWin) { EXPECT_EQ(job_of(kSmall, {"steps=5", "steps=7"}).steps, 7u); }

TEST(Job, TotalStepsOfEpochsAreRoundedDown) {
  const Job epochs = job_of("epochs: 2\n" + kSmall.substr(0, kSmall.find("steps")) +
                            kSmall.substr(kSmall.find("optimizer")));
  EXPECT_EQ(epochs.total_steps(100).value(), 3u);
  const auto none = epochs.total_steps(10);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(none.error().message.find("job.yaml:1:9: "), 0u) << none.error().message;
  EXPECT_EQ(job_of(kSmall).total_steps(1).value(), 500u);
}

TEST(Job, PlacesCanBeAskedFor) {
  const Job job = job_of(kSmall);
  EXPECT_EQ(job.error(ErrorCode::InvalidArgument, "inputs.x", "no such column").message,
            "job.yaml:3:13: no such column");
  EXPECT_EQ(to_string(job.where("optimizer.betas")), "job.yaml:9:12");
}

TEST(Job, FilesAreLookedForBesideTheJob) {
  const Scratch scratch;
  const auto path = scratch.write("job.yaml", kSmall);
  const auto missing = load_job(path);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::NotFound);
  EXPECT_NE(missing.error().message.find("job.yaml:1:8: `model`: "), std::string::npos)
      << missing.error().message;
  EXPECT_NE(missing.error().message.find("job.yaml:6:28: `data.train.path`: "), std::string::npos)
      << missing.error().message;
  scratch.write("model.onnx", "x");
  scratch.write("train.npz", "x");
  const auto job = load_job(path);
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->model, scratch.folder() / "model.onnx");
}

TEST(Job, OutputFolderMustBeThere) {
  const Scratch scratch;
  scratch.write("model.onnx", "x");
  scratch.write("train.npz", "x");
  const auto job = load_job(scratch.write("job.yaml", kSmall + "output: nowhere/t.onnx\n"));
  ASSERT_FALSE(job.has_value());
  EXPECT_NE(job.error().message.find("nowhere"), std::string::npos);
}

TEST(Job, AbsentJobFileIsNotFound) {
  const auto job = load_job("/nonexistent/job.yaml");
  ASSERT_FALSE(job.has_value());
  EXPECT_EQ(job.error().code, ErrorCode::NotFound);
}

TEST(Job, SetReplacesTheLengthTheFileGives) {
  const auto job =
      load_job("examples/fashion-mnist/job.yaml", std::vector<std::string>{"steps=5", "evaluate_every=0"});
  if (!job && job.error().code == ErrorCode::NotFound)
    GTEST_SKIP() << "the data of the example is not installed";
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->steps, 5u);
  EXPECT_FALSE(job->epochs.has_value());
  EXPECT_EQ(job->evaluate_every, 0u);
}

TEST(Job, TwoLengthsFromOnePlaceAreRefused) {
  const auto job =
      load_job("examples/fashion-mnist/job.yaml", std::vector<std::string>{"steps=5", "epochs=1"});
  ASSERT_FALSE(job.has_value());
  EXPECT_NE(job.error().message.find("keep one"), std::string::npos) << job.error().message;
}

TEST(Job, SetToNullTakesAKeyAway) {
  const auto job =
      load_job("examples/fashion-mnist/job.yaml",
               std::vector<std::string>{"data.test=null", "evaluate_every=null", "checkpoint=null"});
  if (!job && job.error().code == ErrorCode::NotFound)
    GTEST_SKIP() << "the data of the example is not installed";
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_FALSE(job->test.has_value());
  EXPECT_FALSE(job->checkpoint.every.has_value());
}

TEST(Job, ExamplesParse) {
  for (const char* example : {"examples/fashion-mnist/job.yaml", "examples/gpt/job.yaml"}) {
    std::ifstream in(example);
    ASSERT_TRUE(in.good()) << example;
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    job_of(text);
  }
}

}  // namespace
}  // namespace weft::configs
