// What `weft gradcheck` says of right gradients that are hard to measure, and of wrong ones.
#include "cli/gradient_check.h"

#include <gtest/gtest.h>

#include "dag/onnx/import.h"
#include "dag/onnx/model.h"
#include "dag/passes/canonicalise.h"
#include "peer/backend/reference/reference_kernels.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft::cli {
namespace {

using dag::OpKind;

// The table with another vjp for one op.
dag::OpTable table_with(OpKind kind, void (*vjp)(dag::VjpContext&)) {
  dag::OpTable table;
  for (dag::OpRow row : dag::op_table().rows()) {
    if (row.kind == kind) row.vjp = vjp;
    table.add(row);
  }
  return table;
}

// The right vjp of `kind`, then every cotangent times `factor`.
template <OpKind kind, int percent>
void scaled_vjp(dag::VjpContext& context) {
  dag::op_table().row(kind).vjp(context);
  for (size_t i = 0; i < context.input_cotangents().size(); ++i) {
    const dag::ValueId right = context.input_cotangents()[i];
    if (!right.valid()) continue;
    const dag::ValueId factor = context.builder().scalar(context.spec(right).dtype, percent / 100.0);
    context.set(i, context.add(OpKind::Mul, {right, factor}));
  }
}

class GradientCheck : public testing::Test {
 protected:
  // The small ResNet of tests/numerics: among others a convolution's bias before BatchNormalization.
  void load(const std::string& name) {
    test::unpack_case(name, scratch_.folder());
    const auto model = onnx::read_model(scratch_.folder() / "model.onnx");
    ASSERT_TRUE(model.has_value()) << model.error().message;
    onnx::ImportOptions options;
    options.evaluate = peer::evaluate_reference;
    options.batch = 2;
    options.training = true;
    options.freeze = freeze_;
    auto imported = onnx::import_model(*model, options, dag::op_table());
    ASSERT_TRUE(imported.has_value()) << imported.error().message;
    graph_ = dag::canonicalise(imported->graph, dag::op_table()).value();
    weights_ = std::move(imported->weights);
  }
  GradientReport check(const dag::OpTable& table, uint64_t seed = 1) {
    const auto report = check_gradients(graph_, weights_, {.seed = seed, .directions = 1}, table);
    EXPECT_TRUE(report.has_value()) << report.error().message;
    return report.value_or(GradientReport{});
  }
  static std::map<std::string, GradientFinding> by_name(const GradientReport& report) {
    std::map<std::string, GradientFinding> findings;
    for (const GradientFinding& finding : report.findings) findings[finding.name] = finding;
    return findings;
  }

  test::Scratch scratch_;
  std::vector<std::string> freeze_;
  dag::Graph graph_;
  dag::Weights weights_;
};

TEST_F(GradientCheck, AZeroGradientAgreesWhateverTheSeed) {
  load("resnet_small");
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto findings = by_name(check(dag::op_table(), seed));
    EXPECT_GT(findings.size(), 20u);
    for (const auto& [name, finding] : findings)
      EXPECT_LE(finding.verdict, GradientVerdict::OnKink) << name << ": off by " << finding.difference;
    EXPECT_EQ(findings.at("conv.bias").verdict, GradientVerdict::AgreesWithZero);
    EXPECT_EQ(findings.at("fc.weight").verdict, GradientVerdict::Agrees);
    EXPECT_LE(findings.at("fc.weight").resolution, 1e-4 * findings.at("fc.weight").scale);
  }
}

TEST_F(GradientCheck, AGradientThatIsOnePercentTooLargeDiffersInEveryParameterBehindIt) {
  load("resnet_small");
  const auto findings = by_name(check(table_with(OpKind::Relu, scaled_vjp<OpKind::Relu, 101>)));
  for (const auto& [name, finding] : findings) {
    if (name == "conv.bias") continue;  // zero, whatever it is multiplied with
    // The last Relu stands before the head: only what is behind it is wrong.
    const bool wrong = !name.starts_with("fc.");
    EXPECT_EQ(finding.verdict == GradientVerdict::Differs, wrong)
        << name << ": off by " << finding.difference;
  }
}

TEST_F(GradientCheck, AGradientThatIsLostDiffers) {
  load("resnet_small");
  const auto findings = by_name(check(table_with(OpKind::BatchNorm, scaled_vjp<OpKind::BatchNorm, 0>)));
  EXPECT_EQ(findings.at("block3.conv2.weight").verdict, GradientVerdict::Differs);
  EXPECT_EQ(findings.at("block3.bn2.weight").verdict, GradientVerdict::Differs);
  EXPECT_EQ(findings.at("fc.weight").verdict, GradientVerdict::Agrees);
}

TEST_F(GradientCheck, AWrongGradientInATransformerDiffers) {
  freeze_ = {"mask"};
  load("gpt3");
  for (const auto& [name, finding] : by_name(check(dag::op_table())))
    EXPECT_LE(finding.verdict, GradientVerdict::AgreesWithZero) << name << ": off by " << finding.difference;
  const auto findings = by_name(check(table_with(OpKind::Softmax, scaled_vjp<OpKind::Softmax, 101>)));
  EXPECT_EQ(findings.at("h.1.c_attn.weight").verdict, GradientVerdict::Differs);
  EXPECT_EQ(findings.at("ln_f.weight").verdict, GradientVerdict::Agrees);
}

TEST_F(GradientCheck, AtAKinkTheGradientMustLieBetweenTheSlopes) {
  const auto verdict_at = [&](double value, bool wrong) {
    dag::GraphBuilder builder(dag::op_table());
    const dag::TensorSpec spec{dag::DType::F32, {1}};
    const dag::ValueId w = builder.initializer("w", spec, dag::InitializerRole::Parameter);
    builder.output("y", builder.add(OpKind::Relu, {w}), dag::OutputRole::Prediction);
    graph_ = builder.finish();
    weights_.clear();
    weights_.emplace("w", dag::from_doubles(spec, std::vector<double>{value}));
    const dag::OpTable too_large = table_with(OpKind::Relu, scaled_vjp<OpKind::Relu, 101>);
    return check(wrong ? too_large : dag::op_table()).findings.at(0).verdict;
  };
  EXPECT_EQ(verdict_at(0, false), GradientVerdict::OnKink);
  EXPECT_EQ(verdict_at(1, false), GradientVerdict::Agrees);
  EXPECT_EQ(verdict_at(1, true), GradientVerdict::Differs);
  EXPECT_EQ(verdict_at(-1, true), GradientVerdict::AgreesWithZero);
}

}  // namespace
}  // namespace weft::cli
