// Programs that only go forward ask that a row's bits depend neither on the rows beside it nor on trailing
// zeros (GroupSignature::rows_alone). Bits are compared, on each instruction set that the test is run under.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "dag/stored_matrix.h"
#include "tests/backend/cpu.h"
#include "tests/backend/run_graph.h"

namespace weft::peer {
namespace {

using dag::Attr;
using dag::Attributes;
using dag::Ints;
using dag::OpKind;
using dag::Shape;
using dag::Tensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The first result of one op.
Tensor result_of(Backend& backend, OpKind kind, const std::vector<Tensor>& operands,
                 const Attributes& attributes = {}) {
  dag::GraphBuilder b(dag::op_table());
  std::vector<dag::ValueId> inputs;
  for (const Tensor& operand : operands)
    inputs.push_back(b.input("x" + std::to_string(inputs.size()), operand.spec()));
  const dag::ValueId y = b.add_all(kind, inputs, attributes)[0];
  b.output("y", y, dag::OutputRole::Prediction);
  const dag::Graph graph = b.finish();
  GraphRun run(backend, graph);
  run.run(operands, {}, {}, /*rows_alone=*/true);
  return run.value(y);
}

// x[.., begin:end, ..] along `axis`.
Tensor slice(const Tensor& x, size_t axis, int64_t begin, int64_t end) {
  Shape shape = x.spec().shape;
  int64_t inner = 1, outer = 1;
  for (size_t d = 0; d < shape.size(); ++d) (d < axis ? outer : inner) *= d == axis ? 1 : shape[d];
  const int64_t size = shape[axis];
  shape[axis] = end - begin;
  Tensor y({dag::DType::F32, shape});
  for (int64_t o = 0; o < outer; ++o)
    std::copy_n(x.as<float>().begin() + (o * size + begin) * inner, (end - begin) * inner,
                y.mutable_as<float>().begin() + o * (end - begin) * inner);
  return y;
}

// The first differing element, or "" where all bits are equal.
std::string difference(const Tensor& a, const Tensor& b) {
  if (a.spec() != b.spec()) return to_string(a.spec()) + " and " + to_string(b.spec());
  for (size_t i = 0; i < a.as<float>().size(); ++i) {
    const float x = a.as<float>()[i], y = b.as<float>()[i];
    if (std::memcmp(&x, &y, sizeof x) != 0)
      return "element " + std::to_string(i) + ": " + std::to_string(x) + " and " + std::to_string(y);
  }
  return "";
}

uint64_t seed_of_run() {
  const char* given = std::getenv("WEFT_ROWS_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
}

struct ProductCase {
  Shape a, b;  // [.., M, K], [.., K, N] or [.., N, K]
  bool trans_b;
};

ProductCase random_product(Rng& rng) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng.uniform() * static_cast<double>(n)); };
  const int64_t m = 1 + below(40), n = 1 + below(below(2) == 0 ? 40 : 400), form = below(4);
  const int64_t k = below(3) == 0 ? 2048 + below(2953) : 1 + below(600);  // of many terms a sum might be cut
  ProductCase made{{m, k}, {k, n}, below(2) == 0};
  if (made.trans_b) made.b = {n, k};
  if (form == 1) made.a.insert(made.a.begin(), {3}), made.b.insert(made.b.begin(), {3});        // heads
  if (form == 2) made.a.insert(made.a.begin(), {2, 1}), made.b.insert(made.b.begin(), {2, 3});  // groups
  if (form == 3) made.a.insert(made.a.begin(), {2, 3}), made.b.insert(made.b.begin(), {3});
  return made;
}

TEST(CpuRows, ARowOfAProductHasTheBitsOfTheRowAlone) {
  const auto one = cpu(1), three = cpu(3);
  const uint64_t first = seed_of_run();
  for (uint64_t seed = first; seed < first + 60; ++seed) {
    Rng rng(seed, 0);
    const ProductCase c = random_product(rng);
    SCOPED_TRACE("WEFT_ROWS_SEED=" + std::to_string(seed) + " " + dag::to_string(c.a) + " " +
                 dag::to_string(c.b) + (c.trans_b ? " transposed" : ""));
    const Attributes attributes{{Attr::TransB, int64_t{c.trans_b}}};
    const Tensor a = random_tensor(c.a, seed), b = random_tensor(c.b, seed + 1000);
    const Tensor whole = result_of(*one, OpKind::MatMul, {a, b}, attributes);
    ASSERT_EQ(difference(whole, result_of(*three, OpKind::MatMul, {a, b}, attributes)), "") << "of threads";
    const size_t row_axis = c.a.size() - 2, result_axis = whole.spec().shape.size() - 2;
    const int64_t rows = c.a[row_axis];
    for (int64_t begin = 0, count = 1; begin < rows; begin += count, count = count % 9 + 1) {
      const int64_t end = std::min(rows, begin + count);
      const Tensor some = result_of(*three, OpKind::MatMul, {slice(a, row_axis, begin, end), b}, attributes);
      ASSERT_EQ(difference(slice(whole, result_axis, begin, end), some), "")
          << "rows " << begin << " to " << end;
    }
  }
}

// A weight in fewer bits is multiplied with as if it were the floats that it stands for.
TEST(CpuRows, AStoredWeightHasTheBitsOfItsFloats) {
  const auto one = cpu(1), three = cpu(3);
  const uint64_t first = seed_of_run();
  for (uint64_t seed = first; seed < first + 40; ++seed) {
    Rng rng(seed, 1);
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng.below(n)); };
    const bool trans_b = below(2) == 0, is_half = below(3) == 0;
    const int64_t m = 1 + below(20), k = 2 * (1 + below(below(3) == 0 ? 500 : 60)), n = 2 * (1 + below(200));
    dag::StoredMatrix matrix{.rows = trans_b ? n : k, .columns = trans_b ? k : n};
    dag::StoredTensors parts;
    if (is_half) {
      parts.numbers = round_to_half(random_tensor({matrix.rows, matrix.columns}, seed), matrix.numbers);
    } else {
      matrix.numbers = dag::DType::U8, matrix.bits = below(2) == 0 ? 4 : 8, matrix.zero_of_all = 7;
      if (below(2) == 0)
        matrix.block_rows = std::min(matrix.rows, 1 + below(40));
      else
        matrix.block_columns = std::min(matrix.columns, 1 + below(40));
      parts.numbers = Tensor(matrix.numbers_spec());
      for (uint8_t& byte : parts.numbers.mutable_as<uint8_t>()) byte = static_cast<uint8_t>(below(256));
      parts.scale = random_tensor(matrix.scale_spec().shape, seed + 2000);
    }
    SCOPED_TRACE("WEFT_ROWS_SEED=" + std::to_string(seed) + " " + to_string(matrix) + ", " +
                 std::to_string(m) + " rows" + (trans_b ? ", transposed" : ""));
    Attributes attributes = matrix.attributes();
    attributes.set(Attr::TransB, int64_t{trans_b});
    const Tensor a = random_tensor({m, k}, seed + 1000), b = widened_rows(matrix, parts, 0, matrix.rows);
    std::vector<Tensor> operands{a, parts.numbers};
    if (!is_half) operands.push_back(parts.scale);
    const Tensor floats = result_of(*one, OpKind::MatMul, {a, b}, {{Attr::TransB, int64_t{trans_b}}});
    ASSERT_EQ(difference(floats, result_of(*one, OpKind::StoredMatMul, operands, attributes)), "");
    ASSERT_EQ(difference(floats, result_of(*three, OpKind::StoredMatMul, operands, attributes)), "");
  }
}

// What is given to a network of another size: the same numbers, and what is neutral behind them along `axis`.
Tensor extended(const Tensor& x, size_t axis, int64_t size, float neutral) {
  Shape shape = x.spec().shape;
  const int64_t before = shape[axis];
  int64_t inner = 1, outer = 1;
  for (size_t d = 0; d < shape.size(); ++d) (d < axis ? outer : inner) *= d == axis ? 1 : shape[d];
  shape[axis] = size;
  Tensor y({dag::DType::F32, shape});
  std::fill(y.mutable_as<float>().begin(), y.mutable_as<float>().end(), neutral);
  for (int64_t o = 0; o < outer; ++o)
    std::copy_n(x.as<float>().begin() + o * before * inner, before * inner,
                y.mutable_as<float>().begin() + o * size * inner);
  return y;
}

TEST(CpuRows, TrailingZeroTermsOfAProductChangeNoBit) {
  const auto backend = cpu(2);
  for (const bool trans_b : {false, true}) {
    for (const int64_t rows : {1, 2, 5, 8, 9, 30}) {
      for (const int64_t length : {1, 15, 64, 100, 127}) {
        const Attributes attributes{{Attr::TransB, int64_t{trans_b}}};
        const Tensor p = random_tensor({4, rows, length}, 1);
        const Tensor v = random_tensor(trans_b ? Shape{4, 64, 1024} : Shape{4, 1024, 64}, 2);
        const size_t key_axis = trans_b ? 2 : 1;
        const Tensor exact =
            result_of(*backend, OpKind::MatMul, {p, slice(v, key_axis, 0, length)}, attributes);
        for (const int64_t capacity : {128, 384, 1024}) {
          SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(length) + " of " +
                       std::to_string(capacity) + (trans_b ? ", transposed" : ""));
          const Tensor masked =
              result_of(*backend, OpKind::MatMul,
                        {extended(p, 2, capacity, 0), slice(v, key_axis, 0, capacity)}, attributes);
          ASSERT_EQ(difference(masked, exact), "");
        }
      }
    }
  }
}

TEST(CpuRows, MaskedKeysChangeNoBitOfWhatIsTakenOverKeys) {
  const auto backend = cpu(2);
  struct Case {
    OpKind kind;
    float neutral;
    bool keeps_axis;  // else it is reduced
  };
  const Case cases[] = {{OpKind::Softmax, -kInfinity, true},
                        {OpKind::ReduceMax, -kInfinity, false},
                        {OpKind::ReduceSum, 0.0f, false}};
  for (const Case& c : cases) {
    for (const size_t axis : {size_t{1}, size_t{2}}) {  // of [3, keys, 5] and [3, 5, keys]
      Attributes attributes{{Attr::Axis, static_cast<int64_t>(axis)}};
      if (!c.keeps_axis)
        attributes = {{Attr::Axes, Ints{static_cast<int64_t>(axis)}}, {Attr::KeepDims, int64_t{0}}};
      for (const int64_t length : {1, 17, 33, 63}) {
        const Tensor x = random_tensor(axis == 1 ? Shape{3, length, 5} : Shape{3, 5, length}, 3);
        const Tensor exact = result_of(*backend, c.kind, {x}, attributes);
        for (const int64_t capacity : {64, 65, 128, 384, 1024, 5000, 20000}) {
          SCOPED_TRACE(std::string(to_string(c.kind)) + " axis " + std::to_string(axis) + " " +
                       std::to_string(length) + " of " + std::to_string(capacity));
          const Tensor whole =
              result_of(*backend, c.kind, {extended(x, axis, capacity, c.neutral)}, attributes);
          ASSERT_EQ(difference(c.keeps_axis ? slice(whole, axis, 0, length) : whole, exact), "");
        }
      }
    }
  }
}

// Sums over more keys than a block has, of which the last ones are masked.
TEST(CpuRows, LongSumsOverKeysDoNotDependOnTheCapacity) {
  const auto backend = cpu(2);
  const Attributes attributes{{Attr::Axes, Ints{0}}, {Attr::KeepDims, int64_t{0}}};
  const Tensor x = random_tensor({3000, 7}, 4);
  const Tensor exact = result_of(*backend, OpKind::ReduceSum, {x}, attributes);
  for (const int64_t capacity : {4096, 5000, 16384, 50000})
    EXPECT_EQ(
        difference(result_of(*backend, OpKind::ReduceSum, {extended(x, 0, capacity, 0)}, attributes), exact),
        "")
        << capacity;
}

struct RowCase {
  const char* name;
  OpKind kind;
  std::vector<bool> by_row{};  // of each operand: [R, C], else [C]
  Attributes attributes{};
  bool positive = false;
};

std::vector<RowCase> row_cases() {
  const std::vector<bool> one{true}, two{true, true}, bias{true, false};
  std::vector<RowCase> cases;
  for (const OpKind kind : {OpKind::Exp, OpKind::Tanh, OpKind::Sigmoid, OpKind::Erf, OpKind::Relu,
                            OpKind::Neg, OpKind::Sin, OpKind::Cos, OpKind::Softplus})
    cases.push_back({"unary", kind, one});
  for (const OpKind kind : {OpKind::Log, OpKind::Sqrt, OpKind::Reciprocal})
    cases.push_back({"unary", kind, one, {}, /*positive=*/true});
  for (const OpKind kind : {OpKind::Add, OpKind::Sub, OpKind::Mul, OpKind::Div})
    cases.push_back({"binary", kind, two}), cases.push_back({"bias", kind, bias});
  cases.push_back({"power", OpKind::Pow, two, {}, /*positive=*/true});
  for (const int64_t approximate : {0, 1})
    cases.push_back({"gelu", OpKind::Gelu, one, {{Attr::Approximate, approximate}}});
  const Attributes axis{{Attr::Axis, int64_t{1}}};
  cases.push_back({"softmax", OpKind::Softmax, one, axis});
  cases.push_back({"log softmax", OpKind::LogSoftmax, one, axis});
  cases.push_back({"layer norm",
                   OpKind::LayerNorm,
                   {true, false, false},
                   {{Attr::Axis, int64_t{1}}, {Attr::Epsilon, 1e-5}}});
  for (const OpKind kind : {OpKind::ReduceSum, OpKind::ReduceMean, OpKind::ReduceMax})
    cases.push_back({"reduce", kind, one, {{Attr::Axes, Ints{1}}, {Attr::KeepDims, int64_t{1}}}});
  return cases;
}

TEST(CpuRows, ARowHasTheSameBitsWhateverItsPlace) {
  const auto one = cpu(1), two = cpu(2);
  for (const RowCase& c : row_cases()) {
    for (const int64_t width : {1, 3, 7, 13, 16, 31, 100, 777}) {
      for (const int64_t rows : {2, 3, 9, 70}) {
        SCOPED_TRACE(std::string(c.name) + " " + std::string(to_string(c.kind)) + " " + std::to_string(rows) +
                     " x " + std::to_string(width));
        std::vector<Tensor> operands;
        for (size_t i = 0; i < c.by_row.size(); ++i) {
          operands.push_back(random_tensor(c.by_row[i] ? Shape{rows, width} : Shape{width}, 7 + i));
          for (float& v : operands.back().mutable_as<float>()) v = c.positive ? std::abs(v) + 0.01f : 6 * v;
        }
        const Tensor whole = result_of(*two, c.kind, operands, c.attributes);
        for (int64_t r = 0; r < rows; r += 1 + rows / 8) {
          std::vector<Tensor> alone;
          for (size_t i = 0; i < operands.size(); ++i)
            alone.push_back(c.by_row[i] ? slice(operands[i], 0, r, r + 1) : operands[i]);
          ASSERT_EQ(difference(slice(whole, 0, r, r + 1), result_of(*one, c.kind, alone, c.attributes)), "")
              << "row " << r;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::peer
