// Jobs with adapters: what they train, what they write, and that a merged model computes what was trained.
#include "train/adapters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "configs/job.h"
#include "dag/onnx/export.h"
#include "dag/onnx/model.h"
#include "data/npz_writer.h"
#include "data/safetensors.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_backend.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/onnx/models.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"
#include "train/adapter_files.h"
#include "train/prepare.h"
#include "train/trainer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLora =
    "adapters={type: lora, rank: 4, alpha: 12, dropout: 0.1, targets: ['*.c_attn.weight', "
    "'*.m_proj.weight']}";
constexpr const char* kFast = "optimizer={type: adamw, learning_rate: 0.02}";

std::unique_ptr<peer::Backend> cpu(int threads = 1) {
  auto backend = peer::make_cpu_backend({.threads = threads, .pin = false});
  if (!backend) ADD_FAILURE() << backend.error().message;
  return std::move(*backend);
}

class AdapterJobs : public testing::Test {
 protected:
  Result<configs::Job> load(const std::string& name, std::vector<std::string> sets,
                            const std::string& output) {
    const fs::path folder = scratch_.folder() / name;
    if (!fs::exists(folder)) {
      fs::create_directories(folder);
      test::unpack_case(name, folder);
    }
    sets.insert(sets.begin(), {"freeze=null", "output=" + (scratch_.folder() / output).string()});
    return configs::load_job(folder / "job.yaml", sets);
  }
  struct Run {
    std::string error{};
    std::vector<double> losses{};
    train::StartEvent start{};
    std::vector<train::AgreementEvent> agreements{};
    train::ResultEvent result{};
    std::string bytes{};  // of the trained file
  };
  Run run(const std::string& name, std::vector<std::string> sets, const std::string& output,
          peer::Backend& backend, const train::TrainOptions& options = {}) {
    Run run;
    const auto job = load(name, std::move(sets), output);
    if (!job) return Run{.error = job.error().message};
    const auto result = train::train(*job, backend, options, [&](const train::Event& event) {
      if (const auto* start = std::get_if<train::StartEvent>(&event)) run.start = *start;
      if (const auto* step = std::get_if<train::StepEvent>(&event)) {
        run.losses.push_back(step->loss);
        if (step->step == stop_in_) stop_ = true;
      }
      if (const auto* met = std::get_if<train::AgreementEvent>(&event)) run.agreements.push_back(*met);
    });
    if (!result) return Run{.error = result.error().message};
    run.result = *result;
    if (!result->output.empty()) run.bytes = test::read_file(result->output);
    return run;
  }
  Run run(const std::string& name, std::vector<std::string> sets, const std::string& output = "a.onnx") {
    return run(name, std::move(sets), output, *cpu());
  }
  dag::Weights submitted(const std::string& name) const {
    return onnx::read_model(scratch_.folder() / name / "model.onnx")->weights();
  }

  test::Scratch scratch_;
  std::atomic<bool> stop_{false};
  uint64_t stop_in_ = 0;  // the step in which a run is asked to stop
};

TEST_F(AdapterJobs, TheMergedModelComputesWhatWasTrained) {
  const Run trained = run("gpt3", {kLora, kFast, "steps=12"});
  ASSERT_TRUE(trained.error.empty()) << trained.error;
  EXPECT_LT(trained.losses.back(), trained.losses.front() - 0.1);
  ASSERT_TRUE(trained.result.merge.has_value());
  const train::MergeCheck& check = *trained.result.merge;
  EXPECT_LT(check.merged, 1e-5 * (1 + check.largest)) << describe(check);
  EXPECT_GT(check.base, 1000 * check.merged) << describe(check);

  // The file as any reader has it, merged again by the formula.
  const auto file = data::TensorFiles::open(trained.result.adapter / "adapter_model.safetensors");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const dag::Weights base = submitted("gpt3"), merged = onnx::read_model(trained.result.output)->weights();
  size_t adapted = 0;
  for (const auto& [name, before] : base) {
    const std::string module = name.substr(0, name.rfind('.'));
    const std::string key = "base_model.model." + module + ".lora_A.weight";
    if (!file->tensors().contains(key) || !name.ends_with(".weight")) {
      const auto a = before.bytes(), b = merged.at(name).bytes();
      EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name << " was to stay";
      continue;
    }
    ++adapted;
    const dag::Tensor a = *file->whole(key),
                      b = *file->whole("base_model.model." + module + ".lora_B.weight");
    const auto out = static_cast<size_t>(b.shape()[0]), in = static_cast<size_t>(a.shape()[1]);
    ASSERT_EQ(before.shape(), (dag::Shape{b.shape()[0], a.shape()[1]})) << "PyTorch's Linear is [out, in]";
    for (size_t o = 0; o < out; ++o)
      for (size_t i = 0; i < in; ++i) {
        double sum = 0;
        for (size_t r = 0; r < 4; ++r) sum += double{b.as<float>()[o * 4 + r]} * a.as<float>()[r * in + i];
        ASSERT_NEAR(merged.at(name).as<float>()[o * in + i], before.as<float>()[o * in + i] + 3 * sum, 1e-6);
      }
  }
  EXPECT_EQ(file->tensors().size(), 2 * adapted);
  const std::string config = test::read_file(trained.result.adapter / "adapter_config.json");
  for (const char* line : {"\"peft_type\": \"LORA\"", "\"r\": 4,", "\"lora_alpha\": 12,",
                           "\"lora_dropout\": 0.1,", "\"fan_in_fan_out\": false", "\"h.0.c_attn\""})
    EXPECT_NE(config.find(line), std::string::npos) << line << " in " << config;
}

// By the description of weft, and by PEFT's alone.
TEST_F(AdapterJobs, AFolderIsMergedAgain) {
  const Run trained = run("gpt3", {kLora, kFast, "steps=3"});
  ASSERT_TRUE(trained.error.empty()) << trained.error;
  const auto model = onnx::read_model(scratch_.folder() / "gpt3" / "model.onnx");
  for (const bool foreign : {false, true}) {
    if (foreign) fs::remove(trained.result.adapter / "adapters.json");
    const auto folder = train::read_adapter_folder(trained.result.adapter, *model);
    ASSERT_TRUE(folder.has_value()) << folder.error().message;
    const auto written = onnx::write_trained_tensors(
        *model, train::merge_adapters(folder->adapters, train::tensors_of(*model), folder->tensors),
        scratch_.folder() / "merged.onnx");
    ASSERT_TRUE(written.has_value()) << written.error().message;
    EXPECT_EQ(test::read_file(written->trained), trained.bytes) << foreign;
  }
  const auto other = onnx::read_model(scratch_.folder() / "merged.onnx");
  std::ofstream(trained.result.adapter / "adapters.json")
      << R"({"adapters": [{"weight": "none", "module": "h.0.c_attn", "form": "linear", "in_first": false,)"
      << R"( "rank": 4, "alpha": 12, "dropout": 0}]})";
  const auto wrong = train::read_adapter_folder(trained.result.adapter, *other);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("no initializer 'none'"), std::string::npos) << wrong.error().message;
}

TEST_F(AdapterJobs, ModulesMayHaveOtherNames) {
  const Run trained = run("gpt3", {"adapters={type: lora, rank: 2, targets: ['*.c_fc.weight'], names: "
                                   "{'^h\\.': 'transformer.h.', 'c_fc$': 'mlp.c_fc'}}",
                                   kFast, "steps=2"});
  ASSERT_TRUE(trained.error.empty()) << trained.error;
  const auto file = data::TensorFiles::open(trained.result.adapter / "adapter_model.safetensors");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_TRUE(file->tensors().contains("base_model.model.transformer.h.0.mlp.c_fc.lora_A.weight"));
  const auto model = onnx::read_model(scratch_.folder() / "gpt3" / "model.onnx");
  EXPECT_TRUE(train::read_adapter_folder(trained.result.adapter, *model).has_value());
  fs::remove(trained.result.adapter / "adapters.json");
  const auto foreign = train::read_adapter_folder(trained.result.adapter, *model);
  ASSERT_FALSE(foreign.has_value());
  EXPECT_NE(foreign.error().message.find("no initializer 'transformer.h.0.mlp.c_fc.weight'"),
            std::string::npos);
}

TEST_F(AdapterJobs, DescriptionsComeBackAsTheyWere) {
  const train::Adapters adapters{{{.weight = "a\"b\n",
                                   .node = {},
                                   .form = dag::Adapter::Form::Table,
                                   .in_first = true,
                                   .rank = 3,
                                   .alpha = 1e-3,
                                   .dropout = 0.25},
                                  "m\\x"}};
  const auto back = train::parse_adapters(train::to_json(adapters));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(*back, adapters);
  for (const char* text :
       {"", "[]", "{}", "{\"adapters\": []}", "{\"adapters\": [1]}",
        R"({"adapters": [{"weight": "w", "module": "m", "form": "linear", "rank": 0, "alpha": 1}]})",
        R"({"adapters": [{"weight": "w", "module": "m", "form": "cube", "rank": 1, "alpha": 1}]})",
        R"({"adapters": [{"weight": "w", "module": "m", "form": "linear", "rank": 1, "alpha": .inf}]})",
        R"({"adapters": [{"weight": "w", "module": "m", "form": "linear", "rank": 1, "alpha": 1},
                         {"weight": "w", "module": "n", "form": "linear", "rank": 1, "alpha": 1}]})"})
    EXPECT_FALSE(train::parse_adapters(text).has_value()) << text;
}

TEST_F(AdapterJobs, TheDeviceComputesAsTheReference) {
  const std::vector<std::string> sets{kLora, kFast, "steps=4"};
  const Run device = run("gpt3", sets, "a.onnx"), again = run("gpt3", sets, "b.onnx", *cpu(3));
  const Run reference = run("gpt3", sets, "c.onnx", *peer::make_reference_backend());
  ASSERT_TRUE(device.error.empty() && reference.error.empty()) << device.error << reference.error;
  EXPECT_EQ(device.bytes, again.bytes) << "from any number of threads";
  ASSERT_EQ(device.losses.size(), reference.losses.size());
  for (size_t i = 0; i < device.losses.size(); ++i) EXPECT_NEAR(device.losses[i], reference.losses[i], 2e-5);
}

TEST_F(AdapterJobs, ARunThatWasStoppedGoesOnToTheSameBytes) {
  const std::vector<std::string> sets{kLora, kFast, "steps=6", "checkpoint={steps: 3}"};
  const Run whole = run("gpt3", sets, "whole.onnx");
  stop_in_ = 4;
  const Run stopped = run("gpt3", sets, "parts.onnx", *cpu(), {.resume = {}, .stop = &stop_});
  ASSERT_TRUE(stopped.result.stopped) << stopped.error;
  const Run rest = run("gpt3", sets, "parts.onnx", *cpu(), {.resume = stopped.result.checkpoint});
  ASSERT_TRUE(rest.error.empty()) << rest.error;
  EXPECT_EQ(rest.bytes, whole.bytes);
}

TEST_F(AdapterJobs, BeginWhereAFileOfAdaptersEnds) {
  const Run first = run("gpt3", {kLora, kFast, "steps=4"}, "first.onnx");
  ASSERT_TRUE(first.error.empty()) << first.error;
  const std::string tensors = (first.result.adapter / "adapter_model.safetensors").string();
  const std::string on = "adapters={type: lora, rank: 4, alpha: 12, init: '" + tensors +
                         "', targets: ['*.c_attn.weight', '*.m_proj.weight']}";
  const Run second = run("gpt3", {on, "steps=1"}, "second.onnx");
  ASSERT_TRUE(second.error.empty()) << second.error;
  const Run merged = run("gpt3", {"model=" + first.result.output.string(), "steps=1"}, "third.onnx");
  ASSERT_TRUE(merged.error.empty()) << merged.error;
  EXPECT_NEAR(second.losses.at(0), merged.losses.at(0), 1e-5);
  const Run fewer =
      run("gpt3", {"adapters={type: lora, rank: 4, init: '" + tensors + "', targets: ['*.c_attn.weight']}"});
  EXPECT_NE(fewer.error.find("have a place among the adapters"), std::string::npos) << fewer.error;
  const Run wider = run("gpt3", {"adapters={type: lora, rank: 8, init: '" + tensors +
                                 "', targets: ['*.c_attn.weight', '*.m_proj.weight']}"});
  EXPECT_NE(wider.error.find("and here it is f32[8,"), std::string::npos) << wider.error;
}

TEST_F(AdapterJobs, TheFirstStepComputesWhatTheModelDoes) {
  const Run plain = run("gpt3", {"steps=1"}, "plain.onnx");
  for (const char* init : {"kaiming", "normal", "zero"}) {
    const Run with = run("gpt3", {"adapters={type: lora, rank: 2, init: " + std::string(init) +
                                      ", targets: ['*.c_fc.*', 'wte*']}",
                                  "steps=1"});
    ASSERT_TRUE(with.error.empty()) << with.error;
    EXPECT_NEAR(with.losses.at(0), plain.losses.at(0), 1e-6) << init;
  }
}

TEST_F(AdapterJobs, ReplicasSendAdaptersAlone) {
  const Run trained = run("gpt3", {kLora, kFast, "steps=8", "replicas=2", "sync={every: 2}", "batch_size=4"});
  ASSERT_TRUE(trained.error.empty()) << trained.error;
  ASSERT_EQ(trained.agreements.size(), 2u);
  const auto bytes = static_cast<uint64_t>(trained.start.parameter_elements) * sizeof(float);
  for (const train::AgreementEvent& met : trained.agreements) EXPECT_EQ(met.dense_bytes, bytes);
  EXPECT_LT(trained.start.parameter_elements, 20000);
}

TEST_F(AdapterJobs, PointwiseKernelsAndTensorsTrainedWhole) {
  const Run trained =
      run("mobilenetv2", {"adapters=[{type: lora, rank: 2, targets: ['features.?.conv.*']}, {type: full, "
                          "targets: ['classifier.*']}]",
                          "steps=3", "optimizer={type: sgd, learning_rate: 0.05}"});
  ASSERT_TRUE(trained.error.empty()) << trained.error;
  const dag::Weights before = submitted("mobilenetv2"),
                     after = onnx::read_model(trained.result.output)->weights();
  std::vector<std::string> changed;
  for (const auto& [name, tensor] : before) {
    const auto a = tensor.bytes(), b = after.at(name).bytes();
    if (!std::equal(a.begin(), a.end(), b.begin(), b.end())) changed.push_back(name);
  }
  const auto has = [&](const std::string& name) {
    return std::find(changed.begin(), changed.end(), name) != changed.end();
  };
  EXPECT_TRUE(has("classifier.1.weight") && has("classifier.1.bias"));
  EXPECT_TRUE(has("features.1.conv.1.weight"));
  EXPECT_FALSE(has("features.1.conv.0.0.weight")) << "it has groups";
  for (const std::string& name : changed)
    EXPECT_EQ(name.find("running"), std::string::npos) << name << ": statistics of what is frozen stay";
  EXPECT_LT(trained.result.merge->merged, 1e-4 * (1 + trained.result.merge->largest))
      << describe(*trained.result.merge);
  const std::string config = test::read_file(trained.result.adapter / "adapter_config.json");
  EXPECT_NE(config.find("\"modules_to_save\": [\"classifier.1\"]"), std::string::npos) << config;
}

// logits = x W of a model that `add_weight` gives W, by adapters.
void write_head_job(const fs::path& folder,
                    const std::function<std::string(onnx::testing::ModelMaker&)>& add_weight) {
  onnx::testing::ModelMaker maker(21);
  maker.input("x", {-1, 4}).output("logits");
  maker.node("MatMul", {"x", add_weight(maker)}, {"logits"});
  onnx::testing::write_bytes(folder / "model.onnx", maker.bytes());
  std::vector<float> x(48);
  std::vector<int64_t> label(12);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 7) % 11) / 5 - 1;
  for (size_t i = 0; i < label.size(); ++i) label[i] = static_cast<int64_t>(i % 3);
  const data::NpzArray arrays[] = {{"x", dag::make_tensor({12, 4}, std::span<const float>(x))},
                                   {"label", dag::make_tensor({12}, std::span<const int64_t>(label))}};
  const auto bytes = data::npz_bytes(arrays);
  ASSERT_TRUE(bytes.has_value());
  std::ofstream(folder / "train.npz", std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes->data()), static_cast<std::streamsize>(bytes->size()));
  std::ofstream(folder / "job.yaml")
      << "model: model.onnx\ntask: train\ninputs: {x: x}\n"
         "loss: {type: cross_entropy, logits: logits, labels: label}\n"
         "data: {train: {type: npz, path: train.npz}}\nbatch_size: 6\nsteps: 6\n"
         "optimizer: {type: sgd, learning_rate: 0.3}\n"
         "adapters: {type: lora, rank: 2, targets: [\"head.*\"]}\noutput: trained.onnx\n";
}

onnx::pb::TensorProto& add_head(onnx::testing::ModelMaker& maker, const char* name, int32_t type) {
  auto& weight = *maker.graph().add_initializer();
  weight.set_name(name);
  weight.set_data_type(type);
  weight.add_dims(4);
  weight.add_dims(3);
  return weight;
}
// A weight in bfloat16 as large as `size`.
void write_half_job(const fs::path& folder, float size) {
  write_head_job(folder, [&](onnx::testing::ModelMaker& maker) -> std::string {
    auto& weight = add_head(maker, "head.weight", onnx::pb::TensorProto::BFLOAT16);
    for (int i = 0; i < 12; ++i)
      weight.add_int32_data(dag::bf16_from_float(size * static_cast<float>(i - 6)));
    onnx::testing::attribute(maker.node("Cast", {"head.weight"}, {"wide"}), "to",
                             int64_t{onnx::pb::TensorProto::FLOAT});
    return "wide";
  });
}

// Merged into what was int8 it is a half, if that holds all numbers.
TEST_F(AdapterJobs, WhatHalvesCannotHoldIsWrittenAsFloat32) {
  for (const float scale : {0.01f, 9000.0f}) {
    write_head_job(scratch_.folder(), [&](onnx::testing::ModelMaker& maker) -> std::string {
      auto& numbers = add_head(maker, "numbers", onnx::pb::TensorProto::INT8);
      for (int i = 0; i < 12; ++i) numbers.add_int32_data(i - 3);
      auto& of_all = *maker.graph().add_initializer();
      of_all.set_name("scale");
      of_all.set_data_type(onnx::pb::TensorProto::FLOAT);
      of_all.add_float_data(scale);
      maker.node("DequantizeLinear", {"numbers", "scale"}, {"head.weight"});
      return "head.weight";
    });
    const auto written = [&](std::vector<std::string> sets) -> Result<std::string> {
      sets.insert(sets.end(), {"steps=1", "optimizer={type: sgd, learning_rate: 1e-9}"});
      const auto job = configs::load_job(scratch_.folder() / "job.yaml", sets);
      if (!job) return fail(job.error());
      const auto result = train::train(*job, *cpu(), {}, [](const train::Event&) {});
      if (!result) return fail(result.error());
      std::string found;
      const auto model = onnx::read_model(result->output);
      if (!model) return fail(model.error());
      for (const auto& [name, tensor] : model->weights())
        found += name + " " + to_string(tensor.spec()) + " ";
      return found;
    };
    const auto as = [&](const std::string& type) {
      return "output={path: " + (scratch_.folder() / "b.onnx").string() + ", merged: " + type + "}";
    };
    const bool fits = scale < 1;
    const std::string half = "head.weight_f16 f16[4,3] ", single = "head.weight f32[4,3] ";
    EXPECT_EQ(written({}).value(), fits ? half : single);
    EXPECT_EQ(written({as("float32")}).value(), single);
    EXPECT_EQ(written({as("bfloat16")}).value(), "head.weight_bf16 bf16[4,3] ");
    const auto asked = written({as("float16")});
    ASSERT_EQ(asked.has_value(), fits);
    EXPECT_EQ(fits ? ErrorCode::OutOfRange : asked.error().code, ErrorCode::OutOfRange);
  }
}

TEST_F(AdapterJobs, AHalfStaysAHalf) {
  write_half_job(scratch_.folder(), 0.1f);
  const auto job = configs::load_job(scratch_.folder() / "job.yaml", {});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const auto result = train::train(*job, *cpu(), {}, [](const train::Event&) {});
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_LT(result->merge->merged, result->merge->base) << describe(*result->merge);
  EXPECT_GT(result->merge->merged, 1e-5) << "it was rounded";
  const auto merged = onnx::read_model(result->output);
  EXPECT_EQ(merged->weights().at("head.weight").dtype(), dag::DType::BF16);
}

// Kept as the file has it, or as float32: nothing else is different.
TEST_F(AdapterJobs, AHalfThatIsKeptLearnsTheSame) {
  write_half_job(scratch_.folder(), 0.1f);
  std::vector<std::string> bytes;
  std::vector<double> losses;
  for (const char* store : {"base={store: as_is}", "base={store: float32}"}) {
    const std::string sets[] = {store};
    const auto job = configs::load_job(scratch_.folder() / "job.yaml", sets);
    ASSERT_TRUE(job.has_value()) << job.error().message;
    const auto result = train::train(*job, *cpu(), {}, [&](const train::Event& event) {
      if (const auto* step = std::get_if<train::StepEvent>(&event)) losses.push_back(step->loss);
    });
    ASSERT_TRUE(result.has_value()) << result.error().message;
    bytes.push_back(test::read_file(result->output));
    const auto model = onnx::read_model(job->model);
    const auto dataset = data::open_dataset(*job->train);
    const auto prepared = train::prepare_training(*job, *model, **dataset, peer::evaluate_reference);
    ASSERT_TRUE(prepared.has_value()) << prepared.error().message;
    const auto is_stored = [](const dag::Op& op) { return op.kind == dag::OpKind::StoredMatMul; };
    EXPECT_EQ(std::any_of(prepared->graph.ops().begin(), prepared->graph.ops().end(), is_stored),
              bytes.size() == 1);
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  ASSERT_EQ(losses.size(), 12u);
  EXPECT_TRUE(std::equal(losses.begin(), losses.begin() + 6, losses.begin() + 6));
}

TEST_F(AdapterJobs, WhatAHalfLosesIsSaid) {
  write_half_job(scratch_.folder(), 3000);
  const auto job = configs::load_job(scratch_.folder() / "job.yaml", {});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  const auto result = train::train(*job, *cpu(), {}, [](const train::Event&) {});
  ASSERT_TRUE(result.has_value()) << result.error().message;
  ASSERT_TRUE(result->merge.has_value());
  EXPECT_FALSE(result->merge->is_good()) << describe(*result->merge);
  const Status refused = train::refuse_merge(*result->merge, result->output);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("what was learnt is lost in the numbers of"), std::string::npos);
  EXPECT_TRUE(fs::exists(scratch_.folder() / "trained.adapter" / "adapter_model.safetensors"));
}

TEST_F(AdapterJobs, WhatIsWrongIsSaidWithItsPlace) {
  const auto refusal = [&](const std::string& adapters, std::vector<std::string> more = {}) {
    more.insert(more.begin(), "adapters=" + adapters);
    return run("gpt3", more).error;
  };
  const std::pair<const char*, const char*> cases[] = {
      {"{type: lora, rank: 0, targets: ['*']}", "`adapters.rank` must be a whole number from 1 to 4096"},
      {"{type: lora, alpha: .inf, targets: ['*']}", "`adapters.alpha` must be a number, not '.inf'"},
      {"{type: lora, alpha: 0, targets: ['*']}", "`adapters.alpha` is 0; it must be above 0"},
      {"{type: lora, dropout: 1, targets: ['*']}", "`adapters.dropout` is 1; it must be from 0 to below 1"},
      {"{type: lora}", "`adapters.targets` is missing"},
      {"{type: lora, targets: []}", "`adapters.targets` must be a list of patterns"},
      {"{type: lorra, targets: ['*']}", "`adapters.type` cannot be 'lorra' (did you mean 'lora'?)"},
      {"{targets: ['*']}", "`adapters.type` is missing"},
      {"[]", "must hold 1 to 64"},
      {"{type: full, targets: ['*']}", "`adapters` has no entry of type lora"},
      {"{type: lora, init: random, targets: ['*']}", "`adapters.init` cannot be 'random'"},
      {"{type: lora, init: none.safetensors, targets: ['*']}", "no such file"},
      {"{type: lora, rank: 2000, targets: ['*.c_attn.weight']}",
       "rank 2000 is larger than the smaller side of"},
      {"{type: lora, targets: ['*.c_atn.weight']}", "nothing is adapted by '*.c_atn.weight'"},
      {"{type: lora, targets: ['*.ln_1.weight']}", "names nothing that an adapter can stand beside"},
      {"[{type: lora, targets: ['*.c_attn.weight']}, {type: lora, targets: ['h.0.c_attn.weight']}]",
       "has an adapter already"},
      {"[{type: lora, targets: ['*.c_attn.weight']}, {type: full, targets: ['h.0.*']}]",
       "is to be trained whole, and to have an adapter"},
      {"[{type: lora, targets: ['*.c_attn.weight']}, {type: full, targets: ['hed']}]",
       "nothing is trained by 'hed'"},
      {"{type: lora, targets: ['*.c_attn.weight'], names: {'^.*$': x}}", "is named 'x', as another is"},
  };
  for (const auto& [adapters, said] : cases) {
    const std::string error = refusal(adapters);
    EXPECT_NE(error.find(said), std::string::npos) << adapters << "\n" << error;
    EXPECT_NE(error.find("--set adapters"), std::string::npos) << error;
  }
  EXPECT_NE(refusal(kLora + 9, {"train=[wte]"}).find("`train` says what is trained, and so does `adapters`"),
            std::string::npos);
  EXPECT_NE(refusal(kLora + 9, {"freeze=[mask]"}).find("`freeze` says what is trained"), std::string::npos);
}

}  // namespace
}  // namespace weft
