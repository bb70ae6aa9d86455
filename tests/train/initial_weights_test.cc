// Weights from another file: what was written is taken with the same bits, and a file that does not fit is
// refused with everything that does not.
#include "train/initial_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <stdexcept>

#include "configs/job.h"
#include "dag/onnx/outline.h"
#include "data/safetensors.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"
#include "train/submission.h"
#include "train/trainer.h"
#include "train/weights_file.h"

namespace weft {
namespace {
namespace fs = std::filesystem;

using Tensors = std::map<std::string, dag::Tensor>;

void write_tensors(const Tensors& tensors, const fs::path& path) {
  std::vector<data::NamedSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.spec()});
  std::ofstream file(path, std::ios::binary);
  ASSERT_TRUE(
      data::write_safetensors(
          specs,
          [&](const std::string& name, const data::ByteSink& sink) { return sink(tensors.at(name).bytes()); },
          [&](std::span<const std::byte> bytes) -> Status {
            file.write(reinterpret_cast<const char*>(bytes.data()),
                       static_cast<std::streamsize>(bytes.size()));
            return {};
          })
          .has_value());
}

Tensors read_tensors(const fs::path& path) {
  const auto files = data::TensorFiles::open(path).value();
  Tensors tensors;
  for (const auto& [name, place] : files.tensors()) tensors[name] = files.whole(name).value();
  return tensors;
}

dag::Tensor transposed(const dag::Tensor& tensor) {
  const auto values = to_doubles(tensor);
  const auto rows = static_cast<size_t>(tensor.shape()[0]), columns = static_cast<size_t>(tensor.shape()[1]);
  std::vector<double> turned;
  for (size_t column = 0; column < columns; ++column)
    for (size_t row = 0; row < rows; ++row) turned.push_back(values[row * columns + column]);
  return dag::from_doubles({tensor.dtype(), {tensor.shape()[1], tensor.shape()[0]}}, turned);
}

bool are_equal(const dag::Tensor& a, const dag::Tensor& b) {
  return a.spec() == b.spec() && std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin());
}

class InitialWeights : public testing::Test {
 protected:
  fs::path at(const std::string& name) const { return scratch_.folder() / name; }
  configs::Job job(const std::string& name, const std::vector<std::string>& sets = {}) {
    return opened(name, sets).job;
  }
  train::OpenedJob opened(const std::string& name, const std::vector<std::string>& sets = {}) {
    const fs::path folder = at(name);
    if (!fs::exists(folder)) {
      fs::create_directories(folder);
      test::unpack_case(name, folder);
    }
    auto opened = train::open_job(folder / "job.yaml", sets);
    if (!opened) throw std::runtime_error(opened.error().message);  // ends this test, not the others
    return std::move(*opened);
  }
  std::string output(const std::string& name) const { return "output=" + at(name).string(); }
  std::string init(const std::string& more = "") const {
    return "init={path: " + at("w.safetensors").string() + (more.empty() ? "" : ", " + more) + "}";
  }
  // The trained file; what was noted goes into notes_.
  fs::path train(const configs::Job& job) {
    auto backend = peer::make_cpu_backend({.threads = 1, .pin = false}).value();
    const auto result = train::train(job, *backend, {}, [&](const train::Event& event) {
      if (const auto* start = std::get_if<train::StartEvent>(&event)) start_ = *start;
    });
    EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
    return result ? result->output : fs::path();
  }
  // Trains three steps, and writes the weights.
  fs::path learnt(const std::string& name) {
    const auto first = job(name, {"steps=3", output("learnt.onnx")});
    const fs::path trained = train(first);
    const auto names = train::learnt_names(first, trained);
    EXPECT_TRUE(names.has_value());
    const auto count = train::write_weights(trained, *names, at("w.safetensors"));
    EXPECT_TRUE(count.has_value()) << (count ? "" : count.error().message);
    return trained;
  }
  Error refusal(const configs::Job& job) {
    const auto model = onnx::open_model(job.model).value();
    const auto initial = train::InitialWeights::open(job, model);
    EXPECT_FALSE(initial.has_value());
    return initial ? Error{} : initial.error();
  }
  void expect_refused(const configs::Job& job, ErrorCode code, const std::vector<std::string>& parts) {
    const Error error = refusal(job);
    EXPECT_EQ(error.code, code) << error.message;
    for (const std::string& part : parts)
      EXPECT_NE(error.message.find(part), std::string::npos) << part << "\n" << error.message;
  }
  // As `trained` has them, by whatever way they came.
  void expect_weights_of(const fs::path& trained, const configs::Job& job) {
    const auto model = onnx::read_model(job.model).value();
    const auto initial = train::InitialWeights::open(job, model);
    ASSERT_TRUE(initial.has_value()) << initial.error().message;
    const auto taken = initial->in(model);
    ASSERT_TRUE(taken.has_value()) << taken.error().message;
    const auto wanted = onnx::read_model(trained).value();
    for (const auto& [name, tensor] : wanted.weights())
      EXPECT_TRUE(are_equal(tensor, taken->weights().at(name))) << name;
  }
  test::Scratch scratch_;
  train::StartEvent start_;
};

TEST_F(InitialWeights, ARunGoesOnWhereTheWeightsWereWritten) {
  for (const char* name : {"gpt3", "resnet_small"}) {
    const fs::path trained = learnt(name);
    expect_weights_of(trained, job(name, {init()}));
    const fs::path by_model =
        train(job(name, {"model=" + trained.string(), "steps=2", "seed=3", output("by_model.onnx")}));
    const fs::path by_weights = train(job(name, {init(), "steps=2", "seed=3", output("by_weights.onnx")}));
    ASSERT_FALSE(start_.notes.empty());
    EXPECT_NE(start_.notes[0].find(" of the model came from "), std::string::npos) << start_.notes[0];
    EXPECT_EQ(test::read_file(by_model), test::read_file(by_weights)) << name;
    EXPECT_NE(test::read_file(trained), test::read_file(by_weights)) << name;
  }
}

// What is frozen is not learnt, and comes from the file all the same.
TEST_F(InitialWeights, WhatIsFrozenComesFromTheFileToo) {
  const fs::path trained = learnt("resnet_small");
  const Tensors tensors = read_tensors(at("w.safetensors"));
  const std::string frozen = "freeze=[\"" + tensors.begin()->first + "\"]";
  const fs::path after = train(job("resnet_small", {init(), frozen, "steps=1", output("after.onnx")}));
  const auto model = onnx::read_model(after).value(), before = onnx::read_model(trained).value();
  EXPECT_TRUE(are_equal(model.weights().at(tensors.begin()->first), tensors.begin()->second));
  size_t changed = 0;
  for (const auto& [name, tensor] : tensors) changed += !are_equal(model.weights().at(name), tensor);
  EXPECT_GT(changed, tensors.size() / 2);
}

TEST_F(InitialWeights, TheModelThatTravelsHasThem) {
  const fs::path trained = learnt("gpt3");
  train::OpenedJob with = opened("gpt3", {init()});
  EXPECT_EQ(train::ready_job(with).error().code, ErrorCode::Unsupported) << "a broker reads no such file";
  fs::create_directories(at("travelling"));
  const auto written = train::write_initial_model(with, at("travelling"));
  ASSERT_TRUE(written.has_value()) << written.error().message;
  EXPECT_EQ(test::read_file(with.job.model), test::read_file(trained));
  const auto ready = train::ready_job(with);
  ASSERT_TRUE(ready.has_value()) << ready.error().message;
  EXPECT_EQ(ready->submission.job.find("init"), std::string::npos) << ready->submission.job;
}

TEST_F(InitialWeights, NamesAreChangedByRules) {
  const fs::path trained = learnt("gpt3");
  Tensors renamed;
  for (const auto& [name, tensor] : read_tensors(at("w.safetensors")))
    renamed["transformer." + name] = tensor;
  renamed["transformer.h.0.attn.bias"] = dag::Tensor(dag::TensorSpec{dag::DType::Bool, {2, 2}});
  write_tensors(renamed, at("w.safetensors"));
  expect_refused(
      job("gpt3", {init()}), ErrorCode::InvalidArgument,
      {"--set init", "no place in the model", "have no tensor", R"(rename: {"^transformer\\.": ""})"});
  const std::string rename = R"(rename: {"^transformer\\.": ""})";
  expect_refused(job("gpt3", {init(rename)}), ErrorCode::InvalidArgument,
                 {"1 tensor has no place in the model: 'h.0.attn.bias'", "`ignore`"});
  expect_weights_of(trained, job("gpt3", {init(rename + ", ignore: [\"*.attn.bias\"]")}));
  expect_weights_of(trained, job("gpt3", {init(rename + ", partial: true")}));
  expect_refused(job("gpt3", {init(R"(rename: {"^none": ""}, partial: true)")}), ErrorCode::NotFound,
                 {"the pattern '^none' is found in no name"});
}

TEST_F(InitialWeights, MatricesMayLieTransposed) {
  const fs::path trained = learnt("gpt3");
  Tensors tensors = read_tensors(at("w.safetensors"));
  std::string square, tall;
  for (auto& [name, tensor] : tensors) {
    if (tensor.shape().size() != 2) continue;
    (tensor.shape()[0] == tensor.shape()[1] ? square : tall) = name;
    tensor = transposed(tensor);
  }
  ASSERT_FALSE(tall.empty());
  write_tensors(tensors, at("w.safetensors"));
  const auto said =
      train::InitialWeights::open(job("gpt3", {init()}), onnx::open_model(job("gpt3").model).value());
  ASSERT_TRUE(said.has_value()) << said.error().message;
  ASSERT_EQ(said->warnings().size(), 1u);
  EXPECT_NE(said->warnings()[0].find("fit only transposed"), std::string::npos) << said->warnings()[0];
  EXPECT_EQ(said->warnings()[0].find("as many rows as columns") == std::string::npos, square.empty());
  expect_weights_of(trained, job("gpt3", {init("transpose: [\"*\"]")}));
  tensors[tall] = transposed(tensors[tall]);
  write_tensors(tensors, at("w.safetensors"));
  expect_refused(job("gpt3", {init("transpose: [\"*\"]")}), ErrorCode::InvalidArgument,
                 {"'" + tall + "' is ", "`transpose` names it"});
  expect_refused(job("gpt3", {init("transpose: [\"none*\"]")}), ErrorCode::NotFound, {"init", "'none*'"});
}

TEST_F(InitialWeights, OtherFloatTypesAreConverted) {
  learnt("gpt3");
  Tensors tensors = read_tensors(at("w.safetensors"));
  for (auto& [name, tensor] : tensors)
    if (tensor.dtype() == dag::DType::F32) tensor = round_to_half(tensor, dag::DType::BF16);
  write_tensors(tensors, at("w.safetensors"));
  const configs::Job with = job("gpt3", {init()});
  const auto model = onnx::read_model(with.model).value();
  const auto initial = train::InitialWeights::open(with, model);
  ASSERT_TRUE(initial.has_value()) << initial.error().message;
  EXPECT_NE(initial->note().find(" from bf16 to f32"), std::string::npos) << initial->note();
  const auto taken = initial->in(model).value();
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(are_equal(taken.weights().at(name), widen_half(tensor))) << name;
}

TEST_F(InitialWeights, AllThatDoesNotFitIsSaidAtOnce) {
  learnt("gpt3");
  Tensors tensors = read_tensors(at("w.safetensors"));
  auto rest = tensors.begin();
  const std::string absent = (rest++)->first, mistyped = (rest++)->first, wrong = (rest++)->first;
  tensors[mistyped + "x"] = tensors[mistyped];
  tensors[wrong] = dag::Tensor(dag::TensorSpec{dag::DType::F32, {3, 1, 7}});
  tensors.erase(absent);
  tensors.erase(mistyped);
  write_tensors(tensors, at("w.safetensors"));
  expect_refused(
      job("gpt3", {init()}), ErrorCode::InvalidArgument,
      {"1 tensor has no place in the model: '" + mistyped + "x'",
       "2 weights of the model have no tensor: ", "'" + absent + "'",
       "'" + mistyped + "' (near: '" + mistyped + "x')", "'" + wrong + "' is f32[3,1,7] in the file"});
  expect_refused(job("gpt3", {init("partial: true")}), ErrorCode::InvalidArgument, {"f32[3,1,7]"});
  const std::string wrong_kept = "keep: [\"" + wrong + "\"]";
  expect_refused(job("gpt3", {init(wrong_kept)}), ErrorCode::InvalidArgument, {"have no tensor"});
  const configs::Job kept = job("gpt3", {init(wrong_kept + ", partial: true")});
  const auto model = onnx::read_model(kept.model).value();
  const auto initial = train::InitialWeights::open(kept, model);
  ASSERT_TRUE(initial.has_value()) << initial.error().message;
  EXPECT_NE(initial->note().find("3 of its weights keep"), std::string::npos) << initial->note();
  for (const std::string& name : {absent, mistyped, wrong})
    EXPECT_TRUE(are_equal(initial->in(model)->weights().at(name), model.weights().at(name))) << name;
  expect_refused(job("gpt3", {init("keep: [none]")}), ErrorCode::NotFound, {"'none' names no initializer"});
  expect_refused(job("gpt3", {init("ignore: [none]")}), ErrorCode::NotFound, {"'none' names no tensor"});
  write_tensors({{"a", dag::Tensor(dag::TensorSpec{dag::DType::F32, {1}})}}, at("w.safetensors"));
  expect_refused(job("gpt3", {init("partial: true")}), ErrorCode::InvalidArgument,
                 {"no tensor for the model"});
}

TEST_F(InitialWeights, AFileOfAnotherKindIsTold) {
  job("gpt3");
  fs::copy(job("gpt3").model, at("w.safetensors"));
  expect_refused(job("gpt3", {init()}), ErrorCode::InvalidArgument, {"is an ONNX model"});
  scratch_.write("w.safetensors", std::string(20, 'x'));
  expect_refused(job("gpt3", {init()}), ErrorCode::Corrupted, {"w.safetensors"});
}

TEST_F(InitialWeights, WhereWeightsMayBeWritten) {
  const auto code_of = [](const Status& status) {
    return status ? std::optional<ErrorCode>() : status.error().code;
  };
  const auto plain = job("gpt3", {output("out.onnx")});
  EXPECT_EQ(code_of(train::check_weights_output(at("w.safetensors"), plain)), std::nullopt);
  EXPECT_EQ(code_of(train::check_weights_output(at("w.pt"), plain)), ErrorCode::InvalidArgument);
  const auto same = job("gpt3", {output("out.safetensors")});
  EXPECT_EQ(code_of(train::check_weights_output(at("x/../out.safetensors"), same)),
            ErrorCode::InvalidArgument);
  scratch_.write("w.safetensors", std::string("x"));
  EXPECT_EQ(code_of(train::check_weights_output(at("w.safetensors"), plain)), std::nullopt);
  EXPECT_EQ(code_of(train::check_weights_output(at("w.safetensors"), job("gpt3", {init()}))),
            ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of(train::check_weights_output(at("none/w.safetensors"), at("out.onnx"))),
            ErrorCode::NotFound);
}

}  // namespace
}  // namespace weft
