#include "tests/train/family_steps.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <cmath>
#include <fstream>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "dag/onnx/import.h"
#include "dag/passes/canonicalise.h"
#include "peer/backend/reference/reference_kernels.h"
#include "peer/executor.h"

namespace weft {
namespace {

using dag::DType;
using dag::Tensor;
using dag::TensorSpec;

constexpr int64_t kClasses = 13;
constexpr double kRate = 0.05;

// pattern() of make_families.py.
Tensor images(const dag::Shape& shape) {
  const TensorSpec spec{DType::F32, shape};
  std::vector<double> values(static_cast<size_t>(spec.element_count()));
  for (uint64_t i = 0; i < values.size(); ++i) {
    const uint64_t mixed = (i * 2654435761u + (i >> 5) * 40503u) % (uint64_t{1} << 32);
    values[i] = static_cast<double>(mixed >> 26) / 16 - 2;
  }
  return dag::from_doubles(spec, values);
}
Tensor labels(const dag::Shape& shape) {
  const TensorSpec spec{DType::I64, shape};
  std::vector<int64_t> values(static_cast<size_t>(spec.element_count()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>((7 * i + i / 5) % kClasses);
  return dag::from_int64s(spec, values);
}

template <typename T>
T value_or_fail(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().message;
  return std::move(result).value();
}
void ok_or_fail(const Status& status) { ASSERT_TRUE(status.has_value()) << status.error().message; }

std::string gunzip(const std::string& path) {
  std::string bytes;
  gzFile file = gzopen(path.c_str(), "rb");
  EXPECT_NE(file, nullptr) << path;
  std::array<char, 65536> part{};
  for (int got = 0; file != nullptr && (got = gzread(file, part.data(), part.size())) > 0;)
    bytes.append(part.data(), static_cast<size_t>(got));
  if (file != nullptr) gzclose(file);
  return bytes;
}

// The mean cross entropy of `logits`, classes at axis 1, against an input "labels".
dag::Graph with_loss(const dag::Graph& model, const TensorSpec& labels) {
  dag::GraphCopy copy(model, dag::op_table());
  for (uint32_t i = 0; i < model.ops().size(); ++i) copy.copy(dag::OpId{i});
  dag::GraphBuilder& builder = copy.builder();
  const dag::ValueId target = builder.input("labels", labels);
  for (const auto& output : model.outputs()) {
    const dag::ValueId value = copy.mapped(output.value);
    if (output.role == dag::OutputRole::StateUpdate) builder.output(output.name, value, output.role);
    if (output.name != "logits") continue;
    const dag::ValueId loss =
        builder.add(dag::OpKind::CrossEntropy, {value, target},
                    {{dag::Attr::Axis, int64_t{1}}, {dag::Attr::Reduction, std::string("mean")}});
    builder.output("loss", loss, dag::OutputRole::Loss);
  }
  return copy.finish();
}

}  // namespace

const nlohmann::json& family_losses() {
  static const nlohmann::json losses = [] {
    std::ifstream file("tests/numerics/families/losses.json");
    return nlohmann::json::parse(file);
  }();
  return losses;
}

std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : family_losses().items()) names.push_back(name);
  return names;
}

test::Model family(const std::string& name) {
  const nlohmann::json& entry = family_losses().at(name);
  const Tensor target = labels(entry.at("labels").get<dag::Shape>());
  const std::string bytes = gunzip("tests/numerics/families/" + name + ".onnx.gz");
  const auto model = value_or_fail(onnx::read_model(std::as_bytes(std::span(bytes))));
  onnx::ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  options.training = true;
  auto imported = value_or_fail(onnx::import_model(model, options, dag::op_table()));
  const dag::Graph canonical = value_or_fail(dag::canonicalise(imported.graph, dag::op_table()));
  return {value_or_fail(dag::differentiate(with_loss(canonical, target.spec()), dag::op_table())),
          std::move(imported.weights),
          {{"x", images(entry.at("input").get<dag::Shape>())}, {"labels", target}}};
}

std::vector<double> two_family_steps(const std::string& name, peer::Backend& backend) {
  const test::Model model = family(name);
  auto graph = std::make_shared<const dag::Graph>(dag::lower(model.graph, dag::op_table(), backend.traits()));

  const auto executor = value_or_fail(
      peer::Executor::create(graph, std::make_shared<peer::State>(backend),
                             {.optimizer = dag::OptimizerSpec{.type = dag::OptimizerType::Sgd}}));
  for (const auto& initializer : graph->initializers())
    ok_or_fail(executor->state().write(weight_key(initializer), model.weights.at(initializer.name)));
  // Nothing that these models do may fall back to loops in double or to oneDNN's reference, on any processor.
  for (size_t g = 0; backend.name() == "cpu" && g < executor->program().groups.size(); ++g) {
    const dag::Op& op = graph->op(executor->program().groups[g].ops.front());
    const std::string_view kernel = executor->kernel(g).implementation();
    EXPECT_TRUE(kernel != "reference" && kernel.find(" ref") == std::string_view::npos)
        << to_string(op.kind) << " of " << to_string(graph->spec(op.inputs.at(0))) << ": " << kernel;
  }
  const auto microbatch = value_or_fail(executor->make_microbatch());
  std::vector<double> losses;
  for (uint64_t step = 1; step <= 2; ++step) {
    microbatch->context = {
        .seed = 0, .step = step, .sample_position = 0, .microbatch_size = model.inputs.at("x").shape()[0]};
    for (const auto& [input, tensor] : model.inputs)
      ok_or_fail(executor->set_input(*microbatch, input, tensor));
    ok_or_fail(executor->run(*microbatch));
    const auto* output = graph->find_output(dag::OutputRole::Loss);
    losses.push_back(dag::to_doubles(value_or_fail(executor->value(*microbatch, output->value)))[0]);
    ok_or_fail(executor->update({.step = step, .learning_rate = kRate, .gradient_scale = 1}));
  }
  return losses;
}

void expect_near_pytorch(const std::string& name, const std::vector<double>& losses) {
  const nlohmann::json& entry = family_losses().at(name);
  for (size_t i = 0; i < losses.size(); ++i) {
    const double exact = entry.at("float64")[i],
                 theirs = std::abs(entry.at("float32")[i].get<double>() - exact);
    EXPECT_NEAR(losses[i], exact, (i == 0 ? 1e-5 : 2e-4) * exact + (i == 0 ? 10 : 20) * theirs)
        << "step " << i + 1 << ", PyTorch's float32 is off by " << theirs;
  }
}

}  // namespace weft
