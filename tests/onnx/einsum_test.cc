// Einsum against the sum over all subscripts that it stands for, and reductions at their edges.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>

#include "base/rng.h"
#include "tests/onnx/models.h"

namespace weft::onnx::testing {
namespace {
using dag::DType;
using dag::Shape;
using dag::Tensor;

std::string operand(size_t i) { return "x" + std::to_string(i); }

ModelMaker einsum_model(const std::string& equation, const std::vector<Shape>& shapes, int32_t type) {
  ModelMaker maker;
  maker.output("y", type);
  std::vector<std::string> names;
  for (size_t i = 0; i < shapes.size(); ++i) {
    maker.input(operand(i), shapes[i], type);
    names.push_back(operand(i));
  }
  attribute(maker.node("Einsum", names, {"y"}), "equation", equation);
  return maker;
}

// What one operand is at a point of the space of all labels; a dim of one is stretched.
double factor(const Tensor& x, const std::string& labels, const std::map<char, int64_t>& point) {
  int64_t place = 0;
  for (size_t d = 0; d < labels.size(); ++d)
    place = place * x.shape()[d] + (x.shape()[d] == 1 ? 0 : point.at(labels[d]));
  return to_doubles(x)[static_cast<size_t>(place)];
}

// `plain` names every dim by a letter of its own and has an arrow: "ab,bc->ac".
std::vector<double> by_definition(const std::string& plain, const std::vector<Tensor>& operands) {
  const size_t arrow = plain.find("->");
  std::vector<std::string> terms{""};
  for (const char c : plain.substr(0, arrow)) {
    if (c == ',')
      terms.emplace_back();
    else
      terms.back() += c;
  }
  std::map<char, int64_t> sizes, point;
  for (size_t i = 0; i < terms.size(); ++i)
    for (size_t d = 0; d < terms[i].size(); ++d)
      sizes[terms[i][d]] = std::max(sizes[terms[i][d]], operands[i].shape()[d]);
  int64_t points = 1, results = 1;
  for (const auto& [label, size] : sizes) points *= size;
  for (const char label : plain.substr(arrow + 2)) results *= sizes[label];
  std::vector<double> y(static_cast<size_t>(results));
  for (int64_t k = 0; k < points; ++k) {
    int64_t rest = k, place = 0;
    for (const auto& [label, size] : sizes) point[label] = rest % size, rest /= size;
    double product = 1;
    for (size_t i = 0; i < terms.size(); ++i) product *= factor(operands[i], terms[i], point);
    for (const char label : plain.substr(arrow + 2)) place = place * sizes[label] + point[label];
    y[static_cast<size_t>(place)] += product;
  }
  return y;
}

struct Form {
  const char* equation;
  const char* plain;
  std::vector<Shape> shapes;
};

TEST(Einsum, EveryFormIsTheSumItStandsFor) {
  const Form forms[] = {
      {"ij,jk", "ij,jk->ik", {{2, 3}, {3, 4}}},
      {"ba,ca", "ba,ca->bc", {{2, 3}, {4, 3}}},
      {" i j -> j i ", "ij->ji", {{2, 3}}},
      {"ii", "ii->", {{3, 3}}},
      {"...ii->...i", "abii->abi", {{2, 3, 4, 4}}},
      {"iij,j->ij", "iij,j->ij", {{3, 3, 2}, {2}}},
      {"i,j->ij", "i,j->ij", {{2}, {3}}},
      {"i,i->", "i,i->", {{4}, {4}}},
      {"ij->", "ij->", {{2, 3}}},
      {",ij->ij", ",ij->ij", {{}, {2, 3}}},
      {"bhid,bhjd->bhij", "bhid,bhjd->bhij", {{2, 2, 3, 4}, {2, 2, 5, 4}}},
      {"...ij,...jk->...ik", "abij,bjk->abik", {{2, 3, 2, 4}, {3, 4, 2}}},
      {"...ij,...jk", "abij,abjk->abik", {{2, 1, 2, 4}, {2, 3, 4, 2}}},
      {"i...->...", "iab->ab", {{2, 3, 4}}},
      {"Ab,bC->AC", "Ab,bC->AC", {{2, 3}, {3, 4}}},
      {"ij,jk,kl->il", "ij,jk,kl->il", {{2, 3}, {3, 4}, {4, 2}}},
      {"i,i,i->i", "i,i,i->i", {{4}, {4}, {4}}},
      {"ab,bc,ac->", "ab,bc,ac->", {{2, 3}, {3, 4}, {2, 4}}},
      {"ab,cd,bd,a->c", "ab,cd,bd,a->c", {{2, 3}, {2, 4}, {3, 4}, {2}}},
      {"ij,ij->i", "ij,ij->i", {{2, 1}, {2, 3}}},
      {"ij,ik->k", "ij,ik->k", {{2, 3}, {2, 4}}},
  };
  Rng rng(3, /*stream=*/6);
  for (const Form& form : forms)
    for (const DType dtype : {DType::F32, DType::I64}) {
      SCOPED_TRACE(std::string(form.equation) + " " + std::string(to_string(dtype)));
      std::map<std::string, Tensor> inputs;
      std::vector<Tensor> operands;
      for (const Shape& shape : form.shapes) {
        std::vector<int64_t> values(static_cast<size_t>(dag::TensorSpec{dtype, shape}.element_count()));
        for (int64_t& value : values) value = static_cast<int64_t>(rng.below(9)) - 4;
        operands.push_back(dag::from_int64s({dtype, shape}, values));
        inputs[operand(operands.size() - 1)] = operands.back();
      }
      const int32_t type = dtype == DType::F32 ? pb::TensorProto::FLOAT : pb::TensorProto::INT64;
      const auto model = import_bytes(einsum_model(form.equation, form.shapes, type).bytes());
      ASSERT_TRUE(model.has_value()) << model.error().message;
      const auto outputs = run_graph(model->graph, model->weights, inputs);
      ASSERT_TRUE(outputs.has_value()) << outputs.error().message;
      EXPECT_EQ(to_doubles(outputs->at("y")), by_definition(form.plain, operands));
    }
}

TEST(Einsum, AnEquationThatDoesNotFitIsRefusedByName) {
  const std::pair<const char*, std::vector<Shape>> forms[] = {{"ij,jk->ik", {{2, 3}, {4, 2}}},
                                                              {"ij->ik", {{2, 3}}},
                                                              {"ij,jk->ik", {{2, 3}}},
                                                              {"ij->ii", {{2, 3}}},
                                                              {"ii->i", {{2, 3}}},
                                                              {"i1->i", {{2, 3}}},
                                                              {"ij->i0", {{2, 3}}},
                                                              {"...i->i....", {{2, 3}}},
                                                              {"", {{2, 3}}},
                                                              {"i->i", {{2, 3}}},
                                                              {"ij,->i->j", {{2, 3}, {}}}};
  for (const auto& [equation, shapes] : forms) {
    const auto imported = import_bytes(einsum_model(equation, shapes, pb::TensorProto::FLOAT).bytes());
    ASSERT_FALSE(imported.has_value()) << equation;
    EXPECT_EQ(imported.error().code, ErrorCode::InvalidArgument) << equation;
    EXPECT_NE(imported.error().message.find("Einsum_1"), std::string::npos) << imported.error().message;
  }
}

std::vector<double> reduced(const std::string& op, const Tensor& x, int32_t type, const Shape& axes) {
  ModelMaker maker;
  maker.input("x", x.shape(), type).output("y", type);
  auto& node = maker.node(op, {"x"}, {"y"});
  if (!axes.empty()) attribute(node, "axes", axes);
  attribute(node, "keepdims", int64_t{0});
  const auto model = import_bytes(maker.bytes());
  if (!model) throw std::runtime_error(model.error().message);
  const auto outputs = run_graph(model->graph, model->weights, {{"x", x}});
  if (!outputs) throw std::runtime_error(outputs.error().message);
  return to_doubles(outputs->at("y"));
}

TEST(Reductions, OfTruthValuesAreAnyAndAll) {
  const std::vector<int64_t> values{0, 1, 0, 0, 1, 1};
  const Tensor x = dag::from_int64s({DType::Bool, {3, 2}}, values);
  EXPECT_EQ(reduced("ReduceMax", x, pb::TensorProto::BOOL, {1}), (std::vector<double>{1, 0, 1}));
  EXPECT_EQ(reduced("ReduceMin", x, pb::TensorProto::BOOL, {1}), (std::vector<double>{0, 0, 1}));
}

TEST(Reductions, OfNothingAreTheNumberThatChangesNothing) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::pair<const char*, double> forms[] = {{"ReduceSum", 0},
                                                  {"ReduceProd", 1},
                                                  {"ReduceMax", -kInfinity},
                                                  {"ReduceMin", kInfinity},
                                                  {"ReduceLogSum", -kInfinity},
                                                  {"ReduceL1", 0},
                                                  {"ReduceL2", 0},
                                                  {"ReduceLogSumExp", -kInfinity}};
  for (const auto& [op, value] : forms) {
    // ReduceSum takes its axes as an operand here; none given is all.
    const Tensor x({DType::F32, {0, 3}});
    const bool all = std::string(op) == "ReduceSum";
    EXPECT_EQ(reduced(op, x, pb::TensorProto::FLOAT, all ? Shape{} : Shape{0}),
              std::vector<double>(all ? 1 : 3, value))
        << op;
  }
  EXPECT_EQ(reduced("ReduceMax", Tensor({DType::I32, {0, 1}}), pb::TensorProto::INT32, {0}),
            (std::vector<double>{-2147483648.0}));
  EXPECT_EQ(reduced("ReduceMin", Tensor({DType::Bool, {0, 1}}), pb::TensorProto::BOOL, {0}),
            (std::vector<double>{1}));
}

TEST(Reductions, TheLogarithmOfASumOfInfinitiesIsNoNaN) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values{-kInfinity, -kInfinity, kInfinity, 1, 1000, 1000};
  const Tensor x = dag::from_doubles({DType::F32, {3, 2}}, values);
  const auto y = reduced("ReduceLogSumExp", x, pb::TensorProto::FLOAT, {1});
  EXPECT_EQ(y[0], -kInfinity);
  EXPECT_EQ(y[1], kInfinity);
  EXPECT_NEAR(y[2], 1000 + std::log(2), 1e-4);
}

}  // namespace
}  // namespace weft::onnx::testing
