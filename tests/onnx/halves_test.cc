// Models in half precision: computed in float32, rounded where the file rounds, trained on float32 masters.
#include "dag/passes/halves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "dag/autodiff.h"
#include "dag/onnx/export.h"
#include "dag/passes/canonicalise.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {
using dag::DType;
using dag::HalfWeights;
using dag::OpKind;
using dag::Tensor;

constexpr int32_t kF16 = pb::TensorProto::FLOAT16, kBF16 = pb::TensorProto::BFLOAT16;
constexpr int64_t kBatch = 2, kIn = 4, kOut = 3;

int32_t proto_of(DType half) { return half == DType::F16 ? kF16 : kBF16; }
float rounded(double value, DType half) {
  return half == DType::F16 ? dag::float_from_f16(dag::f16_from_float(static_cast<float>(value)))
                            : dag::float_from_bf16(dag::bf16_from_float(static_cast<float>(value)));
}
std::vector<double> some_numbers(size_t count, double phase, DType half) {
  std::vector<double> values;
  for (size_t i = 0; i < count; ++i)
    values.push_back(static_cast<double>(rounded(std::sin(0.7 * static_cast<double>(i) + phase), half)));
  return values;
}

void half_weight(ModelMaker& maker, const std::string& name, DType half, const std::vector<int64_t>& dims,
                 double phase) {
  auto& tensor = *maker.graph().add_initializer();
  tensor.set_name(name);
  tensor.set_data_type(proto_of(half));
  size_t count = 1;
  for (const int64_t dim : dims) {
    tensor.add_dims(dim);
    count *= static_cast<size_t>(dim);
  }
  for (const double value : some_numbers(count, phase, half)) {
    const auto number = static_cast<float>(value);
    tensor.add_int32_data(half == DType::F16 ? dag::f16_from_float(number) : dag::bf16_from_float(number));
  }
}

// s = x W + b, y = Relu(s) s, every value a half.
ModelMaker half_model(DType half) {
  ModelMaker maker;
  maker.input("x", {-1, kIn}, proto_of(half)).output("y", proto_of(half));
  half_weight(maker, "w", half, {kIn, kOut}, 0.3);
  half_weight(maker, "b", half, {kOut}, 1.1);
  maker.node("MatMul", {"x", "w"}, {"product"});
  maker.node("Add", {"product", "b"}, {"sum"});
  maker.node("Relu", {"sum"}, {"positive"});
  maker.node("Mul", {"positive", "sum"}, {"y"});
  return maker;
}

struct Widened {
  dag::Graph graph;
  dag::Weights weights;
};
Widened widen(const ModelMaker& maker, HalfWeights weights) {
  auto imported = import_bytes(maker.bytes());
  if (!imported) throw std::runtime_error(imported.error().message);
  auto canonical = dag::canonicalise(imported->graph, dag::op_table());
  if (!canonical) throw std::runtime_error(canonical.error().message);
  Widened made{dag::widen_halves(*canonical, dag::op_table(), weights), {}};
  for (const auto& [name, tensor] : imported->weights)
    made.weights.emplace(name, is_half(tensor.dtype()) ? widen_half(tensor) : tensor);
  return made;
}
std::map<std::string, Tensor> must_run(const dag::Graph& graph, const dag::Weights& weights,
                                       const Tensor& x) {
  auto outputs = run_graph(graph, weights, {{"x", x}});
  if (!outputs) throw std::runtime_error(outputs.error().message);
  return std::move(*outputs);
}

class Halves : public ::testing::TestWithParam<DType> {
 protected:
  DType half() const { return GetParam(); }
  Tensor x() const { return from_list({half(), {kBatch, kIn}}, some_numbers(kBatch * kIn, 2, half())); }
};

TEST_P(Halves, PredictWhatRoundingAfterEachNodeGives) {
  const ModelMaker maker = half_model(half());
  const auto imported = import_bytes(maker.bytes());
  ASSERT_TRUE(imported.has_value()) << imported.error().message;
  const Widened wide = widen(maker, HalfWeights::AsInFile);
  const Tensor as_written = must_run(imported->graph, imported->weights, x()).at("y");
  const Tensor widened = must_run(wide.graph, wide.weights, x()).at("y");
  EXPECT_EQ(widened.dtype(), half());
  EXPECT_EQ(to_doubles(widened), to_doubles(as_written));
}

TEST_P(Halves, StandAtTheBordersOnly) {
  const Widened wide = widen(half_model(half()), HalfWeights::AsInFile);
  EXPECT_EQ(wide.graph.spec(wide.graph.inputs()[0]).dtype, half());
  EXPECT_EQ(wide.graph.spec(wide.graph.outputs()[0].value).dtype, half());
  for (const dag::Op& op : wide.graph.ops())
    if (op.kind != OpKind::Input && op.kind != OpKind::Cast) {
      EXPECT_EQ(wide.graph.spec(op.outputs[0]).dtype, DType::F32) << to_string(op.kind);
    }
  // Of the product, the sum and the square: Relu makes no new numbers, and the weights are the file's.
  EXPECT_EQ(count_kind(wide.graph, OpKind::RoundToHalf), 3);
}

TEST_P(Halves, MastersAreRoundedInEachForwardPass) {
  const Widened wide = widen(half_model(half()), HalfWeights::Masters);
  EXPECT_EQ(count_kind(wide.graph, OpKind::RoundToHalf), 3 + 2);
  EXPECT_EQ(wide.graph.spec(wide.graph.find_initializer("w")->value),
            (dag::TensorSpec{DType::F32, {kIn, kOut}}));
  EXPECT_EQ(wide.graph.spec(wide.graph.outputs()[0].value).dtype, DType::F32);
}

// One step of plain gradient descent on sum(y), by loops over the same float32 numbers.
struct Emulation {
  std::vector<double> w, b;

  std::vector<double> step(const std::vector<double>& x, double rate, DType half) {
    std::vector<double> y, dw(w.size()), db(b.size());
    for (size_t n = 0; n < kBatch; ++n)
      for (size_t j = 0; j < kOut; ++j) {
        double sum = 0;
        for (size_t k = 0; k < kIn; ++k)
          sum += x[n * kIn + k] * static_cast<double>(rounded(w[k * kOut + j], half));
        const double product = static_cast<double>(rounded(sum, half));
        const double biased =
            static_cast<double>(rounded(product + static_cast<double>(rounded(b[j], half)), half));
        const double positive = std::max(biased, 0.0);
        y.push_back(static_cast<double>(rounded(positive * biased, half)));
        if (positive == 0) continue;
        db[j] += 2 * positive;
        for (size_t k = 0; k < kIn; ++k) dw[k * kOut + j] += x[n * kIn + k] * 2 * positive;
      }
    for (size_t i = 0; i < w.size(); ++i) w[i] -= rate * dw[i];
    for (size_t i = 0; i < b.size(); ++i) b[i] -= rate * db[i];
    return y;
  }
};

TEST_P(Halves, TwoStepsAreThoseOfAnEmulation) {
  Widened wide = widen(half_model(half()), HalfWeights::Masters);
  dag::GraphCopy copy(wide.graph, dag::op_table());
  for (uint32_t i = 0; i < wide.graph.ops().size(); ++i) copy.copy(dag::OpId{i});
  copy.copy_outputs();
  const dag::ValueId loss =
      copy.builder().add(OpKind::ReduceSum, {copy.mapped(wide.graph.outputs()[0].value)},
                         {{dag::Attr::Axes, dag::Ints{0, 1}}, {dag::Attr::KeepDims, int64_t{0}}});
  copy.builder().output("loss", loss, dag::OutputRole::Loss);
  const auto trained = dag::differentiate(copy.finish(), dag::op_table());
  ASSERT_TRUE(trained.has_value()) << trained.error().message;

  Emulation emulation{to_doubles(wide.weights.at("w")), to_doubles(wide.weights.at("b"))};
  // A rate at which the masters move by less than a half's last place.
  constexpr double kRate = 1e-4;
  for (int step = 0; step < 3; ++step) {
    auto outputs = must_run(*trained, wide.weights, x());
    const std::vector<double> y = emulation.step(to_doubles(x()), kRate, half());
    double sum = 0;
    for (const double value : y) sum += value;
    EXPECT_NEAR(to_doubles(outputs.at("loss"))[0], sum, 1e-6) << step;
    for (auto& [name, values] : {std::pair{"w", &emulation.w}, std::pair{"b", &emulation.b}}) {
      std::vector<double> master = to_doubles(wide.weights.at(name));
      const std::vector<double> gradient = to_doubles(outputs.at(name));
      for (size_t i = 0; i < master.size(); ++i) {
        master[i] -= kRate * gradient[i];
        EXPECT_NEAR(master[i], (*values)[i], 1e-6) << step << " " << name << " " << i;
      }
      wide.weights.find(name)->second = from_list(wide.weights.at(name).spec(), master);
    }
  }
}

TEST_P(Halves, TrainedMastersAreWrittenInTheFilesType) {
  const auto model = read_bytes(half_model(half()).bytes());
  ASSERT_TRUE(model.has_value());
  const std::vector<double> masters{0.1, -2.0001, 1e-3};
  const auto bytes = trained_bytes(*model, {{"b", from_list({DType::F32, {kOut}}, masters)}});
  ASSERT_TRUE(bytes.has_value()) << bytes.error().message;
  const auto again = read_bytes(*bytes);
  ASSERT_TRUE(again.has_value());
  const Tensor& written = again->weights().find("b")->second;
  EXPECT_EQ(written.dtype(), half());
  for (size_t i = 0; i < masters.size(); ++i)
    EXPECT_EQ(to_doubles(written)[i], static_cast<double>(rounded(masters[i], half())));
  EXPECT_FALSE(trained_bytes(*model, {{"b", from_list({DType::F64, {kOut}}, masters)}}).has_value());
}

INSTANTIATE_TEST_SUITE_P(Types, Halves, ::testing::Values(DType::F16, DType::BF16),
                         [](const auto& of_case) { return std::string(to_string(of_case.param)); });

TEST(WidenHalves, LeavesOtherGraphsAsTheyAre) {
  const auto imported = import_bytes(linear_model().bytes());
  ASSERT_TRUE(imported.has_value());
  const dag::Graph same = dag::widen_halves(imported->graph, dag::op_table(), HalfWeights::Masters);
  EXPECT_EQ(same.ops().size(), imported->graph.ops().size());
}

}  // namespace
}  // namespace weft::onnx::testing
